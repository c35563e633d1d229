"""Callbacks of NFSv4.0: the server connects to the address of SETCLIENTID (RFC 7530 sections 10.2.1 and 16.33)."""

import asyncio
import socket
from contextlib import asynccontextmanager

import pytest

from nfsd.protocol import nfs4 as p
from nfsd.state.types import Callback40
from nfsd.v4 import callback_dial
from nfsd.v4.callback_dial import callback_address
from nfsd.v4.callbacks import CallbackError
from rpcrdma.rpc.messages import auth_stat
from tests.support.callbacks import CallbackEnd, CallbackListener
from tests.support.delegations import READ_DELEGATION, with_two
from tests.support.hosts import on_site
from tests.support.nfs4 import Client4, mode, serving

RECALL = (p.OP_CB_RECALL, p.CB_RECALL4args(p.stateid4(1, bytes(12)), False, b"handle"))
OK = p.CB_RECALL4res(p.nfsstat4.NFS4_OK)


@asynccontextmanager
async def called(tmp_path):
    """(server, client, listener, the client's record)."""
    for name in ("export", "state"):
        (tmp_path / name).mkdir(exist_ok=True)
    async with (
        serving(tmp_path / "export", state_dir=tmp_path / "state") as server,
        CallbackListener(CallbackEnd()) as listener,
    ):
        client = Client4(server, 0)
        client.callback_address = listener.address
        await client.connect()
        yield server, client, listener, server.engine.clients.lookup(client.clientid)


def run(test, tmp_path):
    async def main():
        async with called(tmp_path) as parts:
            await test(*parts)

    asyncio.run(main())


def test_the_path_is_probed_when_the_client_is_confirmed(tmp_path):
    async def test(server, client, listener, record):
        assert await server.nfs4.callbacks.probe(record)
        assert listener.end.nulls == 1
        assert server.nfs4.callbacks.client_can_be_called(record)
        assert await server.nfs4.callbacks.probe(record)
        assert listener.end.nulls == 1
        assert server.nfs4.callbacks.counters["CB_NULL", "ok"] == 1

    run(test, tmp_path)


def test_a_callback_bears_the_clients_ident_and_needs_no_session(tmp_path):
    async def test(server, client, listener, record):
        assert await server.nfs4.callbacks.call(record, [RECALL]) == [OK]
        (got,) = listener.end.received
        assert (got.minor, got.ident, got.program, got.sequence) == (0, 1, 0x40000000, None)
        assert got.credential.uid == 0
        assert got.operations == [RECALL]

    run(test, tmp_path)


def test_a_connection_closed_while_idle_is_made_again(tmp_path):
    async def test(server, client, listener, record):
        callbacks = server.nfs4.callbacks
        await callbacks.call(record, [RECALL])
        assert callbacks.connections == 1
        listener.hang_up()
        await listener.closed.wait()
        assert await callbacks.call(record, [RECALL]) == [OK]
        assert len(listener.connections) == 1
        callbacks.sweep(asyncio.get_running_loop().time() + callback_dial.IDLE_TIME + 1)
        assert callbacks.connections == 0
        assert await callbacks.call(record, [RECALL]) == [OK]

    run(test, tmp_path)


def test_a_connection_lost_under_a_call_is_path_down(tmp_path):
    async def test(server, client, listener, record):
        listener.end.gate = asyncio.Event()
        call = asyncio.ensure_future(server.nfs4.callbacks.call(record, [RECALL]))
        await listener.end.arrival(1)
        listener._server.close()
        listener.hang_up()
        with pytest.raises(CallbackError) as error:
            await call
        assert error.value.reason == "path_down"
        assert not server.nfs4.callbacks.client_can_be_called(record)

    run(test, tmp_path)


def test_a_silent_client_is_given_up_in_time(tmp_path):
    async def test(server, client, listener, record):
        assert await server.nfs4.callbacks.probe(record)
        listener.end.gate = asyncio.Event()
        with pytest.raises(CallbackError) as error:
            await server.nfs4.callbacks.call(record, [RECALL], timeout=0.05)
        assert error.value.reason == "timeout"
        assert not server.nfs4.callbacks.client_can_be_called(record)

    run(test, tmp_path)


