"""Whose turn it is where handshakes share a thread."""

from __future__ import annotations

import socket
import threading
from collections import Counter

import pytest

from rpcrdma.tls import handshakes
from rpcrdma.tls.handshake import WRITE, Handshake
from rpcrdma.tls.secrets import KeyLog

CROWD = 50


class Busy(handshakes.Handshakes):
    """A thread whose handshakes always have more to do."""

    def __init__(self) -> None:
        self.order: list[Handshake] = []
        self.enough = threading.Event()
        super().__init__(KeyLog())

    def step(self, one: Handshake) -> int | None:
        if len(self._present) == CROWD + 1:
            self.order.append(one)
        if len(self.order) >= 600:
            self.enough.set()
        return WRITE


def test_a_host_with_many_connections_has_no_more_turns_than_a_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshakes, "HOST_HANDSHAKES", CROWD)
    monkeypatch.setattr(handshakes, "HANDSHAKE_TIME", 3600.0)
    thread = Busy()
    ends: list[socket.socket] = []
    for number in range(CROWD + 1):
        ends += socket.socketpair()
        host = "192.0.2.2" if number == CROWD else "192.0.2.1"
        thread.begin(ends[-1], host, lambda *_: None, lambda *_: None)  # type: ignore[arg-type]
    assert thread.enough.wait(60)
    thread.close()
    hosts = Counter(one.host for one in thread.order[:300])
    assert hosts["192.0.2.2"] >= 99
    assert len(set(thread.order)) == CROWD + 1  # and each of the others comes to its turn
    for end in ends:
        end.close()
