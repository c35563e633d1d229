"""Every bound on what NFSv4 clients can make the server remember, driven to its end: the error the documents name comes
at once, what was there before is whole, and room that is made can be used."""

import asyncio
import dataclasses
import sys
from dataclasses import replace

import pytest

from nfsd import config
from nfsd.protocol import nfs4 as p
from nfsd.state import Limits
from nfsd.v4.ops import copy as copy_operations
from tests.support.callbacks import CallbackEnd
from tests.support.delegations import with_two
from tests.support.nfs4 import Client4, LoopbackTransport, mode, with_client
from tests.unit.v42_support import ANONYMOUS, handle_of, two_files, with_clients

MINORS = (0, 1, 2)
WRITE_LT, WRITEW_LT = p.nfs_lock_type4.WRITE_LT, p.nfs_lock_type4.WRITEW_LT


def bounded(**bounds):
    return {"limits": replace(Limits(grace=0), **bounds)}


def test_every_configurable_bound_is_tested_here():
    here = sys.modules[__name__]
    for field in dataclasses.fields(config.Nfs4Limits):
        assert hasattr(here, f"test_bound_of_{field.name}"), field.name


def test_defaults_are_the_engines():
    for field in dataclasses.fields(config.Nfs4Limits):
        assert field.default == getattr(Limits(), field.name), field.name


def test_what_is_no_configurable_bound_is_a_time_or_fixed():
    times = {"lease", "grace", "courtesy", "recall", "delegation_pause"}
    fixed = {
        "owner_octets", "backchannel_slots", "request_octets", "response_octets", "minimum_channel_octets",
        "seqid_reply_octets",
    }  # fmt: skip
    configurable = {field.name for field in dataclasses.fields(config.Nfs4Limits)}
    assert {field.name for field in dataclasses.fields(Limits)} == times | fixed | configurable


# -- all that is remembered -------------------------------------------------------------------------------------------
async def opened_until_refused(client, *, enough=4000):
    """OPENs of one file by ever more owners with long names: the status that ends it, and how many there were."""
    for number in range(enough):
        owner = b"%0900d" % number
        claim = p.open_claim4(p.open_claim_type4.CLAIM_NULL, file=b"f")
        seqid = 0 if client.minor else client.seqid(owner)
        who = p.open_owner4(client.clientid, owner)
        how = p.openflag4(p.opentype4.OPEN4_NOCREATE)
        args = p.OPEN4args(seqid, 1, 0, who, how, claim)
        status = await client.status(*client.path("/0"), (p.OP_OPEN, args))
        if status:
            return status, number
    return 0, enough


@pytest.mark.parametrize("minor", MINORS)
def test_bound_of_octets(tmp_path, minor):
    async def test(client, export, server):
        (export / "f").write_bytes(b"")
        status, count = await opened_until_refused(client)
        assert status == (p.NFS4ERR_DELAY if minor else p.NFS4ERR_RESOURCE)
        assert 500 < count < 1400
        assert server.engine.ledger.octets <= 4 << 20
        # Another host, which has nothing, comes in all the same.
        other = Client4(server, minor, name=b"other", transport=LoopbackTransport("127.0.0.2"), uid=1)
        other.slots = 1
        await other.connect()
        assert await other.status(p.OP_PUTROOTFH) == 0
        server.engine.expire_client(server.engine.clients.lookup(client.clientid))
        await other.open("/0", b"f", access=1)

    with_client(tmp_path, minor, test, **bounded(octets=4 << 20, host_share=100))


@pytest.mark.parametrize("minor", MINORS)
def test_bound_of_host_share(tmp_path, minor):
    async def test(client, export, server):
        (export / "f").write_bytes(b"")
        second = await Client4(server, minor, name=b"second", transport=LoopbackTransport("127.0.0.1")).connect()
        status, count = await opened_until_refused(client)
        assert status == no_more(client)
        assert 200 < count < 700
        assert await opened_until_refused(second) == (no_more(client), 0), "a second client of the host has no more"
        other = await Client4(server, minor, name=b"other", transport=LoopbackTransport("127.0.0.2")).connect()
        await other.open("/0", b"f", access=1)
        # What is given up can be used.
        server.engine.expire_client(server.engine.clients.lookup(client.clientid))
        assert (await opened_until_refused(second))[1] > 200

    with_client(tmp_path, minor, test, **bounded(octets=8 << 20))


