"""An NFSv4 client for load generators and tests, one COMPOUND at a time. Its maker gives it a transport for calls.

    client = await Client4(server, 1, transport=connection).connect()
    stateid, handle = await client.open("/export", b"name")

Owns ids, sequence numbers and the session; imports :mod:`nfsd.protocol` and the codec.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Protocol, Self

from nfsd.protocol import nfs4 as p
from nfsd.v4.attributes import words_of
from rpcrdma.xdr import Decoder, Encoder

NFS = 100003
Operation = int | tuple[int, Any]
"""A number, with arguments if it has any."""
_xids = itertools.count(1)


class Failed(Exception):
    """A COMPOUND that ended with an error; ``status`` is it, ``results`` the results until then."""

    def __init__(self, status: int, results: Sequence[tuple[str, Any]]) -> None:
        super().__init__(f"{p.nfsstat4(status).name} after {[name for name, _ in results]}")
        self.status = status
        self.results = results


class Server(Protocol):
    """What carries a call to a server, and brings its reply."""

    async def call(self, transport: Any, message: bytes) -> bytes:
        """One RPC, on a connection if there are several."""


class NoCallbacks:
    """A client's side of a connection on which it takes no callbacks."""

    max_backchannel_size = 0


class Client4:
    """A client of one minor version, root unless told otherwise."""

    def __init__(
        self, server: Server, minor: int, *, uid: int = 0, gid: int = 0, gids: Sequence[int] = (),
        name: bytes = b"client", transport: Any = None,
    ) -> None:  # fmt: skip
        self.server: Any = server
        self.minor = minor
        self.name = name
        self.transport = transport or NoCallbacks()
        self.credential = (uid, gid, tuple(gids))
        self.sequence = 0
        self.session = b""
        self.clientid = 0
        self.seqids: dict[bytes, int] = {}
        self.callback_address = (b"tcp", b"127.0.0.1.0.0")
        """v4.0: netid and universal address given to SETCLIENTID; port 0 is nobody's."""
        self.callback_slots = 16
        self.slots = 16
        self.cached_reply = 4096

    def message(self, *operations: Operation, tag: bytes = b"") -> bytes:
        """An RPC call with a COMPOUND of (number, arguments) or plain numbers."""
        uid, gid, gids = self.credential
        e = Encoder()
        for word in (next(_xids), 0, 2, NFS, 4, 1):
            e.uint32(word)
        body = Encoder()
        body.uint32(0)
        body.opaque(b"bench")
        body.uint32(uid)
        body.uint32(gid)
        body.uint32(len(gids))
        for one in gids:
            body.uint32(one)
        e.uint32(1)
        e.opaque(body.getvalue())
        e.uint32(0)
        e.uint32(0)
        e.opaque(tag)
        e.uint32(self.minor)
        e.uint32(len(operations))
        for operation in operations:
            number, arguments = operation if isinstance(operation, tuple) else (operation, None)
            e.uint32(number)
            if number in p.OPERATIONS and p.OPERATIONS[number].arguments is not None:
                e.encode(p.OPERATIONS[number].arguments, arguments)
        return e.getvalue()

    async def raw(self, *operations: Operation) -> tuple[int, list[tuple[int, Any]]]:
        """Run exactly these operations: (status, [(number, result)…])."""
        return self.parse(await self.server.call(self.transport, self.message(*operations)))

    async def bind(
        self, transport: Any, direction: p.channel_dir_from_client4 = p.channel_dir_from_client4.CDFC4_FORE_OR_BOTH
    ) -> int:
        """BIND_CONN_TO_SESSION over another connection; the direction granted."""
        args = p.BIND_CONN_TO_SESSION4args(self.session, direction, False)
        message = self.message((p.OP_BIND_CONN_TO_SESSION, args))
        status, [(_, bound)] = self.parse(await self.server.call(transport, message))
        if status:
            raise Failed(status, [])
        return int(bound.bctsr_resok4.bctsr_dir)

    @staticmethod
    def parse(reply: bytes) -> tuple[int, list[tuple[int, Any]]]:
        d = Decoder(memoryview(reply))
        header = [d.uint32() for _ in range(6)]
        assert header[1:] == [1, 0, 0, 0, 0], f"not an accepted, successful reply: {header}"
        status = d.uint32()
        d.opaque(1024)
        results = []
        for _ in range(d.uint32()):
            number = d.uint32()
            results.append((number, d.decode(p.OPERATIONS[number].results)))
        d.finish(strict=True)
        return status, results

    async def run(self, *operations: Operation, cache: bool = False) -> list[Any]:
        """Run operations, in the session if there is one; returns their results. Raises Failed."""
        status, results = await self.raw(*self.in_session(*operations, cache=cache))
        if status:
            raise Failed(status, [(p.nfs_opnum4(number).name, result) for number, result in results])
        return [result for _, result in results[1 if self.minor else 0 :]]

    def in_session(self, *operations: Operation, cache: bool = False) -> tuple[Operation, ...]:
        if not self.minor:
            return operations
        self.sequence += 1
        return (
            (p.OP_SEQUENCE, p.SEQUENCE4args(self.session, self.sequence, 0, 0, cache)),
            *operations,
        )

    async def status(self, *operations: Operation) -> int:
        """The status of a COMPOUND."""
        return (await self.raw(*self.in_session(*operations)))[0]

    async def connect(self, verifier: bytes = b"verifier", *, reclaim_complete: bool = True) -> Self:
        """Introduce the client; in 4.1 and later with a session."""
        if not self.minor:
            callback = p.cb_client4(0x40000000, p.netaddr4(*self.callback_address))
            args = p.SETCLIENTID4args(p.nfs_client_id4(verifier, self.name), callback, 1)
            status, [(_, made)] = await self.raw((p.OP_SETCLIENTID, args))
            assert status == 0, status
            self.clientid = made.resok4.clientid
            confirm = p.SETCLIENTID_CONFIRM4args(self.clientid, made.resok4.setclientid_confirm)
            assert (await self.raw((p.OP_SETCLIENTID_CONFIRM, confirm)))[0] == 0
            return self
        owner = p.client_owner4(verifier, self.name)
        introduction = p.EXCHANGE_ID4args(owner, 0x101, p.state_protect4_a(p.state_protect_how4.SP4_NONE), [])
        status, [(_, made)] = await self.raw((p.OP_EXCHANGE_ID, introduction))
        assert status == 0, status
        made = made.eir_resok4
        self.clientid = made.eir_clientid
        fore = p.channel_attrs4(0, 1 << 20, 1 << 20, self.cached_reply, 64, self.slots, [])
        back = p.channel_attrs4(0, 4096, 4096, 0, 2, self.callback_slots, [])
        flags = p.CREATE_SESSION4_FLAG_CONN_BACK_CHAN if self.transport.max_backchannel_size else 0
        creation = p.CREATE_SESSION4args(
            made.eir_clientid, made.eir_sequenceid, flags, fore, back, 0x40000000, [p.callback_sec_parms4(0)]
        )
        status, [(_, session)] = await self.raw((p.OP_CREATE_SESSION, creation))
        assert status == 0, status
        self.session = session.csr_resok4.csr_sessionid
        self.sequence = 0
        if reclaim_complete:
            await self.run((p.OP_RECLAIM_COMPLETE, p.RECLAIM_COMPLETE4args(False)))
        return self

    # -- short cuts ----------------------------------------------------------------------------------------------
    def seqid(self, owner: bytes) -> int:
        """The next seqid of a v4.0 owner."""
        self.seqids[owner] = self.seqids.get(owner, 0) + 1
        return self.seqids[owner]

    def path(self, text: str) -> tuple[Operation, ...]:
        """PUTROOTFH and LOOKUPs."""
        return (p.OP_PUTROOTFH, *((p.OP_LOOKUP, p.LOOKUP4args(part.encode())) for part in text.split("/") if part))

    def open_args(
        self, name: bytes, *, access: int = 3, deny: int = 0, create: p.fattr4 | None = None, owner: bytes = b"owner",
        how: p.createhow4 | None = None,
    ) -> p.OPEN4args:  # fmt: skip
        if create is not None:
            how = p.createhow4(p.createmode4.UNCHECKED4, createattrs=create)
        flag = (
            p.openflag4(p.opentype4.OPEN4_CREATE, how) if how is not None else p.openflag4(p.opentype4.OPEN4_NOCREATE)
        )
        claim = p.open_claim4(p.open_claim_type4.CLAIM_NULL, file=name)
        seqid = 0 if self.minor else self.seqid(owner)
        return p.OPEN4args(seqid, access, deny, p.open_owner4(self.clientid, owner), flag, claim)

    async def open(self, directory: str, name: bytes, **how: Any) -> tuple[p.stateid4, bytes]:
        """OPEN; returns (stateid, handle). In v4.0 the owner is confirmed."""
        args = self.open_args(name, **how)
        *_, opened, handle = await self.run(*self.path(directory), (p.OP_OPEN, args), p.OP_GETFH)
        stateid, handle = opened.resok4.stateid, handle.resok4.object
        if opened.resok4.rflags & p.OPEN4_RESULT_CONFIRM:
            confirm = p.OPEN_CONFIRM4args(stateid, self.seqid(args.owner.owner))
            _, confirmed = await self.run((p.OP_PUTFH, p.PUTFH4args(handle)), (p.OP_OPEN_CONFIRM, confirm))
            stateid = confirmed.resok4.open_stateid
        return stateid, handle

    async def on(self, handle: bytes, *operations: Operation) -> list[Any]:
        """Operations on one file; the results after PUTFH's."""
        return (await self.run((p.OP_PUTFH, p.PUTFH4args(handle)), *operations))[1:]

    async def close(self, stateid: p.stateid4, handle: bytes, owner: bytes = b"owner") -> list[Any]:
        seqid = 0 if self.minor else self.seqid(owner)
        return await self.on(handle, (p.OP_CLOSE, p.CLOSE4args(seqid, stateid)))


def mode(bits: int, **more: int) -> p.fattr4:
    """A fattr4 with a mode (and a size)."""
    e = Encoder()
    mask = 1 << p.FATTR4_MODE
    if "size" in more:
        mask |= 1 << p.FATTR4_SIZE
        e.uint64(more["size"])
    e.uint32(bits)
    return p.fattr4(words_of(mask), e.getvalue())


def wanted(*numbers: int) -> p.GETATTR4args:
    """GETATTR arguments."""
    return p.GETATTR4args(words_of(sum(1 << number for number in numbers)))


def values(attributes: p.fattr4) -> Decoder:
    """The values of a fattr4, to be decoded in order."""
    return Decoder(attributes.attr_vals)
