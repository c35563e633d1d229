"""Leases: the kernel tells of local opens, the server's own do not disturb. With real processes on a real disk."""

import asyncio
import os
import sys

import pytest

from nfsd.protocol import nfs4 as p
from nfsd.vfs import leases
from nfsd.vfs.types import SetAttributes
from tests.support.delegations import BOTH, NONE, READ, READ_DELEGATION, WRITE_DELEGATION, until, with_two
from tests.support.native_files import FILE_SYNC, NativeFiles
from tests.support.nfs4 import mode
from tests.unit.test_v4_locks import locking
from tests.unit.vfs_support import ALICE, ROOT, directory_on, run, write_file

THEIR_LEASE = """
import fcntl, os, signal, sys
signal.signal(signal.SIGIO, signal.SIG_IGN)
fcntl.fcntl(os.open(sys.argv[1], os.O_RDWR), fcntl.F_SETLEASE, fcntl.F_WRLCK)
print("leased", flush=True)
sys.stdin.read()
"""


LOCAL_LOCK = """
import fcntl, sys
with open(sys.argv[1], "rb+") as file:
    print(file.read().decode(), end=" ")
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 10)
        print("free")
    except BlockingIOError:
        print("locked")
"""


async def shell(command):
    """Run a local command; its output."""
    process = await asyncio.create_subprocess_exec(
        "/bin/sh", "-c", command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    return (await process.communicate())[0]


async def leased(service, root, *, write, data=b"data"):
    """(node, open file, hold, the breaks heard of) of a new file."""
    node = await write_file(service, root, b"f", data, mode=0o666)
    service.open_files.forget_all(node.inode)
    opened = await service.open(ROOT, node, read=True, write=write)
    heard = []
    hold = await service.wait_for_lease(opened, write=write, on_break=lambda: heard.append(1))
    return node, opened, hold, heard


@pytest.mark.parametrize("kind", ["disk", "memory"])
@pytest.mark.parametrize(
    ("write", "command", "breaks"),
    [
        (False, "cat f", False),
        (False, "echo new >> f", True),
        (True, "cat f", True),
        (True, "echo new > f", True),
        (True, "stat f; ls -l f", False),
    ],
)
def test_a_local_open_is_told_and_waits(tmp_path, kind, write, command, breaks):
    async def scenario(service, root):
        node, opened, hold, heard = await leased(service, root, write=write)
        assert hold is not None
        running = asyncio.ensure_future(shell(f"cd {path} && {command}"))
        if breaks:
            await until(lambda: heard)
            # It waits until the lease is given up: what the holder writes meanwhile is seen.
            await NativeFiles(service).write(ROOT, node, 0, b"DATA", FILE_SYNC) if write else None
            assert not running.done()
            hold.release()
        output = await running
        if command == "cat f":
            assert output == (b"DATA" if write else b"data")
        assert heard == ([1] if breaks else [])
        hold.release()
        opened.release()
        assert node.inode.lease is None

    with directory_on(kind, tmp_path) as path:
        run(path, tmp_path, scenario)


@pytest.mark.parametrize("kind", ["disk", "memory"])
@pytest.mark.parametrize("write", [False, True])
def test_what_the_server_keeps_open_in_case_it_is_needed_again_stands_in_no_leases_way(tmp_path, kind, write):
    async def scenario(service, root):
        node = await write_file(service, root, b"f", b"x")
        service.open_files.forget_all(node.inode)
        (await service.open(ROOT, node, read=False, write=True)).release()
        assert [one.count for one in node.inode.opens.values()] == [0]
        opened = await service.open(ROOT, node, read=True, write=write)
        assert service.take_lease(opened, write=write, on_break=pytest.fail) is None
        hold = await service.wait_for_lease(opened, write=write, on_break=pytest.fail)
        assert hold is not None
        hold.release()
        opened.release()

    with directory_on(kind, tmp_path) as path:
        run(path, tmp_path, scenario)


def test_a_file_that_a_local_process_has_open_gets_no_lease(tmp_path):
    async def scenario(service, root):
        for write, flags in ((False, os.O_WRONLY), (True, os.O_RDONLY), (True, os.O_RDWR)):
            node = await write_file(service, root, b"f%d%d" % (write, flags), b"x")
            service.open_files.forget_all(node.inode)
            local = os.open(tmp_path / f"f{write:d}{flags}", flags)
            opened = await service.open(ROOT, node, read=True, write=write)
            assert await service.wait_for_lease(opened, write=write, on_break=pytest.fail) is None
            os.close(local)
            hold = await service.wait_for_lease(opened, write=write, on_break=pytest.fail)
            assert hold is not None
            hold.release()
            opened.release()

    run(tmp_path, tmp_path / "state", scenario)


@pytest.fixture(autouse=True)
def _state(tmp_path):
    (tmp_path / "state").mkdir()


def test_own_opens_go_through_a_write_lease_with_their_own_permissions(tmp_path):
    async def scenario(service, root):
        node, opened, hold, heard = await leased(service, root, write=True)
        again = await service.open(ALICE, node, read=True, write=False)
        assert again is opened
        again.release()
        os.chmod(tmp_path / "f", 0o600)
        with pytest.raises(PermissionError):
            await service.open(ALICE, node, read=True, write=False)
        await NativeFiles(service).commit(ROOT, node)
        assert heard == []
        hold.release()
        opened.release()

    run(tmp_path, tmp_path / "state", scenario)


def test_under_an_own_open_to_write_local_writers_are_noticed_when_they_write(tmp_path):
    async def scenario(service, root):
        node, opened, hold, heard = await leased(service, root, write=False)
        writing = await service.open(ROOT, node, read=False, write=True)
        await NativeFiles(service).write(ROOT, node, 0, b"own", FILE_SYNC)
        (await service.open(ALICE, node, read=True, write=True)).release()
        assert heard == []
        await shell(f"echo theirs >> {tmp_path}/f")
        await until(lambda: heard)
        hold.release()
        assert node.inode.lease is None
        for held in (writing, opened):
            held.release()

    run(tmp_path, tmp_path / "state", scenario)


def test_without_news_of_writes_an_own_open_to_write_ends_a_read_lease_and_says_so(tmp_path):
    async def scenario(service, root):
        service.leasing._leases._watches.close()
        node, opened, hold, heard = await leased(service, root, write=False)
        writing = await service.open(ROOT, node, read=False, write=True)
        assert heard == [1]
        assert node.inode.lease is None
        hold.release()
        writing.release()
        opened.release()

    run(tmp_path, tmp_path / "state", scenario)


def test_the_server_does_not_wait_for_the_leases_of_others(tmp_path):
    async def scenario(service, root):
        node = await write_file(service, root, b"f", b"x")
        service.open_files.forget_all(node.inode)
        await asyncio.sleep(0.05)
        theirs = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            THEIR_LEASE,
            str(tmp_path / "f"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert await theirs.stdout.readline() == b"leased\n"
        async with asyncio.timeout(10):
            with pytest.raises(TimeoutError):
                await service.open(ROOT, node, read=True, write=False)
        theirs.stdin.close()
        await theirs.wait()
        (await service.open(ROOT, node, read=True, write=False)).release()

    run(tmp_path, tmp_path / "state", scenario)


def test_holders_share_a_read_lease_and_all_are_told(tmp_path):
    async def scenario(service, root):
        node, opened, hold, heard = await leased(service, root, write=False)
        other = []
        second = await service.wait_for_lease(opened, write=False, on_break=lambda: other.append(1))
        hold.release()
        assert node.inode.lease is not None
        running = asyncio.ensure_future(shell(f"echo >> {tmp_path}/f"))
        await until(lambda: other)
        assert heard == []
        # While it is wanted nobody else joins.
        assert await service.wait_for_lease(opened, write=False, on_break=pytest.fail) is None
        second.release()
        await running
        opened.release()

    run(tmp_path, tmp_path / "state", scenario)


# -- through the server ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("minor", [1, 2])
def test_a_local_reader_sees_what_the_holder_wrote_before_it_returned_its_delegation(tmp_path, minor):
    async def test(server, export, one, two):
        opened = await one.opening(b"f", BOTH, create=mode(0o644))
        assert opened.delegation.delegation_type == WRITE_DELEGATION
        one.end.keep = True
        running = asyncio.ensure_future(shell(f"cat {export}/f"))
        await one.end.arrival(1)
        recall = one.end.executed[0][1]
        writing = (p.OP_WRITE, p.WRITE4args(recall.stateid, 0, p.stable_how4.FILE_SYNC4, b"cached"))
        await one.on(recall.fh, writing)
        assert not running.done()
        await one.give_back(recall.stateid, recall.fh)
        assert await running == b"cached"

    (tmp_path / "state").rmdir()
    with_two(tmp_path, minor, test, leases=True)


@pytest.mark.parametrize("minor", [1, 2])
def test_a_holder_locks_and_writes_before_a_local_process_goes_on(tmp_path, minor):
    """A Linux client has the locks of a delegated file to itself; recalled, it tells them before it writes what it has
    cached."""

    async def test(server, export, one, two):
        opened = await one.opening(b"f", BOTH, create=mode(0o644))
        one.end.keep = True
        running = asyncio.ensure_future(shell(f"{sys.executable} -c '{LOCAL_LOCK}' {export}/f"))
        await one.end.arrival(1)
        recall = one.end.executed[0][1]
        await one.on(recall.fh, locking(one, opened.stateid, 0, 10))
        await asyncio.sleep(0.1)  # in which it would have gone on
        writing = (p.OP_WRITE, p.WRITE4args(recall.stateid, 0, p.stable_how4.FILE_SYNC4, b"cached"))
        await one.on(recall.fh, writing)
        assert not running.done()
        await one.give_back(recall.stateid, recall.fh)
        assert await running == b"cached locked\n"
        await one.close(opened.stateid, recall.fh)
        assert await shell(f"{sys.executable} -c '{LOCAL_LOCK}' {export}/f") == b"cached free\n"

    (tmp_path / "state").rmdir()
    with_two(tmp_path, minor, test, leases=True)


@pytest.mark.parametrize("minor", [1, 2])
def test_a_local_writer_waits_for_the_readers(tmp_path, minor):
    async def test(server, export, one, two):
        (export / "f").write_bytes(b"old")
        for client in (one, two):
            assert (await client.opening(b"f", READ)).delegation.delegation_type == READ_DELEGATION
        await shell(f"echo new > {export}/f")
        assert (one.end.recalls, two.end.recalls) == (1, 1)
        assert (export / "f").read_bytes() == b"new\n"
        assert server.engine.delegations.count == 0

    (tmp_path / "state").rmdir()
    with_two(tmp_path, minor, test, leases=True)


def test_a_holder_that_does_not_answer_loses_before_the_kernel_lets_the_local_process_go_on(tmp_path, monkeypatch):
    async def test(server, export, one, two):
        await one.opening(b"f", BOTH, create=mode(0o644))
        one.end.keep = True
        running = asyncio.ensure_future(shell(f"cat {export}/f"))
        await running
        assert server.engine.delegations.revoked == 1

    (tmp_path / "state").rmdir()
    (tmp_path / "time").write_text("1")
    monkeypatch.setattr(leases, "BREAK_TIME", tmp_path / "time")
    with_two(tmp_path, 1, test, leases=True)


def test_a_file_written_and_read_again_by_its_client_is_delegated_at_once(tmp_path):
    async def test(server, export, one, two):
        stateid, handle = await one.open("/0", b"f", create=mode(0o644))
        for held in list(server.engine.clients.lookup(one.clientid).states.values()):
            if held.kind == 3:
                server.engine.delegations.give_back(held)
        await one.close(stateid, handle)
        assert (await one.opening(b"f", READ)).delegation.delegation_type == READ_DELEGATION
        assert (await two.opening(b"f", BOTH)).delegation.delegation_type == NONE

    (tmp_path / "state").rmdir()
    with_two(tmp_path, 1, test, leases=True)


def test_a_file_its_client_has_open_already_is_delegated_too(tmp_path):
    async def test(server, export, one, two):
        no = p.OPEN4_SHARE_ACCESS_WANT_NO_DELEG
        await one.opening(b"f", BOTH, create=mode(0o644), want=no)
        await one.opening(b"f", BOTH, want=no)
        assert (await one.opening(b"f", BOTH)).delegation.delegation_type == WRITE_DELEGATION

    (tmp_path / "state").rmdir()
    with_two(tmp_path, 1, test, leases=True)


def test_who_opens_only_to_write_gets_a_write_delegation_and_reads_under_it(tmp_path):
    async def test(server, export, one, two):
        (export / "f").write_bytes(b"data")
        opened = await one.opening(b"f", p.OPEN4_SHARE_ACCESS_WRITE)
        assert opened.delegation.delegation_type == WRITE_DELEGATION
        (result,) = await one.on(one.handles[b"f"], (p.OP_READ, p.READ4args(opened.delegation.write.stateid, 0, 9)))
        assert result.resok4.data == b"data"
        assert one.end.recalls == 0

    (tmp_path / "state").rmdir()
    with_two(tmp_path, 1, test, leases=True)


def test_who_may_not_read_gets_no_write_delegation(tmp_path):
    async def test(server, export, one, two):
        (export / "f").write_bytes(b"data")
        (export / "f").chmod(0o222)
        one.credential = (1000, 1000, ())
        opened = await one.opening(b"f", p.OPEN4_SHARE_ACCESS_WRITE)
        assert opened.delegation.delegation_type == NONE

    (tmp_path / "state").rmdir()
    with_two(tmp_path, 1, test, leases=True)


# -- what leases do not tell -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["disk", "memory"])
@pytest.mark.parametrize(
    "command", ["chmod 600 f", "chown 1000 f", "touch f", "ln f g", "mv f g", "rm f", "touch g && mv g f"]
)
def test_local_changes_of_permissions_and_names_are_told(tmp_path, kind, command):
    async def scenario(service, root):
        _, opened, hold, heard = await leased(service, root, write=False)
        await shell(f"cd {path} && {command}")
        await until(lambda: heard)
        hold.release()
        opened.release()

    with directory_on(kind, tmp_path) as path:
        run(path, tmp_path, scenario)


@pytest.mark.parametrize("kind", ["disk", "memory"])
def test_the_servers_own_changes_are_no_news(tmp_path, kind):
    async def scenario(service, root):
        node, opened, hold, heard = await leased(service, root, write=True)
        await service.set_attributes(ROOT, node, SetAttributes(mode=0o600))
        await service.link(ROOT, node, root, b"g")
        await service.rename(ROOT, root, b"g", root, b"h")
        await service.remove(ROOT, root, b"h", directory_wanted=False)
        await NativeFiles(service).write(ROOT, node, 0, b"x", FILE_SYNC)
        # Whatever the kernel had to say of these has been said when it speaks of another process.
        other = await write_file(service, root, b"other", b"x")
        service.open_files.forget_all(other.inode)
        reading = await service.open(ROOT, other, read=True, write=False)
        told = []
        second = await service.wait_for_lease(reading, write=False, on_break=lambda: told.append(1))
        await shell(f"chmod 600 {path}/other")
        await until(lambda: told)
        assert heard == []
        for held in (hold, second, opened, reading):
            held.release()
        await shell(f"chmod 644 {path}/f")
        assert heard == []

    with directory_on(kind, tmp_path) as path:
        run(path, tmp_path, scenario)
