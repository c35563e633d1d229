"""Hosts that take all they can get, over TCP, natively answered or not: what they get, and what is left for others."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from nfsd.protocol import nfs4 as p
from nfsd.state import Limits
from rpcrdma.rpc.messages import authsys_parms
from tests.support.hosts import Site, on_site
from tests.support.nfs4 import Client4, LoopbackTransport, Server4, mode, with_client

HONEST = "127.0.0.100"
SMALL = "  nfs4: {grace_time: 0, limits: {octets: 4MiB, clients: 64, unconfirmed_clients: 32}}\n"


async def take_all(client: Client4, most: int = 2000) -> tuple[int, int]:
    """Opens by ever more owners with long names: the status that ends them, and how many there were."""
    for number in range(most):
        owner = b"%0900d" % number
        claim = p.open_claim4(p.open_claim_type4.CLAIM_NULL, file=b"f")
        seqid = 0 if client.minor else client.seqid(owner)
        how = p.openflag4(p.opentype4.OPEN4_NOCREATE)
        args = p.OPEN4args(seqid, 1, 0, p.open_owner4(client.clientid, owner), how, claim)
        status = await client.status(*client.path("/export"), (p.OP_OPEN, args))
        if status:
            return status, number
    return 0, most


async def introduced(client: Client4, name: bytes) -> int:
    """The status of EXCHANGE_ID or SETCLIENTID under a name."""
    if client.minor:
        protect = p.state_protect4_a(p.state_protect_how4.SP4_NONE)
        exchange = p.EXCHANGE_ID4args(p.client_owner4(b"verifier", name), 0, protect, [])
        return (await client.raw((p.OP_EXCHANGE_ID, exchange)))[0]
    callback = p.cb_client4(0x40000000, p.netaddr4(b"tcp", b"127.0.0.1.0.0"))
    set_ = p.SETCLIENTID4args(p.nfs_client_id4(b"verifier", name), callback, 1)
    return (await client.raw((p.OP_SETCLIENTID, set_)))[0]


@pytest.mark.parametrize("minor", [0, 1])
def test_greedy_hosts_leave_room_for_an_honest_one(tmp_path: Path, minor: int) -> None:
    async def test(site: Site) -> None:
        (tmp_path / "export" / "f").touch(0o666)
        ledger = site.engine.ledger
        ends = set()
        for host in range(2, 8):
            for number in range(3):
                client = await site.client(f"127.0.0.{host}", minor, name=b"greedy %d %d" % (host, number))
                client.slots = 1
                if await introduced(client, client.name) != 0:
                    break
                try:
                    await client.connect(b"%08d" % number)
                except AssertionError as refused:
                    if not minor or str(int(p.NFS4ERR_DELAY)) not in str(refused):
                        raise
                    break  # its host has no room left for a session
                ends.add((await take_all(client))[0])
            assert ledger.octets <= 4 << 20
            assert all(account.octets <= 1 << 20 for account in ledger.hosts.values())
        assert ends <= ({p.NFS4ERR_NOSPC, p.NFS4ERR_DELAY} if minor else {p.NFS4ERR_RESOURCE})
        assert ends
        honest = await site.client(HONEST, minor)
        honest.slots = 1
        await honest.connect()
        stateid, handle = await honest.open("/export", b"new", create=mode(0o644))
        await honest.on(handle, (p.OP_WRITE, p.WRITE4args(stateid, 0, p.stable_how4.FILE_SYNC4, b"content")))
        assert (tmp_path / "export" / "new").read_bytes() == b"content"

    on_site(tmp_path, test, server=SMALL)


@pytest.mark.parametrize("minor", [0, 1])
def test_a_flood_of_names_costs_the_host_that_makes_it(tmp_path: Path, minor: int) -> None:
    async def test(site: Site) -> None:
        settled = await (await site.client(HONEST, minor, name=b"settled")).connect()
        coming = await site.client("127.0.0.101", minor, name=b"coming")
        assert await introduced(coming, coming.name) == 0
        for host in range(2, 6):
            flood = await site.client(f"127.0.0.{host}", minor)
            for number in range(100):
                assert await introduced(flood, b"flood %d" % number) == 0
        hosts = [client.account.host for client in site.engine.clients.all()]
        assert "127.0.0.101" in hosts, "those of the host with most give way"
        assert len(hosts) <= 40
        for host in range(2, 6):
            for number in range(20):
                one = await site.client(f"127.0.0.{host}", minor, name=b"confirmed %d" % number)
                one.slots = 1
                if await introduced(one, one.name) == 0:
                    await one.connect(b"%08d" % host)
        assert len(site.engine.clients.all()) <= 60
        assert all(len(account.clients) <= 16 for account in site.engine.ledger.hosts.values())
        assert await settled.status(p.OP_PUTROOTFH) == 0
        late = await (await site.client("127.0.0.110", minor)).connect()
        assert await late.status(p.OP_PUTROOTFH) == 0

    on_site(tmp_path, test, server=SMALL)


@pytest.mark.parametrize("minor", [0, 1])
def test_hosts_that_fill_the_table_with_nothing_give_way(tmp_path: Path, minor: int) -> None:
    """However many addresses they have. Who has a file open keeps it."""

    async def test(site: Site) -> None:
        (tmp_path / "export" / "f").touch(0o666)
        holder = await (await site.client("127.0.0.2", minor, name=b"holder")).connect()
        kept, file = await holder.open("/export", b"f")
        fillers = []
        for number in range(100):
            one = await site.client(f"127.0.0.{2 + number // 4}", minor, name=b"filler %d" % number)
            one.slots = 1
            with contextlib.suppress(AssertionError):  # refused
                fillers.append(await one.connect(reclaim_complete=False))
        assert len(site.engine.clients) == 64
        honest = await (await site.client("127.1.0.100", minor, name=b"honest")).connect()
        stateid, handle = await honest.open("/export", b"new", create=mode(0o644))
        await honest.on(handle, (p.OP_WRITE, p.WRITE4args(stateid, 0, p.stable_how4.FILE_SYNC4, b"content")))
        await (await site.client("127.0.0.250", minor, name=b"neighbour")).connect()
        answers = set()
        for one in fillers:
            answers.add(await (one.status(p.OP_PUTROOTFH) if minor else one.status((p.OP_RENEW, renew(one)))))
        assert answers == {0, p.NFS4ERR_BADSESSION if minor else p.NFS4ERR_STALE_CLIENTID}
        await holder.close(kept, file)

    def renew(client: Client4) -> p.RENEW4args:
        return p.RENEW4args(client.clientid)

    on_site(tmp_path, test, server=SMALL)


@pytest.mark.parametrize("minor", [0, 1])
def test_the_addresses_of_an_ipv6_network_have_one_share(tmp_path: Path, minor: int) -> None:
    async def test(_: Client4, __: Path, server: Server4) -> None:
        for number in range(40):
            flood = Client4(server, minor, transport=LoopbackTransport(f"2001:db8::{number:x}"))
            assert await introduced(flood, b"flood %d" % number) == 0
        neighbour = Client4(server, minor, transport=LoopbackTransport("2001:db8:0:1::1"))
        assert await introduced(neighbour, b"neighbour") == 0
        assert {account.host: len(account.clients) for account in server.engine.ledger.hosts.values()} == {
            "127.0.0.1": 1,
            "2001:db8::/64": 16,
            "2001:db8:0:1::/64": 1,
        }

    with_client(tmp_path, minor, test, limits=Limits(grace=0, clients=64))


def test_what_is_kept_of_callbacks_is_what_is_used(tmp_path: Path) -> None:
    """Nobody counts what a client offers besides: a session with 1,024 credentials would take a megabyte."""
    parms = authsys_parms(0, b"\xff" * 255, 0, 0, list(range(16)))
    offered = [p.callback_sec_parms4(1, cbsp_sys_cred=parms)] * 1024

    async def test(site: Site) -> None:
        client = await (await site.client(HONEST)).connect()
        channel = p.channel_attrs4(0, 1 << 16, 1 << 16, 4096, 16, 1, [])
        create = p.CREATE_SESSION4args(client.clientid, 2, 0, channel, channel, 0x40000000, offered)
        status, [(_, made)] = await client.raw((p.OP_CREATE_SESSION, create))
        assert status == 0
        first = site.engine.sessions.by_id[client.session]
        assert await client.status((p.OP_BACKCHANNEL_CTL, p.BACKCHANNEL_CTL4args(0x40000000, offered))) == 0
        for session in (first, site.engine.sessions.by_id[made.csr_resok4.csr_sessionid]):
            assert [one.flavor for one in session.backchannel.credentials] == [1]
        old = await site.client(HONEST, 0)
        where = p.netaddr4(b"\xff" * 65536, b"\xff" * 65536)
        set_ = p.SETCLIENTID4args(p.nfs_client_id4(b"verifier", b"old"), p.cb_client4(0x40000000, where), 1)
        status, [(_, introduced)] = await old.raw((p.OP_SETCLIENTID, set_))
        assert status == 0
        kept = site.engine.clients.lookup(introduced.resok4.clientid).callback
        assert len(kept.netid) + len(kept.address) < 100

    on_site(tmp_path, test, server="  nfs4: {grace_time: 0}\n")