def test_a_changed_setclientid_is_probed_anew(tmp_path):
    async def test(server, client, listener, record):
        callbacks = server.nfs4.callbacks
        assert await callbacks.probe(record)
        async with CallbackListener(CallbackEnd()) as other:
            client.callback_address = other.address
            await client.connect()
            assert server.engine.clients.lookup(client.clientid) is record
            assert await callbacks.probe(record)
            assert other.end.nulls == 1
            await callbacks.call(record, [RECALL])
            assert other.end.operations == [p.OP_CB_RECALL]
            assert listener.end.operations == []
            callbacks.sweep(asyncio.get_running_loop().time())
            assert callbacks.connections == 1  # the path that leads nowhere any more is closed

    run(test, tmp_path)


def test_an_address_confirmed_anew_is_looked_at_again_only_if_it_was_down(tmp_path):
    async def test(server, client, listener, record):
        callbacks = server.nfs4.callbacks
        assert await callbacks.probe(record)
        await client.connect()
        assert callbacks.client_can_be_called(record)
        assert callbacks.connections == listener.end.nulls == 1
        listener.end.refusal = auth_stat.AUTH_TOOWEAK
        with pytest.raises(CallbackError):
            await callbacks.call(record, [RECALL])
        assert not await callbacks.probe(record)
        listener.end.refusal = None
        assert not callbacks.client_can_be_called(record), "the next look is a while away"
        await client.connect()
        assert await callbacks.probe(record)
        assert listener.end.nulls == 2

    run(test, tmp_path)


def test_nobody_is_called_before_the_client_is_confirmed(tmp_path):
    async def test(server, client, listener, record):
        await server.nfs4.callbacks.probe(record)
        callback = p.cb_client4(0x40000000, p.netaddr4(*listener.address))
        args = p.SETCLIENTID4args(p.nfs_client_id4(b"verifier", b"unconfirmed"), callback, 9)
        _, [(_, made)] = await client.raw((p.OP_SETCLIENTID, args))
        unconfirmed = server.engine.clients.lookup(made.resok4.clientid)
        assert not server.nfs4.callbacks.client_can_be_called(unconfirmed)
        assert not await server.nfs4.callbacks.probe(unconfirmed)
        with pytest.raises(CallbackError):
            await server.nfs4.callbacks.call(unconfirmed, [RECALL])
        assert listener.end.nulls == 1

    run(test, tmp_path)


def test_no_more_connections_than_allowed_and_idle_ones_give_way(tmp_path):
    async def test(server, client, listener, record):
        callbacks = server.nfs4.callbacks
        callbacks._dialer.limit = 1
        await callbacks.call(record, [RECALL])
        other = Client4(server, 0, name=b"other")
        other.callback_address = listener.address
        await other.connect()
        there = server.engine.clients.lookup(other.clientid)
        assert await callbacks.probe(there)
        assert callbacks.connections == 1
        listener.end.gate = asyncio.Event()
        busy = asyncio.ensure_future(callbacks.call(there, [RECALL]))
        await listener.end.arrival(2)
        with pytest.raises(CallbackError) as error:
            await callbacks.call(record, [RECALL])
        assert error.value.reason == "busy"
        listener.end.gate.set()
        await busy

    run(test, tmp_path)


@pytest.mark.parametrize("accepts", [True, False], ids=["silent", "closed"])
def test_clients_of_one_host_that_do_not_answer_keep_no_other_from_being_called(tmp_path, accepts):
    async def test(site):
        callbacks = site.daemon._nfs4.callbacks
        callbacks._dialer = callback_dial.Dialer(
            callbacks._next_xid, limit=8 if accepts else 1000, connecting=64 if accepts else 4
        )
        deaf = socket.socket()
        deaf.bind(("127.0.0.2", 0))
        deaf.listen(64 if accepts else 0)
        port = deaf.getsockname()[1]
        for number in range(30):
            client = await site.client("127.0.0.2", 0, name=b"deaf %d" % number)
            client.callback_address = b"tcp", b"127.0.0.2.%d.%d" % (port >> 8, port & 255)
            await client.connect()
        async with CallbackListener(CallbackEnd()) as listener:
            honest = await site.client("127.0.0.1", 0)
            honest.callback_address = listener.address
            await honest.connect()
            assert await callbacks.probe(site.engine.clients.lookup(honest.clientid))
        deaf.close()

    on_site(tmp_path, test, server="  nfs4: {grace_time: 0}\n")


