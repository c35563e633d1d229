"""EXCHANGE_ID, CREATE_SESSION, SEQUENCE and their kin as a client meets them; the rules themselves are the engine's."""

import pytest

from nfsd.protocol import nfs4 as p
from tests.rfc.plugin import covers
from tests.support.hosts import on_site
from tests.support.nfs4 import Client4, LoopbackTransport, mode, wanted, with_client

MINORS = [1, 2]
GETATTR_ROOT = (p.OP_PUTROOTFH, (p.OP_GETATTR, wanted(p.FATTR4_TYPE)))


def exchange_id(name=b"another", flags=0):
    owner = p.client_owner4(b"verifier", name)
    return (p.OP_EXCHANGE_ID, p.EXCHANGE_ID4args(owner, flags, p.state_protect4_a(p.state_protect_how4.SP4_NONE), []))


def create_session(clientid, sequenceid, *, request=1 << 16, response=1 << 16, cached=4096, operations=16, slots=4):
    fore = p.channel_attrs4(0, request, response, cached, operations, slots, [])
    back = p.channel_attrs4(0, 4096, 4096, 0, 2, 1, [])
    args = p.CREATE_SESSION4args(clientid, sequenceid, 0, fore, back, 0x40000000, [p.callback_sec_parms4(0)])
    return (p.OP_CREATE_SESSION, args)


def sequence(session, sequenceid, slot=0, *, cache=False):
    return (p.OP_SEQUENCE, p.SEQUENCE4args(session, sequenceid, slot, slot, cache))


@pytest.mark.parametrize("minor", MINORS)
def test_a_client_is_introduced_within_a_session_too(tmp_path, minor):
    async def test(client, export, server):
        (made,) = await client.run(exchange_id())
        made = made.eir_resok4
        (created,) = await client.run(create_session(made.eir_clientid, made.eir_sequenceid))
        session = created.csr_resok4.csr_sessionid
        assert (await client.raw(sequence(session, 1)))[0] == p.NFS4_OK
        await client.run((p.OP_DESTROY_SESSION, p.DESTROY_SESSION4args(session)))
        await client.run((p.OP_DESTROY_CLIENTID, p.DESTROY_CLIENTID4args(made.eir_clientid)))
        own = (p.OP_DESTROY_CLIENTID, p.DESTROY_CLIENTID4args(client.clientid))
        assert await client.status(own) == p.NFS4ERR_CLIENTID_BUSY

    with_client(tmp_path, minor, test)


@pytest.mark.parametrize("minor", MINORS)
def test_without_a_session_these_stand_alone(tmp_path, minor):
    async def test(client, export, server):
        for operation in (
            exchange_id(),
            create_session(client.clientid, 2),
            (p.OP_DESTROY_SESSION, p.DESTROY_SESSION4args(client.session)),
            (p.OP_DESTROY_CLIENTID, p.DESTROY_CLIENTID4args(client.clientid)),
        ):
            assert (await client.raw(operation, p.OP_PUTROOTFH))[0] == p.NFS4ERR_NOT_ONLY_OP
        binding = p.BIND_CONN_TO_SESSION4args(client.session, p.channel_dir_from_client4.CDFC4_FORE, False)
        assert await client.status((p.OP_BIND_CONN_TO_SESSION, binding)) == p.NFS4ERR_NOT_ONLY_OP
        assert (await client.raw((p.OP_BIND_CONN_TO_SESSION, binding)))[0] == p.NFS4_OK
        assert (await client.raw(p.OP_PUTROOTFH))[0] == p.NFS4ERR_OP_NOT_IN_SESSION

    with_client(tmp_path, minor, test)


def test_flags_of_a_later_minor_version_are_undefined(tmp_path):
    async def test(client, export, server):
        fence = exchange_id(flags=p.EXCHGID4_FLAG_SUPP_FENCE_OPS)
        assert (await client.raw(fence))[0] == p.NFS4ERR_INVAL
        later = Client4(server, 2, transport=LoopbackTransport())
        assert (await later.raw(fence))[0] == p.NFS4_OK
        assert (await later.raw(exchange_id(flags=8)))[0] == p.NFS4ERR_INVAL

    with_client(tmp_path, 1, test)


