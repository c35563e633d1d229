"""Delegated directories beside NFSv3 and local processes, and clients that misuse them (RFC 8881 section 10.9)."""

import os
from pathlib import Path

import pytest

from nfsd.protocol import nfs3 as v3
from nfsd.protocol import nfs4 as p
from nfsd.state import Limits
from rpcrdma.xdr import pack
from tests.nfs3_client import attributes as attributes3
from tests.support.delegations import READ, until, with_two
from tests.support.directories import KINDS, back, created, given, picture, populated, refused
from tests.unit.test_nfs3_delegations import NUMBERS, diropargs, nfs3_client
from tests.unit.test_vfs_leases import shell
from tests.unit.vfs_support import directory_on

MINORS = [1, 2]
REFUSALS = (p.NFS4ERR_BAD_STATEID, p.NFS4ERR_ISDIR, p.NFS4ERR_INVAL, p.NFS4ERR_OPENMODE)


CHANGES_3 = {
    "CREATE": lambda d: v3.CREATE3args(
        diropargs(d, b"new"), v3.createhow3(v3.createmode3.UNCHECKED, obj_attributes=attributes3())
    ),
    "MKDIR": lambda d: v3.MKDIR3args(diropargs(d, b"new"), attributes3()),
    "SYMLINK": lambda d: v3.SYMLINK3args(diropargs(d, b"new"), v3.symlinkdata3(attributes3(), b"f")),
    "REMOVE": lambda d: v3.REMOVE3args(diropargs(d, b"f")),
    "RMDIR": lambda d: v3.RMDIR3args(diropargs(d, b"sub")),
    "RENAME": lambda d: v3.RENAME3args(diropargs(d, b"f"), diropargs(d, b"new")),
    "SETATTR": lambda d: v3.SETATTR3args(v3.nfs_fh3(d), attributes3(mode=0o700), None),
}


@pytest.mark.parametrize("change", CHANGES_3)
def test_a_change_by_nfs3_recalls_it_first(tmp_path, change):
    @populated
    async def test(server, export, one, two):
        stateid = await given(one)
        directory = one.handles["/0/d"]
        async with nfs3_client(server) as (client, _):

            async def call():
                number = NUMBERS[change]
                reply = await client.call(number, pack(v3.PROCEDURES[number].arguments, CHANGES_3[change](directory)))
                return int.from_bytes(reply[20:24], "big")

            one.end.keep = True
            before = picture(export / "d")
            assert await call() == v3.nfsstat3.NFS3ERR_JUKEBOX
            await until(lambda: one.end.recalls)
            assert picture(export / "d") == before
            await one.give_back(stateid, directory)
            assert await call() == v3.nfsstat3.NFS3_OK
            assert picture(export / "d") != before

    with_two(tmp_path, 1, test)


@pytest.mark.parametrize("kind", ["disk", "memory"])
@pytest.mark.parametrize(
    "command",
    ["touch new", "mkdir new", "ln -s f new", "ln f new", "rm f", "rmdir sub", "mv f new", "mv f ..", "mv ../g .",
     "chmod 700 .", "mv ../d ../other"],
)  # fmt: skip
def test_what_a_local_process_does_recalls_it(tmp_path, kind, command):
    @populated
    async def test(server, export, one, two):
        await given(one)
        await shell(f"cd {export}/d && ls && cat f && echo x >> f && touch sub/x")
        assert server.engine.delegations.recalled == 0
        await shell(f"rm {export}/d/sub/x; cd {export}/d && {command}")
        await until(lambda: one.end.recalls)
        await until(lambda: not server.engine.delegations.count)

    with directory_on(kind, tmp_path) as path:
        with_two(Path(path), 1, test, leases=True)


def test_nothing_is_watched_once_it_is_back(tmp_path):
    @populated
    async def test(server, export, one, two):
        watches = server.service.leasing._leases._watches
        stateids = [await given(client) for client in (one, two)]
        assert len(watches._heard) == 1
        await back(one, stateids[0])
        assert len(watches._heard) == 1
        await shell(f"touch {export}/d/new")  # the other one still hears of it
        await until(lambda: two.end.recalls)
        await until(lambda: not server.engine.delegations.count)
        assert (one.end.recalls, watches._heard) == (0, {})

    with_two(tmp_path, 1, test, leases=True)


