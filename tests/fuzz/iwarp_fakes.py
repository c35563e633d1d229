"""The surroundings of a connection under test: an event loop run by hand, an owner, and a reader of sent octets."""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable
from functools import partial
from typing import Any

from rpcrdma.verbs.softiwarp.crc import crc32c
from tests.fuzz.iwarp_model import READ_REQUEST, READ_RESPONSE, TERMINATE


class Errors(logging.Handler):
    """Keeps what is logged as an error: an exception that a callback swallowed."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.records: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(self.format(record))


ERRORS = Errors()
log = logging.getLogger("rpcrdma.softiwarp")
log.addHandler(ERRORS)
logging.getLogger("rpcrdma.firewall").addHandler(ERRORS)


class Timer:
    def __init__(self, callback: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        self.callback, self.arguments, self.cancelled = callback, arguments, False

    def cancel(self) -> None:
        self.cancelled = True


class Loop:
    """As much of an event loop as a connection needs, run by hand."""

    def __init__(self) -> None:
        self.readers: dict[int, Callable[[], object]] = {}
        self.writers: dict[int, Callable[[], object]] = {}
        self.soon: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self.timers: list[Timer] = []
        self.now = 1000.0

    def time(self) -> float:
        return self.now

    def add_reader(self, descriptor: int, callback: Callable[..., object], *arguments: Any) -> None:
        self.readers[descriptor] = partial(callback, *arguments)

    def remove_reader(self, descriptor: int) -> bool:
        return self.readers.pop(descriptor, None) is not None

    def add_writer(self, descriptor: int, callback: Callable[..., object], *arguments: Any) -> None:
        self.writers[descriptor] = partial(callback, *arguments)

    def remove_writer(self, descriptor: int) -> bool:
        return self.writers.pop(descriptor, None) is not None

    def call_soon(self, callback: Callable[..., None], *arguments: Any) -> None:
        self.soon.append((callback, arguments))

    def call_later(self, delay: float, callback: Callable[..., None], *arguments: Any) -> Timer:
        self.timers.append(Timer(callback, arguments))
        return self.timers[-1]

    def run(self) -> None:
        """Do everything that is ready."""
        for _ in range(100):
            ready, self.soon = self.soon, []
            for callback, arguments in ready:
                callback(*arguments)
            if not self.soon:
                return
        raise AssertionError("the connection never comes to rest")

    def expire(self) -> None:
        """Let every timer fire."""
        timers, self.timers = self.timers, []
        for timer in timers:
            if not timer.cancelled:
                timer.callback(*timer.arguments)
        self.run()


class Owner:
    """A connection's owner that keeps what it is told."""

    def __init__(self) -> None:
        self.messages: list[tuple[bytes, int | None]] = []
        self.tokens: list[tuple[int, bool]] = []
        self.reasons: list[str] = []

    def received(self, messages: Any) -> None:
        assert not self.reasons
        for lease, length, invalidated in messages:
            self.messages.append((bytes(lease.view[:length]), invalidated))
            lease.release()

    def completed(self, token: Any, ok: bool) -> None:
        # What is posted after the end is reported as well.
        assert not ok or not self.reasons
        self.tokens.append((token, ok))

    def disconnected(self, reason: str) -> None:
        self.reasons.append(reason)


class Sent:
    """Reads the FPDUs that the connection sends."""

    def __init__(self, crc: bool) -> None:
        self.crc = crc
        self.buffer = b""
        self.responses: list[tuple[int, int, bytes]] = []
        self.open_response: bytearray | None = None
        self.reads: list[tuple[int, int]] = []
        self.terminate: bytes | None = None

    def take(self, data: bytes) -> None:
        self.buffer += data
        while len(self.buffer) >= 2:
            ulpdu = int.from_bytes(self.buffer[:2], "big")
            framed = (ulpdu + 5) & ~3
            if len(self.buffer) < framed + 4:
                return
            body, trailer = self.buffer[:framed], self.buffer[framed : framed + 4]
            self.buffer = self.buffer[framed + 4 :]
            assert trailer == (struct.pack("<I", crc32c(body)) if self.crc else bytes(4))
            assert self.terminate is None, "something follows the Terminate"
            self.ulpdu(body[2 : 2 + ulpdu])

    def ulpdu(self, ulpdu: bytes) -> None:
        assert ulpdu[0] & 3 == 1
        assert ulpdu[1] & 0xC0 == 0x40
        opcode, last = ulpdu[1] & 0xF, ulpdu[0] & 0x40
        if opcode == READ_RESPONSE:
            stag, offset = struct.unpack_from(">IQ", ulpdu, 2)
            if self.open_response is None:
                self.open_response = bytearray()
                self.responses.append((stag, offset, b""))
            self.open_response += ulpdu[14:]
            if last:
                stag, offset, _ = self.responses.pop()
                self.responses.append((stag, offset, bytes(self.open_response)))
                self.open_response = None
        elif opcode == READ_REQUEST:
            sink, _, size, _, _ = struct.unpack_from(">IQIIQ", ulpdu, 18)
            self.reads.append((sink, size))
        elif opcode == TERMINATE:
            self.terminate = ulpdu[18:]