# -- clients and sessions ---------------------------------------------------------------------------------------------
def introduction(client, name):
    """EXCHANGE_ID or SETCLIENTID under a name."""
    if client.minor:
        args = p.EXCHANGE_ID4args(
            p.client_owner4(b"verifier", name), 0x101, p.state_protect4_a(p.state_protect_how4.SP4_NONE), []
        )
        return (p.OP_EXCHANGE_ID, args)
    callback = p.cb_client4(0x40000000, p.netaddr4(b"tcp", b"127.0.0.1.0.0"))
    return (p.OP_SETCLIENTID, p.SETCLIENTID4args(p.nfs_client_id4(b"verifier", name), callback, 1))


def session_of(clientid, sequence, *, slots=16, operations=64, cached=4096):
    """CREATE_SESSION."""
    fore = p.channel_attrs4(0, 1 << 20, 1 << 20, cached, operations, slots, [])
    back = p.channel_attrs4(0, 4096, 4096, 0, 2, 16, [])
    args = p.CREATE_SESSION4args(clientid, sequence, 0, fore, back, 0x40000000, [p.callback_sec_parms4(0)])
    return (p.OP_CREATE_SESSION, args)


async def another_session(client, sequence, **how):
    """(status, CREATE_SESSION4resok or None)."""
    status, [(_, made)] = await client.raw(session_of(client.clientid, sequence, **how))
    return status, made.csr_resok4


@pytest.mark.parametrize("minor", MINORS)
def test_bound_of_clients(tmp_path, minor):
    async def test(client, export, server):
        second = await Client4(server, minor, name=b"second").connect()
        status, _ = await client.raw(introduction(client, b"third"))
        assert status == (p.NFS4ERR_DELAY if minor else p.NFS4ERR_RESOURCE)
        record, now = server.engine.clients.lookup(second.clientid), server.engine.now()
        record.lease_end = now
        server.engine.watch(now)
        server.engine.handle_timer(now)
        assert record.courtesy
        third = await Client4(server, minor, name=b"third").connect()
        await third.open("/0", b"f", create=mode(0o666))
        await client.open("/0", b"f")

    with_client(tmp_path, minor, test, **bounded(clients=2))


def test_bound_of_unconfirmed_clients(tmp_path):
    async def test(client, export, server):
        made = []
        for name in (b"1", b"2", b"3"):
            status, [(_, result)] = await client.raw(introduction(client, name))
            assert status == 0
            made.append(result.eir_resok4)
        statuses = [(await client.raw(session_of(one.eir_clientid, one.eir_sequenceid)))[0] for one in made]
        assert statuses == [p.NFS4ERR_STALE_CLIENTID, 0, 0]

    with_client(tmp_path, 1, test, **bounded(unconfirmed_clients=2))


def test_bound_of_sessions(tmp_path):
    async def test(client, export, server):
        assert (await another_session(client, 2))[0] == 0
        assert (await another_session(client, 3))[0] == p.NFS4ERR_NOSPC
        assert (await another_session(client, 3))[0] == p.NFS4ERR_NOSPC, "the replay"
        assert await client.status((p.OP_DESTROY_SESSION, p.DESTROY_SESSION4args(client.session))) == 0
        assert (await another_session(client, 4))[0] == 0

    with_client(tmp_path, 1, test, **bounded(sessions=2))


def test_bound_of_connections(tmp_path):
    async def test(client, export, server):
        first, second, third = client.transport, LoopbackTransport(), LoopbackTransport()
        client.transport = second
        assert await client.status(p.OP_PUTROOTFH) == 0
        client.transport = third
        assert await client.status(p.OP_PUTROOTFH) == p.NFS4ERR_CONN_NOT_BOUND_TO_SESSION
        client.sequence -= 1
        bind = p.BIND_CONN_TO_SESSION4args(client.session, p.channel_dir_from_client4.CDFC4_FORE, False)
        assert (await client.raw((p.OP_BIND_CONN_TO_SESSION, bind)))[0] == p.NFS4ERR_INVAL
        second.close()
        assert (await client.raw((p.OP_BIND_CONN_TO_SESSION, bind)))[0] == 0
        assert await client.status(p.OP_PUTROOTFH) == 0
        client.transport = first
        assert await client.status(p.OP_PUTROOTFH) == 0

    with_client(tmp_path, 1, test, **bounded(connections=2))