def test_what_the_kernel_does_not_tell_of_is_not_delegated(tmp_path):
    @populated
    async def test(server, export, one, two):
        server.service.leasing._leases._watches.close()
        places = server.service.shares.in_use
        assert await refused(one)
        assert (server.engine.delegations.count, server.service.shares.in_use) == (0, places)

    with_two(tmp_path, 1, test, leases=True)


def test_a_client_that_answers_recalls_with_rubbish_loses_it(tmp_path):
    @populated
    async def test(server, export, one, two):
        await given(one)
        one.end.keep = True
        answer = one.end.answer

        async def rubbish(message, connection=None):
            await answer(message, connection)
            return os.urandom(48)

        one.end.answer = rubbish

        async def made():
            return await two.status(*created(two, KINDS.NF4DIR, b"new")) == p.NFS4_OK

        await until(made)
        assert (server.engine.delegations.revoked, server.engine.delegations.count) == (1, 0)

    with_two(tmp_path, 1, test, limits=Limits(grace=0, recall=0.3))


def test_a_client_takes_no_more_than_it_may(tmp_path):
    @populated
    async def test(server, export, one, two):
        for number in range(6):
            (export / f"d/{number}").mkdir()
        taken = [number for number in range(6) if not await refused(one, f"/0/d/{number}")]
        assert taken == [0, 1, 2]
        await until(lambda: p.OP_CB_RECALL_ANY in one.end.operations)
        (arguments,) = [a for number, a in one.end.executed if number == p.OP_CB_RECALL_ANY][:1]
        assert arguments.craa_type_mask[0] >> p.RCA4_TYPE_MASK_DIR_DLG & 1
        assert not await refused(two, "/0/d/5")  # there is something left for others

    with_two(tmp_path, 1, test, limits=Limits(grace=0, client_delegations=3))


def test_directories_leave_places_for_files(tmp_path):
    @populated
    async def test(server, export, one, two):
        shares = server.service.shares
        shares.bound(40, 20)
        for number in range(30):
            (export / f"d/{number}").mkdir()
        taken = [number for number in range(30) if not await refused(one, f"/0/d/{number}")]
        assert len(taken) == shares.in_use == 10
        await one.opening(b"g", READ)

    with_two(tmp_path, 1, test)


@pytest.mark.parametrize("minor", MINORS)
def test_its_stateid_is_good_for_nothing_but_its_return(tmp_path, minor):
    @populated
    async def test(server, export, one, two):
        stateid = await given(one)
        opened = await two.run(*two.path("/0/d"), (p.OP_OPEN, two.open_args(b"f", access=READ)), p.OP_GETFH)
        file, directory = opened[-1].resok4.object, one.handles["/0/d"]
        resized = p.SETATTR4args(stateid, p.fattr4([1 << p.FATTR4_SIZE], bytes(8)))
        claim = p.open_claim4(p.open_claim_type4.CLAIM_DELEG_CUR_FH, oc_delegate_stateid=stateid)
        flag = p.openflag4(p.opentype4.OPEN4_NOCREATE)
        claimed = p.OPEN4args(0, READ, 0, p.open_owner4(one.clientid, b"o"), flag, claim)
        for operation in (
            (p.OP_READ, p.READ4args(stateid, 0, 10)),
            (p.OP_WRITE, p.WRITE4args(stateid, 0, p.stable_how4.FILE_SYNC4, b"x")),
            (p.OP_SETATTR, resized),
            (p.OP_CLOSE, p.CLOSE4args(0, stateid)),
            (p.OP_OPEN, claimed),
            (p.OP_DELEGRETURN, p.DELEGRETURN4args(p.stateid4(9, stateid.other))),
        ):
            for handle in (file, directory):
                status = await one.status((p.OP_PUTFH, p.PUTFH4args(handle)), operation)
                assert status in REFUSALS, (operation, status)
        foreign = (p.OP_DELEGRETURN, p.DELEGRETURN4args(stateid))
        assert await two.status((p.OP_PUTFH, p.PUTFH4args(directory)), foreign) == p.NFS4ERR_BAD_STATEID
        assert await one.status((p.OP_PUTFH, p.PUTFH4args(file)), foreign) == p.NFS4ERR_BAD_STATEID
        committing = (p.OP_COMMIT, p.COMMIT4args(0, 0))
        assert await one.status((p.OP_PUTFH, p.PUTFH4args(directory)), committing) in (
            p.NFS4ERR_ISDIR, p.NFS4ERR_INVAL,
        )  # fmt: skip
        await back(one, stateid)

    with_two(tmp_path, minor, test)
