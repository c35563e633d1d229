"""Callbacks in sessions (RFC 8881 sections 2.10.6 and 20.9), over connections in this process."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from nfsd.protocol import nfs4 as p
from nfsd.v4 import callback_session
from nfsd.v4.callbacks import CallbackError
from rpcrdma.rpc.messages import auth_stat
from tests.rfc.plugin import covers
from tests.support.callbacks import CallbackEnd
from tests.support.nfs4 import Client4, LoopbackTransport, serving

RECALL = (p.OP_CB_RECALL, p.CB_RECALL4args(p.stateid4(1, bytes(12)), False, b"handle"))
ANY = (p.OP_CB_RECALL_ANY, p.CB_RECALL_ANY4args(5, [1]))
OK = p.CB_RECALL4res(p.nfsstat4.NFS4_OK)


@asynccontextmanager
async def called(tmp_path, minor=1, *, slots=16, **how):
    """(server, client, callback end, the client's record)."""
    for name in ("export", "state"):
        (tmp_path / name).mkdir(exist_ok=True)
    end = CallbackEnd()
    async with serving(tmp_path / "export", state_dir=tmp_path / "state", **how) as server:
        client = Client4(server, minor, transport=LoopbackTransport(callbacks=end))
        client.callback_slots = slots
        await client.connect()
        yield server, client, end, server.engine.clients.lookup(client.clientid)


def run(test, tmp_path, **how):
    async def main():
        async with called(tmp_path, **how) as parts:
            await test(*parts)

    asyncio.run(main())


async def turns(count=50):
    for _ in range(count):
        await asyncio.sleep(0)


async def flags(client) -> int:
    client.sequence += 1
    args = p.SEQUENCE4args(client.session, client.sequence, 0, 0, False)
    _, [(_, result)] = await client.raw((p.OP_SEQUENCE, args))
    return result.sr_resok4.sr_status_flags


@pytest.mark.parametrize("minor", [1, 2])
def test_a_callback_carries_the_session_its_minor_version_and_the_operations(tmp_path, minor):
    async def test(server, client, end, record):
        referring = [p.referring_call_list4(client.session, [p.referring_call4(7, 0)])]
        assert server.nfs4.callbacks.client_can_be_called(record)
        assert await server.nfs4.callbacks.call(record, [RECALL], referring=referring) == [OK]
        (got,) = end.received
        assert (got.minor, got.program, got.operations) == (minor, 0x40000000, [RECALL])
        assert (got.sequence.csa_sessionid, got.sequence.csa_sequenceid) == (client.session, 1)
        assert got.sequence.csa_referring_call_lists == referring
        assert server.nfs4.callbacks.counters == {("CB_RECALL", "ok"): 1}

    run(test, tmp_path, minor=minor)


def test_the_operations_error_is_a_result_and_stands_last(tmp_path):
    async def test(server, client, end, record):
        bad = p.CB_RECALL4res(p.nfsstat4.NFS4ERR_BAD_STATEID)
        end.answers[p.OP_CB_RECALL] = [bad]
        assert await server.nfs4.callbacks.call(record, [RECALL]) == [bad]
        assert await server.nfs4.callbacks.call(record, [RECALL]) == [OK]
        assert [one.sequence.csa_sequenceid for one in end.received] == [1, 2]
        assert server.nfs4.callbacks.counters["CB_RECALL", "NFS4ERR_BAD_STATEID"] == 1

    run(test, tmp_path)


def test_delay_is_tried_again_for_as_long_as_there_is_time(tmp_path):
    async def test(server, client, end, record):
        delay = p.CB_RECALL4res(p.nfsstat4.NFS4ERR_DELAY)
        end.answers[p.OP_CB_RECALL] = [delay, delay]
        end.sequence_answers = [p.NFS4ERR_DELAY]
        assert await server.nfs4.callbacks.call(record, [RECALL]) == [OK]
        assert [one.sequence.csa_sequenceid for one in end.received] == [1, 1, 2, 3]
        end.answers[p.OP_CB_RECALL] = [delay] * 10
        assert await server.nfs4.callbacks.call(record, [RECALL], timeout=0.25) == [delay]

    run(test, tmp_path)


def test_concurrent_callbacks_use_slots_of_their_own_and_wait_in_order(tmp_path):
    async def test(server, client, end, record):
        end.gate = asyncio.Event()
        calls = [
            asyncio.ensure_future(
                server.nfs4.callbacks.call(record, [(p.OP_CB_RECALL_ANY, p.CB_RECALL_ANY4args(n, [1]))])
            )
            for n in range(6)
        ]
        await turns()
        assert [one.sequence.csa_slotid for one in end.received] == [0, 1]
        assert [one.sequence.csa_highest_slotid for one in end.received] == [0, 1]
        end.gate.set()
        await asyncio.gather(*calls)
        assert [one.operations[0][1].craa_objects_to_keep for one in end.received] == list(range(6))
        assert {one.sequence.csa_slotid for one in end.received} == {0, 1}

    run(test, tmp_path, slots=2)


def test_the_client_lowers_the_number_of_slots(tmp_path):
    async def test(server, client, end, record):
        end.target = 1
        await server.nfs4.callbacks.call(record, [ANY])
        end.gate = asyncio.Event()
        calls = [asyncio.ensure_future(server.nfs4.callbacks.call(record, [ANY])) for _ in range(5)]
        await turns()
        assert len(end.received) == 3  # one before, two now
        end.gate.set()
        await asyncio.gather(*calls)
        end.target, end.slots = None, 1
        end.gate = None
        await asyncio.gather(*(server.nfs4.callbacks.call(record, [ANY]) for _ in range(4)))
        assert not record.sessions[client.session].backchannel.fault

    run(test, tmp_path)


@covers("RFC 8167 5.4 carried-over")
def test_a_lost_connection_is_replaced_by_another_with_the_same_slot_and_sequence(tmp_path):
    async def test(server, client, end, record):
        end.gate = asyncio.Event()
        second = LoopbackTransport(callbacks=end)
        assert await client.bind(second) == p.channel_dir_from_server4.CDFS4_BOTH
        call = asyncio.ensure_future(server.nfs4.callbacks.call(record, [RECALL]))
        await end.arrival(1)
        end.seqids.clear()  # the first never arrived, as far as the client knows
        client.transport.close()
        end.gate.set()
        assert await call == [OK]
        first, again = end.received
        assert (first.connection, again.connection) == (client.transport, second)
        assert first.sequence == again.sequence

    run(test, tmp_path)


def test_a_lost_answer_is_asked_for_as_a_new_request(tmp_path):
    """The client executed the first, keeps no replies, and says so (section 2.10.6.1.3)."""

    async def test(server, client, end, record):
        end.gate = asyncio.Event()
        second = LoopbackTransport(callbacks=end)
        await client.bind(second)
        call = asyncio.ensure_future(server.nfs4.callbacks.call(record, [RECALL]))
        await end.arrival(1)
        client.transport.close()
        end.gate.set()
        assert await call == [OK]
        assert [one.sequence.csa_sequenceid for one in end.received] == [1, 1, 2]

    run(test, tmp_path)


def test_a_silent_connection_is_passed_over_for_another(tmp_path, monkeypatch):
    monkeypatch.setattr(callback_session, "PATIENCE", 0.05)

    async def test(server, client, end, record):
        deaf = CallbackEnd()
        deaf.gate = asyncio.Event()
        client.transport.callbacks = deaf
        await client.bind(LoopbackTransport(callbacks=end))
        assert await server.nfs4.callbacks.call(record, [RECALL]) == [OK]
        assert await server.nfs4.callbacks.call(record, [RECALL]) == [OK]
        assert (len(deaf.received), len(end.received)) == (1, 2)

    run(test, tmp_path)


def test_a_silent_client_costs_the_time_and_is_told_by_its_status_flags(tmp_path, monkeypatch):
    monkeypatch.setattr(callback_session, "PATIENCE", 0.05)

    async def test(server, client, end, record):
        end.gate = asyncio.Event()
        with pytest.raises(CallbackError) as error:
            await server.nfs4.callbacks.call(record, [RECALL], timeout=0.2)
        assert error.value.reason == "path_down"
        down = p.SEQ4_STATUS_CB_PATH_DOWN | p.SEQ4_STATUS_CB_PATH_DOWN_SESSION
        assert await flags(client) == down
        assert not server.nfs4.callbacks.client_can_be_called(record)
        end.gate.set()  # the late answer: the path is up after all, and the slot in step
        await turns()
        assert await flags(client) == 0
        assert await server.nfs4.callbacks.call(record, [ANY]) == [p.CB_RECALL_ANY4res(p.nfsstat4.NFS4_OK)]
        assert [one.sequence.csa_sequenceid for one in end.received] == [1, 2]

    run(test, tmp_path)


def test_a_callback_given_up_is_sent_again_before_its_slot_is_used(tmp_path):
    async def test(server, client, end, record):
        end.gate = asyncio.Event()
        with pytest.raises(CallbackError) as error:
            await server.nfs4.callbacks.call(record, [RECALL], timeout=0.05)
        assert error.value.reason == "timeout"
        client.transport.close()
        end.seqids.clear()
        end.gate.set()
        await client.bind(LoopbackTransport(callbacks=end))
        await server.nfs4.callbacks.call(record, [ANY])
        assert [one.operations[0][0] for one in end.received] == [p.OP_CB_RECALL, p.OP_CB_RECALL, p.OP_CB_RECALL_ANY]
        assert [one.sequence.csa_sequenceid for one in end.received] == [1, 1, 2]

    run(test, tmp_path, slots=1)


@covers("RFC 8167 6 only-when-ready")
def test_without_a_path_a_callback_fails_at_once_or_waits_for_one(tmp_path):
    async def test(server, client, end, record):
        client.transport.close()
        callbacks = server.nfs4.callbacks
        assert not callbacks.client_can_be_called(record)
        with pytest.raises(CallbackError) as error:
            await callbacks.call(record, [RECALL], timeout=60)
        assert error.value.reason == "path_down"
        with pytest.raises(CallbackError):
            await callbacks.call(record, [RECALL], timeout=0.05, wait_for_path=True)
        call = asyncio.ensure_future(callbacks.call(record, [RECALL], wait_for_path=True))
        await turns()
        client.transport = LoopbackTransport(callbacks=end)
        assert await client.bind(client.transport) == p.channel_dir_from_server4.CDFS4_BOTH
        assert await call == [OK]

    run(test, tmp_path)


def test_a_slot_out_of_step_is_a_fault_of_the_backchannel(tmp_path):
    async def test(server, client, end, record):
        end.sequence_answers = [p.NFS4ERR_SEQ_MISORDERED]
        with pytest.raises(CallbackError) as error:
            await server.nfs4.callbacks.call(record, [RECALL])
        assert error.value.reason == "refused"
        assert await flags(client) == p.SEQ4_STATUS_BACKCHANNEL_FAULT
        assert not server.nfs4.callbacks.client_can_be_called(record)

    run(test, tmp_path)


def test_a_connection_the_client_does_not_know_is_dropped_from_the_backchannel(tmp_path):
    async def test(server, client, end, record):
        second = LoopbackTransport(callbacks=end)
        await client.bind(second)
        end.sequence_answers = [p.NFS4ERR_CONN_NOT_BOUND_TO_SESSION]
        assert await server.nfs4.callbacks.call(record, [RECALL]) == [OK]
        assert record.sessions[client.session].backchannel.connections == [second]

    run(test, tmp_path)


def test_a_client_that_denies_the_call_keeps_its_slot_in_step(tmp_path):
    async def test(server, client, end, record):
        end.refusal = auth_stat.AUTH_TOOWEAK
        with pytest.raises(CallbackError) as error:
            await server.nfs4.callbacks.call(record, [RECALL])
        assert error.value.reason == "denied"
        end.refusal = None
        await client.bind(client.transport)
        assert await server.nfs4.callbacks.call(record, [RECALL]) == [OK]
        assert end.received[0].sequence.csa_sequenceid == 1

    run(test, tmp_path)


def test_what_does_not_fit_the_backchannel_is_not_sent(tmp_path):
    async def test(server, client, end, record):
        long = [p.referring_call_list4(client.session, [p.referring_call4(n, 0) for n in range(500)])]
        lock = (p.OP_CB_NOTIFY_LOCK, p.CB_NOTIFY_LOCK4args(b"handle", p.lock_owner4(1, bytes(1000))))
        for operations, referring in ([RECALL], long), ([RECALL, RECALL], []):
            with pytest.raises(CallbackError) as error:
                await server.nfs4.callbacks.call(record, operations, referring=referring)
            assert error.value.reason == "too_big"
        assert await server.nfs4.callbacks.call(record, [lock]) == [p.CB_NOTIFY_LOCK4res(p.nfsstat4.NFS4_OK)]
        client.transport.max_backchannel_size = 996  # an RDMA connection's, say
        with pytest.raises(CallbackError):
            await server.nfs4.callbacks.call(record, [lock])
        assert len(end.received) == 1

    run(test, tmp_path)


def test_callbacks_bear_the_credential_and_program_the_client_asked_for_last(tmp_path):
    async def test(server, client, end, record):
        sys = p.callback_sec_parms4(1, cbsp_sys_cred=p.authsys_parms(3, b"host", 12, 34, [5, 6]))
        await client.run((p.OP_BACKCHANNEL_CTL, p.BACKCHANNEL_CTL4args(0x40000001, [sys, p.callback_sec_parms4(0)])))
        await server.nfs4.callbacks.call(record, [RECALL])
        (got,) = end.received
        assert got.program == 0x40000001
        assert (got.credential.uid, got.credential.gid, got.credential.gids) == (12, 34, [5, 6])
        assert got.credential.machinename == b"host"

    run(test, tmp_path)


def test_a_dead_client_holds_up_no_other(tmp_path):
    async def test(server, client, end, record):
        end.gate = asyncio.Event()
        dead = [asyncio.ensure_future(server.nfs4.callbacks.call(record, [RECALL], timeout=30)) for _ in range(40)]
        await turns()
        live = CallbackEnd()
        other = Client4(server, 1, name=b"other", transport=LoopbackTransport(callbacks=live))
        await other.connect()
        await server.nfs4.callbacks.call(server.engine.clients.lookup(other.clientid), [RECALL], timeout=5)
        assert live.operations == [p.OP_CB_RECALL]
        assert not any(call.done() for call in dead)
        for call in dead:
            call.cancel()
        await asyncio.gather(*dead, return_exceptions=True)

    run(test, tmp_path)


def test_a_client_that_goes_away_ends_what_waits_for_it(tmp_path):
    async def test(server, client, end, record):
        end.gate = asyncio.Event()
        call = asyncio.ensure_future(server.nfs4.callbacks.call(record, [RECALL], timeout=0.5, wait_for_path=True))
        await end.arrival(1)
        server.engine.expire_client(record)
        client.transport.close()
        with pytest.raises(CallbackError):
            await call
        assert not server.nfs4.callbacks.client_can_be_called(record)

    run(test, tmp_path)


def test_a_session_destroyed_under_a_callback_leaves_it_to_another(tmp_path):
    async def test(server, client, end, record):
        second = Client4(server, 1, transport=LoopbackTransport(callbacks=end))
        await second.connect(reclaim_complete=False)
        assert second.clientid == client.clientid
        end.gate = asyncio.Event()
        call = asyncio.ensure_future(server.nfs4.callbacks.call(record, [RECALL]))
        await end.arrival(1)
        await client.run((p.OP_DESTROY_SESSION, p.DESTROY_SESSION4args(client.session)))
        await end.arrival(2)
        end.gate.set()
        assert await call == [OK]
        assert [one.sequence.csa_sessionid for one in end.received] == [client.session, second.session]

    run(test, tmp_path)


@pytest.mark.parametrize("minor", [1, 2])
def test_a_backchannel_needs_a_credential_that_can_be_sent(tmp_path, minor):
    async def test(server, client, end, record):
        handles = p.gss_cb_handles4(p.rpc_gss_svc_t.RPC_GSS_SVC_INTEGRITY, b"there", b"here")
        gss = p.callback_sec_parms4(6, cbsp_gss_handles=handles)
        none = p.callback_sec_parms4(0)
        channel = p.channel_attrs4(0, 1 << 16, 1 << 16, 4096, 16, 4, [])
        back = p.channel_attrs4(0, 4096, 4096, 0, 2, 1, [])
        for sequence, offered, status, flags in (
            (2, [gss], p.NFS4ERR_NOENT, None),
            (2, [gss, none], p.NFS4_OK, p.CREATE_SESSION4_FLAG_CONN_BACK_CHAN),
            (3, [], p.NFS4_OK, 0),
        ):
            args = p.CREATE_SESSION4args(client.clientid, sequence, 2, channel, back, 0x40000000, offered)
            got, [(_, made)] = await client.raw((p.OP_CREATE_SESSION, args))
            assert got == status
            assert made.csr_resok4 is None or made.csr_resok4.csr_flags == flags
        only_gss = (p.OP_BACKCHANNEL_CTL, p.BACKCHANNEL_CTL4args(7, [gss]))
        assert await client.status(only_gss) == p.NFS4ERR_NOENT
        await client.run((p.OP_BACKCHANNEL_CTL, p.BACKCHANNEL_CTL4args(8, [])))
        await server.nfs4.callbacks.call(record, [RECALL])
        assert end.received[0].program == 8

    run(test, tmp_path, minor=minor)


def test_a_callback_cut_off_goes_on_in_a_session_made_since(tmp_path):
    async def test(server, client, end, record):
        end.gate = asyncio.Event()
        call = asyncio.ensure_future(server.nfs4.callbacks.call(record, [RECALL]))
        await end.arrival(1)
        client.transport.close()
        await turns()
        assert not call.done(), "the client may come back"
        end.gate.set()
        second = Client4(server, 1, transport=LoopbackTransport(callbacks=end))
        await second.connect(reclaim_complete=False)
        assert await call == [OK]
        assert end.received[-1].sequence.csa_sessionid == second.session
        # The first session's slot is put in step before it is used again.
        await client.bind(LoopbackTransport(callbacks=end))
        second.transport.close()
        assert await server.nfs4.callbacks.call(record, [ANY]) == [p.CB_RECALL_ANY4res(p.nfsstat4.NFS4_OK)]
        last = [one.sequence.csa_sequenceid for one in end.received if one.sequence.csa_sessionid == client.session]
        assert last == [1, 1, 2]
        assert end.operations[-1] == p.OP_CB_RECALL_ANY

    run(test, tmp_path, slots=1)
