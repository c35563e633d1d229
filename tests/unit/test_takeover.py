"""Who may act as a client: its own host, and who knows what only the client was told. A name is nobody's secret."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from nfsd.protocol import nfs4 as p
from nfsd.protocol import nlm4, nsm
from nfsd.state import ClientRecord, Limits, Recovered
from nfsd.vfs.types import Credential
from rpcrdma.xdr import Encoder
from tests.support.hosts import Site, on_site, rpc_call, verdict
from tests.support.nfs4 import Client4, LoopbackTransport, mode, serving

VICTIM, OTHER = "127.0.0.2", "127.0.0.3"
NO_GRACE = "  nfs4: {grace_time: 0}\n"


async def victim_with_a_file(site: Site, minor: int) -> tuple[Client4, Any, bytes]:
    client = await (await site.client(VICTIM, minor)).connect()
    stateid, handle = await client.open("/export", b"f", create=mode(0o666), deny=p.OPEN4_SHARE_DENY_WRITE)
    return client, stateid, handle


def introduction(client: Client4, verifier: bytes, flags: int = 0) -> tuple[int, Any]:
    owner = p.client_owner4(verifier, client.name)
    return p.OP_EXCHANGE_ID, p.EXCHANGE_ID4args(owner, flags, p.state_protect4_a(p.state_protect_how4.SP4_NONE), [])


def creation(clientid: int, sequence: int) -> tuple[int, Any]:
    channel = p.channel_attrs4(0, 1 << 16, 1 << 16, 4096, 16, 4, [])
    return p.OP_CREATE_SESSION, p.CREATE_SESSION4args(
        clientid, sequence, 0, channel, channel, 0x40000000, [p.callback_sec_parms4(0)]
    )


@pytest.mark.parametrize("minor", [0, 1, 2])
def test_a_name_from_another_host_is_another_client(tmp_path: Path, minor: int) -> None:
    async def test(site: Site) -> None:
        victim, stateid, handle = await victim_with_a_file(site, minor)
        thief = await (await site.client(OTHER, minor, name=victim.name)).connect(b"rebooted")
        assert thief.clientid != victim.clientid
        # The victim's session is there, and so is its open, which keeps others from writing.
        await victim.on(handle, (p.OP_READ, p.READ4args(stateid, 0, 10)))
        there = (p.OP_PUTFH, p.PUTFH4args(handle))
        claim = p.open_claim4(p.open_claim_type4.CLAIM_NULL, file=b"f")
        seqid = 0 if minor else thief.seqid(b"o")
        how = p.openflag4(p.opentype4.OPEN4_NOCREATE)
        asked = p.OPEN4args(seqid, 2, 0, p.open_owner4(thief.clientid, b"o"), how, claim)
        assert await thief.status(*thief.path("/export"), (p.OP_OPEN, asked)) == p.NFS4ERR_SHARE_DENIED
        assert await thief.status(there, p.OP_GETFH) == 0
        # Neither is locked out: both go on, and both may begin anew.
        await victim.on(handle, (p.OP_READ, p.READ4args(stateid, 0, 10)))
        again = await (await site.client(VICTIM, minor)).connect(b"really  ")
        assert await again.status(*again.path("/export")) == 0
        if minor:
            assert await victim.status(p.OP_PUTROOTFH) == p.NFS4ERR_BADSESSION, "the same host began anew"
        else:
            reading = (p.OP_READ, p.READ4args(stateid, 0, 10))
            assert await victim.status(there, reading) == p.NFS4ERR_EXPIRED
        assert await thief.status(*thief.path("/export")) == 0

    on_site(tmp_path, test, server=NO_GRACE)


def test_a_clientid_is_no_key_to_the_client(tmp_path: Path) -> None:
    async def test(site: Site) -> None:
        victim, stateid, handle = await victim_with_a_file(site, 1)
        thief = await site.client(OTHER)
        for sequence in range(4):
            assert (await thief.raw(creation(victim.clientid, sequence)))[0] == p.NFS4ERR_CLID_INUSE
        destroy = (p.OP_DESTROY_CLIENTID, p.DESTROY_CLIENTID4args(victim.clientid))
        assert (await thief.raw(destroy))[0] == p.NFS4ERR_STALE_CLIENTID
        await victim.on(handle, (p.OP_READ, p.READ4args(stateid, 0, 10)))
        status, _ = await victim.raw(creation(victim.clientid, 2))
        assert status == 0, "the thief's attempts did not use up the sequence"

    on_site(tmp_path, test, server=NO_GRACE)


def test_a_clientid_of_4_0_opens_nothing_from_elsewhere(tmp_path: Path) -> None:
    async def test(site: Site) -> None:
        victim, _, _ = await victim_with_a_file(site, 0)
        thief = await site.client(OTHER, 0)
        thief.clientid = victim.clientid
        asked = thief.open_args(b"f", owner=b"owner", access=1)
        assert await thief.status(*thief.path("/export"), (p.OP_OPEN, asked)) == p.NFS4ERR_STALE_CLIENTID
        # At its new address, the victim shows its verifier, and has what it had.
        moved = await (await site.client(OTHER, 0)).connect()
        assert moved.clientid == victim.clientid
        await moved.open("/export", b"f", access=1, owner=b"another")
        assert len(site.engine.clients.lookup(victim.clientid).states) == 2

    on_site(tmp_path, test, server=NO_GRACE)


def test_renewing_another_hosts_lease_does_nothing(tmp_path: Path) -> None:
    """A clientid is told to whoever is denied a lock. It neither keeps the lease of a client that is gone, nor has what
    comes next on the connection taken for the client's own doing, which recalls no delegation."""

    async def test(site: Site) -> None:
        victim, _, handle = await victim_with_a_file(site, 0)
        thief = await site.client(OTHER, 0)
        record = site.engine.clients.lookup(victim.clientid)
        before = record.lease_end = record.lease_end - 10
        renewal = (p.OP_RENEW, p.RENEW4args(victim.clientid))
        assert await thief.status(renewal) == p.NFS4ERR_STALE_CLIENTID
        assert record.lease_end == before
        assert await victim.status(renewal) == 0
        assert record.lease_end > before
        server = site.daemon._nfs4
        node = await server.service.resolve(handle)
        delegated = site.engine.delegations.offer(record, node.key, write=True)
        assert not isinstance(delegated, p.why_no_delegation4)
        delegated.file.node = node
        server.recalls.mark(delegated.file)
        assert site.engine.delegations.settle(delegated)
        chmod = (p.OP_SETATTR, p.SETATTR4args(p.stateid4(0, bytes(12)), mode(0o600)))
        there = (p.OP_PUTFH, p.PUTFH4args(handle))
        assert await thief.status(renewal) == p.NFS4ERR_STALE_CLIENTID
        asyncio.get_running_loop().call_later(0.5, site.engine.delegations.give_back, delegated)
        assert await thief.status(there, chmod) in (0, p.NFS4ERR_DELAY)
        assert site.engine.delegations.recalled == 1

    on_site(tmp_path, test, server=NO_GRACE)