@covers("RFC 8267 3.1 replay")
@pytest.mark.parametrize("minor", MINORS)
def test_a_retransmission_is_known_by_its_slot_not_by_its_xid_or_connection(tmp_path, minor):
    async def test(client, export, server):
        making = p.CREATE4args(p.createtype4(p.nfs_ftype4.NF4DIR), b"made", mode(0o755))
        operations = (sequence(client.session, client.sequence + 1, cache=True), *client.path("/0"))
        operations += ((p.OP_CREATE, making),)
        first = await client.raw(*operations)
        assert first[0] == p.NFS4_OK
        client.transport = LoopbackTransport()
        assert await client.raw(*operations) == first
        other = (*operations[:-1], p.OP_GETFH)
        assert (await client.raw(*other))[0] == p.NFS4ERR_SEQ_FALSE_RETRY
        client.credential = (1000, 1000, ())
        assert (await client.raw(*operations))[0] == p.NFS4ERR_SEQ_FALSE_RETRY

    with_client(tmp_path, minor, test)


@pytest.mark.parametrize("minor", MINORS)
def test_a_failed_compound_is_replayed_as_it_failed(tmp_path, minor):
    async def test(client, export, server):
        for operation, status in (
            ((p.OP_LOOKUP, p.LOOKUP4args(b"nothing")), p.NFS4ERR_NOENT),
            (p.OP_ILLEGAL, p.NFS4ERR_OP_ILLEGAL),
            ((p.OP_GETATTR, wanted(p.FATTR4_TIME_ACCESS_SET)), p.NFS4ERR_INVAL),
        ):
            client.sequence += 1
            operations = (sequence(client.session, client.sequence, cache=True), p.OP_PUTROOTFH, operation)
            first = await client.raw(*operations)
            assert first[0] == status
            assert await client.raw(*operations) == first

    with_client(tmp_path, minor, test)


@pytest.mark.parametrize("minor", MINORS)
def test_a_reply_not_kept_is_not_made_up(tmp_path, minor):
    async def test(client, export, server):
        operations = (sequence(client.session, client.sequence + 1), *GETATTR_ROOT)
        assert (await client.raw(*operations))[0] == p.NFS4_OK
        status, results = await client.raw(*operations)
        assert status == p.NFS4ERR_RETRY_UNCACHED_REP
        assert [number for number, _ in results] == [p.OP_SEQUENCE, p.OP_PUTROOTFH]
        assert results[0][1].sr_resok4.sr_sequenceid == client.sequence + 1

    with_client(tmp_path, minor, test)


@pytest.mark.parametrize("minor", MINORS)
@pytest.mark.parametrize("read", [False, True])
def test_a_write_whose_reply_need_not_be_kept_is_done_once_all_the_same(tmp_path, minor, read):
    """When it is sent again, others may have written there. What is read behind it is not kept in every place."""

    async def test(client, export, server):
        *_, found = await client.run(
            *client.path("/0"), (p.OP_OPEN, client.open_args(b"f", create=mode(0o644))), p.OP_GETFH
        )
        handle = (p.OP_PUTFH, p.PUTFH4args(found.resok4.object))
        anybody = p.stateid4(0, bytes(12))
        write = (p.OP_WRITE, p.WRITE4args(anybody, 0, p.stable_how4.FILE_SYNC4, b"first"))
        reading = [(p.OP_READ, p.READ4args(anybody, 0, 99))] if read else []
        again = (sequence(client.session, client.sequence + 1), handle, write, *reading)
        first = await client.raw(*again)
        assert first[0] == p.NFS4_OK
        (export / "f").write_bytes(b"others")
        assert await client.raw(*again) == first
        assert (export / "f").read_bytes() == b"others"

    with_client(tmp_path, minor, test)


