"""Callbacks to clients that came by Kerberos: a real KDC, a daemon, the client's acceptor or a context it has made."""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from nfsd.client import compound
from nfsd.protocol import nfs4 as p
from nfsd.v4.callbacks import CallbackError
from rpcrdma.client import ClientOptions, Connection, Gss, connect
from rpcrdma.client import gss as client_gss
from rpcrdma.gss.acceptor import Acceptor
from rpcrdma.gss.contexts import Context
from rpcrdma.gss.identities import Answer
from rpcrdma.gss.identity import Identity
from rpcrdma.gss.mechanism import Sealer
from rpcrdma.memory import Pool
from rpcrdma.rpc.dispatch import Dispatcher
from rpcrdma.rpc.program import ENCODED, Call, Procedure, Program
from rpcrdma.server.tcp import TcpListener
from rpcrdma.xdr import Encoder
from tests.support import kdc
from tests.support.callbacks import CallbackEnd, CallbackListener
from tests.unit import test_kerberos_state as state
from tests.unit.test_kerberos import Site, run
from tests.unit.test_kerberos_state import CHANNEL, FILE, MACHINE, NFS, OTHER, Holder, caller, exchange_id
from tests.unit.test_kerberos_trouble import realm as realm  # a fixture

pytestmark = [
    pytest.mark.skipif(not kdc.PRESENT, reason=kdc.WITHOUT_KDC),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root acts as other users"),
]
PROGRAM = 0x40000000
SERVER = "nfs/localhost@EXAMPLE.ORG"


class Accepting(CallbackEnd):
    """Takes callbacks under RPCSEC_GSS, and notes who has made them and how."""

    def __init__(self) -> None:
        super().__init__()
        self.callers: list[tuple[str, str, int]] = []
        null, whole = (Procedure(name, self._take, raw=True) for name in ("CB_NULL", "CB_COMPOUND"))
        self.program = Program(PROGRAM, "callbacks", {p.NFS_CB: {p.CB_NULL: null, p.CB_COMPOUND: whole}})

    async def _take(self, call: Call) -> Any:
        self.callers.append((call.credential.principal, call.credential.security, call.procedure))
        arguments = bytes(call.message[-call.arguments.remaining :]) if call.arguments.remaining else b""
        head = struct.pack(">10I", call.xid, 0, 2, call.program, call.version, call.procedure, 0, 0, 0, 0)
        reply = await self.answer(head + arguments)
        call.results.append(reply[24:])
        return ENCODED


@asynccontextmanager
async def accepting(end: Accepting, keytab: Path) -> AsyncIterator[tuple[tuple[bytes, bytes], Acceptor]]:
    """A client's end of callbacks with a key of its own: its address, and its contexts."""
    acceptor = Acceptor({SERVER: Identity(0, 0)}.get, keytab=str(keytab), service="host@client.example.org")
    listener = TcpListener(Dispatcher([end.program], gss=acceptor), Pool(64 << 20), asyncio.get_running_loop())
    listener.listen("127.0.0.1", 0)
    try:
        high, low = divmod(listener.address[1], 256)
        yield (b"tcp", f"127.0.0.1.{high}.{low}".encode()), acceptor
    finally:
        listener.close()
        acceptor.close()


async def ask(connection: Connection, *operations: compound.Op) -> Any:
    """The last result of a COMPOUND of v4.0 that succeeds."""
    encoder = Encoder()
    compound.encode(encoder, operations, 0)
    reply = await connection.call(NFS, 4, 1, encoder, reply_max=4096)
    done = compound.decode(reply.decoder(), operations)
    assert done.status == p.NFS4_OK, p.nfsstat4(done.status)
    return done.results[-1]


async def introduced(connection: Connection, name: bytes, address: tuple[bytes, bytes]) -> int:
    """SETCLIENTID and its confirmation: the client's number."""
    where = p.cb_client4(PROGRAM, p.netaddr4(*address))
    made = await ask(connection, (p.OP_SETCLIENTID, p.SETCLIENTID4args(p.nfs_client_id4(b"verifier", name), where, 7)))
    made = made.resok4
    await ask(
        connection,
        (p.OP_SETCLIENTID_CONFIRM, p.SETCLIENTID_CONFIRM4args(made.clientid, made.setclientid_confirm)),
    )
    return int(made.clientid)


