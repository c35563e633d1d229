"""Threads act exactly as the caller, with no further capability, or as nobody, whatever the kernel refuses."""

import asyncio
import contextlib
import ctypes
import errno
import logging
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nfsd.config_file import load
from nfsd.daemon import Daemon
from nfsd.protocol.nfs3 import nfsstat3
from nfsd.vfs.executor import Chain, Executor
from nfsd.vfs.permissions import is_real_root
from nfsd.vfs.syscalls import SYS_CLOSE, SYS_OPENAT
from nfsd.vfs.types import Credential
from tests.nfs3_client import Nfs3Client, Nfs3Failure, auth_sys
from tests.support.callers import ACTIONS, VERSIONS, Served, Step
from tests.support.seccomp import refuse

AT_FDCWD = -100
READ, SETGROUPS, CAPSET, SETFSUID = 0, 116, 126, 122
ALICE, BOB, ROOT = Credential(1000, 1000, (1000, 2000)), Credential(1001, 1001), Credential(0, 0, (0,))
CALLERS = 1 << 6 | 1 << 7
"""CAP_SETGID, CAP_SETUID."""
ROOTS = CALLERS | 1 << 0 | 1 << 1 | 1 << 2 | 1 << 3 | 1 << 4 | 1 << 9 | 1 << 27 | 1 << 32
SYS_RESOURCE = 1 << 24
_PR_SET_KEEPCAPS = 8

Seen = tuple[int, int, tuple[int, ...], int]
"""File system uid and gid, groups, effective capabilities."""


def seen(status: bytes) -> Seen:
    """What a thread's status in /proc says."""
    fields = dict(line.split(":\t", 1) for line in status.decode().splitlines() if ":\t" in line)
    uid, gid = (int(fields[key].split()[3]) for key in ("Uid", "Gid"))
    return uid, gid, tuple(map(int, fields["Groups"].split())), int(fields["CapEff"], 16)


def seen_here() -> Seen:
    with open("/proc/thread-self/status", "rb") as file:
        return seen(file.read())


OWN = seen_here()


def own() -> Seen:
    return (*OWN[:3], OWN[3] & ~SYS_RESOURCE)


def expected(credential: Credential | None) -> Seen:
    if credential is None:
        return own()
    kept = ROOTS if credential.uid == 0 else CALLERS
    return credential.uid, credential.gid, tuple(sorted(credential.gids)), OWN[3] & kept


def look(credential: Credential | None) -> tuple[Chain, bytearray]:
    """A chain that reads who its thread is."""
    buffer, chain = bytearray(8192), Chain(credential)
    opened = chain.add(SYS_OPENAT, AT_FDCWD, b"/proc/thread-self/status", os.O_RDONLY, 0)
    chain.add(READ, opened, buffer, len(buffer))
    chain.add(SYS_CLOSE, opened, always=True)
    return chain, buffer


async def who(executor: Executor, credential: Credential | None, inline: bool) -> Seen | int:
    """Whom the kernel takes the thread for; or the errno of the chain."""
    chain, buffer = look(credential)
    if inline:
        executor.run_inline(chain)
    else:
        await executor.run(chain)
    return seen(bytes(buffer).rstrip(b"\0")) if chain.failed is None else chain.failed.error


def with_executor(test: Callable[[Executor], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        executor = Executor(asyncio.get_running_loop(), 1)
        try:
            await test(executor)
        finally:
            executor.close()

    asyncio.run(main())


def in_child(check: Callable[[], None], *, status: int = 0, log: Path | None = None) -> None:
    """Run ``check`` in a child of this process, which is to end with this status."""
    child = os.fork()
    if child == 0:
        signal.alarm(120)
        if log is not None:
            os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT), 2)
        logging.basicConfig(stream=os.fdopen(2, "w"), force=True)
        code = 99
        with contextlib.suppress(BaseException):
            try:
                check()
                code = 0
            except BaseException as failure:
                os.write(2, f"{failure!r}\n".encode())
                raise
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == status