def test_a_client_with_two_addresses_is_one(tmp_path: Path) -> None:
    async def test(site: Site) -> None:
        client, stateid, handle = await victim_with_a_file(site, 1)
        # Session trunking: the session's id shows whose connection it is.
        elsewhere = await site.client(OTHER)
        elsewhere.session, elsewhere.clientid = client.session, client.clientid
        bound, [(_, result)] = await elsewhere.raw(
            (
                p.OP_BIND_CONN_TO_SESSION,
                p.BIND_CONN_TO_SESSION4args(client.session, p.channel_dir_from_client4.CDFC4_FORE, False),
            )
        )
        assert (bound, result.bctsr_resok4.bctsr_dir) == (0, p.channel_dir_from_server4.CDFS4_FORE)
        # And without binding it first, from a third address: the client has moved.
        third = await site.client("127.0.0.4")
        third.session, third.sequence = client.session, client.sequence
        await third.on(handle, (p.OP_READ, p.READ4args(stateid, 0, 10)))
        # Client ID trunking: the verifier shows it.
        fourth = await site.client("127.0.0.5")
        _, [(_, made)] = await fourth.raw(introduction(client, b"verifier"))
        assert made.eir_resok4.eir_clientid == client.clientid
        assert made.eir_resok4.eir_flags & p.EXCHGID4_FLAG_CONFIRMED_R
        status, _ = await fourth.raw(creation(client.clientid, made.eir_resok4.eir_sequenceid))
        assert status == 0
        assert len(site.engine.clients.lookup(client.clientid).sessions) == 2
        # It is restarted, and comes from an address that it was seen at.
        restarted = await (await site.client("127.0.0.5")).connect(b"rebooted")
        assert site.engine.clients.lookup(client.clientid) is None
        await restarted.open("/export", b"f", access=2)

    on_site(tmp_path, test, server=NO_GRACE)


