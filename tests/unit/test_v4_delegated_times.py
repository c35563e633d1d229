"""OPEN4_SHARE_ACCESS_WANT_DELEG_TIMESTAMPS: who holds a delegation for writing tells the file's times (RFC 9754 section
5)."""

import os
import time

import pytest

from nfsd.protocol import nfs4 as p
from nfsd.state import Limits
from nfsd.v4.delegated_times import FORGOTTEN
from tests.support.delegations import BOTH, READ, READ_DELEGATION, WRITE_DELEGATION, prepared, stateid_of, with_two
from tests.support.nfs4 import mode, values, wanted
from tests.unit.test_v4_delegation_reclaims import restarted

TIMES = p.OPEN4_SHARE_ACCESS_WANT_DELEG_TIMESTAMPS
WITH_TIMES = p.open_delegation_type4.OPEN_DELEGATE_WRITE_ATTRS_DELEG
ACCESS, MODIFY = p.FATTR4_TIME_DELEG_ACCESS, p.FATTR4_TIME_DELEG_MODIFY
ORIGINAL = 1_000_000_000
"""The seconds of the file's times when it is delegated."""
FUTURE = 4_000_000_000
MINORS = [1, 2]


def fattr(**times):
    """The attributes ``access`` and ``modify``, in seconds."""
    given = {ACCESS: times.get("access"), MODIFY: times.get("modify")}
    given = {number: seconds for number, seconds in given.items() if seconds is not None}
    octets = b"".join(seconds.to_bytes(8, "big") + bytes(4) for seconds in given.values())
    return p.fattr4([0, 0, sum(1 << number - 64 for number in given)], octets)


def setting(stateid, **times):
    """SETATTR of delegated times."""
    return p.OP_SETATTR, p.SETATTR4args(stateid, fattr(**times))


async def times_delegated(client, export):
    """A delegation of ``f`` and its times: (stateid, handle)."""
    os.utime(export / "f", (ORIGINAL, ORIGINAL))
    opened = await client.opening(b"f", BOTH, want=TIMES)
    assert opened.delegation.delegation_type == WITH_TIMES
    return stateid_of(opened), client.handles[b"f"]


def found(export):
    status = os.stat(export / "f")
    return status.st_atime_ns // 10**9, status.st_mtime_ns // 10**9


@pytest.mark.parametrize("minor", MINORS)
@pytest.mark.parametrize("leases", [False, True])
def test_the_holder_sets_the_times_before_it_returns_the_delegation(tmp_path, minor, leases):
    @prepared
    async def test(server, export, one, two):
        stateid, handle = await times_delegated(one, export)
        await one.on(handle, (p.OP_WRITE, p.WRITE4args(stateid, 0, p.stable_how4.FILE_SYNC4, b"CON")))
        assert found(export)[1] > ORIGINAL + 100, "the WRITE has moved it"
        (result,) = await one.on(handle, setting(stateid, access=ORIGINAL + 200, modify=ORIGINAL + 100))
        assert result.attrsset == [0, 0, 1 << ACCESS - 64 | 1 << MODIFY - 64]
        await one.on(handle, (p.OP_DELEGRETURN, p.DELEGRETURN4args(stateid)))
        assert found(export) == (ORIGINAL + 200, ORIGINAL + 100)

    with_two(tmp_path, minor, test, leases=leases)


@pytest.mark.parametrize("minor", MINORS)
def test_times_that_may_not_be(tmp_path, minor):
    @prepared
    async def test(server, export, one, two):
        stateid, handle = await times_delegated(one, export)
        before = os.stat(export / "f").st_ctime_ns
        await one.on(handle, setting(stateid, access=ORIGINAL - 1, modify=ORIGINAL - 1))
        assert found(export) == (ORIGINAL, ORIGINAL), "one before the original is ignored"
        await one.on(handle, setting(stateid, access=ORIGINAL + 1))
        await one.on(handle, setting(stateid, access=ORIGINAL + 1, modify=ORIGINAL))
        assert os.stat(export / "f").st_ctime_ns == before, "an access time does not move the change time"
        begun = int(time.time())
        await one.on(handle, setting(stateid, access=FUTURE, modify=FUTURE))
        assert all(begun <= seconds <= time.time() for seconds in found(export)), "one in the future is now"

    with_two(tmp_path, minor, test)


