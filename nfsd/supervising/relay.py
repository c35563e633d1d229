"""Captures of all processes as one: events of each, with the connections numbered anew.

Owns :class:`Relay`, which the control socket takes for the captures of a server. A process numbers its connections from
1; here number k of process i of n is k * n + i. Imports the captures.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Final

from nfsd.control import CaptureRequest, address_in
from rpcrdma.capture.events import Event, Kind, Reader
from rpcrdma.capture.recorder import Captures, Recorder
from rpcrdma.firewall import spawn

_CHUNK: Final = 1 << 20


class Relay(Captures):
    """The captures of several processes."""

    def __init__(self, directories: Callable[[], Sequence[str]]) -> None:
        """``directories``: the state directory of each process."""
        super().__init__()
        self._directories = directories
        self._running: dict[Recorder, set[asyncio.Task[None]]] = {}

    def start(self, recorder: Recorder) -> None:
        """Begin a capture. Raises ValueError when there are too many."""
        super().start(recorder)
        tasks = self._running[recorder] = set()
        directories = self._directories()
        for index, directory in enumerate(directories):
            spawn(self._pass_on(recorder, index, len(directories), directory), tasks)

    def stop(self, recorder: Recorder) -> None:
        """End a capture."""
        for task in self._running.pop(recorder, ()):
            task.cancel()
        super().stop(recorder)

    async def _pass_on(self, recorder: Recorder, index: int, count: int, directory: str) -> None:
        """Events of one process, until it ends, or the capture."""
        request = CaptureRequest(recorder.snaplen, recorder.client, min(max(recorder.limit // count, 1 << 20), 1 << 28))
        try:
            with address_in(directory) as address:
                stream, writer = await asyncio.open_unix_connection(address)
            try:
                writer.write(request.encode())
                if "error" in json.loads(await stream.readline()):
                    return
                reader = Reader()
                while octets := await stream.read(_CHUNK):
                    for event in reader.feed(octets):
                        _add(recorder, event, event.connection * count + index if event.connection else 0)
            finally:
                writer.close()
        except (OSError, ValueError):
            return  # it is being started, or has ended: what the others show goes on


def _add(recorder: Recorder, event: Event, connection: int) -> None:
    if event.kind is Kind.LOST:
        recorder.miss(connection, event.length)
    else:
        recorder.add(
            event.kind, connection, (event.data,), event.length, event.handle, event.offset, event.number,
            now=event.time,
        )  # fmt: skip