def test_nothing_that_names_state_can_be_guessed(tmp_path: Path) -> None:
    async def test(site: Site) -> None:
        clientids, sessions, stateids = [], [], []
        for number in range(24):
            client = await (await site.client(VICTIM, name=b"%d" % number)).connect()
            stateid, _ = await client.open("/export", b"f", create=mode(0o666))
            clientids.append(client.clientid.to_bytes(8, "big"))
            sessions.append(client.session)
            stateids.append(stateid.other[4:])  # behind the epoch
        for kind in (clientids, sessions, stateids):
            for octets in zip(*kind, strict=True):
                assert len(set(octets)) > 12, kind

    on_site(tmp_path, test, server=NO_GRACE)


@pytest.mark.parametrize("minor", [0, 1])
@pytest.mark.parametrize(("host", "verifier"), [(VICTIM, b"rebooted"), (OTHER, b"verifier"), (OTHER, b"rebooted")])
def test_a_restart_gives_a_name_to_its_host_or_instance(tmp_path: Path, minor: int, host: str, verifier: bytes) -> None:
    """After a restart of the server only the client's host, or who knows its verifier, reclaims, and ends the grace."""
    export, state = tmp_path / "export", tmp_path / "state"
    export.mkdir()
    state.mkdir()

    async def main() -> None:
        async with serving(export, state_dir=state) as server:
            client = await Client4(server, minor, transport=LoopbackTransport(VICTIM)).connect()
            await client.open("/0", b"f", create=mode(0o666))
            records = tuple(
                ClientRecord(write.minor, write.owner, write.principal, write.epoch)
                for write in server.store.writes
                if write.action == "record"
            )
        recovered = Recovered(server.engine.epoch + 1, records)
        limits = Limits(grace=60, delegations=0)
        async with serving(export, state_dir=state, limits=limits, recovered=recovered) as server:
            client = Client4(server, minor, transport=LoopbackTransport(host))
            await client.connect(verifier, reclaim_complete=False)
            claim = p.open_claim4(
                p.open_claim_type4.CLAIM_PREVIOUS, delegate_type=p.open_delegation_type4.OPEN_DELEGATE_NONE
            )
            how = p.openflag4(p.opentype4.OPEN4_NOCREATE)
            seqid = 0 if minor else client.seqid(b"o")
            again = p.OPEN4args(seqid, 3, 0, p.open_owner4(client.clientid, b"o"), how, claim)
            *_, handle = await client.run(*client.path("/0/f"), p.OP_GETFH)
            status = await client.status((p.OP_PUTFH, p.PUTFH4args(handle.resok4.object)), (p.OP_OPEN, again))
            known = (host, verifier) != (OTHER, b"rebooted")
            assert status == (0 if known else p.NFS4ERR_NO_GRACE)
            if minor:
                await client.run((p.OP_RECLAIM_COMPLETE, p.RECLAIM_COMPLETE4args(False)))
                assert server.engine.grace.active is not known

    asyncio.run(main())


@pytest.mark.skipif(os.geteuid() != 0, reason="ports below 1024 are root's")
@pytest.mark.parametrize("minor", [0, 1])
def test_who_has_no_port_below_1024_does_not_speak_for_its_host_where_that_matters(tmp_path: Path, minor: int) -> None:
    async def test(site: Site) -> None:
        kernel = await (await site.client(VICTIM, minor, port=877)).connect()
        stateid, handle = await kernel.open("/export", b"f", create=mode(0o666))
        user = await (await site.client(VICTIM, minor, name=kernel.name)).connect(b"rebooted")
        assert user.clientid != kernel.clientid
        await kernel.on(handle, (p.OP_READ, p.READ4args(stateid, 0, 10)))
        if minor:
            assert (await user.raw(creation(kernel.clientid, 2)))[0] == p.NFS4ERR_CLID_INUSE
        await (await site.client(VICTIM, minor, port=878)).connect(b"really  ")
        assert site.engine.clients.lookup(kernel.clientid) is None, "the kernel itself begins anew"

    on_site(tmp_path, test, "['*']\n    secure: true", NO_GRACE)


