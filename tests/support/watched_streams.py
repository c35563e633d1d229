"""Record streams of the server whose turns are noted."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from rpcrdma.server import tcp_connection
from rpcrdma.tcp.stream import RecordStream


class Turn(NamedTuple):
    """Octets that it has received and sent, and those that wait to be sent at its end."""

    received: int
    sent: int
    queued: int


class WatchedStream(RecordStream):
    """A turn begins with :meth:`receive`, and ends with :meth:`flush`, or with :meth:`settle` where that is enough."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.watch()

    def _octets(self) -> tuple[int, int]:
        return self.received_octets, self.sent_octets

    def watch(self) -> list[Turn]:
        """The turns from now on."""
        self.turns: list[Turn] = []
        self.answers: list[int] = []
        """Of each :meth:`receive`, the octets of replies that it made."""
        self._before = self._octets()
        return self.turns

    def receive(self, readable: bool = True) -> Any:
        before = self.sent_octets + self.queued
        try:
            return super().receive(readable)
        finally:
            self.answers.append(self.sent_octets + self.queued - before)

    def flush(self, everything: bool = False) -> bool:
        try:
            return super().flush(everything)
        finally:
            self._ended()

    def settle(self) -> bool:
        settled = super().settle()
        if settled:
            self._ended()
        return settled

    def _ended(self) -> None:
        received, sent = self._octets()
        self.turns.append(Turn(received - self._before[0], sent - self._before[1], self.queued))
        self._before = received, sent


def watch_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have connections that are made from now on use such streams."""
    monkeypatch.setattr(tcp_connection, "RecordStream", WatchedStream)
