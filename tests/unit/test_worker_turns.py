"""Whose job a worker takes next: hosts take turns in each lane, and syncs leave workers to what is quick."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import uvloop

from nfsd.protocol import nfs3
from nfsd.vfs.executor import Chain, Executor
from rpcrdma.callers import CALLING_HOST
from tests.hostile.peer import nfs3_call, results3
from tests.nfs3_client import attributes
from tests.support.hosts import Site, on_site
from tests.unit import vfs_support
from tests.unit.test_host_memory import root_of

READ, WRITE, FSYNC = 0, 1, 74
GREEDY, HONEST, OTHER = "127.0.0.2", "127.0.0.3", "127.0.0.4"
PATIENCE = 60.0


class Lane:
    """Jobs of hosts in one lane. Each says that it begins, and may have to wait until it is let go on."""

    def __init__(self, executor: Executor, workers: int, number: int = 1) -> None:
        self.executor, self.number = executor, number
        executor.allow_threads(workers + 2)
        executor.set_lane(number, workers)
        self.told, self._tell = os.pipe2(os.O_NONBLOCK)
        self._waits, self._let_go = os.pipe()
        self.running: list[asyncio.Future[None]] = []
        self.begun = ""

    def put(self, host: str, name: str, *, syncs: bool = False, waits: bool = False) -> asyncio.Future[None]:
        """``name``: one letter."""
        chain = Chain()
        chain.add(WRITE, self._tell, name.encode(), 1)
        if syncs:
            chain.add(FSYNC, self._tell, keep_going=True)  # pipes have none
        if waits:
            chain.add(READ, self._waits, bytearray(1), 1)
        before = CALLING_HOST.set(host)
        try:
            future = self.executor.run(chain, self.number)
        finally:
            CALLING_HOST.reset(before)
        self.running.append(future)
        return future

    def let_go(self, count: int = 1) -> None:
        """Of those that wait."""
        os.write(self._let_go, bytes(count))

    async def begin(self, count: int) -> str:
        """The names of so many that have begun, in their order, with those before."""
        async with asyncio.timeout(PATIENCE):
            while len(self.begun) < count:
                with contextlib.suppress(BlockingIOError):
                    self.begun += os.read(self.told, 100).decode()
                await asyncio.sleep(0.001)
        return self.begun

    async def all(self) -> str:
        self.let_go(len(self.running))
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*self.running)
        return await self.begin(len(self.running))

    def close(self) -> None:
        for end in (self.told, self._tell, self._waits, self._let_go):
            os.close(end)


def on_lane(test, workers: int) -> None:  # type: ignore[no-untyped-def]
    async def main() -> None:
        executor = Executor(asyncio.get_running_loop(), 4)
        lane = Lane(executor, workers)
        try:
            await test(lane)
        finally:
            lane.let_go(200)
            executor.close()
            lane.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def test_hosts_take_turns() -> None:
    async def test(lane: Lane) -> None:
        lane.put(GREEDY, "a", waits=True)
        await lane.begin(1)
        for _ in range(126):
            lane.put(GREEDY, "a")
        for _ in range(2):
            lane.put(HONEST, "b")
            lane.put(OTHER, "c")
            lane.put("", "d")
        await asyncio.sleep(0)  # they are handed over
        order = await lane.all()
        assert order[1:9] == "abcdabcd"
        assert order[9:] == "a" * 124

    on_lane(test, 1)


def test_a_host_that_comes_back_waits_for_one_of_each() -> None:
    async def test(lane: Lane) -> None:
        lane.put(GREEDY, "a", waits=True)
        await lane.begin(1)
        lane.put(HONEST, "b", waits=True)
        for _ in range(10):
            lane.put(GREEDY, "a")
            lane.put(OTHER, "c")
        lane.let_go()
        assert (await lane.begin(2))[1] == "b"
        lane.put(HONEST, "b")
        await asyncio.sleep(0)
        lane.let_go()
        assert (await lane.all())[2:5] in ("acb", "cab")

    on_lane(test, 1)


@pytest.mark.parametrize("syncs", [False, True])
def test_a_host_has_as_many_jobs_in_a_turn_as_its_weight_says(syncs: bool) -> None:
    async def test(lane: Lane) -> None:
        lane.executor.set_weight(1, HONEST, 4)
        lane.executor.set_weight(2, OTHER, 4)  # in another lane
        lane.put(GREEDY, "x", waits=True)
        await lane.begin(1)
        for _ in range(10):
            for host, name in (HONEST, "b"), (GREEDY, "a"), (OTHER, "c"):
                lane.put(host, name, syncs=syncs)
        await asyncio.sleep(0)
        order = await lane.all()
        assert order[1:] == "bbbbacbbbbacbbac" + "ac" * 7

    on_lane(test, 1)


def test_a_weight_changes_while_jobs_wait() -> None:
    async def test(lane: Lane) -> None:
        lane.put("", "x", waits=True)
        await lane.begin(1)
        for _ in range(6):
            lane.put(HONEST, "b")
            lane.put(GREEDY, "a")
        await asyncio.sleep(0)
        lane.executor.set_weight(1, GREEDY, 3)
        with pytest.raises(ValueError, match="one job"):
            lane.executor.set_weight(1, GREEDY, 0)
        assert (await lane.all())[1:] == "babaaabaabbb", "from its next turn on"
        lane.put("", "x", waits=True)
        await lane.begin(14)
        lane.executor.set_weight(1, GREEDY, 1)
        for _ in range(3):
            lane.put(GREEDY, "a")
            lane.put(HONEST, "b")
        await asyncio.sleep(0)
        assert (await lane.all())[14:] == "ababab"

    on_lane(test, 1)


def test_syncs_of_one_host_leave_workers_to_what_does_not_sync() -> None:
    async def test(lane: Lane) -> None:
        for _ in range(20):
            lane.put(GREEDY, "s", syncs=True, waits=True)
        assert await lane.begin(6) == "ssssss"
        lane.put(GREEDY, "a")
        await lane.put(HONEST, "b")
        assert sorted(await lane.begin(8)) == sorted("ssssssab"), "neither is kept waiting"
        assert lane.executor.statistics()["running"] == 6

    on_lane(test, 8)


def test_a_host_has_half_of_the_workers_for_its_syncs_while_others_wait() -> None:
    async def test(lane: Lane) -> None:
        for _ in range(20):
            lane.put(GREEDY, "s", syncs=True, waits=True)
        await lane.begin(6)
        for _ in range(20):
            lane.put(HONEST, "t", syncs=True, waits=True)
        await asyncio.sleep(0)
        for number in range(7, 13):
            lane.let_go()
            await lane.begin(number)
        running = lane.begun[6:]
        assert running[:2] == "tt", "who has more than its part waits until it has not"
        assert running.count("t") >= 3
        assert running.count("s") >= 2

    on_lane(test, 8)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_whatever_the_workers_all_is_done(workers: int) -> None:
    async def test(lane: Lane) -> None:
        for number in range(200):
            lane.put(f"host {number % 7}", "x", syncs=number % 3 == 0)
        lane.executor.set_lane(1, 1)
        await lane.all()
        assert lane.begun == "x" * 200
        assert lane.executor.statistics()["queued"] == lane.executor.statistics()["running"] == 0

    on_lane(test, workers)


# -- with a server ----------------------------------------------------------------------------------------------------
@contextlib.asynccontextmanager
async def blocked(lane: Lane, host: str) -> AsyncIterator[None]:
    """A job of a host waits for its turn, or runs, and does not end before this does."""
    job = lane.put(host, "x", waits=True)
    await asyncio.sleep(0)
    try:
        yield
    finally:
        lane.let_go()
        await job


async def queued(site: Site, count: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while site.daemon.service.executor.statistics()["queued"] < count:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


def file_calls(kind: str, file: nfs3.nfs_fh3) -> bytes:
    if kind == "FSSTAT":  # by the general path
        return nfs3_call(kind, nfs3.FSSTAT3args(file), uid=0)
    return nfs3_call(kind, nfs3.WRITE3args(file, 0, 5, nfs3.stable_how.UNSTABLE, memoryview(b"words")), uid=0)


@pytest.mark.parametrize("kind", ["FSSTAT", "WRITE"])
def test_calls_of_a_host_do_not_wait_for_all_of_anothers(tmp_path: Path, kind: str) -> None:
    async def test(site: Site) -> None:
        root = await root_of(site, HONEST)
        executor = site.daemon.service.executor
        number = (await site.daemon.service.resolve(bytes(root.data))).mount.lane
        honest, *greedy = [await site.wire(HONEST), *[await site.wire(GREEDY) for _ in range(3)]]
        files = []
        for each in range(31):
            how = nfs3.createhow3(nfs3.createmode3.UNCHECKED, obj_attributes=attributes(mode=0o666))
            create = nfs3.CREATE3args(nfs3.diropargs3(root, b"%d" % each), how)
            made = results3("CREATE", await honest.call(None, nfs3_call("CREATE", create, uid=0))).resok.obj
            assert results3("WRITE", await honest.call(None, file_calls("WRITE", made))).status == 0
            files.append(made)
        lane = Lane(executor, 1, number)
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(lane.close)
            first = lane.put("", "x", waits=True)
            await lane.begin(1)
            for each in range(30):
                greedy[each % 3].send(file_calls(kind, files[each]))
            await queued(site, 30)
            await stack.enter_async_context(blocked(lane, GREEDY))
            await queued(site, 31)
            honest.send(file_calls(kind, files[30]))
            await queued(site, 32)
            lane.let_go()
            await first
            async with asyncio.timeout(PATIENCE):
                assert results3(kind, await honest.reply()).status == 0

    with vfs_support.directory_on("disk", tmp_path) as path:
        on_site(Path(path), test)


def test_writes_that_wait_for_others_are_done_when_the_executor_closes(tmp_path: Path) -> None:
    """A train departs when the one before it is over, though no more is taken from anybody."""

    async def test(site: Site) -> None:
        root = await root_of(site, HONEST)
        executor = site.daemon.service.executor
        number = (await site.daemon.service.resolve(bytes(root.data))).mount.lane
        wire = await site.wire(HONEST)
        how = nfs3.createhow3(nfs3.createmode3.UNCHECKED, obj_attributes=attributes(mode=0o666))
        create = nfs3.CREATE3args(nfs3.diropargs3(root, b"f"), how)
        file = results3("CREATE", await wire.call(None, nfs3_call("CREATE", create, uid=0))).resok.obj
        assert results3("WRITE", await wire.call(None, file_calls("WRITE", file))).status == 0
        lane = Lane(executor, 1, number)
        lane.put("", "x", waits=True)
        await lane.begin(1)
        held = site.daemon.dispatchers["nfs"].held
        for count in range(1, 5):
            wire.send(file_calls("WRITE", file))
            async with asyncio.timeout(PATIENCE):
                while len(held) < count:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
            await asyncio.sleep(0)  # each departs by itself
        lane.let_go()
        executor.close()
        assert not held
        for _ in range(4):
            assert results3("WRITE", await wire.reply()).status == 0
        lane.close()

    with vfs_support.directory_on("disk", tmp_path) as path:
        on_site(Path(path), test)
