"""The executor: chains of system calls on native threads, under the caller's credential."""

import asyncio
import errno
import gc
import os
import platform
import stat
import threading
import time
from pathlib import Path

import pytest
import uvloop

from nfsd.vfs.executor import Chain, Executor
from nfsd.vfs.types import Credential
from tests.support.delegations import until
from tests.support.machine import open_the_way

assert platform.machine() == "x86_64", "the system call numbers below are those of x86-64"
READ, WRITE, CLOSE, LSEEK, PREAD, PIPE2, OPENAT, MKDIRAT, FSTAT, PAUSE_READ = 0, 1, 3, 8, 17, 293, 257, 258, 5, 0
AT_FDCWD = -100
ALICE = Credential(1000, 1000, (1000, 2000))


def in_loop(test, new_event_loop=uvloop.new_event_loop, threads=4):
    """Run ``test(executor)`` on a loop, and close the executor whatever happens."""

    async def main():
        executor = Executor(asyncio.get_running_loop(), threads)
        try:
            return await test(executor)
        finally:
            executor.close()

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main())


def open_read_close(path: Path, size: int, credential=None) -> tuple[Chain, bytearray, list]:
    buffer = bytearray(size)
    chain = Chain(credential)
    opened = chain.add(OPENAT, AT_FDCWD, os.fsencode(path), os.O_RDONLY, 0)
    read = chain.add(PREAD, opened, buffer, size, 0)
    closed = chain.add(CLOSE, opened, always=True)
    return chain, buffer, [opened, read, closed]


