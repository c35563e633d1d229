"""Attributes set natively: the answers, the files and what the server remembers are those of the general path."""

import os
import random
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from nfsd.protocol.nfs3 import SETATTR3args, SETATTR3res, nfs_fh3, nfsstat3, nfstime3, time_how
from rpcrdma.xdr import pack, unpack
from tests.unit import vfs_support
from tests.unit.test_nfs3_native import CALLERS, WRITE, Delegated, handle, run
from tests.unit.test_nfs3_native_names import JUKEBOX, OK, sattr, status

ROOT = Path(__file__).parents[2]
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
    {"size": 5, "times": SERVER},
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
def test_random_changes(kind, tmp_path, seed):
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
            guard = rng.choice((None, None, None, "ctime", "other"))
            guards = [None, None]
            if guard is not None:
                times = [os.stat(os.path.join(both.path, path)).st_ctime_ns for path in ("one", "two")]
                guards = [nfstime3(*divmod(time + (guard == "other"), 10**9)) for time in times]
            native = await both.native.call(SETATTR, setting(one, guards[0], **wanted), caller)
            general = await both.general.call(SETATTR, setting(two, guards[1], **wanted), caller)
            assert comparable(native) == comparable(general), wanted
            assert facts(os.path.join(both.path, "one")) == facts(os.path.join(both.path, "two")), wanted
            # Whoever has it open from before is asked again by the kernel, or is not.
            write = struct.pack(">QIII", 0, 4, 0, 4) + b"data"
            caller = rng.choice(CALLERS)
            allowed = [
                status(await client.call(WRITE, handle(node) + write, caller))
                for client, node in ((both.native, one), (both.general, two))
            ]
            assert allowed[0] == allowed[1]
            current = [
                [inode.opens[key].epoch == inode.epoch for key in sorted(inode.opens, key=repr)] for inode in inodes
            ]
            assert current[0] == current[1]
        return both.answered(SETATTR)

    assert run(kind, tmp_path, scenario) > 200


def test_what_was_changed_shows_in_the_change_attribute(kind, tmp_path):
    async def scenario(both):
        (node,) = await files(both, b"one")
        for number in range(40):
            before = await both.service.attributes(node)
            assert status(await both.native.call(SETATTR, setting(node, mode=0o600 | number & 7))) == OK
            assert status(await both.native.call(SETATTR, setting(node, times=CLIENT))) == OK
            after = await both.service.attributes(node)
            assert after.change > before.change
        assert both.answered(SETATTR) == 80

    run(kind, tmp_path, scenario)


def test_a_retransmitted_change_is_not_made_again(kind, tmp_path):
    async def scenario(both):
        (node,) = await files(both, b"one")
        path = os.path.join(both.path, "one")
        ctime = nfstime3(*divmod(os.stat(path).st_ctime_ns, 10**9))
        guarded = setting(node, ctime, mode=0o600)
        first = await both.native.call(SETATTR, guarded, xid=900)
        assert status(first) == OK
        assert both.answered(SETATTR) == 1
        os.chmod(path, 0o644)
        assert await both.native.call(SETATTR, guarded, xid=900) == first
        assert os.stat(path).st_mode & 0o777 == 0o644
        refused = await both.native.call(SETATTR, guarded, xid=901)
        assert status(refused) == struct.pack(">I", nfsstat3.NFS3ERR_NOT_SYNC)
        assert both.answered(SETATTR) == 2

    run(kind, tmp_path, scenario)


def test_a_delegation_is_recalled_before_attributes_change(kind, tmp_path):
    delegated = Delegated()

    async def scenario(both):
        one, two = await files(both, b"one", b"two")
        delegated.key, one.inode.delegated = one.key, 1
        assert status(await both.native.call(SETATTR, setting(one, mode=0o600))) == JUKEBOX
        assert status(await both.native.call(SETATTR, setting(two, mode=0o600))) == OK
        assert (delegated.asked, both.answered(SETATTR)) == (1, 2)

    run(kind, tmp_path, scenario, delegated)


def test_failures_are_answered_natively(kind, tmp_path):
    async def scenario(both):
        (node,) = await files(both, b"one")
        ctime = os.stat(os.path.join(both.path, "one")).st_ctime_ns
        for caller, wanted, guard, error in (
            ((0, 0), {"uid": 0xFFFFFFFF}, None, "INVAL"),
            ((0, 0), {"size": 1 << 63}, None, "FBIG"),
            ((1001, 1001), {"mode": 0o600}, None, "PERM"),
            ((1001, 1001), {"uid": 1001}, None, "PERM"),
            ((0, 0), {"mode": 0o600}, nfstime3(*divmod(ctime + 1, 10**9)), "NOT_SYNC"),
            ((0, 0), {"mode": 0o600}, nfstime3(1, 1_000_000_000), "NOT_SYNC"),
        ):
            answered = both.answered(SETATTR)
            native = await both.native.call(SETATTR, setting(node, guard, **wanted), caller)
            general = await both.general.call(SETATTR, setting(node, guard, **wanted), caller)
            assert comparable(native) == comparable(general)
            assert nfsstat3(int.from_bytes(status(native), "big")).name == f"NFS3ERR_{error}"
            assert both.answered(SETATTR) == answered + 1
        assert facts(os.path.join(both.path, "one"))[0] & 0o7777 == 0o666

    run(kind, tmp_path, scenario)


def test_sizes_are_set_among_writes(kind, tmp_path):
    """Each in its turn: what was written before is cut off, what comes later is there."""

    async def scenario(both):
        (node,) = await files(both, b"one")
        write = struct.pack(">QIII", 0, 4, 0, 4) + b"data"
        assert status(await both.native.call(WRITE, handle(node) + write)) == OK
        for number in range(20):
            both.native.send(WRITE, handle(node) + write)
            both.native.send(SETATTR, setting(node, size=number))
        replies = [(await both.native.reply())[4:] for _ in range(40)]
        assert {status(reply) for reply in replies} == {OK}
        assert both.answered(SETATTR) == 20
        assert status(await both.native.call(SETATTR, setting(node, size=4))) == OK
        assert os.stat(os.path.join(both.path, "one")).st_size == 4
        assert not node.inode.serial.busy

    run(kind, tmp_path, scenario)


def test_a_kernel_without_fchmodat2_sets_modes_all_the_same():
    """It came with Linux 6.6, and containers may forbid it: the other tests here, where it fails from the beginning."""
    script = (
        "import sys, pytest\n"
        "from tests.support.seccomp import refuse\n"
        "refuse(452)\n"
        f"sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', '-k', 'not fchmodat2', {__file__!r}]))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0, done.stdout
