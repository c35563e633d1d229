"""One session over several connections, and its callbacks, over real transports (RFC 8881 section 2.10.5, RFC 8167)."""

import asyncio

import pytest

from nfsd.protocol import nfs4 as p
from nfsd.v4.callbacks import CallbackError
from tests.rfc.plugin import covers
from tests.support.callbacks import CallbackEnd
from tests.support.nfs4 import Client4, StoreInMemory, mode, serving, wanted
from tests.support.wires import Network

LOCK = (p.OP_CB_NOTIFY_LOCK, p.CB_NOTIFY_LOCK4args(b"h" * 128, p.lock_owner4(1, bytes(1024))))
RECALL = (p.OP_CB_RECALL, p.CB_RECALL4args(p.stateid4(1, bytes(12)), False, b"handle"))
OK = p.CB_RECALL4res(p.nfsstat4.NFS4_OK)
GETATTR_ROOT = (p.OP_PUTROOTFH, (p.OP_GETATTR, wanted(p.FATTR4_TYPE)))


def run(test, tmp_path, **serving_how):
    """``test(network, end)``, without a connection yet."""
    for name in ("export", "state"):
        (tmp_path / name).mkdir(exist_ok=True)

    async def main():
        async with (
            serving(tmp_path / "export", state_dir=tmp_path / "state", **serving_how) as server,
            Network(server) as network,
        ):
            await test(network, CallbackEnd())

    asyncio.run(main())


async def client_over(network, kind, end, minor=1):
    client = Client4(network, minor, transport=await network.connect(kind, end))
    await client.connect()
    return client, network.engine.clients.lookup(client.clientid)


@covers("RFC 8267 6.5.2 callbacks")
@pytest.mark.parametrize("kind", ["tcp", "rdma", "rdma2"])
def test_callbacks_come_back_on_the_clients_own_connection(tmp_path, kind):
    async def test(network, end):
        client, record = await client_over(network, kind, end)
        assert network.nfs4.callbacks.client_can_be_called(record)
        results = await asyncio.gather(*(network.nfs4.callbacks.call(record, [LOCK]) for _ in range(20)))
        assert all(result == [p.CB_NOTIFY_LOCK4res(p.nfsstat4.NFS4_OK)] for result in results)
        assert end.operations == [p.OP_CB_NOTIFY_LOCK] * 20
        await client.run(*GETATTR_ROOT)

    run(test, tmp_path)


@covers("RFC 8267 6.5.2 callbacks", "RFC 8167 5.3 short-otherwise")
@pytest.mark.parametrize(("kind", "header"), [("rdma", 28), ("rdma2", 36)])
def test_over_rdma_a_callback_fits_the_inline_threshold_or_is_not_sent(tmp_path, kind, header):
    async def test(network, end):
        client, record = await client_over(network, kind, end)
        channel = record.sessions[client.session].backchannel
        assert channel.connections[0].max_backchannel_size == 4096 - header
        long = [
            p.referring_call_list4(
                client.session, [p.referring_call4(n, 0) for n in range(490 if kind == "rdma" else 489)]
            )
        ]
        with pytest.raises(CallbackError) as error:
            await network.nfs4.callbacks.call(record, [RECALL], referring=long)
        assert error.value.reason == "too_big"
        del long[0].rcl_referring_calls[-1]
        await network.nfs4.callbacks.call(record, [RECALL], referring=long)
        assert end.received[0].octets == (4064 if kind == "rdma" else 4056)

    run(test, tmp_path)


