"""The running daemon's control socket: its users, and its requests.

Owns :class:`Control` and the addresses of the socket; imports the captures. The socket is ``control`` in the state
directory. Only root and the daemon's own user may use it. The modes of the directory and of the socket ensure that,
and the kernel says who has connected (SO_PEERCRED, unix(7)).

A connection has one request. It is a line of JSON, and so is the answer. After ``{"command": "capture", ...}``
(:class:`CaptureRequest`) the server sends events (:mod:`rpcrdma.capture.events`) until either side ends the capture.
The client ends it by shutting down its side; it still gets the queued events. All other requests are commands that
were given to :class:`Control`. They have one answer, with ``error`` if the command failed.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import logging
import os
import socket
import struct
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

from rpcrdma.capture.recorder import Captures, Recorder
from rpcrdma.firewall import spawn

_log = logging.getLogger(__name__)

NAME = "control"
MOST_CONNECTIONS = 16
_LONGEST_REQUEST = 4096
_HIGH_WATER = 1 << 20
"""Octets given to the event loop at a time; the rest waits in the recorder, where it is bounded."""
_PATIENCE = 10.0
_LAST_PATIENCE = 2.0
_PEER = struct.Struct("iII")


Command = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]
"""Carries out a request: its fields but the command's name, to the fields of the answer. Raises ValueError, OSError."""


