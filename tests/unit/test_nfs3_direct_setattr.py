"""Attributes set natively: the answers, the files and what the server remembers are those of the general path."""

import os
import random
import struct

import pytest

from nfsd.protocol.nfs3 import SETATTR3args, SETATTR3res, nfs_fh3, nfsstat3, nfstime3, time_how
from rpcrdma.xdr import pack, unpack
from tests.unit import vfs_support
from tests.unit.test_nfs3_direct import CALLERS, WRITE, Delegated, handle, run
from tests.unit.test_nfs3_direct_names import JUKEBOX, OK, sattr, status

SETATTR = 2
SECONDS = 1_500_000_000
CLIENT, SERVER = time_how.SET_TO_CLIENT_TIME, time_how.SET_TO_SERVER_TIME
WANTED = (
    *({"mode": mode} for mode in (0o644, 0o600, 0o4755, 0o2755, 0, 0o666)),
    {"uid": 1001},
    {"gid": 1002},
    {"uid": 1002, "gid": 1002},
    {"uid": 0xFFFFFFFF},
    {"uid": 0xFFFFFFFF, "gid": 1001},
    {"times": CLIENT},
    {"times": SERVER},
    {"times": CLIENT, "nseconds": 1_000_000_000},
    {"mode": 0o640, "times": SERVER},
    {"mode": 0o4711, "uid": 1001, "gid": 1001, "times": CLIENT},
    {"size": 3},
    {"size": 0, "mode": 0o600},
    {"size": 1 << 63},
    {},
)


def setting(node, guard=None, **wanted):
    return pack(SETATTR3args, SETATTR3args(nfs_fh3(node.handle), sattr(**wanted), guard))


def comparable(reply):
    """The result without what differs between two files and two moments."""
    result = unpack(SETATTR3res, reply[20:])
    wcc = (result.resok or result.resfail).obj_wcc
    after = wcc.after
    seen = None if after is None else (after.type, after.mode, after.nlink, after.uid, after.gid, after.size)
    return result.status, None if wcc.before is None else wcc.before.size, seen


def facts(path):
    of = os.stat(path)
    set_to = [time == SECONDS * 10**9 for time in (of.st_atime_ns, of.st_mtime_ns)]
    return of.st_mode, of.st_uid, of.st_gid, of.st_size, set_to


async def files(both, *names):
    return [await vfs_support.write_file(both.service, both.root, name, b"x" * 99, mode=0o666) for name in names]


@pytest.mark.parametrize("seed", range(4))
def test_random_changes(tmp_path, seed):
    rng = random.Random(seed)

    async def scenario(both):
        one, two = await files(both, b"one", b"two")
        inodes = [node.inode for node in (one, two)]
        for step in range(300):
            if step % 10 == 0:
                owner = rng.choice(CALLERS)
                for path in ("one", "two"):
                    os.chown(os.path.join(both.path, path), *owner)
            caller, wanted = rng.choice((*CALLERS, (0, 0), (0, 0))), rng.choice(WANTED)
            kind = rng.choice((None, None, None, "ctime", "other"))
            guards = [None, None]
            if kind is not None:
                times = [os.stat(os.path.join(both.path, path)).st_ctime_ns for path in ("one", "two")]
                guards = [nfstime3(*divmod(time + (kind == "other"), 10**9)) for time in times]
            direct = await both.direct.call(SETATTR, setting(one, guards[0], **wanted), caller)
            general = await both.general.call(SETATTR, setting(two, guards[1], **wanted), caller)
            assert comparable(direct) == comparable(general), wanted
            assert facts(os.path.join(both.path, "one")) == facts(os.path.join(both.path, "two")), wanted
            # Whoever has it open from before is asked again by the kernel, or is not.
            write = struct.pack(">QIII", 0, 4, 0, 4) + b"data"
            caller = rng.choice(CALLERS)
            allowed = [
                status(await client.call(WRITE, handle(node) + write, caller))
                for client, node in ((both.direct, one), (both.general, two))
            ]
            assert allowed[0] == allowed[1]
            current = [
                [inode.opens[key].epoch == inode.epoch for key in sorted(inode.opens, key=repr)] for inode in inodes
            ]
            assert current[0] == current[1]
        return both.answered(SETATTR)

    assert run("memory", tmp_path, scenario) > 30


def test_what_was_changed_shows_in_the_change_attribute(tmp_path):
    async def scenario(both):
        (node,) = await files(both, b"one")
        for number in range(40):
            before = await both.service.attributes(node)
            assert status(await both.direct.call(SETATTR, setting(node, mode=0o600 | number & 7))) == OK
            assert status(await both.direct.call(SETATTR, setting(node, times=CLIENT))) == OK
            after = await both.service.attributes(node)
            assert after.change > before.change
        assert both.answered(SETATTR) == 80

    run("memory", tmp_path, scenario)


def test_a_retransmitted_change_is_not_made_again(tmp_path):
    async def scenario(both):
        (node,) = await files(both, b"one")
        path = os.path.join(both.path, "one")
        ctime = nfstime3(*divmod(os.stat(path).st_ctime_ns, 10**9))
        guarded = setting(node, ctime, mode=0o600)
        first = await both.direct.call(SETATTR, guarded, xid=900)
        assert status(first) == OK
        assert both.answered(SETATTR) == 1
        os.chmod(path, 0o644)
        assert await both.direct.call(SETATTR, guarded, xid=900) == first
        assert os.stat(path).st_mode & 0o777 == 0o644
        refused = await both.direct.call(SETATTR, guarded, xid=901)
        assert status(refused) == struct.pack(">I", nfsstat3.NFS3ERR_NOT_SYNC)
        assert both.answered(SETATTR) == 1

    run("memory", tmp_path, scenario)


def test_a_delegation_is_recalled_before_attributes_change(tmp_path):
    delegated = Delegated()

    async def scenario(both):
        one, two = await files(both, b"one", b"two")
        delegated.key, one.inode.delegated = one.key, 1
        assert status(await both.direct.call(SETATTR, setting(one, mode=0o600))) == JUKEBOX
        assert status(await both.direct.call(SETATTR, setting(two, mode=0o600))) == OK
        assert (delegated.asked, both.answered(SETATTR)) == (1, 1)

    run("memory", tmp_path, scenario, delegated)


def test_files_on_a_disk_are_for_the_general_path(tmp_path):
    async def scenario(both):
        (node,) = await files(both, b"one")
        assert status(await both.direct.call(SETATTR, setting(node, mode=0o600))) == OK
        assert both.answered(SETATTR) == 0

    run("disk", tmp_path, scenario)
