"""Clients that hold delegations: they return them when recalled, or do not."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import Any

from nfsd.protocol import nfs4 as p
from nfsd.state import Limits
from tests.support.callbacks import CallbackEnd, CallbackListener
from tests.support.nfs4 import Client4, LoopbackTransport, Server4, mode, serving

READ, WRITE, BOTH = p.OPEN4_SHARE_ACCESS_READ, p.OPEN4_SHARE_ACCESS_WRITE, p.OPEN4_SHARE_ACCESS_BOTH
NONE = p.open_delegation_type4.OPEN_DELEGATE_NONE
READ_DELEGATION = p.open_delegation_type4.OPEN_DELEGATE_READ
WRITE_DELEGATION = p.open_delegation_type4.OPEN_DELEGATE_WRITE
NONE_EXT = p.open_delegation_type4.OPEN_DELEGATE_NONE_EXT
RECALL = p.OP_CB_RECALL


class ReturningEnd(CallbackEnd):
    """Answers recalls, and then does what its client would: ``client.give_back``, unless ``keep``."""

    def __init__(self) -> None:
        super().__init__()
        self.client: Holder | None = None
        self.keep = False
        self.tasks: set[asyncio.Task[Any]] = set()

    async def answer(self, message, connection=None):
        before = len(self.executed)
        reply = await super().answer(message, connection)
        for number, args in self.executed[before:]:
            if number == RECALL and not self.keep and self.client is not None:
                task = asyncio.ensure_future(self.client.give_back(args.stateid, args.fh))
                self.tasks.add(task)
                task.add_done_callback(self.tasks.discard)
        return reply

    @property
    def recalls(self) -> int:
        """Recalls carried out."""
        return self.operations.count(RECALL)


class Holder(Client4):
    """A client with a backchannel."""

    end: ReturningEnd
    returning: Client4

    async def opening(
        self, name: bytes, access: int = READ, *, deny=0, create=None, owner=b"owner", want=0, claim=None
    ):
        """OPEN in the export ``/0``; returns OPEN4resok, its ``handle`` in ``self.handles[name]``."""
        args = self.open_args(name, access=access | want, deny=deny, create=create, owner=owner)
        if claim is not None:
            args = p.OPEN4args(args.seqid, args.share_access, deny, args.owner, args.openhow, claim)
        *_, opened, found = await self.run(*self.path("/0"), (p.OP_OPEN, args), p.OP_GETFH)
        result, handle = opened.resok4, found.resok4.object
        if result.rflags & p.OPEN4_RESULT_CONFIRM:
            confirm = p.OPEN_CONFIRM4args(result.stateid, self.seqid(owner))
            await self.run((p.OP_PUTFH, p.PUTFH4args(handle)), (p.OP_OPEN_CONFIRM, confirm))
        self.handles[name] = handle
        return result

    async def open_status(self, name: bytes, access: int = READ, **how) -> int:
        """The status of an OPEN in ``/0``."""
        return await self.status(*self.path("/0"), (p.OP_OPEN, self.open_args(name, access=access, **how)))

    async def opens(self, name: bytes, access: int) -> bool:
        """Whether an OPEN is not answered DELAY."""
        return await self.open_status(name, access) != p.NFS4ERR_DELAY

    async def give_back(self, stateid, handle):
        """DELEGRETURN, on a slot of its own."""
        operation = (p.OP_DELEGRETURN, p.DELEGRETURN4args(stateid))
        if not self.minor:
            return await self.run((p.OP_PUTFH, p.PUTFH4args(handle)), operation)
        self.second_sequence += 1
        first = (p.OP_SEQUENCE, p.SEQUENCE4args(self.session, self.second_sequence, 1, 1, False))
        status, results = await self.raw(first, (p.OP_PUTFH, p.PUTFH4args(handle)), operation)
        self.give_back_statuses.append(status)
        return results


async def until(condition, seconds=20.0):
    """Wait until a condition holds: a function, or one that returns an awaitable."""
    end = asyncio.get_running_loop().time() + seconds
    for _ in range(10**6):
        found = condition()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return
        assert asyncio.get_running_loop().time() < end, "it never came about"
        await asyncio.sleep(0.01)


def stateid_of(opened: p.OPEN4resok) -> p.stateid4:
    """The delegation's stateid of an OPEN that gave one."""
    delegation = opened.delegation
    return (delegation.read or delegation.write).stateid


async def holder(
    server: Server4,
    minor: int,
    name: bytes = b"holder",
    listener: CallbackListener | None = None,
    reclaim_complete=True,
):
    """A connected client that can be called back."""
    end = listener.end if listener is not None else ReturningEnd()
    client = Holder(server, minor, name=name, transport=LoopbackTransport(callbacks=end if minor else None))
    client.handles = {}
    client.second_sequence = 0
    client.give_back_statuses = []
    client.end = end
    end.client = client
    if listener is not None:
        client.callback_address = listener.address
    await client.connect(reclaim_complete=reclaim_complete)
    if not minor:
        record = server.engine.clients.lookup(client.clientid)
        await server.nfs4.callbacks.probe(record)
    return client


@asynccontextmanager
async def two_clients(tmp_path, minor=1, place=None, reclaim_complete=True, **serving_how):
    """(server, export, holder, other): two clients with backchannels of one server."""
    serving_how.setdefault("limits", Limits(grace=0))
    export, state = place or tmp_path / "export", tmp_path / "state"
    for directory in (export, state):
        directory.mkdir(exist_ok=True)
    export.chmod(0o777)
    async with (
        CallbackListener(ReturningEnd()) as first,
        CallbackListener(ReturningEnd()) as second,
        serving(export, state_dir=state, **serving_how) as server,
    ):
        server.nfs4.recalls.patience = 0.05  # for those who are to get DELAY
        one = await holder(server, minor, b"one", None if minor else first, reclaim_complete)
        two = await holder(server, minor, b"two", None if minor else second, reclaim_complete)
        yield server, export, one, two


def with_two(tmp_path, minor, test, **how):
    """Run ``test(server, export, holder, other)``."""

    async def main():
        async with two_clients(tmp_path, minor, **how) as parts:
            await test(*parts)

    asyncio.run(main())


async def delegated(client, name=b"f", access=READ, **how):
    """An OPEN that gives a delegation: OPEN4resok. The owner of v4.0 must be confirmed before."""
    if not client.minor and not client.handles:
        await client.opening(b"confirmed", access=BOTH, create=mode(0o644))
    opened = await client.opening(name, access=access, **how)
    assert opened.delegation.delegation_type in (READ_DELEGATION, WRITE_DELEGATION)
    return opened


def prepared(test):
    """The test with a file ``f`` in the export."""

    async def run(server, export, one, two):
        (export / "f").write_bytes(b"content")
        (export / "f").chmod(0o666)
        await test(server, export, one, two)

    return run