async def delegated(site: Site, connection: Connection, clientid: int) -> p.open_delegation4:
    """What is delegated with a file that is opened a second time, by an owner that is confirmed."""
    record = site.server.daemon._nfs4.engine.clients.lookup(clientid)
    assert record is not None
    await site.server.daemon._nfs4.callbacks.probe(record)
    found = await ask(connection, *FILE)
    here = p.OP_PUTFH, p.PUTFH4args(found.resok4.object)
    directory, name = FILE[:-2], b"file"
    for seqid in (0, 2):
        claim = p.open_claim4(p.open_claim_type4.CLAIM_NULL, file=name)
        owner = p.open_owner4(clientid, b"a user")
        how = p.OPEN4args(
            seqid, p.OPEN4_SHARE_ACCESS_READ, p.OPEN4_SHARE_DENY_NONE, owner,
            p.openflag4(p.opentype4.OPEN4_NOCREATE), claim,
        )  # fmt: skip
        made = (await ask(connection, *directory, (p.OP_OPEN, how))).resok4
        if seqid == 0:
            await ask(connection, here, (p.OP_OPEN_CONFIRM, p.OPEN_CONFIRM4args(made.stateid, 1)))
    return made.delegation


async def recalled(site: Site, clientid: int, delegation: p.open_delegation4) -> None:
    """The server recalls it, and is answered."""
    nfs4 = site.server.daemon._nfs4
    stateid = delegation.read.stateid
    operation = p.OP_CB_RECALL, p.CB_RECALL4args(stateid, False, b"handle")
    (answer,) = await nfs4.callbacks.call(nfs4.engine.clients.lookup(clientid), [operation])
    assert answer.status == p.NFS4_OK


@pytest.mark.parametrize("security", ["krb5", "krb5i", "krb5p"])
def test_a_client_is_called_as_it_has_called(tmp_path: Path, realm: kdc.Realm, security: str) -> None:
    """RFC 7530 section 3.3.3: by the server's own principal, to that of SETCLIENTID, with the flavor of that."""
    keytab = realm.keytab(MACHINE, path=tmp_path / "machine")

    async def test(site: Site) -> None:
        end = Accepting()
        async with accepting(end, keytab) as (address, acceptor), caller(site, MACHINE, security) as connection:
            clientid = await introduced(connection, b"a client", address)
            delegation = await delegated(site, connection, clientid)
            assert delegation.delegation_type == p.open_delegation_type4.OPEN_DELEGATE_READ
            await recalled(site, clientid, delegation)
            for context in acceptor.table:  # as when the client has restarted
                acceptor.table.remove(context)
            await recalled(site, clientid, delegation)
            assert set(end.callers) == {(SERVER, security, p.CB_NULL), (SERVER, security, p.CB_COMPOUND)}
            assert [got.ident for got in end.received] == [7, 7]
            assert acceptor.counts["established"] == 2

    run(tmp_path, realm, test)


@pytest.mark.parametrize("name", [MACHINE, "ann"])
def test_a_client_that_accepts_no_contexts_has_delegations_all_the_same(
    tmp_path: Path, realm: kdc.Realm, name: str
) -> None:
    """Linux's without rpc.svcgssd, and one that a user has mounted: they are called with AUTH_SYS."""

    async def test(site: Site) -> None:
        end = CallbackEnd()
        end.without_gss = True
        async with CallbackListener(end) as listener, caller(site, name) as connection:
            clientid = await introduced(connection, b"a client", listener.address)
            delegation = await delegated(site, connection, clientid)
            assert delegation.delegation_type == p.open_delegation_type4.OPEN_DELEGATE_READ
            await recalled(site, clientid, delegation)
            (got,) = end.received
            assert got.credential is not None
            assert (got.ident, got.credential.uid) == (7, 0)
            assert end.denials == (name == MACHINE)

    run(tmp_path, realm, test)


def test_a_kdc_that_is_down_costs_no_delegation(tmp_path: Path, realm: kdc.Realm) -> None:
    """The client has its tickets, and the server gets none."""
    keytab = realm.keytab(MACHINE, path=tmp_path / "machine")

    async def test(site: Site) -> None:
        end = Accepting()
        async with accepting(end, keytab) as (address, _), caller(site, MACHINE) as connection:
            await ask(connection, *FILE)
            realm.stop()
            clientid = await introduced(connection, b"a client", address)
            delegation = await delegated(site, connection, clientid)
            await recalled(site, clientid, delegation)
            assert [(name, flavor) for name, flavor, _ in end.callers] == [("", "none"), ("", "sys")]

    run(tmp_path, realm, test)


