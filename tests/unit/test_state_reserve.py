"""The last part of what clients may make the server remember: for hosts, and networks, that have little."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from random import Random

import pytest

from nfsd.state import Limits
from nfsd.state.accounts import Ledger
from nfsd.state.charges import HostAccount
from rpcrdma.addresses import networks_of
from tests.support.nfs4 import Client4, Failed, LoopbackTransport, serving
from tests.unit.test_shares_of_networks import CROWDS, OUTSIDE

MIB = 1 << 20


class Books:
    """A ledger, and hosts that have been charged for something."""

    def __init__(self, octets: int = 64 * MIB) -> None:
        self.limits = Limits(octets=octets)
        self.ledger = Ledger(self.limits, lambda: 0.0)

    def account(self, host: str) -> HostAccount:
        account = self.ledger.account(host.removesuffix("/64"))
        return self.ledger.hosts.setdefault(account.host, account)

    def fill(self, host: str, piece: int = 4096) -> int:
        """Charge a host for as much as it is let have; how much that is."""
        account = self.account(host)
        before = account.octets
        while self.ledger.room(account, piece):
            account.charge(piece)
        return account.octets - before


@pytest.mark.parametrize("octets", [8 * MIB, 64 * MIB, 1 << 30])
@pytest.mark.parametrize("name", list(CROWDS))
def test_hosts_of_one_network_do_not_use_up_the_reserve(name: str, octets: int) -> None:
    books = Books(octets)
    for host in CROWDS[name]:
        books.fill(host, octets >> 12)
    assert books.ledger.octets > octets * 15 // 16, "some of it is for any host that has little"
    reserve = octets // 16
    left = octets - books.ledger.octets
    assert left >= reserve // 10
    assert books.fill(OUTSIDE[name]) >= 16 << 10, "a client with a session"
    assert books.ledger.octets <= octets


def test_a_host_without_anything_gets_in_though_its_network_has_most() -> None:
    for name in CROWDS:
        books = Books()
        for host in CROWDS[name][:4]:
            assert books.fill(host) > 10 * MIB
        assert books.fill(CROWDS[name][-1]) >= 16 << 10


def test_one_network_after_the_other_takes_less_and_less_of_the_reserve() -> None:
    """Hosts of ten customers of different providers, each with a /24."""
    books = Books()
    crowds = [[f"{10 + customer}.0.0.{number}" for number in range(1, 255)] for customer in range(10)]
    for host in crowds[0][:4]:
        books.fill(host)
    for crowd in crowds:
        for host in crowd:
            books.fill(host)
    assert books.fill("192.0.2.1") >= 16 << 10


def test_what_is_left_is_what_fits_and_networks_have_what_their_hosts_have() -> None:
    chance = Random(7)
    books = Books(2 * MIB)
    hosts = [host for crowd in CROWDS.values() for host in crowd[::60]] + ["", "unknown", "192.0.2.1!"]
    for _ in range(4000):
        account = books.account(chance.choice(hosts))
        octets = chance.choice((160, 1500, 9000, 40000))
        left = books.ledger.left(account)
        assert books.ledger.fits(account, octets) == (octets <= left)
        if chance.random() < 0.3 and account.octets:
            account.charge(-chance.randint(1, account.octets))
        elif octets <= left:
            account.charge(octets)
        assert 0 <= books.ledger.octets <= books.limits.octets
    accounts = books.ledger.hosts.values()
    assert sum(account.octets for account in accounts) == books.ledger.octets
    for account in accounts:
        for network in account.networks:
            inside = [one for one in accounts if network in one.networks]
            assert network.has == sum(one.octets for one in inside)
            assert all(network.key in networks_of(one.address) for one in inside)


@pytest.mark.parametrize("minor", [0, 1])
def test_a_customer_with_many_hosts_keeps_no_other_network_out(tmp_path: Path, minor: int) -> None:
    """Over NFSv4, as clients do."""

    async def main() -> None:
        (tmp_path / "export").mkdir()
        (tmp_path / "export" / "f").touch()
        limits = Limits(grace=0, delegations=0, octets=4 * MIB)
        async with asyncio.timeout(120), serving(tmp_path / "export", state_dir=tmp_path, limits=limits) as server:

            async def greedy(number: int) -> None:
                transport = LoopbackTransport(f"2001:db8:0:{number:x}::1")
                client = Client4(server, minor, name=b"client %d" % number, transport=transport)
                with contextlib.suppress(AssertionError, Failed):
                    await client.connect()
                    for owner in range(1000):
                        await client.open("/0", b"f", access=1, owner=b"%0900d" % owner)

            for number in range(40):
                await greedy(number)
            assert server.engine.ledger.octets > 4 * MIB * 15 // 16
            transport = LoopbackTransport("2001:db8:0:100::1")
            honest = await Client4(server, minor, name=b"honest", transport=transport).connect()
            await honest.open("/0", b"f", access=1)

    asyncio.run(main())
