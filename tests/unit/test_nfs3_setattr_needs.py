"""SETATTR is answered natively whatever it needs and however it fails; the handler that it had in Python is gone."""

import asyncio
import os
import stat
import struct

import pytest

from nfsd.protocol.nfs3 import (
    SETATTR3args,
    SETATTR3res,
    SETATTR3resfail,
    SETATTR3resok,
    nfs_fh3,
    nfsstat3,
    nfstime3,
    set_atime,
    set_mtime,
    time_how,
    wcc_attr,
    wcc_data,
)
from rpcrdma.xdr import pack, unpack
from tests.nfs3_client import attributes
from tests.support import nfs3_truth
from tests.unit import vfs_support
from tests.unit.test_nfs3_native import handle
from tests.unit.test_nfs3_needs import Recalling, natively, nodes_of, run, status
from tests.unit.test_waiting_calls import until

SETATTR = 2
OK, PERM, ACCES, ISDIR, INVAL, ROFS, STALE = 0, 1, 13, 21, 22, 30, 70
BADHANDLE, NOT_SYNC, JUKEBOX = 10001, 10002, 10008
OTHER = (1002, 1002)
NOW = {"mtime": set_mtime(time_how.SET_TO_SERVER_TIME)}
BOTH_NOW = NOW | {"atime": set_atime(time_how.SET_TO_SERVER_TIME)}
THEN = {"mtime": set_mtime(time_how.SET_TO_CLIENT_TIME, nfstime3(7, 8))}


@pytest.fixture(params=["memory", "disk", "slow"])
def kind(request):
    """In memory, on a disk, on a file system where every look at a file may wait."""
    return request.param


def setting(node, guard=None, **wanted):
    return pack(SETATTR3args, SETATTR3args(nfs_fh3(node.handle), attributes(**wanted), guard))


def ctime_of(node, later=0):
    return nfstime3(*divmod(os.fstat(node.fd).st_ctime_ns + later, 10**9))


async def told(both, node, caller=(0, 0), guard=None, **wanted):
    """The status of a SETATTR, whose other octets must be true."""
    before = nfs3_truth.attributes(node)
    reply = await natively(both, SETATTR, setting(node, guard, **wanted), caller)
    after = nfs3_truth.attributes(node)
    outcome = status(reply)
    if outcome == OK:
        around = wcc_data(wcc_attr(before.size, before.mtime, before.ctime), after)
        expected = SETATTR3res(nfsstat3.NFS3_OK, resok=SETATTR3resok(around))
    else:
        assert (after.mode, after.uid, after.gid, after.size) == (before.mode, before.uid, before.gid, before.size)
        expected = SETATTR3res(nfsstat3(outcome), resfail=SETATTR3resfail(wcc_data(None, after)))
    assert reply[20:] == pack(SETATTR3res, expected)
    return outcome


def test_a_size_takes_a_descriptor(kind, tmp_path):
    """Of who may write the file, and of its owner (section 4.4). Only regular files have a size."""

    async def scenario(both):
        private, public, directory, link = await nodes_of(both)
        os.chmod(os.path.join(both.path, "private"), 0)
        for node, caller, size, outcome in (
            (public, OTHER, 7, OK),
            (public, OTHER, 70_000, OK),
            (private, (1001, 1001), 3, OK),
            (private, OTHER, 0, ACCES),
            (private, (0, 0), 0, OK),
            (directory, (0, 0), 0, ISDIR),
            (link, (0, 0), 0, INVAL),
        ):
            both.service.open_files.forget_all(node.inode)
            assert await told(both, node, caller, size=size) == outcome
            if outcome == OK:
                assert os.fstat(node.fd).st_size == size
        # What is asked for besides is not done either.
        assert await told(both, private, OTHER, size=9, **BOTH_NOW) == ACCES

    run(kind, tmp_path, scenario)


def test_times_of_the_server_are_set_by_who_may_write(kind, tmp_path):
    """One alone, too, which the kernel lets nobody but the owner; with a size, and with a guard."""

    async def scenario(both):
        private, public, *_ = await nodes_of(both)
        for node in (private, public):
            os.chown(node_path(both, node), 1001, 1001)
        for guarded in (False, True):
            for times in (NOW, BOTH_NOW):
                for node, outcome in ((public, OK), (private, PERM if times is NOW else ACCES)):
                    os.utime(node_path(both, node), (1, 2))
                    guard = ctime_of(node) if guarded else None
                    assert await told(both, node, OTHER, guard, **times) == outcome
                    assert (os.fstat(node.fd).st_mtime > 2) == (outcome == OK)
            guard = ctime_of(public) if guarded else None
            reply = await natively(both, SETATTR, setting(public, guard, size=11, **NOW), OTHER)
            after = unpack(SETATTR3res, reply[20:]).resok.obj_wcc.after
            assert after == nfs3_truth.attributes(public)
            assert after.size == 11
            assert await told(both, public, OTHER, **THEN) == PERM
            assert await told(both, public, (1001, 1001), **THEN) == OK
            assert os.fstat(public.fd).st_mtime_ns == 7_000_000_008

    run(kind, tmp_path, scenario)


def node_path(both, node):
    return os.readlink(f"/proc/self/fd/{node.fd}")