@pytest.mark.parametrize("minor", MINORS)
def test_they_are_the_holders_alone(tmp_path, minor):
    @prepared
    async def test(server, export, one, two):
        await one.opening(b"f", BOTH)
        plain = stateid_of(await one.opening(b"g", BOTH, create=mode(0o644)))
        at = (p.OP_PUTFH, p.PUTFH4args(one.handles[b"g"]))
        for stateid in (plain, p.stateid4(0, bytes(12)), p.stateid4(1, bytes(12))):
            assert await one.status(at, setting(stateid, modify=ORIGINAL)) == p.NFS4ERR_BAD_STATEID
        for asking in (
            (p.OP_GETATTR, wanted(MODIFY)),
            (p.OP_VERIFY, p.VERIFY4args(fattr(modify=ORIGINAL))),
            (p.OP_NVERIFY, p.NVERIFY4args(fattr(access=ORIGINAL))),
        ):
            assert await one.status(at, asking) == p.NFS4ERR_INVAL
        assert await one.open_status(b"new", BOTH, create=fattr(modify=ORIGINAL)) == p.NFS4ERR_ATTRNOTSUPP
        assert not (export / "new").exists()

    with_two(tmp_path, minor, test)


@pytest.mark.parametrize("minor", MINORS)
def test_delegations_for_reading_and_of_who_does_not_ask_are_without_times(tmp_path, minor):
    @prepared
    async def test(server, export, one, two):
        opened = await one.opening(b"f", READ, want=TIMES)
        assert opened.delegation.delegation_type == READ_DELEGATION
        opened = await two.opening(b"g", BOTH, create=mode(0o644))
        assert opened.delegation.delegation_type == WRITE_DELEGATION

    with_two(tmp_path, minor, test)


@pytest.mark.parametrize("minor", MINORS)
@pytest.mark.parametrize("leases", [False, True])
def test_others_see_the_times_that_the_holder_tells(tmp_path, minor, leases):
    @prepared
    async def test(server, export, one, two):
        _, handle = await times_delegated(one, export)
        asking = (p.OP_GETATTR, wanted(p.FATTR4_CHANGE, p.FATTR4_SIZE, p.FATTR4_TIME_MODIFY))

        async def ask(change, size, **times):
            given = fattr(**times)
            mask = [1 << p.FATTR4_CHANGE | 1 << p.FATTR4_SIZE, 0, given.attrmask[2]]
            octets = change.to_bytes(8, "big") + size.to_bytes(8, "big") + given.attr_vals
            answer = p.CB_GETATTR4resok(p.fattr4(mask, octets))
            one.end.answers[p.OP_CB_GETATTR] = [p.CB_GETATTR4res(p.nfsstat4.NFS4_OK, answer)]
            (result,) = await two.on(handle, asking)
            d = values(result.resok4.obj_attributes)
            return d.uint64(), d.uint64(), d.decode(p.nfstime4).seconds

        (result,) = await one.on(handle, asking)
        d = values(result.resok4.obj_attributes)
        first = d.uint64()
        assert await ask(first, 7, access=ORIGINAL, modify=ORIGINAL) == (first, 7, ORIGINAL)
        asked = p.CB_GETATTR4args(handle, [1 << p.FATTR4_CHANGE | 1 << p.FATTR4_SIZE, 0, 3 << ACCESS - 64])
        assert one.end.executed[-1] == (p.OP_CB_GETATTR, asked)
        change, size, modified = await ask(first, 7, access=ORIGINAL, modify=ORIGINAL + 20)
        assert (size, modified) == (7, ORIGINAL + 20), "a time alone is something new, too"
        assert change > first
        change, size, modified = await ask(first + 1, 1000, access=ORIGINAL, modify=ORIGINAL + 50)
        assert (size, modified) == (1000, ORIGINAL + 50)
        assert change > first
        assert (await ask(first + 2, 1000, access=ORIGINAL, modify=FUTURE))[2] <= time.time()
        assert (await ask(first + 3, 1000))[2] > ORIGINAL + 50, "without a time it is a change made now"
        assert one.end.recalls == 0

    with_two(tmp_path, minor, test, leases=leases)