ids = st.one_of(st.sampled_from((0, 1, 65534, 65535, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFE)), st.integers(0, 0xFFFFFFFE))
credentials = st.none() | st.builds(Credential, ids, ids, st.lists(ids, max_size=20))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(credentials, st.booleans()), min_size=1, max_size=10))
def test_the_kernel_takes_a_thread_for_its_caller(sequence: list[tuple[Credential | None, bool]]) -> None:
    async def test(executor: Executor) -> None:
        for credential, inline in sequence:
            assert await who(executor, credential, inline) == expected(credential)
            assert seen_here() == own()

    with_executor(test)


@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize(
    ("filtered", "refused"),
    [
        ((SETFSUID, 1000), (ALICE,)),
        ((SETGROUPS, 2), (ALICE,)),
        ((SETGROUPS, None), (ALICE, ROOT)),
        ((CAPSET, None), (ALICE, BOB, ROOT)),
        ((SETFSUID, 1001, errno.ENOMEM), (BOB,)),
    ],
)
def test_a_switch_that_fails_leaves_nobody_behind(inline: bool, filtered: Any, refused: Any) -> None:
    async def test(executor: Executor) -> None:
        refuse(*filtered)
        for credential in (ALICE, ALICE, BOB, ALICE, None, ROOT, ALICE, ROOT, BOB, BOB, ALICE, ALICE, None):
            wanted = errno.EACCES if credential in refused else expected(credential)
            assert await who(executor, credential, inline) == wanted
            assert seen_here() == own()

    in_child(lambda: with_executor(test))


def become_user_with_capabilities(number: int) -> None:
    """As a service manager starts a service with User= and AmbientCapabilities=."""
    library = ctypes.CDLL(None, use_errno=True)
    assert library.prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0) == 0
    os.setgroups([number, 5])
    os.setresgid(number, number, number)
    os.setresuid(number, number, number)
    header, data = struct.pack("<Ii", 0x20080522, 0), bytearray(24)
    buffer = (ctypes.c_char * 24).from_buffer(data)
    assert library.capget(header, buffer) == 0
    for half in (0, 12):
        data[half : half + 4] = data[half + 4 : half + 8]
    assert library.capset(header, buffer) == 0


@pytest.mark.parametrize("inline", [False, True])
def test_a_server_that_is_not_root_switches_as_well(inline: bool) -> None:
    async def test(executor: Executor) -> None:
        myself = (990, 990, (5, 990), own()[3])
        assert executor.can_switch
        for credential in (ALICE, None, ROOT, ALICE, ROOT, None, ALICE, BOB, None, ROOT, ROOT, None):
            wanted = myself if credential is None else expected(credential)
            assert await who(executor, credential, inline) == wanted
            assert seen_here() == myself
        refuse(SETFSUID, 1001)
        for credential in (ALICE, BOB, None, ALICE, BOB, BOB, ROOT):
            wanted = myself if credential is None else expected(credential)
            assert await who(executor, credential, inline) == (errno.EACCES if credential is BOB else wanted)
            assert seen_here() == myself

    def check() -> None:
        become_user_with_capabilities(990)
        with_executor(test)

    in_child(check)


def test_a_chain_does_not_tolerate_that_it_has_no_caller(tmp_path: Path) -> None:
    async def test(executor: Executor) -> None:
        refuse(SETFSUID, 1000)
        chain = Chain(ALICE)
        first = chain.add(SYS_OPENAT, AT_FDCWD, os.fsencode(tmp_path / "a"), os.O_CREAT, 0o600, keep_going=True)
        second = chain.add(SYS_OPENAT, AT_FDCWD, os.fsencode(tmp_path / "b"), os.O_CREAT, 0o600, own=True)
        third = chain.add(SYS_CLOSE, first, always=True)
        await executor.run(chain)
        # All have an error: where failures are tolerated, a step without one counts as done.
        assert [(step.error, step.result) for step in (first, second, third)] == [(errno.EACCES, -1)] * 3
        assert os.listdir(tmp_path) == []

    in_child(lambda: with_executor(test))


