"""Promises to clients survive a crash at any moment, and nobody reclaims what another client got since.

Real servers over one state directory, cut off around the commit of what a reply promises (RFC 8881 section 8.4.3).
"""

import asyncio
from contextlib import asynccontextmanager

import pytest

from nfsd.protocol import nfs4 as p
from nfsd.stable.sqlite import SqliteStorage
from nfsd.state import Limits
from tests.support.nfs4 import Client4, mode, serving

MINORS = [0, 1, 2]
COMPLETE = (p.OP_RECLAIM_COMPLETE, p.RECLAIM_COMPLETE4args(False))
CUTS = ["before", "after"]
"""The power goes before the commit, or between it and the reply."""


class PowerCut(Exception):
    """The machine is gone: no reply leaves it."""


class CutStore:
    """Stable storage that can lose its power (or, with ``error``, fail once; with ``full``, always) at the next thing
    worth keeping."""

    def __init__(self, directory):
        self.inner = SqliteStorage(str(directory))
        self.cut = None
        self.error = None
        self.full = False
        self.off = False

    async def flush(self, engine):
        if self.off:
            raise PowerCut
        if engine.stable:
            return
        if self.full:
            raise OSError(28, "no space")
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        if self.cut == "before":
            self.off = True
            raise PowerCut
        await self.inner.flush(engine)
        if self.cut == "after":
            self.off = True
            raise PowerCut


class Cluster:
    """One export and one state directory, served by one instance after the other."""

    def __init__(self, tmp_path):
        self.export, self.state = tmp_path / "export", tmp_path / "state"
        self.export.mkdir()
        self.export.chmod(0o777)
        self.state.mkdir()

    @asynccontextmanager
    async def instance(self, **limits):
        """A server, to the end of the block; what it has not committed by then is lost."""
        store = CutStore(self.state)
        recovered = await store.inner.start(lease=30.0)
        bounds = Limits(**{"lease": 30.0, "grace": 30.0, **limits})
        try:
            async with serving(
                self.export, state_dir=self.state, store=store, recovered=recovered, limits=bounds
            ) as server:
                try:
                    yield server
                finally:
                    store.off = True
                    server.nfs4.store = Nothing()
        finally:
            await store.inner.close()


class Nothing:
    async def flush(self, engine):
        """A dead server keeps nothing."""


async def unanswered(coroutine):
    """The call must end without a result: the server was cut off before its reply."""
    with pytest.raises(AssertionError, match="not an accepted, successful reply"):
        await coroutine


def reclaiming(client, name=b"f", owner=b"owner"):
    """OPEN of a file that this client had open before the restart, on its handle."""
    args = client.open_args(name, owner=owner)
    args.claim = p.open_claim4(
        p.open_claim_type4.CLAIM_PREVIOUS, delegate_type=p.open_delegation_type4.OPEN_DELEGATE_NONE
    )
    return (p.OP_OPEN, args)


async def reclaim(server, minor, name, handle):
    """The status of reclaiming a file, by a client that has come back under its name."""
    client = await Client4(server, minor, name=name).connect(b"returned", reclaim_complete=False)
    return await client.status((p.OP_PUTFH, p.PUTFH4args(handle)), reclaiming(client))


async def expire(server, client):
    """Its lease runs out."""
    server.engine.clients.lookup(client.clientid).courtesy = True


@pytest.mark.parametrize("minor", MINORS)
@pytest.mark.parametrize("cut", CUTS)
def test_cut_off_as_a_client_goes_on_record(tmp_path, minor, cut):
    """4.1: at RECLAIM_COMPLETE; 4.0: at the first OPEN."""

    async def main():
        cluster = Cluster(tmp_path)
        async with cluster.instance() as server:
            other = await Client4(server, minor, name=b"other").connect()
            _, handle = await other.open("/0", b"f", create=mode(0o666))
            client = await Client4(server, minor, name=b"client").connect(reclaim_complete=False)
            server.store.cut = cut
            if minor:
                await unanswered(client.run((p.OP_RECLAIM_COMPLETE, p.RECLAIM_COMPLETE4args(False))))
            else:
                await unanswered(client.open("/0", b"f"))
        async with cluster.instance() as server:
            assert await reclaim(server, minor, b"other", handle) == p.NFS4_OK
            # On the disk or not, it was told nothing and has nothing: both are right.
            expected = p.NFS4_OK if cut == "after" else p.NFS4ERR_NO_GRACE
            assert await reclaim(server, minor, b"client", handle) == expected

    asyncio.run(main())


@pytest.mark.parametrize("minor", MINORS)
@pytest.mark.parametrize("cut", [*CUTS, None])
def test_cut_off_as_another_takes_what_a_lost_client_had(tmp_path, minor, cut):
    """The first edge condition: once the other has its answer, the first has no claim, whenever the power goes."""

    async def main():
        cluster = Cluster(tmp_path)
        async with cluster.instance() as server:
            away = await Client4(server, minor, name=b"away").connect()
            other = await Client4(server, minor, name=b"other").connect()
            await other.open("/0", b"another", create=mode(0o666))
            _, handle = await away.open("/0", b"f", create=mode(0o666), deny=p.OPEN4_SHARE_DENY_BOTH)
            await expire(server, away)
            server.store.cut = cut
            taking = other.open("/0", b"f", owner=b"taker")
            if cut is None:
                await other.close(*await taking, owner=b"taker")
            else:
                await unanswered(taking)
        async with cluster.instance() as server:
            expected = p.NFS4_OK if cut == "before" else p.NFS4ERR_NO_GRACE
            assert await reclaim(server, minor, b"away", handle) == expected

    asyncio.run(main())