@pytest.mark.parametrize("minor", MINORS)
def test_slots_and_sessions_that_are_none(tmp_path, minor):
    async def test(client, export, server):
        for operation, status in (
            (sequence(bytes(16), 1), p.NFS4ERR_BADSESSION),
            (sequence(client.session, 1, slot=16), p.NFS4ERR_BADSLOT),
            (sequence(client.session, client.sequence + 2), p.NFS4ERR_SEQ_MISORDERED),
            (sequence(client.session, client.sequence - 1), p.NFS4ERR_SEQ_MISORDERED),
            (sequence(client.session, 0, slot=3), p.NFS4ERR_SEQ_MISORDERED),
            (sequence(client.session, 1, slot=14), p.NFS4_OK),
        ):
            assert (await client.raw(operation))[0] == status
        high = (p.OP_SEQUENCE, p.SEQUENCE4args(client.session, 2, 14, 16, False))
        assert (await client.raw(high))[0] == p.NFS4ERR_BAD_HIGH_SLOT
        again = sequence(client.session, client.sequence + 1), sequence(client.session, client.sequence + 2)
        assert (await client.raw(*again))[0] == p.NFS4ERR_SEQUENCE_POS

    with_client(tmp_path, minor, test)


@pytest.mark.parametrize("minor", MINORS)
def test_a_session_holds_its_compounds_to_what_was_negotiated(tmp_path, minor):
    async def test(client, export, server):
        async def session(**channel):
            (created,) = await client.run(create_session(client.clientid, session.next, **channel))
            session.next += 1
            made = created.csr_resok4
            return made.csr_sessionid, made.csr_fore_chan_attrs

        session.next = 2
        everything = (p.OP_GETATTR, wanted(*range(12)))
        small, granted = await session(response=400, cached=400)
        assert granted.ca_maxresponsesize == 400
        reclaimed = (p.OP_RECLAIM_COMPLETE, p.RECLAIM_COMPLETE4args(True))
        assert (await client.raw(sequence(small, 1), p.OP_PUTROOTFH, reclaimed))[0] == p.NFS4_OK
        long = (p.OP_PUTROOTFH, *[everything] * 6)
        status, results = await client.raw(sequence(small, 2), *long)
        assert status == p.NFS4ERR_REP_TOO_BIG
        assert len(results) < 8
        cached, _ = await session(cached=200)
        assert (await client.raw(sequence(cached, 1), *long))[0] == p.NFS4_OK
        assert (await client.raw(sequence(cached, 2, cache=True), *long))[0] == p.NFS4ERR_REP_TOO_BIG_TO_CACHE
        few, _ = await session(operations=3)
        assert (await client.raw(sequence(few, 1), *[p.OP_PUTROOTFH] * 3))[0] == p.NFS4ERR_TOO_MANY_OPS
        assert (await client.raw(sequence(few, 1), *[p.OP_PUTROOTFH] * 2))[0] == p.NFS4_OK
        narrow, _ = await session(request=300)
        wide = (p.OP_LOOKUP, p.LOOKUP4args(b"n" * 255))
        assert (await client.raw(sequence(narrow, 1), p.OP_PUTROOTFH, wide))[0] == p.NFS4ERR_REQ_TOO_BIG
        for channel in ({"request": 20}, {"response": 20}, {"operations": 0}):
            assert await client.status(create_session(client.clientid, session.next, **channel)) == p.NFS4ERR_TOOSMALL

    with_client(tmp_path, minor, test)


@pytest.mark.parametrize("minor", MINORS)
def test_a_read_that_the_reply_has_no_room_for_is_no_read_of_nothing(tmp_path, minor):
    async def test(client, export, server):
        (export / "f").write_bytes(b"x" * 1000)
        (created,) = await client.run(create_session(client.clientid, 2, response=400, operations=32))
        small = created.csr_resok4.csr_sessionid
        assert created.csr_resok4.csr_fore_chan_attrs.ca_maxresponsesize == 400
        reading = (p.OP_READ, p.READ4args(p.stateid4(0, bytes(12)), 0, 1000))
        before, got = [], []
        for number in range(1, 15):
            status, results = await client.raw(sequence(small, number), *client.path("/0/f"), *before, reading)
            got.append(len(results[-1][1].resok4.data) if status == p.NFS4_OK else 0)
            assert got[-1] or status == p.NFS4ERR_REP_TOO_BIG
            before.append((p.OP_GETATTR, wanted(p.FATTR4_TYPE)))
        assert got[0] > 100
        assert got[-1] == 0

    with_client(tmp_path, minor, test)


