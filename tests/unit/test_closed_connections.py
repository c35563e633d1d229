"""A closed connection goes with its last user, without a collection of garbage; who still has it does no harm."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import gc
import weakref
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rpcrdma.server.rdma import RdmaServer
from rpcrdma.server.tcp import TcpListener
from tests.unit.nfs_client_support import Rig
from tests.unit.test_tls import Secured

NATIVE = {"NativeCalls", "NativeResponder", "RecordAnswers"}
"""Parts of connections of the server alone."""
WAYS = [("tcp", "3"), ("tcp", "4.1"), ("rdma", "3"), ("rdma", "4.1"), ("tls", "4.1")]


def rig_of(base: Path, transport: str, version: str) -> Rig:
    return Secured(base, version) if transport == "tls" else Rig(base, transport, version)


def parts() -> collections.Counter[str]:
    """How many there are of each that is in NATIVE."""
    return collections.Counter(name for one in gc.get_objects() if (name := type(one).__name__) in NATIVE)


@pytest.fixture(name="closed")
def fixture_closed(monkeypatch: pytest.MonkeyPatch) -> list[weakref.ref[Any]]:
    """All connections that listeners have let go of."""
    found: list[weakref.ref[Any]] = []
    for kind in (TcpListener, RdmaServer):

        def note(self: Any, connection: Any, *reason: str, forget: Callable[..., None] = kind.forget) -> None:
            found.append(weakref.ref(connection))
            forget(self, connection, *reason)

        monkeypatch.setattr(kind, "forget", note)
    return found


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """No collection happens."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 (nobody tells)
            await asyncio.sleep(0.01)


def connections(rig: Rig) -> list[Any]:
    """Those that the server has for NFS now."""
    return [
        connection
        for started in rig.daemon.listeners.of("nfs")
        for listener in (started.tcp, started.rdma)
        if listener is not None
        for connection in listener.connections
    ]


async def use(rig: Rig) -> None:
    """One connection, and calls of many kinds on it."""
    async with rig.connect() as fs:
        await fs.write_bytes("file", b"content" * 5000)
        assert await fs.read_bytes("file") == b"content" * 5000
        assert "file" in await fs.listdir("")


async def evicted(rig: Rig) -> None:
    """The server closes it while a call is under way; the client comes again."""
    async with rig.connect() as fs:
        await fs.write_bytes("file", b"content")
        calls = [asyncio.ensure_future(fs.write_bytes(f"file{number}", bytes(50000))) for number in range(8)]
        await asyncio.sleep(0)
        for connection in connections(rig):
            connection.evict("for a test")
        await asyncio.gather(*calls)


@pytest.mark.parametrize("end", [use, evicted])
@pytest.mark.parametrize(("transport", "version"), WAYS)
def test_it_goes_without_a_collection(
    tmp_path: Path, closed: list[weakref.ref[Any]], transport: str, version: str, end: Callable[[Rig], Awaitable[None]]
) -> None:
    rig = rig_of(tmp_path, transport, version)

    async def test() -> None:
        await end(rig)
        await until(lambda: not connections(rig))
        with uncollected():
            closed.clear()
            before = parts()
            for _ in range(5):
                await end(rig)
            await until(lambda: not connections(rig))
            assert len(closed) >= 5
            await until(lambda: all(ref() is None for ref in closed))
            await until(lambda: parts() == before)

    rig.run(test)


@pytest.mark.parametrize(("transport", "version"), WAYS)
def test_one_that_somebody_still_has_does_no_harm(tmp_path: Path, transport: str, version: str) -> None:
    rig = rig_of(tmp_path, transport, version)

    async def test() -> None:
        async with rig.connect() as fs:
            await fs.write_bytes("file", b"content")
            held = connections(rig)
            assert held
        await until(lambda: not connections(rig))
        await asyncio.sleep(0.05)  # what is let go of later is, too
        for connection in held:
            called: list[int] = []
            connection.on_close(lambda called=called: called.append(1))
            assert called == [1]
            assert connection.closed
            connection.check_time(asyncio.get_running_loop().time() + 1e6)
            connection.proceed()
            connection.set_tap(None)
            assert connection.describe().peer_address == "127.0.0.1"
            assert connection.idle
            assert connection.served > 0
            assert str(connection)
            with pytest.raises(ConnectionError):
                await connection.call_back(bytes(40))
            (await connection.lease(4096)).release()  # a reply of a call that ends late has its memory
            assert not connection.slowing.waits
            connection.slowing.wait()
            connection.slowing.go_on()
            connection.evict("for a test")
            connection.close()
        await use(rig)

    rig.run(test)