@pytest.mark.parametrize("cut", [*CUTS, None])
def test_cut_off_as_the_last_reclaim_complete_ends_the_grace_period(tmp_path, cut):
    async def main():
        cluster = Cluster(tmp_path)
        async with cluster.instance() as server:
            for name in (b"a", b"b"):
                _, handle = await (await Client4(server, 1, name=name).connect()).open("/0", b"f", create=mode(0o666))
        async with cluster.instance() as server:
            assert server.engine.grace.active
            assert await reclaim(server, 1, b"a", handle) == p.NFS4_OK
            await Client4(server, 1, name=b"a").connect(b"returned")
            last = await Client4(server, 1, name=b"b").connect(reclaim_complete=False)
            server.store.cut = cut
            complete = last.run((p.OP_RECLAIM_COMPLETE, p.RECLAIM_COMPLETE4args(False)))
            if cut is None:
                await complete
                await last.open("/0", b"new", create=mode(0o666))
            else:
                await unanswered(complete)
            assert not server.engine.grace.active
        async with cluster.instance() as server:
            for name in (b"a", b"b"):
                assert await reclaim(server, 1, name, handle) == p.NFS4_OK

    asyncio.run(main())


@pytest.mark.parametrize("minor", MINORS)
@pytest.mark.parametrize("cut", [*CUTS, None])
def test_cut_off_as_the_first_new_lock_follows_the_grace_period(tmp_path, minor, cut):
    """The second edge condition: who missed the grace period has no claim once anybody was given anything new."""

    async def main():
        cluster = Cluster(tmp_path)
        async with cluster.instance() as server:
            for name in (b"late", b"here"):
                client = await Client4(server, minor, name=name).connect()
                _, handle = await client.open("/0", b"f", create=mode(0o666))
        async with cluster.instance() as server:
            here = await Client4(server, minor, name=b"here").connect()
            assert await here.status(*here.path("/0"), (p.OP_OPEN, here.open_args(b"f"))) == p.NFS4ERR_GRACE
            here.seqids.clear()
            server.engine.end_grace()
            server.store.cut = cut
            opening = here.open("/0", b"f", owner=b"new", deny=p.OPEN4_SHARE_DENY_BOTH)
            if cut is None:
                await opening
            else:
                await unanswered(opening)
        async with cluster.instance() as server:
            expected = p.NFS4_OK if cut == "before" else p.NFS4ERR_NO_GRACE
            assert await reclaim(server, minor, b"late", handle) == expected

    asyncio.run(main())


@pytest.mark.parametrize("minor", MINORS)
def test_a_full_disk_costs_the_replies_that_need_it_and_nothing_else(tmp_path, minor):
    async def main():
        cluster = Cluster(tmp_path)
        async with cluster.instance() as server:
            reader = await Client4(server, minor, name=b"reader").connect()
            _, handle = await reader.open("/0", b"f", create=mode(0o666))
            client = await Client4(server, minor, name=b"client").connect(reclaim_complete=False)
            server.store.error = OSError(28, "no space")
            if minor:
                assert await client.status(COMPLETE) == p.NFS4ERR_DELAY
            else:
                await unanswered(client.open("/0", b"f"))
                client.seqids.clear()
            await reader.on(handle, p.OP_GETFH)
            await client.open("/0", b"f", owner=b"second")
            assert server.engine.stable
        async with cluster.instance() as server:
            assert await reclaim(server, minor, b"client", handle) == p.NFS4_OK

    asyncio.run(main())


@pytest.mark.parametrize("minor", [1, 2])
@pytest.mark.parametrize("cache", [False, True])
def test_a_reply_that_promises_too_much_is_kept_until_it_may_be_given(tmp_path, minor, cache):
    """The store fails, and the request counts as one in progress. A retransmission gets its reply when the promise is
    kept, and not before; nothing is done twice (RFC 8881 sections 2.10.6.1.3 and 2.10.6.2)."""

    async def main():
        cluster = Cluster(tmp_path)
        async with cluster.instance() as server:
            client = await Client4(server, minor).connect(reclaim_complete=False)
            server.store.full = True
            message = client.message(*client.in_session(COMPLETE, cache=cache))
            for _ in range(3):
                status, results = client.parse(await server.call(client.transport, message))
                assert (status, [number for number, _ in results]) == (p.NFS4ERR_DELAY, [p.OP_SEQUENCE])
                assert not server.engine.stable
            server.store.full = False
            while status == p.NFS4ERR_DELAY:  # the server's own timer tries again
                await asyncio.sleep(0.01)
                status, results = client.parse(await server.call(client.transport, message))
            assert (status, [number for number, _ in results]) == (0, [p.OP_SEQUENCE, p.OP_RECLAIM_COMPLETE])
            assert server.engine.stable
            assert await client.status(COMPLETE) == p.NFS4ERR_COMPLETE_ALREADY
            await client.open("/0", b"f", create=mode(0o666))

    asyncio.run(main())
