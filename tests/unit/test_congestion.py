"""Connections within this machine are not paced; all others get the algorithm that the machine has for them."""

import socket

import pytest

from rpcrdma import congestion
from tests.support.machine import needs_ipv6

USUAL = socket.socket().getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0")


def algorithm(sock):
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0")


def accepted(family=socket.AF_INET, host="127.0.0.1"):
    """A listener that was prepared, and a connection it accepted."""
    with socket.socket(family) as listener:
        congestion.prepare(listener)
        listener.bind((host, 0))
        listener.listen()
        with socket.create_connection(listener.getsockname()[:2]):
            return listener.accept()[0]


@pytest.fixture
def paces(monkeypatch):
    """What this machine uses counts as pacing, whatever it is."""
    monkeypatch.setattr(congestion, "PACING", USUAL)


@pytest.mark.parametrize(
    ("family", "host"), [(socket.AF_INET, "127.0.0.1"), pytest.param(socket.AF_INET6, "::1", marks=needs_ipv6)]
)
def test_a_connection_from_here_is_not_paced(paces, family, host):
    with accepted(family, host) as connection:
        congestion.settle(connection)
        assert algorithm(connection) == congestion.UNPACED


def test_a_connection_from_elsewhere_is_as_usual(paces, monkeypatch):
    monkeypatch.setattr(congestion, "is_local", lambda peer, own: False)
    with accepted() as connection:
        assert algorithm(connection) == congestion.UNPACED
        congestion.settle(connection)
        assert algorithm(connection) == USUAL


def test_an_algorithm_that_does_not_pace_stays(monkeypatch):
    monkeypatch.setattr(congestion, "PACING", b"no such thing")
    with accepted() as connection:
        congestion.settle(connection)
        assert algorithm(connection) == USUAL


@pytest.mark.parametrize(
    ("peer", "own", "local"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("127.0.0.2", "127.0.0.1", True),
        ("::1", "::1", True),
        ("::ffff:127.0.0.1", "::ffff:127.0.0.1", True),
        ("::ffff:127.3.0.1", "::ffff:127.0.0.1", True),
        ("192.0.2.1", "192.0.2.1", True),
        ("fe80::1%eth0", "fe80::1%eth0", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("::ffff:192.0.2.1", "::ffff:192.0.2.2", False),
        ("fe80::1%eth0", "fe80::2%eth0", False),
        ("2001:db8::1", "2001:db8::2", False),
    ],
)
def test_whether_a_peer_is_this_machine(peer, own, local):
    assert congestion.is_local(peer, own) == local