@pytest.mark.parametrize(
    ("netid", "address", "peer", "expected"),
    [
        ("tcp", "192.0.2.7.8.1", "192.0.2.7", ("192.0.2.7", 2049)),
        ("tcp6", "2001:db8::7.8.111", "2001:db8::7", ("2001:db8::7", 2159)),
        ("tcp", "192.0.2.8.8.1", "192.0.2.7", ("192.0.2.8", 2049)),
        ("tcp", "192.0.2.7.3.255", "192.0.2.7", None),
        ("tcp6", "::ffff:192.0.2.7.8.1", "192.0.2.7", ("192.0.2.7", 2049)),
        ("tcp", "127.0.0.1.8.1", "127.0.0.1", ("127.0.0.1", 2049)),
        ("tcp6", "::1.8.1", "127.0.0.1", ("::1", 2049)),
        ("tcp", "127.0.0.1.8.1", "192.0.2.7", None),
        ("tcp6", "::ffff:127.0.0.1.8.1", "192.0.2.7", None),
        ("tcp6", "192.0.2.7.8.1", "192.0.2.7", None),
        ("udp", "192.0.2.7.8.1", "192.0.2.7", None),
        ("rdma", "192.0.2.7.8.1", "192.0.2.7", None),
        ("tcp", "0.0.0.0.8.1", "192.0.2.7", None),
        ("tcp", "224.0.0.1.8.1", "192.0.2.7", None),
        ("tcp", "192.0.2.7.0.0", "192.0.2.7", None),
        ("tcp", "192.0.2.7.256.1", "192.0.2.7", None),
        ("tcp", "192.0.2.7.-1.1", "192.0.2.7", None),
        ("tcp", "example.org.8.1", "192.0.2.7", None),
        ("tcp", "", "192.0.2.7", None),
    ],
)
def test_which_addresses_are_called(netid, address, peer, expected):
    callback = Callback40(1, netid, address, 1, peer)
    assert callback_address(callback, anywhere=True) == expected
    elsewhere = expected is not None and expected[0] != peer
    assert callback_address(callback) == (None if elsewhere else expected)


@pytest.mark.parametrize("allowed", ["peer", "any"])
def test_nobody_is_called_at_anothers_address_unless_that_is_allowed(tmp_path, allowed):
    async def test(site):
        end = CallbackEnd()
        async with CallbackListener(end) as listener:  # on 127.0.0.1
            client = await site.client("127.0.0.2", 0)
            client.callback_address = listener.address
            await client.connect()
            record = site.engine.clients.lookup(client.clientid)
            assert await site.daemon._nfs4.callbacks.probe(record) is (allowed == "any")
            own = await site.client("127.0.0.1", 0, name=b"own")
            own.callback_address = listener.address
            await own.connect()
            assert await site.daemon._nfs4.callbacks.probe(site.engine.clients.lookup(own.clientid))
        assert end.nulls == (2 if allowed == "any" else 1)

    on_site(tmp_path, test, server=f"  nfs4: {{grace_time: 0, callbacks_to: {allowed}}}\n")


def test_renew_tells_a_holder_of_delegations_that_they_cannot_be_recalled(tmp_path):
    """RFC 7530 section 16.28: CB_PATH_DOWN, with the lease renewed all the same, until another address works."""

    async def test(server, export, one, two):
        record = server.engine.clients.lookup(one.clientid)
        renewing = (p.OP_RENEW, p.RENEW4args(one.clientid))
        (export / "f").write_bytes(b"")
        await one.opening(b"confirmed", create=mode(0o644))
        opened = await one.opening(b"f")
        assert opened.delegation.delegation_type == READ_DELEGATION
        assert await one.status(renewing) == p.NFS4_OK
        one.end.refusal = auth_stat.AUTH_TOOWEAK
        with pytest.raises(CallbackError):
            await server.nfs4.callbacks.call(record, [RECALL])
        before = record.lease_end
        assert await one.status(renewing) == p.NFS4ERR_CB_PATH_DOWN
        assert record.lease_end > before
        async with CallbackListener(CallbackEnd()) as other:
            one.callback_address = other.address
            await one.connect()
            assert await one.status(renewing) == p.NFS4_OK, "nothing is known of this path yet"
            assert await server.nfs4.callbacks.probe(record)
            assert await one.status(renewing) == p.NFS4_OK
        # Without delegations nobody needs the path.
        client = Client4(server, 0, name=b"third")
        await client.connect()
        record = server.engine.clients.lookup(client.clientid)
        assert not await server.nfs4.callbacks.probe(record)
        assert await client.status((p.OP_RENEW, p.RENEW4args(client.clientid))) == p.NFS4_OK

    with_two(tmp_path, 0, test)
