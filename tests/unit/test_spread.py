"""Sockets that share a port: the kernel's choice is the one that is worked out here, by the address alone."""

from __future__ import annotations

import contextlib
import errno
import select
import socket
from collections import Counter
from collections.abc import Iterator

import pytest

from rpcrdma.server.sockets import bind
from rpcrdma.server.spread import place_of, spread


@contextlib.contextmanager
def spread_over(host: str, count: int, kind: int = socket.SOCK_STREAM) -> Iterator[tuple[list[socket.socket], int]]:
    made = spread(host, 0, count, kind)
    try:
        yield made, made[0].getsockname()[1]
    finally:
        for sock in made:
            sock.close()


def whose(made: list[socket.socket]) -> int:
    ready, _, _ = select.select(made, [], [], 30)
    return made.index(ready[0])


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::"])
@pytest.mark.parametrize("count", [2, 3, 8])
def test_all_connections_of_an_address_get_the_same_socket(host: str, count: int) -> None:
    with spread_over(host, count) as (made, port):
        seen = Counter()
        for number in range(1, 41):
            own = f"127.0.{number % 3}.{number}"
            for _ in range(2):  # from two ports
                with socket.create_connection(("127.0.0.1", port), source_address=(own, 0)):
                    place = whose(made)
                    made[place].accept()[0].close()
                assert place == place_of(own, count), own
            seen[place] += 1
        assert len(seen) == count, "each has somebody"


def test_ipv6_networks_are_one_peer_each() -> None:
    with spread_over("::1", 3) as (made, port):
        with socket.create_connection(("::1", port)):
            place = whose(made)
            made[place].accept()[0].close()
        assert place == place_of("::1", 3)
    assert len({place_of(f"2001:db8:0:1::{number:x}", 8) for number in range(1, 100)}) == 1
    assert len({place_of(f"2001:db8:0:{number:x}::1", 8) for number in range(1, 100)}) == 8
    assert place_of("::ffff:10.0.0.7", 8) == place_of("10.0.0.7", 8)


def test_datagrams_go_where_connections_go() -> None:
    with spread_over("127.0.0.1", 3, socket.SOCK_DGRAM) as (made, port):
        for number in range(1, 20):
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
                sender.bind((f"127.0.0.{number}", 0))
                sender.sendto(b"x", ("127.0.0.1", port))
                place = whose(made)
                made[place].recv(10)
            assert place == place_of(f"127.0.0.{number}", 3)


def test_neighbours_are_spread_evenly() -> None:
    for base in ("10.0.0.", "192.168.7.", "172.16.255."):
        load = Counter(place_of(f"{base}{number}", 8) for number in range(1, 255))
        assert max(load.values()) <= 1.25 * 254 / 8
        assert len(load) == 8


def test_nobody_shares_the_port_unasked() -> None:
    with bind("127.0.0.1", 0) as other:
        with pytest.raises(OSError, match="in use") as caught:
            spread("127.0.0.1", other.getsockname()[1], 2)
        assert caught.value.errno == errno.EADDRINUSE
    with spread_over("127.0.0.1", 2) as (_, port):  # a second server of this kind
        with pytest.raises(OSError, match="in use") as caught:
            spread("127.0.0.1", port, 2)
        assert caught.value.errno == errno.EADDRINUSE


def test_connections_wait_for_a_process_that_is_started_again() -> None:
    """Whoever serves has a copy of the socket; that one is closed changes nothing as long as another is kept."""
    own = next(f"127.0.0.{n}" for n in range(2, 100) if place_of(f"127.0.0.{n}", 2) == 0)
    with spread_over("127.0.0.1", 2) as (made, port):
        made[0].dup().close()
        with socket.create_connection(("127.0.0.1", port), source_address=(own, 0)) as client:
            client.sendall(b"hello")
            assert whose(made) == 0
            with made[0].dup() as again:
                accepted, _ = again.accept()
                assert accepted.recv(5) == b"hello"
                accepted.close()