def test_a_worker_that_cannot_come_back_is_replaced() -> None:
    async def test(executor: Executor) -> None:
        refuse(SETFSUID, 0)
        for _ in range(20):
            assert await who(executor, ALICE, False) == expected(ALICE)
            assert await who(executor, BOB, False) == expected(BOB)
            chain = Chain()
            steps = [chain.add(SYS_CLOSE, -1, keep_going=True), chain.add(SYS_CLOSE, -1, keep_going=True)]
            await executor.run(chain)
            assert [step.error for step in steps] == [errno.EIO] * 2
            assert await who(executor, None, False) == own()
        assert executor.statistics()["threads"] == 1
        assert len(os.listdir("/proc/self/task")) == 2

    in_child(lambda: with_executor(test))


def test_the_server_ends_rather_than_go_on_as_somebody_else(tmp_path: Path) -> None:
    async def test(executor: Executor) -> None:
        refuse(SETFSUID, 0)
        await who(executor, ALICE, True)
        (tmp_path / "made as somebody").touch()

    in_child(lambda: with_executor(test), status=1, log=tmp_path / "log")
    assert os.listdir(tmp_path) == ["log"]
    assert "could not become itself again" in (tmp_path / "log").read_text()


# -- from the wire ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("memory", [False, True])
def test_callers_that_the_kernel_refuses_get_nothing(memory: bool) -> None:
    async def main() -> None:
        async with Served(memory) as served:
            refuse(SETFSUID, 7777)
            for version in VERSIONS:
                for action in (*ACTIONS, *ACTIONS):
                    await served.check(Step("root", version, action, 1001, 1001, shared=1))
                    step = Step("none", version, action, 7777, 1, shared=1)
                    assert await served.outcome(step) == int(nfsstat3.NFS3ERR_ACCES), step
                    await served.check(Step("none", version, action, 0, 0, shared=1))
            assert os.listdir(served.base / "none" / "open") == []

    in_child(lambda: asyncio.run(main()))


def test_a_server_that_cannot_come_back_ends(tmp_path: Path) -> None:
    async def main() -> None:
        async with Served(memory=True) as served:
            (tmp_path / "base").symlink_to(served.base)
            for action in ACTIONS:
                await served.check(Step("root", 30, action, 1001, 1001, shared=1))
            refuse(SETFSUID, 0)
            await served.outcome(Step("root", 30, "make", 1001, 1001))

    in_child(lambda: asyncio.run(main()), status=1, log=tmp_path / "log")
    shutil.rmtree((tmp_path / "base").resolve())
    assert "could not become itself again" in (tmp_path / "log").read_text()


# -- user namespaces ----------------------------------------------------------------------------------------------
CONFIG = """
server:
  listen: ["tcp://127.0.0.1:0"]
  mountd_port: 0
  rpcbind: false
  nlm: false
  state_dir: ./state
exports:
  - path: ./export
    squash: root
"""


@contextlib.contextmanager
def in_namespace(base: Path, ids: int, setgroups: str) -> Iterator[subprocess.Popen[str]]:
    """The command in a user namespace of the ids below this number."""
    (base / "exports.yaml").write_text(CONFIG)
    wait = ["unshare", "--user", "sh", "-c", 'read mapped && exec "$@"', "sh"]
    process = subprocess.Popen(
        [*wait, sys.executable, "-m", "nfsd.cli", "serve", "--config", str(base / "exports.yaml")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=(base / "log").open("ab"), text=True,
    )  # fmt: skip
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        mine, place = os.readlink("/proc/self/ns/user"), Path(f"/proc/{process.pid}")
        while os.readlink(place / "ns" / "user") == mine:
            os.sched_yield()
        (place / "setgroups").write_text(setgroups)
        for name in ("uid_map", "gid_map"):
            (place / name).write_text(f"0 0 {ids}\n")
        process.stdin.write("mapped\n")
        process.stdin.flush()
        yield process
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()


@contextlib.contextmanager
def serving_in_namespace(base: Path, ids: int, setgroups: str) -> Iterator[tuple[int, int]]:
    """The same, once it serves; gives the ports of NFS and MOUNT."""
    with in_namespace(base, ids, setgroups) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r" tcp://127\.0\.0\.1:(\d+)\b.* mountd tcp://127\.0\.0\.1:(\d+)", line)
        assert found is not None, (line, (base / "log").read_text())
        yield int(found[1]), int(found[2])
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, (base / "log").read_text()


