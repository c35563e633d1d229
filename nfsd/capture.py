"""The command ``rdma-nfsd capture``: writes the traffic of a running daemon to a pcapng file.

Owns the client of the control socket and the file; imports the socket's address and request, and the making of
packets. This process makes the packets, so that the daemon only copies.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import stat
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from nfsd.control import CaptureRequest, address_in
from nfsd.metrics import program_version
from rpcrdma.capture import pcapng
from rpcrdma.capture.events import Reader
from rpcrdma.capture.frames import Frame, Framer

_RECEIVE = 1 << 20
_LONGEST_WAIT = 0.5
_COMMENT = (
    "Made by rdma-nfsd from what passed its providers' interfaces: RPC-over-RDMA messages, RDMA Writes and RDMA Reads "
    "of whatever provider in the form of iWARP, RPC records as TCP. It contains the data and the names of files."
)


class CaptureFailed(Exception):
    """Nothing can be captured; the text says why."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """When to stop by oneself; 0: never."""

    seconds: float = 0.0
    packets: int = 0


class Writer:
    """A pcapng file of frames."""

    def __init__(self, file: BinaryIO) -> None:
        self.packets = 0
        self._file = file
        self._interfaces: dict[str, int] = {}
        self._received: list[int] = []
        self._begun = time.time_ns()
        file.write(pcapng.section(f"rdma-nfsd {program_version()}", _COMMENT))

    def write(self, frame: Frame) -> None:
        """Add a packet."""
        number = self._number(frame.provider)
        self._received[number] += 1
        self.packets += 1
        direction = pcapng.INBOUND if frame.inbound else pcapng.OUTBOUND
        self._file.write(
            pcapng.packet(number, frame.time, frame.data, frame.length, direction, frame.lost, frame.comment)
        )

    def finish(self, lost: dict[str, int]) -> None:
        """Add the statistics; ``lost`` are events by provider."""
        now = time.time_ns()
        for name in lost:
            self._number(name)
        for name, number in self._interfaces.items():
            dropped = lost.get(name, 0)
            self._file.write(pcapng.statistics(number, self._begun, now, self._received[number] + dropped, dropped))
        self._file.flush()

    def flush(self) -> None:
        """Let readers have what there is."""
        self._file.flush()

    def _number(self, provider: str) -> int:
        number = self._interfaces.get(provider)
        if number is None:
            number = self._interfaces[provider] = len(self._interfaces)
            self._received.append(0)
            how = "RPC records over TCP" if provider == "tcp" else f"RPC over RDMA, provider {provider}, shown as iWARP"
            # The length is of messages, and pcapng's of packets: there may be several to a message, with headers.
            self._file.write(pcapng.interface(provider or "unknown", how, 0))
        return number


@contextlib.contextmanager
def open_output(path: str) -> Iterator[BinaryIO]:
    """The file, for its owner alone, also when it was there before; ``-`` is stdout. Raises CaptureFailed."""
    if path == "-":
        yield sys.stdout.buffer
        return
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                os.fchmod(descriptor, 0o600)
                os.ftruncate(descriptor, 0)
            yield file
    except OSError as error:
        raise CaptureFailed(f"{path}: {error.strerror}") from error


def connect(state_dir: str, request: CaptureRequest) -> socket.socket:
    """Ask the daemon that has this state directory. Raises CaptureFailed."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with address_in(state_dir) as address:
            connection.connect(address)
        connection.sendall(request.encode())
        line = b""
        while not line.endswith(b"\n"):
            octet = connection.recv(1)
            if not octet:
                raise CaptureFailed("the server closed the control socket")
            line += octet
        answer = json.loads(line)
        if "error" in answer:
            raise CaptureFailed(answer["error"])
    except (FileNotFoundError, ConnectionRefusedError) as error:
        connection.close()
        raise CaptureFailed(f"no server is running with the state directory {state_dir}") from error
    except PermissionError as error:
        connection.close()
        raise CaptureFailed("only root and the server's own user may capture") from error
    except OSError as error:
        connection.close()
        raise CaptureFailed(f"control socket in {state_dir}: {error.strerror}") from error
    except CaptureFailed:
        connection.close()
        raise
    return connection


def run(state_dir: str, output: str, request: CaptureRequest, bounds: Bounds) -> int:
    """Capture until a bound is reached, SIGINT or SIGTERM comes, or the server ends. Returns the exit status."""
    try:
        with contextlib.closing(connect(state_dir, request)) as connection, open_output(output) as file:
            writer = Writer(file)
            framer = Framer()

            def stop(*_: object) -> None:
                # The server sends what it still has, and closes; a second signal does not wait for that.
                for number in (signal.SIGINT, signal.SIGTERM):
                    signal.signal(number, signal.default_int_handler)
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_WR)

            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, stop)
            print("capturing; the file contains the data and the names of files", file=sys.stderr, flush=True)
            _copy(connection, framer, writer, bounds, stop)
            writer.finish(framer.lost)
    except CaptureFailed as failure:
        print(f"rdma-nfsd capture: {failure}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        return 0  # who reads our output has seen enough
    lost = sum(framer.lost.values())
    text = f"{writer.packets} packets in {output}" if output != "-" else f"{writer.packets} packets"
    if lost:
        text += f"; {lost} events were lost, since this side was too slow: --snaplen, --client or --buffer may help"
    print(text, file=sys.stderr)
    return 0


def _copy(connection: socket.socket, framer: Framer, writer: Writer, bounds: Bounds, stop: object) -> None:
    """Packets of what comes, until nothing comes any more or a bound is reached."""
    assert callable(stop)
    reader = Reader()
    deadline = time.monotonic() + bounds.seconds if bounds.seconds else None
    while True:
        # A signal that comes just before recv() waits is seen only when it returns.
        left = _LONGEST_WAIT if deadline is None else min(_LONGEST_WAIT, deadline - time.monotonic())
        connection.settimeout(max(left, 0.001))
        try:
            data = connection.recv(_RECEIVE)
        except TimeoutError:
            if deadline is not None and time.monotonic() >= deadline:
                stop()
                deadline = None
            continue
        if not data:
            return
        for event in reader.feed(data):
            for frame in framer.frames(event):
                writer.write(frame)
                if writer.packets == bounds.packets:
                    return
        writer.flush()
