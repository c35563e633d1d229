"""Unread octets of a connection, as the kernel's tables have them: where siw's overlooked first messages are."""

from __future__ import annotations

import socket

import pytest

from rpcrdma.verbs.device.overlooked import unread, unread_in
from tests.support.machine import needs_ipv6


@pytest.mark.parametrize(
    ("family", "host"), [(socket.AF_INET, "127.0.0.1"), pytest.param(socket.AF_INET6, "::1", marks=needs_ipv6)]
)
def test_octets_that_nobody_has_read(family: socket.AddressFamily, host: str) -> None:
    with socket.create_server((host, 0), family=family) as listener:
        ends = listener.getsockname()[:2]
        with socket.create_connection(ends) as client, listener.accept()[0] as accepted:
            local, peer = accepted.getsockname()[:2], accepted.getpeername()[:2]
            assert unread(local, peer) == 0
            client.sendall(b"overlooked")
            accepted.recv(1, socket.MSG_PEEK)
            assert unread(local, peer) == 10
            accepted.recv(4)
            assert unread(local, peer) == 6
            assert unread(peer, local) == 0, "the other direction"
        assert unread(local, peer) == 0, "the connection is gone"


def test_a_port_is_not_taken_for_the_beginning_of_another() -> None:
    table = (
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode"
        "\n   0: 0100007F:4E51 0100007F:8001 01 00000000:00000007 00:00000000 00000000 0 0 1"
        "\n   1: 0100007F:4E51 0100007F:8000 01 00000000:00000030 00:00000000 00000000 0 0 2"
    )
    assert unread_in(table, ("127.0.0.1", 20049), ("127.0.0.1", 0x8000)) == 0x30
    assert unread_in(table, ("127.0.0.1", 20049), ("127.0.0.1", 0x8001)) == 7
    assert unread_in(table, ("127.0.0.1", 20049), ("127.0.0.1", 0x800)) == 0


def test_what_is_no_address_has_nothing() -> None:
    assert unread(("", 0), ("", 0)) == 0