def test_bound_of_slots(tmp_path):
    async def test(client, export, server):
        _, made = await another_session(client, 2)
        assert made.csr_fore_chan_attrs.ca_maxrequests == 4
        for slot, status in ((3, 0), (4, p.NFS4ERR_BADSLOT)):
            sequence = p.SEQUENCE4args(made.csr_sessionid, 1, slot, 3, False)
            assert (await client.raw((p.OP_SEQUENCE, sequence)))[0] == status

    with_client(tmp_path, 1, test, **bounded(slots=4))


@pytest.mark.parametrize("minor", MINORS)
def test_bound_of_operations(tmp_path, minor):
    async def test(client, export, server):
        most = 7 if minor else 256  # besides SEQUENCE
        if minor:
            _, made = await another_session(client, 2)
            assert made.csr_fore_chan_attrs.ca_maxoperations == 8
        assert await client.status(*[p.OP_PUTROOTFH] * most) == 0
        too_many = p.NFS4ERR_TOO_MANY_OPS if minor else p.NFS4ERR_RESOURCE
        assert await client.status(*[p.OP_PUTROOTFH] * (most + 1)) == too_many

    with_client(tmp_path, minor, test, **bounded(operations=8))


def test_bound_of_cached_reply_octets(tmp_path):
    async def test(client, export, server):
        _, made = await another_session(client, 2)
        assert made.csr_fore_chan_attrs.ca_maxresponsesize_cached == 512
        (export / "f").write_bytes(bytes(1000))
        handle = await handle_of(client, "f")
        for count, status in ((200, 0), (600, p.NFS4ERR_REP_TOO_BIG_TO_CACHE)):
            read = (p.OP_READ, p.READ4args(ANONYMOUS, 0, count))
            got, results = await client.raw(*client.in_session((p.OP_PUTFH, p.PUTFH4args(handle)), read, cache=True))
            # READ may also give as much as there is room for.
            short = got == 0 and len(results[-1][1].resok4.data) < count
            assert got == status or (status and short)

    with_client(tmp_path, 1, test, **bounded(cached_reply_octets=512))


def test_bound_of_client_cached_octets(tmp_path):
    async def test(client, export, server):
        slots = []
        for sequence in (2, 3, 4):
            _, made = await another_session(client, sequence, slots=2)
            slots.append(made.csr_fore_chan_attrs.ca_maxrequests)
        assert slots == [2, 1, 1], "the first session has 16 of 19"

    with_client(tmp_path, 1, test, **bounded(client_cached_octets=19 * 4096))


def test_bound_of_all_cached_octets(tmp_path):
    async def test(client, export, server):
        end = CallbackEnd()
        large = Client4(server, 1, name=b"large", transport=LoopbackTransport(callbacks=end))
        await large.connect()
        _, made = await another_session(client, 2, slots=16)
        assert made.csr_fore_chan_attrs.ca_maxrequests == 3, "two sessions have 16 each, of 35"
        async with asyncio.timeout(20):
            await end.arrival(1)  # and the larger ones are asked for half of it
        assert end.executed == [(p.OP_CB_RECALL_SLOT, p.CB_RECALL_SLOT4args(7))]
        sequence = p.SEQUENCE4args(large.session, large.sequence + 1, 0, 0, False)
        _, [(_, told)] = await large.raw((p.OP_SEQUENCE, sequence))
        assert (told.sr_resok4.sr_target_highest_slotid, told.sr_resok4.sr_highest_slotid) == (7, 15)
        server.nfs4.callbacks.recall_slots(server.engine.clients.lookup(client.clientid).sessions[client.session])

    with_client(tmp_path, 1, test, **bounded(all_cached_octets=35 * 4096))


# -- opens and locks --------------------------------------------------------------------------------------------------
def no_more(client):
    """What OPEN says beyond a bound."""
    return p.NFS4ERR_NOSPC if client.minor else p.NFS4ERR_RESOURCE