@pytest.mark.skipif(os.geteuid() != 0, reason="ports below 1024 are root's")
@pytest.mark.parametrize("secure", [False, True])
def test_who_has_no_port_below_1024_frees_no_locks_of_its_hosts_kernel(tmp_path: Path, secure: bool) -> None:
    """Neither with FREE_ALL nor with SM_NOTIFY, where the host's own status monitor says nothing against it."""

    def octets(kind: Any, value: Any) -> bytes:
        e = Encoder()
        e.encode(kind, value)
        return e.getvalue()

    async def test(site: Site) -> None:
        (tmp_path / "export" / "f").touch()
        service = site.daemon._nfs4.service
        root = await service.root(site.daemon._nfs4.exports.exports[0])
        node, _ = await service.lookup(Credential(0, 0), root, b"f")
        lock = nlm4.nlm4_lockargs(b"", False, True, nlm4.nlm4_lock(b"host", node.handle, b"oh", 1, 0, 10), False, 7)
        taking = rpc_call(nlm4.NLM_PROGRAM, 4, nlm4.NLMPROC4_LOCK, octets(nlm4.nlm4_lockargs, lock))
        notify = octets(nlm4.nlm4_notify, nlm4.nlm4_notify(b"host", 9))
        restarted = octets(nsm.stat_chge, nsm.stat_chge(b"host", 9))
        forged = {
            "nlm": rpc_call(nlm4.NLM_PROGRAM, 4, nlm4.NLMPROC4_FREE_ALL, notify),
            "nsm": rpc_call(nsm.SM_PROGRAM, nsm.SM_VERS, nsm.SM_NOTIFY, restarted),
        }
        kernel = await site.wire(VICTIM, "nlm", port=881)
        for number, (name, freeing) in enumerate(forged.items()):
            assert verdict(await kernel.call(None, taking)) == (0, 0)
            assert [client.locks for client in site.engine.nlm.all()] == [1]
            user = await site.wire(VICTIM, name)
            assert verdict(await user.call(None, freeing)) == (0, 0)
            assert len(site.engine.nlm.all()) == secure, name
            again = await site.wire(VICTIM, name, port=882 + number)
            assert verdict(await again.call(None, freeing[:3] + b"\xff" + freeing[4:])) == (0, 0)
            assert not site.engine.nlm.all(), "the kernel itself may"

    on_site(tmp_path, test, f"['*']\n    secure: {str(secure).lower()}", NO_GRACE)


@pytest.mark.parametrize("way", ["a session", "a verifier"])
def test_who_shares_an_address_with_a_client_does_not_replace_it(tmp_path: Path, way: str) -> None:
    """The newcomer introduced itself under the name when nobody had it there; then its owner came to the address. What
    is confirmed must not end another principal's state (RFC 8881 section 18.36.4, phase 3)."""

    async def test(site: Site) -> None:
        newcomer = await site.client(OTHER, uid=1000)
        status, [(_, made)] = await newcomer.raw(introduction(newcomer, b"newcomer"))
        assert status == 0
        victim, stateid, handle = await victim_with_a_file(site, 1)
        moved = await site.client(OTHER)
        if way == "a session":
            moved.session, moved.sequence = victim.session, victim.sequence
            await moved.on(handle, (p.OP_READ, p.READ4args(stateid, 0, 10)))
            victim.sequence = moved.sequence
        else:
            assert (await moved.raw(introduction(victim, b"verifier")))[0] == 0
        new = made.eir_resok4
        status, _ = await newcomer.raw(creation(new.eir_clientid, new.eir_sequenceid))
        assert status == p.NFS4ERR_CLID_INUSE
        await victim.on(handle, (p.OP_READ, p.READ4args(stateid, 0, 10)))

    on_site(tmp_path, test, server=NO_GRACE)


def test_the_reply_to_create_session_is_for_its_principal(tmp_path: Path) -> None:
    """It has the session's id, by which anybody may use the session."""

    async def test(site: Site) -> None:
        victim, _, _ = await victim_with_a_file(site, 1)
        seqid = site.engine.clients.lookup(victim.clientid).create_seqid
        user = await site.client(VICTIM, uid=1000)
        assert (await user.raw(creation(victim.clientid, seqid)))[0] == p.NFS4ERR_CLID_INUSE
        again, [(_, made)] = await (await site.client(VICTIM)).raw(creation(victim.clientid, seqid))
        assert (again, made.csr_resok4.csr_sessionid) == (0, victim.session)

    on_site(tmp_path, test, server=NO_GRACE)