@pytest.mark.parametrize("new_event_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_chain_passes_results_on(tmp_path, new_event_loop):
    (tmp_path / "file").write_bytes(b"hello")

    async def test(executor):
        chain, buffer, (opened, read, closed) = open_read_close(tmp_path / "file", 16)
        await executor.run(chain)
        chain.check()
        assert (read.result, bytes(buffer[:5])) == (5, b"hello")
        assert closed.result == 0
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(opened.result)

    in_loop(test, new_event_loop)


def test_a_failure_stops_the_chain_but_not_its_cleaning_up(tmp_path):
    (tmp_path / "file").write_bytes(b"")

    async def test(executor):
        chain = Chain()
        opened = chain.add(OPENAT, AT_FDCWD, os.fsencode(tmp_path / "file"), os.O_RDONLY, 0)
        written = chain.add(WRITE, opened, b"x", 1)
        skipped = chain.add(LSEEK, opened, 0, os.SEEK_SET)
        closed = chain.add(CLOSE, opened, always=True)
        await executor.run(chain)
        assert (written.result, written.error) == (-1, errno.EBADF)
        assert (skipped.result, skipped.error) == (-1, 0)
        assert closed.result == 0
        assert chain.failed.error == errno.EBADF
        with pytest.raises(OSError, match="Bad file descriptor") as caught:
            chain.check()
        assert caught.value.errno == errno.EBADF

    in_loop(test)


def test_cleaning_up_is_left_out_when_there_is_nothing_to_clean(tmp_path):
    async def test(executor):
        chain, _, (opened, read, closed) = open_read_close(tmp_path / "missing", 1)
        await executor.run(chain)
        assert (opened.error, read.error, closed.error) == (errno.ENOENT, 0, 0)
        assert closed.result == -1

    in_loop(test)


def test_a_tolerated_failure_lets_the_chain_go_on(tmp_path):
    async def test(executor):
        chain = Chain()
        chain.add(MKDIRAT, AT_FDCWD, os.fsencode(tmp_path), 0o755, keep_going=True)
        chain.add(MKDIRAT, AT_FDCWD, os.fsencode(tmp_path / "new"), 0o755)
        await executor.run(chain)
        chain.check()
        assert (tmp_path / "new").is_dir()

    in_loop(test)


@pytest.mark.parametrize("inline", [False, True])
def test_the_kernel_checks_the_callers_permissions(tmp_path, inline):
    secret = tmp_path / "secret"
    secret.write_bytes(b"s")
    secret.chmod(0o600)
    shared = tmp_path / "group"
    shared.write_bytes(b"g")
    shared.chmod(0o640)
    os.chown(shared, 0, 2000)
    open_the_way(tmp_path)

    async def outcome(executor, path, credential):
        chain, _, (opened, *_) = open_read_close(path, 1, credential)
        if inline:
            executor.run_inline(chain)
        else:
            await executor.run(chain)
        return opened.error

    async def test(executor):
        assert executor.can_switch, "this test must run as root"
        assert await outcome(executor, secret, ALICE) == errno.EACCES
        assert await outcome(executor, shared, ALICE) == 0, "a supplementary group opens it"
        assert await outcome(executor, shared, Credential(1000, 1000)) == errno.EACCES
        assert await outcome(executor, secret, Credential(0, 0)) == 0
        assert await outcome(executor, secret, None) == 0
        secret.read_bytes()  # this thread is root again

    in_loop(test, threads=1)


def test_an_own_step_runs_as_the_server_within_a_callers_chain(tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(b"s")
    secret.chmod(0o600)

    async def test(executor):
        chain = Chain(ALICE)
        first = chain.add(OPENAT, AT_FDCWD, os.fsencode(secret), os.O_RDONLY, 0, keep_going=True)
        second = chain.add(OPENAT, AT_FDCWD, os.fsencode(secret), os.O_RDONLY, 0, own=True)
        third = chain.add(OPENAT, AT_FDCWD, os.fsencode(secret), os.O_RDONLY, 0, keep_going=True)
        chain.add(CLOSE, second, always=True)
        await executor.run(chain)
        assert (first.error, second.error, third.error) == (errno.EACCES, 0, errno.EACCES)

    in_loop(test)


def test_new_files_belong_to_the_caller(tmp_path):
    tmp_path.chmod(0o777)
    open_the_way(tmp_path)

    async def test(executor):
        chain = Chain(ALICE)
        chain.add(MKDIRAT, AT_FDCWD, os.fsencode(tmp_path / "mine"), 0o700)
        await executor.run(chain)
        chain.check()
        made = os.stat(tmp_path / "mine")
        assert (made.st_uid, made.st_gid, stat.S_IMODE(made.st_mode)) == (1000, 1000, 0o700)

    in_loop(test)


def test_a_stalled_lane_leaves_threads_to_the_others(tmp_path):
    (tmp_path / "file").write_bytes(b"ok")

    async def test(executor):
        reader, writer = os.pipe()
        stalled = []
        executor.set_lane(1, 2)
        for _ in range(5):
            chain = Chain()
            chain.add(READ, reader, bytearray(1), 1)
            stalled.append(executor.run(chain, lane=1))
        try:
            chain, _, _ = open_read_close(tmp_path / "file", 2)
            await executor.run(chain, lane=2)
            chain.check()
            # A thread that was called may come later than that chain was run.
            await until(lambda: executor.statistics()["running"] >= 2)
            assert executor.statistics()["running"] == 2
            assert executor.statistics()["queued"] == 3
        finally:
            os.write(writer, b"12345")  # closing waits for what runs
        await asyncio.gather(*stalled)
        os.close(reader)
        os.close(writer)

    in_loop(test)


def test_idle_threads_come_for_each_job_though_those_before_it_wait(tmp_path):
    """They come one behind the other: nobody waits for one that waits."""

    async def test(executor):
        executor.set_lane(0, 8)
        for _ in range(3):
            reader, writer = os.pipe()
            waiting = []
            for _ in range(7):
                chain = Chain()
                chain.add(READ, reader, bytearray(1), 1)
                waiting.append(executor.run(chain))
            last = Chain()
            last.add(WRITE, writer, b"1234567", 7)
            async with asyncio.timeout(60):
                await asyncio.gather(*waiting, executor.run(last))
            last.check()
            os.close(reader)
            os.close(writer)
        assert executor.statistics()["threads"] == 8

    in_loop(test, threads=8)


def test_many_chains_wake_the_loop_few_times(tmp_path):
    (tmp_path / "file").write_bytes(b"ok")

    async def test(executor):
        chains = [open_read_close(tmp_path / "file", 2)[0] for _ in range(2000)]
        await asyncio.gather(*(executor.run(chain) for chain in chains))
        for chain in chains:
            chain.check()
        statistics = executor.statistics()
        assert statistics["completed"] == 2000
        assert statistics["wakeups"] < 2000

    in_loop(test)


def test_closing_waits_for_what_runs_and_frees_the_threads(tmp_path):
    before = len(os.listdir("/proc/self/task"))
    reader, writer = os.pipe()
    buffer = bytearray(1)

    async def test(executor):
        chain = Chain()
        chain.add(READ, reader, buffer, 1)
        executor.run(chain)
        await asyncio.sleep(0)
        threading.Timer(0.05, os.write, (writer, b"z")).start()

    in_loop(test)
    assert buffer == b"z"
    assert len(os.listdir("/proc/self/task")) <= before + 1  # the timer's thread may still be ending


def test_an_executor_that_nobody_closed_ends_its_threads(tmp_path):
    (tmp_path / "file").write_bytes(b"ok")
    before = len(os.listdir("/proc/self/task"))

    async def main():
        executor = Executor(asyncio.get_running_loop(), 4)
        await asyncio.gather(*(executor.run(open_read_close(tmp_path / "file", 2)[0]) for _ in range(8)))
        assert len(os.listdir("/proc/self/task")) > before

    asyncio.run(main())
    gc.collect()
    assert len(os.listdir("/proc/self/task")) <= before  # a thread of an earlier test may have ended meanwhile


def test_a_call_that_hangs_does_not_keep_the_executor_from_closing():
    read_end, write_end = os.pipe()
    threads = {int(one) for one in os.listdir("/proc/self/task")}

    async def main():
        executor = Executor(asyncio.get_running_loop(), 4)
        hanging, sink = Chain(), bytearray(1)
        hanging.add(READ, read_end, sink, 1)
        left = executor.run(hanging)
        await executor.run(open_read_close(__file__, 2)[0])
        begun = time.monotonic()
        executor.close(patience=1)
        assert 0.9 < time.monotonic() - begun < 30
        assert not left.done()
        return sink

    sink = asyncio.run(main())
    gc.collect()
    os.write(write_end, b"x")  # what it uses is there still
    while {int(one) for one in os.listdir("/proc/self/task")} - threads:
        time.sleep(0.01)
    assert sink == b"x"
    os.close(read_end)
    os.close(write_end)


def test_misuse_is_refused():
    async def test(executor):
        chain = Chain()
        for _ in range(16):
            chain.add(CLOSE, -1, keep_going=True)
        with pytest.raises(ValueError, match="16 steps"):
            chain.add(CLOSE, -1)
        executor.run_inline(chain)
        with pytest.raises(RuntimeError):
            executor.run(chain)
        with pytest.raises(ValueError, match="another chain"):
            Chain().add(CLOSE, Chain().add(CLOSE, 1))
        with pytest.raises(BufferError):
            Chain().add(READ, 0, memoryview(bytearray(8))[::2], 4)

    in_loop(test)
