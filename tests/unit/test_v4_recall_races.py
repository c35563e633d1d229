"""Recalls that cross the return of what they ask for (RFC 8881 section 10.4.5), over real transports."""

import asyncio

import pytest

from nfsd.protocol import nfs4 as p
from nfsd.state import Limits
from nfsd.v4.callbacks import CROSSED
from tests.support.callbacks import CallbackEnd
from tests.support.delegations import READ, WRITE, Holder, delegated, prepared, stateid_of, until, with_two
from tests.support.nfs4 import serving
from tests.support.wires import Network

KINDS = ["tcp", "rdma"]


class RacingEnd(CallbackEnd):
    """A client's end that is about to return a delegation when it is asked to: DELEGRETURN leaves behind the answer,
    which is that of a client that has none any more."""

    def __init__(self, status: int) -> None:
        super().__init__()
        self.status = p.nfsstat4(status)
        self.returning: asyncio.Task | None = None
        self.client: Holder

    async def answer(self, message, connection=None):
        self.answers.setdefault(p.OP_CB_RECALL, []).append(p.CB_RECALL4res(self.status))
        reply = await super().answer(message, connection)
        if self.returning is None:
            args = self.executed[-1][1]
            self.returning = asyncio.ensure_future(self.client.give_back(args.stateid, args.fh))
        return reply


async def client_over(network: Network, kind: str, name: bytes, end: CallbackEnd) -> Holder:
    client = Holder(network, 1, name=name, transport=await network.connect(kind, end))
    client.handles, client.second_sequence, client.give_back_statuses, client.end = {}, 0, [], end
    await client.connect()
    return client


def race(tmp_path, kind: str, end: CallbackEnd, test) -> None:
    """``test(network, one, two)``: two clients; ``end`` is the first one's."""
    (export := tmp_path / "export").mkdir()
    export.chmod(0o777)
    (export / "f").write_bytes(b"content")
    (export / "f").chmod(0o666)
    (tmp_path / "state").mkdir()

    async def main():
        limits = Limits(grace=0)
        async with (
            serving(export, state_dir=tmp_path / "state", limits=limits) as server,
            Network(server) as network,
        ):
            one = await client_over(network, kind, b"one", end)
            end.client = one
            await test(network, one, await client_over(network, kind, b"two", CallbackEnd()))

    asyncio.run(main())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("status", [p.NFS4ERR_BAD_STATEID, p.NFS4ERR_BADHANDLE, p.NFS4ERR_DELAY])
def test_a_recall_that_crosses_the_return_is_counted_apart_and_not_sent_again(tmp_path, kind, status):
    async def test(network, one, two):
        await delegated(one)
        callbacks = network.nfs4.callbacks
        # Whoever wants the file has it as soon as it has come back, and hears nothing of that.
        await two.opening(b"f", WRITE)
        await end.returning
        await until(lambda: callbacks.counters and not network.nfs4.recalls._tasks)
        assert callbacks.counters == {("CB_RECALL", CROSSED): 1}
        assert (len(end.received), one.give_back_statuses) == (1, [p.NFS4_OK])

    end = RacingEnd(status)
    race(tmp_path, kind, end, test)


@pytest.mark.parametrize("kind", KINDS)
def test_a_recall_whose_delegation_comes_back_before_there_is_a_path_is_not_sent(tmp_path, kind):
    """The client comes again, over a connection that takes callbacks, and returns what it has of its own accord."""

    async def test(network, one, two):
        stateid = stateid_of(await delegated(one))
        one.transport.close()
        one.transport = await network.connect(kind, end)
        record = network.engine.clients.lookup(one.clientid)
        await until(lambda: not network.nfs4.callbacks.client_can_be_called(record))
        opening = asyncio.ensure_future(two.opening(b"f", WRITE))
        await until(lambda: network.engine.delegations.recalled)
        await one.give_back(stateid, one.handles[b"f"])
        await opening
        await one.bind(one.transport)
        await until(lambda: network.nfs4.callbacks.counters)
        assert network.nfs4.callbacks.counters == {("CB_RECALL", CROSSED): 1}
        assert end.received == []

    end = CallbackEnd()
    race(tmp_path, kind, end, test)


@pytest.mark.parametrize("status", [p.NFS4ERR_BAD_STATEID, p.NFS4ERR_BADHANDLE])
def test_a_client_that_returns_a_delegation_slowly_keeps_it_until_then(tmp_path, monkeypatch, status):
    """Linux denies to have it from the moment when it begins to return it, and first sends its opens and locks."""
    monkeypatch.setattr("nfsd.v4.recalls._LONGEST_PAUSE", 0.02)
    monkeypatch.setattr("nfsd.v4.recalls._FIRST_PAUSE", 0.01)
    monkeypatch.setattr("nfsd.v4.callbacks._CROSSING", 0.01)

    @prepared
    async def test(server, export, one, two):
        stateid = stateid_of(await delegated(one))
        one.end.answers[p.OP_CB_RECALL] = [p.CB_RECALL4res(p.nfsstat4(status))] * 1000
        one.end.keep = True
        assert await two.open_status(b"f", WRITE) == p.NFS4ERR_DELAY
        await until(lambda: one.end.recalls >= 12)
        current = p.open_claim4(p.open_claim_type4.CLAIM_DELEG_CUR_FH, oc_delegate_stateid=stateid)
        args = one.open_args(b"f", access=READ)
        args = p.OPEN4args(args.seqid, READ, 0, args.owner, args.openhow, current)
        assert await one.status((p.OP_PUTFH, p.PUTFH4args(one.handles[b"f"])), (p.OP_OPEN, args)) == p.NFS4_OK
        assert await two.open_status(b"f", WRITE) == p.NFS4ERR_DELAY
        await one.give_back(stateid, one.handles[b"f"])
        assert await two.open_status(b"f", WRITE) == p.NFS4_OK
        assert server.engine.delegations.revoked == 0

    with_two(tmp_path, 1, test)