@pytest.mark.parametrize("minor", MINORS)
def test_create_session_is_replayed_and_ordered(tmp_path, minor):
    async def test(client, export, server):
        creating = create_session(client.clientid, 2)
        first = await client.raw(creating)
        assert first[0] == p.NFS4_OK
        assert await client.raw(creating) == first
        for misordered in (0, 1, 4):
            status = (await client.raw(create_session(client.clientid, misordered)))[0]
            assert status == p.NFS4ERR_SEQ_MISORDERED
        assert (await client.raw(create_session(client.clientid + 99, 1)))[0] == p.NFS4ERR_STALE_CLIENTID

    with_client(tmp_path, minor, test)


@pytest.mark.parametrize("minor", MINORS)
def test_a_client_is_destroyed_when_nothing_is_left(tmp_path, minor):
    async def test(client, export, server):
        destroying = (p.OP_DESTROY_CLIENTID, p.DESTROY_CLIENTID4args(client.clientid))
        assert (await client.raw(destroying))[0] == p.NFS4ERR_CLIENTID_BUSY
        ending = (p.OP_DESTROY_SESSION, p.DESTROY_SESSION4args(client.session))
        assert await client.status(ending, p.OP_PUTROOTFH) == p.NFS4ERR_NOT_ONLY_OP
        assert await client.status(ending) == p.NFS4_OK
        assert (await client.raw(ending))[0] == p.NFS4ERR_BADSESSION
        assert (await client.raw(destroying))[0] == p.NFS4_OK
        assert (await client.raw(destroying))[0] == p.NFS4ERR_STALE_CLIENTID

    with_client(tmp_path, minor, test)


@pytest.mark.parametrize("minor", MINORS)
def test_reclaims_are_over_once(tmp_path, minor):
    async def test(client, export, server):
        over = (p.OP_RECLAIM_COMPLETE, p.RECLAIM_COMPLETE4args(False))
        assert await client.status(over) == p.NFS4ERR_COMPLETE_ALREADY
        await client.open("/0", b"f", create=mode(0o644))
        claim = p.open_claim4(p.open_claim_type4.CLAIM_PREVIOUS, delegate_type=p.open_delegation_type4(0))
        owner = p.open_owner4(client.clientid, b"owner")
        late = p.OPEN4args(0, 1, 0, owner, p.openflag4(p.opentype4.OPEN4_NOCREATE), claim)
        assert await client.status(*client.path("/0/f"), (p.OP_OPEN, late)) == p.NFS4ERR_NO_GRACE

    with_client(tmp_path, minor, test)


def test_no_slots_beyond_the_granted_ones_for_who_never_tells_of_fewer(tmp_path):
    """Some clients take that for an error: they see it at their first SEQUENCE on the last slot."""

    async def test(site):
        for slots in (1, 4):
            client = await site.client("127.0.0.1", name=b"%d slots" % slots)
            client.slots = slots
            await client.connect(reclaim_complete=False)
            done = p.RECLAIM_COMPLETE4args(False)
            for number in range(3 * slots):
                slot, sequence = number % slots, 1 + number // slots
                arguments = p.SEQUENCE4args(client.session, sequence, slot, slots - 1, False)
                more = [(p.OP_RECLAIM_COMPLETE, done)] if number == 0 else []
                status, results = await client.raw((p.OP_SEQUENCE, arguments), *more)
                told = results[0][1].sr_resok4
                assert (status, told.sr_highest_slotid, told.sr_target_highest_slotid) == (0, slots - 1, slots - 1)
        row = site.daemon.dispatchers["nfs"].rows[100003, 4, 1]
        assert row.native_calls >= 12, "natively, too"

    on_site(tmp_path, test, server="  nfs4: {grace_time: 0}\n")