async def owner_of_made(client: Nfs3Client, root: Any, name: str, uid: int, gid: int) -> tuple[int, int] | nfsstat3:
    client.credential = auth_sys(uid, gid, (gid,))
    try:
        made = await client.getattr(await client.create(root, name.encode()))
    except Nfs3Failure as failure:
        return nfsstat3(failure.status)
    return made.uid, made.gid


@pytest.fixture(params=["disk", "memory"])
def base(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A directory to which every user finds the way."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if request.param == "memory" else None) as place:
        os.chmod(place, 0o755)
        yield Path(place)


TRIED = [(1001, 1002), (0, 0), (0xFFFFFFFF, 1002), (100_000, 1002), (1001, 100_000), (1001, 1002)] * 2


async def owners_of_made(nfs: int, mountd: int) -> list[Any]:
    """The owners of the files that the callers make."""
    async with await Nfs3Client.connect("127.0.0.1", mountd) as client:
        root = await client.mount("/export")
    async with await Nfs3Client.connect("127.0.0.1", nfs) as client:
        return [await owner_of_made(client, root, f"f{n}", *caller) for n, caller in enumerate(TRIED)]


def test_a_server_in_a_user_namespace(base: Path) -> None:
    (base / "export").mkdir()
    (base / "export").chmod(0o1777)
    with serving_in_namespace(base, 65536, "allow") as ports:
        found = asyncio.run(owners_of_made(*ports))
    log = (base / "log").read_text()
    assert "Traceback" not in log
    assert found == [
        (1001, 1002), (65534, 65534), (65534, 1002), nfsstat3.NFS3ERR_ACCES, nfsstat3.NFS3ERR_ACCES, (1001, 1002),
    ] * 2  # fmt: skip
    assert "every client acts" not in log


@pytest.mark.parametrize(
    ("ids", "why"),
    [(1, "there are no other users in this user namespace"), (65536, "lets no thread act as another user")],
)
def test_the_hosts_root_does_not_serve_everybody_as_root(base: Path, ids: int, why: str) -> None:
    (base / "export").mkdir()
    with in_namespace(base, ids, "deny") as process:
        assert process.wait(60) == 1
    line = (base / "log").read_text().splitlines()[-1]
    assert why in line
    assert "every client would act as root; give the server CAP_SETUID and CAP_SETGID" in line


def test_an_ordinary_user_serves_everybody_as_itself(base: Path) -> None:
    (base / "export").mkdir()
    (base / "exports.yaml").write_text(CONFIG)
    for place in (base, base / "export"):
        os.chown(place, 1003, 1004)

    async def main() -> None:
        daemon = Daemon(load(str(base / "exports.yaml")))
        await daemon.start()
        ports = [daemon.listeners.of(service)[0].address.port for service in ("nfs", "mountd")]
        assert await owners_of_made(*ports) == [(1003, 1004)] * len(TRIED)
        await daemon.stop()

    def check() -> None:
        os.setgroups([])
        os.setresgid(1004, 1004, 1004)
        os.setresuid(1003, 1003, 1003)
        asyncio.run(main())

    "".encode("idna")  # loaded now: the interpreter may lie where an ordinary user does not get to
    in_child(check, log=base / "log")
    assert (base / "log").read_text().count("every client acts as uid 1003") == 1


@pytest.mark.parametrize(("own", "mapped", "real"), [
    (0, "0 0 4294967295", True), (0, "0 0 1", True), (0, "0 1000 1", False), (1000, "0 0 4294967295", False),
    (5, "0 100000 5\n5 0 1", True), (0, "0 100000 5\n5 0 1", False), (65534, "0 0 1", False),
])  # fmt: skip
def test_root_is_known_under_every_number(
    own: int, mapped: str, real: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "uid_map").write_text(mapped)
    monkeypatch.setattr("os.geteuid", lambda: own)
    assert is_real_root(str(tmp_path / "uid_map")) == real