def test_what_is_refused(kind, tmp_path):
    async def scenario(both):
        _, public, directory, link = await nodes_of(both)
        os.chown(node_path(both, public), 1001, 1001)
        for node, caller, guard, wanted, outcome in (
            (public, OTHER, None, {"mode": 0o600}, PERM),
            (public, (1001, 1001), None, {"uid": 1002}, PERM),
            (public, (1001, 1001), None, {"gid": 1002}, PERM),
            (public, (0, 0), ctime_of(public, 1), {"mode": 0o600}, NOT_SYNC),
            (public, (0, 0), nfstime3(1, 1_000_000_000), {"size": 0}, NOT_SYNC),
            (directory, OTHER, None, {"mode": 0o700}, PERM),
            (directory, (0, 0), None, {"mode": 0o2750, "uid": 1001, "gid": 1002}, OK),
            (public, (1001, 1001), None, {"mode": 0o640}, OK),
            (public, (0, 0), None, {}, OK),
            (link, (0, 0), None, {"uid": 1001, "gid": 1001} | THEN, OK),
        ):
            both.service.nodes.forget(node)
            assert await told(both, node, caller, guard, **wanted) == outcome, wanted
        assert stat.S_IMODE(os.fstat(directory.fd).st_mode) == 0o2750
        assert os.fstat(link.fd).st_uid == 1001

    run(kind, tmp_path, scenario)


def test_handles_of_nothing(kind, tmp_path):
    async def scenario(both):
        gone = await vfs_support.write_file(both.service, both.root, b"gone", b"x")
        os.unlink(os.path.join(both.path, "gone"))
        tail = setting(gone, mode=0o600)[len(handle(gone)) :]
        for octets in (b"", bytes(32)):
            reply = await natively(both, SETATTR, struct.pack(">I", len(octets)) + octets + tail)
            assert reply[20:] == struct.pack(">III", BADHANDLE, 0, 0)
        for _ in range(2):
            assert (await natively(both, SETATTR, handle(gone) + tail))[20:] == struct.pack(">III", STALE, 0, 0)
            both.service.nodes.forget(gone)
        assert os.fstat(gone.fd).st_mode & 0o777 == 0o644

    run(kind, tmp_path, scenario)


def test_a_read_only_export(kind, tmp_path):
    async def scenario(both):
        for wanted in ({"mode": 0o700}, {"size": 0}, {"uid": 0xFFFFFFFF}, {}):
            assert await told(both, both.root, **wanted) == ROFS

    run(kind, tmp_path, scenario, read_only=True)


def test_what_is_malformed_is_garbage_and_octets_behind_do_no_harm(kind, tmp_path):
    async def scenario(both):
        _, public, *_ = await nodes_of(both)
        plain, guarded = setting(public, mode=0o600), setting(public, ctime_of(public), mode=0o600)
        garbage = struct.pack(">I", 4)
        for arguments in (
            plain[:-4],
            guarded[:-4],
            plain[:-4] + struct.pack(">I", 2),
            handle(public),
            handle(public) + struct.pack(">I", 2) + plain[len(handle(public)) + 4 :],
            struct.pack(">I", 68) + bytes(68) + plain[len(handle(public)) :],
        ):
            for client in (both.native, both.general):
                assert (await client.call(SETATTR, arguments))[16:] == garbage
        assert os.fstat(public.fd).st_mode & 0o777 == 0o666
        for arguments in (guarded + bytes(8), plain + bytes(4)):
            assert status(await natively(both, SETATTR, arguments)) == OK

    run(kind, tmp_path, scenario)


@pytest.mark.parametrize("wanted", [{"mode": 0o600}, {"size": 3}], ids=["mode", "size"])
def test_delegations_are_recalled(kind, wanted, tmp_path):
    delegations = Recalling()

    async def scenario(both):
        delegations.given_back = asyncio.Event()
        _, public, *_ = await nodes_of(both)
        delegations.key, public.inode.delegated = public.key, 1
        assert await told(both, public, **wanted) == JUKEBOX
        assert delegations.held == 0
        both.native.send(SETATTR, setting(public, ctime_of(public), **wanted))
        await until(lambda: delegations.held)
        delegations.given_back.set()
        assert (await both.native.reply())[24:28] == bytes(4)
        await until(lambda: not delegations.held)
        found = os.fstat(public.fd)
        assert found.st_size == 3 if "size" in wanted else found.st_mode & 0o777 == 0o600
        assert await told(both, public, guard=ctime_of(public, 1), **wanted) == NOT_SYNC

    run(kind, tmp_path, scenario, delegations)


def test_a_file_that_is_being_changed_is_waited_for(kind, tmp_path):
    async def scenario(both):
        _, public, *_ = await nodes_of(both)
        await both.native.call(SETATTR, setting(public, size=5))
        await public.inode.serial.acquire()
        for wanted in ({"mode": 0o640}, {"size": 9}):
            both.native.send(SETATTR, setting(public, **wanted))
        await until(lambda: len(both.dispatcher.held) == 2)
        assert os.fstat(public.fd).st_size == 5
        public.inode.serial.release()
        for _ in range(2):
            assert (await both.native.reply())[24:28] == bytes(4)
        found = os.fstat(public.fd)
        assert (stat.S_IMODE(found.st_mode), found.st_size) == (0o640, 9)

    run(kind, tmp_path, scenario)