@dataclass(frozen=True, slots=True)
class CaptureRequest:
    """What is to be captured."""

    snaplen: int = 0
    """Octets of each message, RDMA Write or Read, or record; 0: all."""
    client: str = ""
    """Only this client's address; empty: all."""
    buffer: int = 32 << 20
    """Octets that may wait for the reader."""

    def encode(self) -> bytes:
        """The line."""
        return json.dumps({"command": "capture", **asdict(self)}).encode() + b"\n"

    @classmethod
    def decode(cls, line: bytes) -> CaptureRequest:
        """Of a line. Raises ValueError."""
        try:
            asked = json.loads(line)
            if asked.pop("command") != "capture":
                raise ValueError("unknown command")
            request = cls(**asked)
        except (KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError("not a request") from error
        if type(request.snaplen) is not int or not 0 <= request.snaplen < 1 << 32:
            raise ValueError("snaplen must be an octet count")
        if type(request.buffer) is not int or not 1 << 20 <= request.buffer <= 256 << 20:
            raise ValueError("buffer must be from 1 MiB to 256 MiB")
        if request.client:
            return replace(request, client=str(ipaddress.ip_address(request.client)))
        return request


@contextlib.contextmanager
def address_in(state_dir: str) -> Iterator[str]:
    """The socket's address, short enough for any directory (sun_path has 108 octets). Raises OSError."""
    directory = os.open(state_dir, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{NAME}"
    finally:
        os.close(directory)


class Control:
    """The socket, and the connections through it."""

    def __init__(self, captures: Captures, commands: Mapping[str, Command] | None = None) -> None:
        """``commands``: what is done for all other requests, by name."""
        self.captures = captures
        self.commands = dict(commands or {})
        self.tasks: set[asyncio.Task[None]] = set()
        self.sessions: set[_Session] = set()
        self._path = ""
        self._server: asyncio.Server | None = None
        captures.on_failure = self._failed

    async def start(self, state_dir: str) -> None:
        """Listen. The caller holds the directory's lock, so that what is left there is nobody's. Raises OSError."""
        self._path = os.path.join(state_dir, NAME)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            with address_in(state_dir) as address:
                sock.bind(address)
                os.chmod(address, 0o600)
            sock.listen(8)
            self._server = await asyncio.get_running_loop().create_unix_server(lambda: _Session(self), sock=sock)
        except BaseException:
            sock.close()
            raise

    async def close(self) -> None:
        """Stop listening, and end what is going on once it has been sent, soon."""
        if self._server is not None:
            self._server.close()
        for task in list(self.tasks):
            task.cancel()
        for session in list(self.sessions):
            session.finish()
        with contextlib.suppress(OSError):
            os.unlink(self._path)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_PATIENCE):
                while self.sessions:  # noqa: ASYNC110 (the end of a process is no place for more state)
                    await asyncio.sleep(0.01)

    def _failed(self, recorder: Recorder) -> None:
        for session in self.sessions:
            if session.recorder is recorder:
                session.finish()


class _Session(asyncio.Protocol):
    """One connection."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._transport: asyncio.Transport
        self._line = b""
        self._paused = self._due = self._finished = False
        self._timer: asyncio.TimerHandle | None = None
        self._asked = False
        """A request is being carried out, or has been."""
        self.recorder: Recorder | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Look who it is."""
        # uvloop's transports derive from nothing.
        self._transport = transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        _, uid, _ = _PEER.unpack(peer)
        if not may_control(uid):
            _log.warning("control socket: uid %d is neither root nor this server's user", uid)
            self._answer({"error": "only root and the server's own user may ask for this"})
            transport.close()
            return
        if len(self._control.sessions) >= MOST_CONNECTIONS:
            transport.abort()
            return
        self._control.sessions.add(self)
        transport.set_write_buffer_limits(high=_HIGH_WATER)
        self._timer = asyncio.get_running_loop().call_later(_PATIENCE, transport.abort)

    def data_received(self, data: bytes) -> None:
        """The request; what comes behind it means nothing."""
        if self.recorder is not None or self._asked or self not in self._control.sessions:
            return
        self._line += data
        line, end, _ = self._line.partition(b"\n")
        if not end and len(line) <= _LONGEST_REQUEST:
            return
        if self._timer is not None:
            self._timer.cancel()
        try:
            if not end:
                raise ValueError("too long a request")
            if (command := self._command(line)) is not None:
                spawn(command, self._control.tasks)
                return
            request = CaptureRequest.decode(line)
            recorder = Recorder(request.buffer, request.snaplen, request.client, self._wake)
            self._answer({"capturing": True})
            self.recorder = recorder
            self._control.captures.start(recorder)
        except ValueError as error:
            self.recorder = None
            self._answer({"error": str(error)})
            self._transport.close()
        else:
            _log.info("a capture has begun%s", f", of {request.client}" if request.client else "")

    def _command(self, line: bytes) -> Coroutine[Any, Any, None] | None:
        """What carries out a request that is none for a capture. Raises ValueError."""
        try:
            asked = json.loads(line)
        except RecursionError as error:
            raise ValueError("not a request") from error
        if not isinstance(asked, dict):
            raise ValueError("not a request")
        command = self._control.commands.get(str(asked.pop("command", "")))
        if command is None:
            return None
        self._asked = True
        return self._carry_out(command, asked)

    async def _carry_out(self, command: Command, asked: dict[str, Any]) -> None:
        answer: dict[str, Any]
        try:
            answer = await command(asked)
        except ValueError as error:
            answer = {"error": str(error)}
        except OSError as error:
            answer = {"error": f"{error.filename or ''}: {error.strerror or error}".removeprefix(": ")}
        except Exception:
            _log.exception("a request on the control socket failed")
            answer = {"error": "the server failed; its log says how"}
        if not self._transport.is_closing():
            self._answer(answer)
            self._transport.close()

    def _answer(self, answer: dict[str, object]) -> None:
        self._transport.write(json.dumps(answer).encode() + b"\n")

    def eof_received(self) -> bool:
        """The client has had enough; or has asked, and waits for the answer."""
        if not self._asked:
            self.finish()
        return True

    def connection_lost(self, error: Exception | None) -> None:
        """It is over."""
        if self._timer is not None:
            self._timer.cancel()
        self._control.sessions.discard(self)
        recorder, self.recorder = self.recorder, None
        if recorder is not None:
            self._control.captures.stop(recorder)
            _log.info("a capture has ended: %d events, %d lost", recorder.events, recorder.lost)

    def finish(self) -> None:
        """Record no more; close when everything has been sent, or the client takes nothing for long."""
        if self._finished:
            return
        self._finished = True
        if self.recorder is not None:
            self._control.captures.stop(self.recorder)
            self._timer = asyncio.get_running_loop().call_later(_PATIENCE, self._transport.abort)
        self._pump()

    def pause_writing(self) -> None:
        """Enough for now."""
        self._paused = True

    def resume_writing(self) -> None:
        """Go on."""
        self._paused = False
        self._pump()

    def _wake(self) -> None:
        if not self._due and not self._paused:
            self._due = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        self._due = False
        recorder = self.recorder
        chunk = b""
        while recorder is not None and not self._paused and not self._transport.is_closing():
            chunk = recorder.take()
            if not chunk:
                break
            self._transport.write(chunk)
        if self._finished and not self._paused and not chunk:
            self._transport.close()


def may_control(uid: int) -> bool:
    """Whether a process of this user may."""
    return uid in (0, os.geteuid())