@pytest.mark.parametrize("minor", MINORS)
def test_bound_of_opens(tmp_path, minor):
    async def test(client, export, server):
        kept = await client.open("/0", b"1", create=mode(0o666))
        gone = await client.open("/0", b"2", create=mode(0o666))
        args = client.open_args(b"3", create=mode(0o666))
        assert await client.status(*client.path("/0"), (p.OP_OPEN, args)) == no_more(client)
        assert sorted(file.name for file in export.iterdir()) == ["1", "2"]
        if not minor:
            client.seqids[b"owner"] -= 1  # RESOURCE leaves the seqid where it was
        await client.open("/0", b"1")  # upgrades what is there
        await client.close(*gone)
        await client.open("/0", b"3", create=mode(0o666))
        write = p.WRITE4args(p.stateid4(0 if minor else 3, kept[0].other), 0, p.stable_how4.UNSTABLE4, b"x")
        await client.on(kept[1], (p.OP_WRITE, write))

    with_client(tmp_path, minor, test, **bounded(opens=2))


@pytest.mark.parametrize("minor", MINORS)
def test_bound_of_open_owners(tmp_path, minor):
    async def test(client, export, server):
        await client.open("/0", b"1", create=mode(0o666), owner=b"1")
        await client.open("/0", b"2", create=mode(0o666), owner=b"2")
        args = client.open_args(b"3", create=mode(0o666), owner=b"3")
        assert await client.status(*client.path("/0"), (p.OP_OPEN, args)) == no_more(client)
        assert sorted(file.name for file in export.iterdir()) == ["1", "2"]
        await client.open("/0", b"3", create=mode(0o666), owner=b"2")

    with_client(tmp_path, minor, test, **bounded(open_owners=2))


def locking(client, stateid, offset, *, owner=b"locker", kind=WRITE_LT, opener=b"owner"):
    """LOCK of one octet by a new lock owner."""
    new = p.open_to_lock_owner4(
        0 if client.minor else client.seqid(opener), stateid, 0, p.lock_owner4(client.clientid, owner)
    )
    return (p.OP_LOCK, p.LOCK4args(kind, False, offset, 1, p.locker4(True, open_owner=new)))


def no_more_locks(client):
    """What LOCK says beyond a bound."""
    return p.NFS4ERR_SERVERFAULT if client.minor else p.NFS4ERR_RESOURCE


@pytest.mark.parametrize("minor", MINORS)
def test_bound_of_lock_owners(tmp_path, minor):
    async def test(client, export, server):
        stateid, handle = await client.open("/0", b"f", create=mode(0o666))
        for number in range(2):
            await client.on(handle, locking(client, stateid, number, owner=b"%d" % number))
        third = locking(client, stateid, 2, owner=b"2")
        assert await client.status((p.OP_PUTFH, p.PUTFH4args(handle)), third) == no_more_locks(client)

    with_client(tmp_path, minor, test, **bounded(lock_owners=2))


@pytest.mark.parametrize("minor", MINORS)
def test_bound_of_lock_states(tmp_path, minor):
    async def test(client, export, server):
        for number in range(3):
            stateid, handle = await client.open("/0", b"%d" % number, create=mode(0o666), owner=b"o%d" % number)
            lock = locking(client, stateid, 0, owner=b"l%d" % number, opener=b"o%d" % number)
            status = await client.status((p.OP_PUTFH, p.PUTFH4args(handle)), lock)
            assert status == (0 if number < 2 else no_more_locks(client))

    with_client(tmp_path, minor, test, **bounded(lock_states=2))


@pytest.mark.parametrize("minor", MINORS)
def test_bound_of_locks(tmp_path, minor):
    async def test(client, export, server):
        stateid, handle = await client.open("/0", b"f", create=mode(0o666))
        [first] = await client.on(handle, locking(client, stateid, 0))
        lock, seqid = first.resok4.lock_stateid, 0

        async def again(offset, length=1, *, operation=p.OP_LOCK):
            nonlocal lock, seqid
            seqid += 1
            known = p.exist_lock_owner4(lock, seqid)
            if operation == p.OP_LOCK:
                args = p.LOCK4args(WRITE_LT, False, offset, length, p.locker4(False, lock_owner=known))
            else:
                args = p.LOCKU4args(WRITE_LT, seqid, lock, offset, length)
            there = (p.OP_PUTFH, p.PUTFH4args(handle))
            status, results = await client.raw(*client.in_session(there, (operation, args)))
            if status == 0:
                made = results[-1][1]
                lock = made.resok4.lock_stateid if operation == p.OP_LOCK else made.lock_stateid
            elif status == p.NFS4ERR_RESOURCE:
                seqid -= 1
            return status

        assert await again(10) == 0
        assert await again(20) == no_more_locks(client)
        assert await again(0, 5) == 0, "merges with what is there"
        assert await again(1, 1, operation=p.OP_LOCKU) == no_more_locks(client), "would split a range"
        assert await again(10, 1, operation=p.OP_LOCKU) == 0
        assert await again(20) == 0

    with_client(tmp_path, minor, test, **bounded(locks=2))


