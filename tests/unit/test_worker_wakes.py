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
thread = int(sys.argv[1])
if ptrace(PTRACE_SEIZE, thread, None, None) or ptrace(PTRACE_INTERRUPT, thread, None, None):
    sys.exit(os.strerror(ctypes.get_errno()))
os.waitpid(thread, WALL)
print("stopped", flush=True)
print("in time" if select.select([0], [], [], {PATIENCE})[0] else "too late", flush=True)
"""


class Stopped:
    """A thread that gets no processor."""

    def __init__(self, helper: subprocess.Popen[str]) -> None:
        self._helper = helper

    def resume(self) -> str:
        """Let it go on. Returns whether that was ``in time``, or ``too late``: it went on by itself."""
        return self._helper.communicate("resume\n")[0].strip()


@contextmanager
def stopped(thread: int) -> Iterator[Stopped]:
    """Stop a thread of this process, as a machine does that has others to run; its tracer's end lets it go on."""
    command = [sys.executable, "-c", STOPS, str(thread)]
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


async def two_idle_workers(executor: Executor) -> list[int]:
    """Their threads, once each has been busy at the same time as the other."""
    before = {int(name) for name in os.listdir("/proc/self/task")}
    reader, writer = os.pipe()
    futures = [executor.run(call(READ, reader, bytearray(1), 1)) for _ in range(2)]
    await until(lambda: executor.statistics()["running"] == 2)
    os.write(writer, b"xx")
    await asyncio.gather(*futures)
    os.close(reader)
    os.close(writer)
    return sorted({int(name) for name in os.listdir("/proc/self/task")} - before)


@pytest.mark.parametrize("which", [0, 1])
def test_a_worker_without_a_processor_does_not_stop_the_loop(which: int) -> None:
    """One that has been called and does not come: the loop goes on calling."""

    async def main() -> None:
        executor = Executor(asyncio.get_running_loop(), 4)  # a lane has half of them
        try:
            workers = await two_idle_workers(executor)
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
