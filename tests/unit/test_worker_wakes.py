"""Waking workers: the loop never waits for one of them to be given a processor."""

import asyncio
import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from nfsd.vfs.executor import Chain, Executor
from tests.unit.tcp_support import until

READ, GETPID = 0, 39
PATIENCE = 20
"""Seconds after which a loop that waits for a stopped worker is given up."""
PR_SET_PTRACER = 0x59616D61
STOPS = f"""
import ctypes, os, select, sys
PTRACE_SEIZE, PTRACE_INTERRUPT, WALL = 0x4206, 0x4207, 0x40000000
ptrace = ctypes.CDLL(None, use_errno=True).ptrace
ptrace.argtypes = ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p
sys.stdin.readline()
for thread in map(int, sys.argv[1:]):
    if ptrace(PTRACE_SEIZE, thread, None, None) or ptrace(PTRACE_INTERRUPT, thread, None, None):
        sys.exit(os.strerror(ctypes.get_errno()))
    os.waitpid(thread, WALL)
print("stopped", flush=True)
print("in time" if select.select([0], [], [], {PATIENCE})[0] else "too late", flush=True)
"""


class Stopped:
    """Threads that get no processor."""

    def __init__(self, helper: subprocess.Popen[str]) -> None:
        self._helper = helper

    def resume(self) -> str:
        """Let them go on. Returns whether that was ``in time``, or ``too late``: they went on by themselves."""
        return self._helper.communicate("resume\n")[0].strip()


@contextmanager
def stopped(*threads: int) -> Iterator[Stopped]:
    """Stop threads of this process, as a machine does that has others to run; their tracer's end lets them go on."""
    command = [sys.executable, "-c", STOPS, *map(str, threads)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as helper:
        assert helper.stdin is not None
        assert helper.stdout is not None
        try:
            ctypes.CDLL(None).prctl(PR_SET_PTRACER, helper.pid, 0, 0, 0)
            print("begin", file=helper.stdin, flush=True)
            if helper.stdout.readline() != "stopped\n":
                pytest.skip("no thread may be traced here")
            yield Stopped(helper)
        finally:
            helper.kill()


def call(number: int, *arguments: int | bytearray) -> Chain:
    chain = Chain()
    chain.add(number, *arguments)
    return chain


def threads() -> set[int]:
    return {int(name) for name in os.listdir("/proc/self/task")}


def in_read(thread: int) -> bool:
    with open(f"/proc/self/task/{thread}/syscall") as file:
        return file.read().startswith(f"{READ} ")


class Slow:
    """Calls that wait until they are let go."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._reader, self._writer = os.pipe()
        self._futures: list[asyncio.Future[None]] = []

    def run(self, lane: int = 0) -> None:
        self._futures.append(self._executor.run(call(READ, self._reader, bytearray(1), 1), lane))

    def let_go(self) -> None:
        os.write(self._writer, bytes(len(self._futures)))

    async def over(self) -> None:
        await asyncio.gather(*self._futures)
        os.close(self._reader)
        os.close(self._writer)


async def idle_workers(executor: Executor, count: int) -> list[int]:
    """Their threads, once each has been busy at the same time as the others."""
    before = threads()
    slow = Slow(executor)
    for _ in range(count):
        slow.run()
    await until(lambda: executor.statistics()["running"] == count)
    slow.let_go()
    await slow.over()
    return sorted(threads() - before)


@pytest.mark.parametrize("which", [0, 1])
def test_a_worker_without_a_processor_does_not_stop_the_loop(which: int) -> None:
    """One that has been called and does not come: the loop goes on calling."""

    async def main() -> None:
        executor = Executor(asyncio.get_running_loop(), 4)  # a lane has half of them
        try:
            workers = await idle_workers(executor, 2)
            with stopped(workers[which]) as one:
                futures = []
                for _ in range(8):
                    futures.append(executor.run(call(GETPID)))
                    await asyncio.sleep(0.01)  # time for the other worker to have done it, and to rest again
                assert one.resume() == "in time"
                await asyncio.gather(*futures)
        finally:
            executor.close()

    asyncio.run(main())


def test_a_worker_that_takes_anothers_job_leaves_nobody_waiting() -> None:
    """Two are called for two jobs. A third one takes one of these, and has made room for another in the lane that it
    has left: there are still two."""

    async def main() -> None:
        executor = Executor(asyncio.get_running_loop(), 6)
        full, other = 1, 2
        executor.set_lane(full, 1)
        executor.set_lane(other, 3)
        first, others = Slow(executor), Slow(executor)
        try:
            workers = await idle_workers(executor, 3)
            first.run(full)
            others.run(full)
            await until(lambda: any(map(in_read, workers)))
            with stopped(*(thread for thread in workers if not in_read(thread))) as idle:
                others.run(other)
                others.run(other)
                await until(lambda: executor.statistics()["queued"] == 3)
                await asyncio.sleep(0)  # they are handed over
                first.let_go()
                await first.over()
                await until(lambda: executor.statistics()["queued"] == 2)
                assert idle.resume() == "in time"
            async with asyncio.timeout(PATIENCE):
                await until(lambda: executor.statistics()["running"] == 3)
        finally:
            others.let_go()
            executor.close()

    asyncio.run(main())