def accepted(acceptor: Acceptor, exported: bytes) -> Context:
    """Take calls of the server's in a context of which this is the client's end."""
    context = Context(exported, SERVER, "127.0.0.1", float("inf"))
    Answer(Identity(0, 0), float("inf")).tell(context)
    acceptor.table.add(context)
    return context


@pytest.mark.parametrize("service", p.rpc_gss_svc_t)
def test_a_session_is_called_in_the_context_that_it_offers(
    tmp_path: Path, realm: kdc.Realm, monkeypatch: pytest.MonkeyPatch, service: p.rpc_gss_svc_t
) -> None:
    """RFC 8881 sections 18.33.3 and 18.36.3."""
    security = ("krb5", "krb5i", "krb5p")[service - 1]
    made: list[bytes] = []

    def note(exported: bytes) -> Sealer:
        made.append(exported)
        return Sealer(exported)

    monkeypatch.setattr(client_gss, "Sealer", note)

    async def test(site: Site) -> None:
        end = Accepting()
        acceptor = Acceptor({}.get, keytab=str(realm.directory / "keytab"))
        options = ClientOptions(gss=Gss("krb5i", "nfs@localhost", site.cache(MACHINE)))
        nfs4 = site.server.daemon._nfs4
        gss = site.server.daemon._gss
        assert gss is not None
        async with connect(
            "127.0.0.1", site.server.port("nfs", "tcp"), transport="tcp", options=options, callbacks=[end.program]
        ) as connection:
            _, found = await state.ask(connection, exchange_id(protect=False))
            (theirs,) = gss.table
            ours = accepted(acceptor, made[0])
            connection._dispatcher = Dispatcher([end.program], gss=acceptor)

            def offered(there: bytes) -> list[p.callback_sec_parms4]:
                handles = p.gss_cb_handles4(service, there, ours.handle)
                return [p.callback_sec_parms4(6, cbsp_gss_handles=handles)]

            clientid, number = found.eir_resok4.eir_clientid, found.eir_resok4.eir_sequenceid
            refused = p.CREATE_SESSION4args(clientid, number, 2, CHANNEL, CHANNEL, PROGRAM, offered(b"no such handle"))
            assert (await state.ask(connection, (p.OP_CREATE_SESSION, refused)))[0] == p.NFS4ERR_NOENT
            asking = p.CREATE_SESSION4args(clientid, number, 2, CHANNEL, CHANNEL, PROGRAM, offered(theirs.handle))
            async with caller(site, OTHER) as other:  # it is none of theirs
                assert (await state.ask(other, (p.OP_CREATE_SESSION, asking)))[0] == p.NFS4ERR_NOENT
            status, session = await state.ask(connection, (p.OP_CREATE_SESSION, asking))
            assert status == p.NFS4_OK
            assert session.csr_resok4.csr_flags & p.CREATE_SESSION4_FLAG_CONN_BACK_CHAN
            holder = Holder(session.csr_resok4.csr_sessionid)
            record = nfs4.engine.clients.lookup(clientid)
            operation = p.OP_CB_RECALL, p.CB_RECALL4args(p.stateid4(1, bytes(12)), False, b"handle")
            for _ in range(2):
                (answer,) = await nfs4.callbacks.call(record, [operation])
                assert answer.status == p.NFS4_OK
            assert end.callers == [(SERVER, security, p.CB_COMPOUND)] * 2

            gss.table.remove(theirs)  # the client makes another for its own calls, and learns of this
            with pytest.raises(CallbackError):
                await nfs4.callbacks.call(record, [operation])
            assert not nfs4.callbacks.client_can_be_called(record)
            status, sequenced = await holder.ask(connection)
            assert status == p.NFS4_OK
            assert sequenced.sr_resok4.sr_status_flags & p.SEQ4_STATUS_CB_GSS_CONTEXTS_EXPIRED
            theirs = next(one for one in gss.table if one.principal.startswith(MACHINE))
            ours = accepted(acceptor, made[-1])
            anew = p.OP_BACKCHANNEL_CTL, p.BACKCHANNEL_CTL4args(PROGRAM, offered(theirs.handle))
            assert (await holder.ask(connection, anew))[0] == p.NFS4_OK
            await nfs4.callbacks.call(record, [operation])
            status, sequenced = await holder.ask(connection)
            assert not sequenced.sr_resok4.sr_status_flags & p.SEQ4_STATUS_CB_GSS_CONTEXTS_EXPIRED
            assert len(end.callers) == 3
        acceptor.close()

    run(tmp_path, realm, test)