def blocked_requests(tmp_path, files, **bounds):
    """Four owners ask in vain for each of some files; how many are remembered for each."""
    remembered = []

    async def test(client, export, server):
        for file in range(files):
            opener = b"o%d" % file
            stateid, handle = await client.open("/0", b"%d" % file, create=mode(0o666), owner=opener)
            await client.on(handle, locking(client, stateid, 0, owner=b"holder%d" % file))
            for number in range(4):
                blocked = locking(client, stateid, 0, owner=b"w%d" % number, kind=WRITEW_LT)
                assert await client.status((p.OP_PUTFH, p.PUTFH4args(handle)), blocked) == p.NFS4ERR_DENIED
            node = await server.service.resolve(handle)
            remembered.append(len(server.engine.opens.file(node.key).waiters))

    with_client(tmp_path, 1, test, **bounded(**bounds))
    return remembered


def test_bound_of_waiters(tmp_path):
    assert blocked_requests(tmp_path, 2, waiters=2) == [2, 2]


def test_bound_of_client_waiters(tmp_path):
    assert blocked_requests(tmp_path, 2, client_waiters=6) == [4, 2]


# -- copies -----------------------------------------------------------------------------------------------------------
def copies_are_made_at_once(tmp_path, monkeypatch, **bounds):
    """test_v42_offload.py shows larger numbers."""
    monkeypatch.setattr(copy_operations, "MOST_AT_ONCE", 10)
    export, state = tmp_path / "export", tmp_path / "state"
    export.mkdir()
    state.mkdir()
    (export / "source").write_bytes(bytes(100))
    (export / "target").write_bytes(b"")

    async def test(server, client):
        files = two_files(await handle_of(client, "source"), await handle_of(client, "target"))
        copy = p.COPY4args(ANONYMOUS, ANONYMOUS, 0, 0, 0, True, False, [])
        *_, result = await client.run(*files, (p.OP_COPY, copy))
        assert list(result.cr_resok4.cr_response.wr_callback_id) == []
        assert result.cr_resok4.cr_response.wr_count == 100

    with_clients(export, state, test, backchannel=True, **bounded(**bounds))


def test_bound_of_client_copies(tmp_path, monkeypatch):
    copies_are_made_at_once(tmp_path, monkeypatch, client_copies=0)


def test_bound_of_copies(tmp_path, monkeypatch):
    copies_are_made_at_once(tmp_path, monkeypatch, copies=0)


# -- delegations ------------------------------------------------------------------------------------------------------
def delegations_up_to(tmp_path, minor, **bounds):
    """Two are given; for the third there is none, and in 4.1 the client is asked to return some."""

    async def test(server, export, one, two):
        for name in (b"a", b"b", b"c"):
            (export / name.decode()).write_bytes(b"")
        if not minor:
            await one.opening(b"confirmed", 3, create=mode(0o644))
        types = [(await one.opening(name, 1)).delegation.delegation_type for name in (b"a", b"b", b"c")]
        assert types == [1, 1, 0]
        if minor:
            await one.end.arrival(1)
            kinds = (p.RCA4_TYPE_MASK_RDATA_DLG, p.RCA4_TYPE_MASK_WDATA_DLG, p.RCA4_TYPE_MASK_DIR_DLG)
            asked = p.CB_RECALL_ANY4args(1, [sum(1 << kind for kind in kinds)])
            assert one.end.executed == [(p.OP_CB_RECALL_ANY, asked)]
        held = [one for one in server.engine.clients.lookup(one.clientid).states.values() if one.kind == 3]
        await one.give_back(p.stateid4(*held[0].stateid), held[0].handle)
        assert (await one.opening(b"c", 1, owner=b"owner")).delegation.delegation_type == 1

    with_two(tmp_path, minor, test, **bounded(**bounds))


@pytest.mark.parametrize("minor", MINORS)
def test_bound_of_delegations(tmp_path, minor):
    delegations_up_to(tmp_path, minor, delegations=2)


@pytest.mark.parametrize("minor", MINORS)
def test_bound_of_client_delegations(tmp_path, minor):
    delegations_up_to(tmp_path, minor, client_delegations=2)