@pytest.mark.parametrize("time_told", [(ORIGINAL, 4_000_000_000), (-(2**63), 0), (-(2**62), 999_999_999)])
@pytest.mark.parametrize("forgotten", [False, True])
def test_a_holder_that_tells_what_is_no_time_hurts_nobody(tmp_path, time_told, forgotten):
    """Another client that asks gets attributes, or DELAY while the delegation is recalled."""

    @prepared
    async def test(server, export, one, two):
        _, handle = await times_delegated(one, export)
        if forgotten:
            (file,) = server.engine.opens._files.values()
            (holder,) = file.delegations.values()
            holder.times = FORGOTTEN
        seconds, nanoseconds = time_told
        octets = bytes(15) + b"\1" + seconds.to_bytes(8, "big", signed=True) + nanoseconds.to_bytes(4, "big")
        mask = [1 << p.FATTR4_CHANGE | 1 << p.FATTR4_SIZE, 0, 1 << MODIFY - 64]
        answer = p.CB_GETATTR4resok(p.fattr4(mask, octets))
        one.end.answers[p.OP_CB_GETATTR] = [p.CB_GETATTR4res(p.nfsstat4.NFS4_OK, answer)]
        asking = (p.OP_GETATTR, wanted(p.FATTR4_SIZE, p.FATTR4_TIME_MODIFY))
        assert await two.status((p.OP_PUTFH, p.PUTFH4args(handle)), asking) in (p.NFS4_OK, p.NFS4ERR_DELAY)

    with_two(tmp_path, 1, test)


@pytest.mark.parametrize("minor", MINORS)
def test_a_delegation_is_reclaimed_with_its_times(tmp_path, minor):
    """What the times were before is forgotten: the holder may have written since."""
    handles = {}

    @prepared
    async def before(server, export, one, two):
        *_, result = await one.run(*one.path("/0/f"), p.OP_GETFH)
        handles[b"f"] = result.resok4.object

    async def after(server, export, one, two):
        claim = p.open_claim4(p.open_claim_type4.CLAIM_PREVIOUS, delegate_type=WITH_TIMES)
        owner, how = p.open_owner4(one.clientid, b"owner"), p.openflag4(p.opentype4.OPEN4_NOCREATE)
        (result,) = await one.on(handles[b"f"], (p.OP_OPEN, p.OPEN4args(0, BOTH, 0, owner, how, claim)))
        assert result.resok4.delegation.delegation_type == WITH_TIMES
        await one.on(handles[b"f"], setting(stateid_of(result.resok4), modify=ORIGINAL))
        assert found(export)[1] == ORIGINAL

    with_two(tmp_path, minor, before)
    how = {"limits": Limits(lease=30, grace=30), "recovered": restarted(b"one", b"two", minor=minor)}
    with_two(tmp_path, minor, after, reclaim_complete=False, **how)


@pytest.mark.parametrize("minor", MINORS)
def test_times_come_with_other_attributes(tmp_path, minor):
    @prepared
    async def test(server, export, one, two):
        stateid, handle = await times_delegated(one, export)
        times = fattr(modify=ORIGINAL + 5)
        mask = [1 << p.FATTR4_SIZE, 1 << p.FATTR4_MODE - 32, times.attrmask[2]]
        octets = (3).to_bytes(8, "big") + (0o640).to_bytes(4, "big") + times.attr_vals
        (result,) = await one.on(handle, (p.OP_SETATTR, p.SETATTR4args(stateid, p.fattr4(mask, octets))))
        assert result.attrsset == mask
        status = os.stat(export / "f")
        assert (status.st_size, status.st_mode & 0o777, found(export)[1]) == (3, 0o640, ORIGINAL + 5)

    with_two(tmp_path, minor, test)
