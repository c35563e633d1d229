"""Who may open a file by its name is for the kernel to say, also where it is not asked each time."""

import asyncio
import contextlib
import ctypes
import os
import random
import struct
import subprocess
from pathlib import Path

import pytest

from nfsd.protocol import nfs4 as p
from nfsd.vfs.change import SETTLE_NS
from tests.support.nfs4 import Client4
from tests.support.nfs4_native import handle_of, run
from tests.unit.test_nfs4_native import CALLERS, on, putfh
from tests.unit.test_nfs4_native_opens import next_seqid, opening

OK, ACCESS = p.NFS4_OK, p.NFS4ERR_ACCESS
ALICE, BOB = (1001, 1001), (1002, 1002)
OPEN_TREE, MOVE_MOUNT, MOUNT_SETATTR = 428, 429, 442
OPEN_TREE_CLONE, MOVE_MOUNT_F_EMPTY_PATH, MOUNT_ATTR_IDMAP = 1, 4, 0x100000
AT_EMPTY_PATH, MNT_DETACH = 0x1000, 2


def switches(both):
    return both.server.nfs4.service.executor.statistics()["credential_switches"]


async def made(both):
    """A directory with a file that everybody may read."""
    (both.path / "d").mkdir()
    (both.path / "d" / "a").write_bytes(b"content")
    (both.path / "d" / "a").chmod(0o644)
    return await handle_of(both, b"d"), both.path / "d"


async def opened(both, directory, caller):
    """The outcome of an OPEN, by an owner of the caller's."""
    owner = b"owner %d" % caller[0]
    operation = opening(both, b"a", owner=owner, seqid=next_seqid(both, owner))
    reply = await both.native.call(None, both.message(0, putfh(directory), operation, caller=caller))
    return Client4.parse(reply)[0]


async def settled():
    """Behind the time in which a change may have the ctime of the one before it."""
    await asyncio.sleep(2 * SETTLE_NS / 1e9)


@pytest.mark.parametrize("minor", [0, 1])
def test_nobody_is_switched_to_who_has_searched_the_directory_before(kind, tmp_path, minor):
    async def scenario(both):
        directory, path = await made(both)
        await settled()
        for caller in (ALICE, BOB):
            for _ in range(3):
                assert await opened(both, directory, caller) == OK
        before = switches(both)
        for caller in (ALICE, BOB, ALICE):
            assert await opened(both, directory, caller) == OK
        assert switches(both) == before
        path.chmod(0o700)
        assert await opened(both, directory, ALICE) == ACCESS
        assert switches(both) > before

    on(kind, tmp_path, minor, scenario)


def test_a_change_of_permissions_counts_at_once(kind, tmp_path):
    async def scenario(both):
        rng = random.Random(12)
        directory, path = await made(both)
        for turn in range(60):
            if turn % 6 == 0:
                await settled()
            else:
                os.chown(path, *rng.choice(CALLERS))
                path.chmod(rng.choice((0o755, 0o711, 0o700, 0o710, 0o701, 0o750, 0o770)))
            status = path.stat()
            for _ in range(3):
                caller = rng.choice(CALLERS)
                bits = 6 if caller[0] == status.st_uid else 3 if caller[1] == status.st_gid else 0
                may = caller[0] == 0 or status.st_mode >> bits & 1
                assert await opened(both, directory, caller) == (OK if may else ACCESS), (
                    turn,
                    caller,
                    oct(status.st_mode),
                )

    on(kind, tmp_path, 1, scenario)


def test_an_access_list_counts_at_once(kind, tmp_path):
    async def scenario(both):
        directory, path = await made(both)
        await settled()
        for _ in range(3):
            assert await opened(both, directory, ALICE) == OK
        # Version 2; its owner, Alice, the owning group, the mask and others: tag, permissions, id.
        entries = ((1, 7, -1), (2, 0, 1001), (4, 5, -1), (16, 5, -1), (32, 5, -1))
        acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)
        try:
            os.setxattr(path, "system.posix_acl_access", acl)
        except OSError:
            pytest.skip("no access lists here")
        assert path.stat().st_mode & 0o777 == 0o755
        assert await opened(both, directory, ALICE) == ACCESS
        assert await opened(both, directory, BOB) == OK

    on(kind, tmp_path, 1, scenario)


@contextlib.contextmanager
def shut_to_root(place):
    """A directory with a file, which the group 1001 may search and the server may not. An idmapped mount does not know
    its owner, and root's capabilities are good for files whose owners are known (capabilities(7), mount_setattr(2))."""
    below, above = place / "below", place / "above"
    below.mkdir()
    above.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"none", os.fsencode(below), b"tmpfs", 0, b"size=4m,mode=755"):
        pytest.skip("nothing may be mounted here")
    try:
        (below / "d").mkdir()
        (below / "d" / "a").write_bytes(b"content")
        (below / "d" / "a").chmod(0o644)
        os.chown(below / "d", 5000, 1001)
        (below / "d").chmod(0o710)
        sleeping = subprocess.Popen(["unshare", "--user", "sh", "-c", "echo; exec sleep 60"], stdout=subprocess.PIPE)
        with sleeping:
            sleeping.stdout.readline()
            for ids in ("uid_map", "gid_map"):
                Path(f"/proc/{sleeping.pid}/{ids}").write_text("0 0 4000\n")
            tree = libc.syscall(OPEN_TREE, -100, os.fsencode(below), OPEN_TREE_CLONE)
            namespace = os.open(f"/proc/{sleeping.pid}/ns/user", os.O_RDONLY)
            mapped = struct.pack("=4Q", MOUNT_ATTR_IDMAP, 0, 0, namespace)
            refused = libc.syscall(MOUNT_SETATTR, tree, b"", AT_EMPTY_PATH, mapped, len(mapped))
            refused = refused or libc.syscall(MOVE_MOUNT, tree, b"", -100, os.fsencode(above), MOVE_MOUNT_F_EMPTY_PATH)
            os.close(namespace)
            os.close(tree)
            sleeping.kill()
        if refused:
            pytest.skip("no idmapped mounts here")
        try:
            yield above
        finally:
            libc.umount2(os.fsencode(above), MNT_DETACH)
    finally:
        libc.umount2(os.fsencode(below), MNT_DETACH)


@pytest.mark.parametrize("minor", [0, 1])
def test_what_the_server_may_not_search_is_searched_as_the_caller_each_time(tmp_path, minor):
    async def scenario(both):
        with pytest.raises(PermissionError):
            (both.path / "d" / "a").stat()
        directory = await handle_of(both, b"d")
        await settled()
        for _ in range(3):
            before = switches(both)
            assert await opened(both, directory, ALICE) == OK
            assert switches(both) > before
            assert await opened(both, directory, BOB) == ACCESS

    with shut_to_root(tmp_path) as path:
        run(str(path), tmp_path, minor, scenario)