@covers("RFC 8167 5.4 carried-over", "RFC 8267 6.6 sessions")
@pytest.mark.parametrize("kinds", [("rdma", "rdma"), ("rdma2", "rdma2"), ("rdma2", "rdma")])
def test_a_session_over_two_rdma_connections_and_one_of_tcp_survives_the_loss_of_any(tmp_path, kinds):
    """Requests go over each of them; callbacks move on when their connection dies under them, whatever version the next
    one speaks (RFC 8167 section 5.4)."""

    async def test(network, end):
        client, record = await client_over(network, kinds[0], end)
        first = client.transport
        second, third = await network.connect(kinds[1], end), await network.connect("tcp", end)
        for wire in (second, third):
            assert await client.bind(wire) == p.channel_dir_from_server4.CDFS4_BOTH
        session = record.sessions[client.session]
        assert len(session.connections) == len(session.backchannel.connections) == 3
        for wire in (first, second, third, first):
            client.transport = wire
            await client.run(*GETATTR_ROOT)

        callbacks = network.nfs4.callbacks
        await callbacks.call(record, [RECALL])
        assert end.received[-1].connection is first
        end.gate = asyncio.Event()
        under_way = [asyncio.ensure_future(callbacks.call(record, [RECALL])) for _ in range(3)]
        await end.arrival(4)
        slots = {one.sequence.csa_slotid: one.sequence.csa_sequenceid for one in end.received[1:]}
        assert len(slots) == 3
        end.gate.set()
        end.gate = None
        first.close()
        assert await asyncio.gather(*under_way) == [[OK]] * 3
        moved = end.received[4:]
        assert {one.connection for one in moved} <= {second, third}
        assert {one.sequence.csa_slotid: one.sequence.csa_sequenceid for one in moved[:3]} == slots

        second.close()
        client.transport = third
        await client.run(*GETATTR_ROOT)
        assert await callbacks.call(record, [RECALL]) == [OK]
        assert end.received[-1].connection is third
        assert session.status_flags() == 0

    run(test, tmp_path)


class SlowStore(StoreInMemory):
    """Stable storage that takes its time."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()
        self.waiting = asyncio.Event()

    async def flush(self, engine):
        if not self.gate.is_set():
            self.waiting.set()
        await self.gate.wait()
        await super().flush(engine)


@pytest.mark.parametrize(("first", "then"), [("rdma", "rdma"), ("rdma", "tcp"), ("tcp", "rdma")])
def test_a_request_is_executed_once_wherever_its_retransmissions_come(tmp_path, first, then):
    """Also while the original is executing, and after its connection is gone (RFC 8881 section 2.10.6.2)."""
    store = SlowStore()

    async def test(network, end):
        client = Client4(network, 1, transport=await network.connect(first, end))
        await client.connect(reclaim_complete=False)
        other = await network.connect(then, end)
        store.gate.clear()
        over = (p.OP_RECLAIM_COMPLETE, p.RECLAIM_COMPLETE4args(False))
        operations = client.in_session(over, cache=True)

        async def send(wire):
            return client.parse(await network.call(wire, client.message(*operations)))

        original = asyncio.ensure_future(send(client.transport))
        await store.waiting.wait()
        for wire in (client.transport, other, other):
            assert (await send(wire))[0] == p.NFS4ERR_DELAY
        client.transport.close()
        original.cancel()
        store.gate.set()
        while (answer := await send(other))[0] == p.NFS4ERR_DELAY:
            pass
        assert answer[0] == p.NFS4_OK, "a second execution would be COMPLETE_ALREADY"
        assert await send(other) == answer
        client.transport = other
        assert await client.status(over) == p.NFS4ERR_COMPLETE_ALREADY

    run(test, tmp_path, store=store)


def test_one_client_by_several_connections_with_sessions_of_their_own(tmp_path):
    """Client id trunking (RFC 8881 section 2.10.5): the server owner is the same everywhere, and so is the client."""

    async def test(network, end):
        first = Client4(network, 2, transport=await network.connect("rdma", end))
        await first.connect()
        second = Client4(network, 2, transport=await network.connect("tcp", end))
        owner = p.client_owner4(b"verifier", b"client")
        none = p.state_protect4_a(p.state_protect_how4.SP4_NONE)
        answers = []
        for client in (first, second):
            _, [(_, made)] = await client.raw((p.OP_EXCHANGE_ID, p.EXCHANGE_ID4args(owner, 0x101, none, [])))
            answers.append(made.eir_resok4)
        assert answers[0] == answers[1]
        assert answers[0].eir_flags & p.EXCHGID4_FLAG_CONFIRMED_R
        await second.connect(reclaim_complete=False)
        assert second.clientid == first.clientid
        assert second.session != first.session
        stateid, handle = await first.open("/0", b"f", create=mode(0o644))
        await second.close(stateid, handle)
        record = network.engine.clients.lookup(first.clientid)
        first.transport.close()
        assert await network.nfs4.callbacks.call(record, [RECALL]) == [OK]
        assert end.received[-1].sequence.csa_sessionid == second.session

    run(test, tmp_path)
