"""Calls under RPCSEC_GSS: verified and unwrapped before they are executed, their replies sealed (RFC 2203).

Owns :class:`SecuredCalls`, which the dispatcher hands such calls to; imports :mod:`rpcrdma.gss` and the vocabulary of
RPC. In between they are calls like any other: the replay cache has their replies as they are without RPCSEC_GSS. A
retransmission, which has another sequence number, gets one that is sealed for it.

Operation: what is short is verified, decrypted and sealed at once, and what is long by a worker. Arguments are
decrypted where they are, and results signed where they are. Those that are encrypted stand in memory that is on the
connection's account. No part of what is protected can be placed by itself (RFC 8166 section 3.4.1).
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Coroutine, Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from rpcrdma.addresses import host_of
from rpcrdma.callers import on_behalf_of
from rpcrdma.firewall import contain
from rpcrdma.gss.acceptor import Acceptor, Busy, Made
from rpcrdma.gss.contexts import MAX_SEQUENCE, SEQUENCE_WINDOW, Context
from rpcrdma.gss.mechanism import GssError, Sealer
from rpcrdma.holds import Hold
from rpcrdma.log_limits import limited_logger
from rpcrdma.memory import Lease, OutOfMemory
from rpcrdma.rpc import eager
from rpcrdma.rpc.arrived import NO_REPLY, TAKEN, Arrived, Done, TurnedAway
from rpcrdma.rpc.call_header import CallHeader
from rpcrdma.rpc.gss_messages import (
    CONTINUE_INIT,
    DATA,
    DESTROY,
    INIT,
    INTEGRITY,
    NONE,
    PRIVACY,
    VERSION,
    GssCredential,
    init_results,
    opaque,
    parse_credential,
    protected,
    sealed_head,
)
from rpcrdma.rpc.messages import accept_stat, auth_stat, reject_stat
from rpcrdma.rpc.native import Gate
from rpcrdma.rpc.program import PATIENCE, RPCSEC_GSS, RpcCredential, RpcReply, Transport
from rpcrdma.rpc.refusals import accepted, denied
from rpcrdma.rpc.replay import Passed
from rpcrdma.rpc.signed import Known
from rpcrdma.xdr.payload import Payload

if TYPE_CHECKING:
    from rpcrdma.rpc.dispatch import Dispatcher, Execution

_log = limited_logger(__name__)

LONG: Final = 32 << 10
"""Octets that are given to a worker, and whose seal stands in leased memory."""
_SIGNED: Final = 64
"""Octets, about, by which a verifier makes a reply longer."""
_SEALED: Final = 192
"""Likewise with results that are protected."""
_WORD: Final = struct.Struct(">I")
_SEQUENCE: Final = 4
"""Octets of the sequence number before arguments that are protected."""
_HEAD: Final = 24
"""Octets of an accepted reply before its results, with an empty verifier."""


class Step:
    """A call that waits for its context or for a worker; as text, which one it is."""

    __slots__ = ("_what", "run", "started")

    def __init__(self, what: str) -> None:
        self._what, self.run, self.started = what, None, time.perf_counter()

    run: eager.Run | None

    def __str__(self) -> str:
        return self._what


class SecuredCalls:
    """The calls of a dispatcher that come under RPCSEC_GSS."""

    def __init__(self, acceptor: Acceptor, dispatcher: Dispatcher, gate: Gate | None) -> None:
        self._acceptor, self._dispatcher, self._gate = acceptor, dispatcher, gate
        self.known = Known(acceptor.table.by_handle, self._look_up, acceptor.crew)
        """For native calls."""
        self._calls = [0, 0, 0]
        """That others have taken, by service."""

    def calls(self) -> dict[str, int]:
        """Whose signatures were good, by what protects them: the words of exports(5)."""
        natively = self.known.taken()
        return {word: self._calls[at] + natively[at] for at, word in enumerate(("krb5", "krb5i", "krb5p"))}

    def _look_up(self, handle: bytes) -> Context | None:
        context = self._acceptor.find(handle)
        if context is not None:
            credentials_of(context)
        return context

    # -- what arrives ----------------------------------------------------------------------------------------------

    def begin(self, arrived: Arrived, header: CallHeader) -> Execution | RpcReply | None:
        """A call with a credential of RPCSEC_GSS; the outcome as of ``Dispatcher.enter``."""
        credential = parse_credential(header.credential)
        if credential is None:
            return self._deny(arrived, auth_stat.AUTH_BADCRED, "bad_credential")
        if credential.version != VERSION:
            return self._deny(arrived, auth_stat.AUTH_BADCRED, "bad_version")  # section 5.3.3.3
        offset = header.arguments
        if offset > len(arrived.data):
            return accepted(arrived.xid, accept_stat.GARBAGE_ARGS)
        if credential.procedure in (INIT, CONTINUE_INIT):
            if not header.unverified:
                return self._deny(arrived, auth_stat.AUTH_BADVERF, "bad_credential")
            return self._make(arrived, credential, offset)
        taken = taken_for(arrived.holds)
        # A call that was begun natively ends with the context it began with, be that gone meanwhile.
        if taken is not None and taken[0].handle == credential.handle:
            context: Context | None = taken[0]
        else:
            context = self._acceptor.find(credential.handle)
        if context is None:
            return self._deny(arrived, auth_stat.RPCSEC_GSS_CREDPROBLEM, "no_context")
        if header.verifier_flavor != RPCSEC_GSS or not context.sealer.verify(header.signed, header.verifier):
            return self._deny(arrived, auth_stat.RPCSEC_GSS_CREDPROBLEM, "bad_mic")
        if credential.sequence >= MAX_SEQUENCE:
            return self._deny(arrived, auth_stat.RPCSEC_GSS_CTXPROBLEM, "sequence_exhausted")
        fresh = taken is None or taken[:2] != (context, credential.sequence)
        if fresh and context.admit(credential.sequence):
            self._acceptor.counts["discarded"] += 1
            return NO_REPLY
        arrived.reply_room = max(arrived.reply_room - (_SIGNED if credential.service == NONE else _SEALED), 0)
        arrived.done = partial(self._seal, arrived.transport, arrived.done, context, credential)
        if credential.procedure == DESTROY:
            if arrived.number[2]:
                return self._deny(arrived, auth_stat.AUTH_BADCRED, "bad_credential")
            self._acceptor.destroy(context)
            return accepted(arrived.xid, accept_stat.SUCCESS)
        self._calls[credential.service - 1] += fresh
        if credential.service == NONE:
            return self._dispatcher.enter(arrived, credentials_of(context)[0], offset, context.digest)
        if taken is not None and not fresh and taken[3]:
            return self._opened(arrived, context, credential, arrived.data[taken[2] - _SEQUENCE : taken[3]])
        return self._open(arrived, context, credential, offset)

    def _deny(self, arrived: Arrived, why: auth_stat, reason: str) -> RpcReply:
        self._acceptor.counts[f"refused_{reason}"] += 1
        self._dispatcher.refused += 1
        return denied(arrived.xid, reject_stat.AUTH_ERROR, why)

    def _open(
        self, arrived: Arrived, context: Context, credential: GssCredential, offset: int
    ) -> Execution | RpcReply | None:
        """Take the arguments out of their protection (section 5.3.2.2 and 5.3.2.3)."""
        # Data that is protected as a whole cannot be in a chunk of its own.
        body = None if arrived.chunks else protected(arrived.data, offset, credential.service)
        if body is None:
            return accepted(arrived.xid, accept_stat.GARBAGE_ARGS)
        if len(body[0]) < LONG:
            return self._opened(arrived, context, credential, unwrapped(context.sealer, *body))
        self._underway(arrived, "is unwrapped", self._open_long(arrived, context, credential, body))
        return TAKEN

    async def _open_long(
        self, arrived: Arrived, context: Context, credential: GssCredential, body: tuple[memoryview, memoryview]
    ) -> None:
        def unwrap() -> memoryview | None:
            with context.lent() as sealer:
                return unwrapped(sealer, *body)

        plain = await self._acceptor.work(unwrap)
        self._dispatcher.go_on(self._opened, arrived, context, credential, plain)

    def _opened(
        self, arrived: Arrived, context: Context, credential: GssCredential, plain: memoryview | None
    ) -> Execution | RpcReply | None:
        if plain is None or len(plain) < 4 or _WORD.unpack_from(plain)[0] != credential.sequence:
            self._acceptor.counts["refused_bad_arguments"] += 1
            return accepted(arrived.xid, accept_stat.GARBAGE_ARGS)
        arrived.data = plain
        credentials = credentials_of(context)
        return self._dispatcher.enter(arrived, credentials[credential.service - 1], _SEQUENCE, context.digest)

    # -- contexts that are made ------------------------------------------------------------------------------------

    def _make(self, arrived: Arrived, credential: GssCredential, offset: int) -> RpcReply | None:
        token = opaque(arrived.data, offset)
        if arrived.number[2] or arrived.chunks or (credential.procedure == INIT) != (not credential.handle):
            return self._deny(arrived, auth_stat.AUTH_BADCRED, "bad_credential")
        if token is None or len(token) > self._acceptor.limits.token:
            return accepted(arrived.xid, accept_stat.GARBAGE_ARGS)
        self._underway(arrived, "makes a security context", self._made(arrived, credential.handle, bytes(token)))
        return TAKEN

    async def _made(self, arrived: Arrived, handle: bytes, token: bytes) -> None:
        reply: RpcReply | None
        address = arrived.transport.peer_address
        try:
            await self._admission(arrived.transport)
            host = host_of(address)
            made = await asyncio.ensure_future(self._acceptor.make(host, handle, token))
        except KeyError:
            # Section 5.2.3: what is wrong with a context that is being made is none of the two problems of RPCSEC_GSS.
            reply = self._deny(arrived, auth_stat.AUTH_REJECTEDCRED, "no_context")
        except TurnedAway:
            reply = self._deny(arrived, auth_stat.AUTH_BADCRED, "stranger")
        except Busy:
            reply = None  # the client need not wait to be told: it may ask again
        except TimeoutError:
            reply = NO_REPLY  # it may as well, but what else it has in progress here goes on
        else:
            reply = made_reply(arrived.xid, made)
        _release(arrived)
        contain(arrived.transport.close, arrived.done, reply)

    async def _admission(self, transport: Transport) -> None:
        """Contexts are made with those whose calls are executed. Raises TurnedAway."""
        gate = self._gate
        if gate is None:
            return
        waiting = gate.learn(transport)
        if waiting is not None:
            await waiting
        if not gate.admits(transport):
            gate.turned_away(transport)
            raise TurnedAway

    def _underway(self, arrived: Arrived, what: str, coroutine: Coroutine[Any, Any, None]) -> None:
        """Go on with a call in a coroutine, as a call in flight; it has the call's holds."""
        transport = arrived.transport
        step = Step(f"{transport.netid} {transport.peer_address} xid {arrived.xid:#010x} {what}")
        self._start(step, transport, coroutine, partial(self._failed, arrived))

    def _failed(self, arrived: Arrived, error: BaseException) -> None:
        reply = None
        if not isinstance(error, asyncio.CancelledError):
            _log.error("%s: a call is not executed", arrived.transport, exc_info=error)
            reply = accepted(arrived.xid, accept_stat.SYSTEM_ERR)
            _release(arrived)
        contain(arrived.transport.close, arrived.done, reply)

    def _start(self, step: Step, transport: Transport, coroutine: Coroutine[Any, Any, None], failed: Any) -> None:
        securing = self._dispatcher.securing

        def over(_: None, error: BaseException | None) -> None:
            securing.discard(step)
            if error is not None:
                failed(error)
            self._dispatcher.ended()

        step.run = on_behalf_of(transport.peer_address, eager.start, coroutine, over)
        if step.run is not None:
            securing.add(step)

    # -- what leaves -----------------------------------------------------------------------------------------------

    def _seal(
        self, transport: Transport, done: Done, context: Context, credential: GssCredential, reply: RpcReply | None
    ) -> None:
        """Hand a reply over with its verifier, and its results protected (sections 5.3.3.2 and 5.3.3.3)."""
        if reply is None or reply is NO_REPLY or reply.head[11]:
            done(reply)
            return
        try:
            verifier = context.sealer.sign(_WORD.pack(credential.sequence))
            plain = credential.service == NONE or credential.procedure != DATA or reply.head[23] != accept_stat.SUCCESS
            if not plain and len(reply) - _HEAD >= LONG:
                step = Step(f"{transport.netid} {transport.peer_address} xid {reply.xid:#010x} is sealed")
                sealing = self._seal_long(transport, done, context, credential, reply, verifier)
                self._start(step, transport, sealing, partial(self._unsealed, transport, done, reply))
                return
            sealed = (
                with_verifier(reply, verifier) if plain else sealed_reply(context.sealer, credential, reply, verifier)
            )
        except GssError as error:
            self._unsealed(transport, done, reply, error)
            return
        done(sealed)

    def _unsealed(self, transport: Transport, done: Done, reply: RpcReply, error: BaseException) -> None:
        """Nothing can be said to this client: section 5.3.3.4.3 has no reply sent, and its connection tells it."""
        if not transport.closed:
            _log.warning("%s: a reply cannot be sealed: %s", transport, error or type(error).__name__)
        reply.release()
        contain(transport.close, done, None)

    async def _seal_long(
        self,
        transport: Transport,
        done: Done,
        context: Context,
        credential: GssCredential,
        reply: RpcReply,
        verifier: bytes,
    ) -> None:
        lease = None
        if credential.service == PRIVACY:
            lease = await _lease(transport, encrypted_size(context.sealer, reply))

        def seal() -> RpcReply:
            with context.lent() as sealer:
                return sealed_reply(sealer, credential, reply, verifier, lease)

        try:
            sealed = await self._acceptor.work(seal)
        except GssError:
            if lease is not None:
                lease.release()
            raise
        done(sealed)


async def _lease(transport: Transport, size: int) -> Lease:
    """Memory for a reply; what it is made of is held meanwhile, so that it must not wait long. Raises OutOfMemory."""
    waiting = asyncio.ensure_future(transport.lease(size))
    done, _ = await asyncio.wait((waiting,), timeout=PATIENCE)
    if not done and waiting.cancel():
        raise OutOfMemory(f"no {size} octets within {PATIENCE} s")
    return await waiting


def taken_for(holds: Iterable[Hold]) -> tuple[Context, int, int, int] | None:
    """The sequence number that a native call has taken before it was left to us: it is no replay of itself. And where
    its arguments are, if they have been taken out of their protection."""
    return next((hold.taken for hold in holds if type(hold) is Passed), None)


def _release(arrived: Arrived) -> None:
    for hold in arrived.holds:
        hold.release()


def credentials_of(context: Context) -> tuple[RpcCredential, ...]:
    """What the calls of a context carry, by service; made anew when its principal has become somebody else."""
    if not context.credentials:
        who, flavor = context.identity, RPCSEC_GSS
        if who is None:
            first = RpcCredential(flavor, principal=context.principal)
        else:
            first = RpcCredential(flavor, who.uid, who.gid, who.gids, principal=context.principal)
        context.credentials = tuple(replace(first, service=service) for service in (1, 2, 3))
    return context.credentials


def made_reply(xid: int, made: Made) -> RpcReply:
    """The reply to a step of a context. Once it is made, the verifier is the MIC of the window (section 5.2.3.1)."""
    verifier = b"" if made.context is None else made.context.sealer.sign(_WORD.pack(SEQUENCE_WINDOW))
    results = init_results(made.handle, made.major, made.minor, SEQUENCE_WINDOW, made.token)
    return RpcReply(xid, sealed_head(accepted(xid, accept_stat.SUCCESS).head, verifier) + results, [])


def with_verifier(reply: RpcReply, verifier: bytes) -> RpcReply:
    """The reply with this verifier. Takes its payloads."""
    head = sealed_head(reply.head, verifier)
    more = len(head) - len(reply.head)
    return RpcReply(reply.xid, head, [(offset + more, payload) for offset, payload in reply.payloads])


def unwrapped(sealer: Sealer, body: memoryview, mic: memoryview) -> memoryview | None:
    """The sequence number and what follows it, out of the octets that were protected; None: they are not good."""
    if mic:
        return body if sealer.verify(body, mic) else None
    if body.readonly:
        body = memoryview(bytearray(body))
    try:
        start, length = sealer.unwrap(body)
    except GssError:
        return None
    return body[start : start + length]


def sealed_reply(
    sealer: Sealer, credential: GssCredential, reply: RpcReply, verifier: bytes, lease: Lease | None = None
) -> RpcReply:
    """A reply whose results are protected, and which has taken its payloads. What is encrypted stands in ``lease``, if
    that is given, which is taken too. Raises GssError."""
    head = sealed_head(memoryview(reply.head)[:_HEAD], verifier)
    if credential.service == INTEGRITY:
        return signed_results(sealer, head, _WORD.pack(credential.sequence), reply)
    sealed = encrypted_results(sealer, head, _WORD.pack(credential.sequence), reply, lease)
    reply.release()
    return sealed


def signed_results(sealer: Sealer, head: bytes, sequence: bytes, reply: RpcReply) -> RpcReply:
    """rpc_gss_integ_data (section 5.3.2.2). The payloads are signed where they stand, and leave from there. They are
    parts of what is signed, and none can be placed by itself."""
    results, at = memoryview(reply.head), _HEAD
    size = _WORD.pack(len(reply) - _HEAD + len(sequence))
    octets = bytearray(head + size + sequence)
    pieces: list[memoryview | bytes] = []
    payloads, done = [], []
    begin = len(octets) - len(sequence)
    for offset, payload in reply.payloads:
        octets += results[at:offset]
        at, length = offset, len(payload)
        whole = length & ~3
        if whole:
            pieces += [bytes(octets[begin:]), payload.view[:whole]]
            payloads.append((len(octets), Payload(payload.view[:whole], payload, eligible=False)))
            begin = len(octets)
        else:
            done.append(payload)
        octets += bytes(payload.view[whole:]) + bytes(-length & 3)
    octets += results[at:]
    mic = sealer.sign(*pieces, bytes(octets[begin:]))
    for payload in done:
        payload.release()
    octets += _WORD.pack(len(mic)) + mic + bytes(-len(mic) & 3)
    return RpcReply(reply.xid, bytes(octets), payloads)


def encrypted_size(sealer: Sealer, reply: RpcReply) -> int:
    """Octets that the results of a reply take when they are encrypted. Raises GssError."""
    size = len(reply) - _HEAD + 4
    return (sum(sealer.room(size)) + size + 3) & ~3


def encrypted_results(sealer: Sealer, head: bytes, sequence: bytes, reply: RpcReply, lease: Lease | None) -> RpcReply:
    """rpc_gss_priv_data (section 5.3.2.3). Encryption is in place, so it is of a copy: a cache may have the results,
    too. Takes ``lease``, but not the payloads. Raises GssError."""
    size = len(reply) - _HEAD + len(sequence)
    room = sealer.room(size)
    ground = memoryview(bytearray((sum(room) + size + 3) & ~3)) if lease is None else lease.view
    start = room[0] + len(sequence)
    ground[room[0] : start] = sequence
    write_results(reply, ground[start : room[0] + size])
    size = sealer.wrap(ground, room, size)
    padded = (size + 3) & ~3
    ground[size:padded] = bytes(padded - size)
    head += _WORD.pack(size)
    if lease is None:
        return RpcReply(reply.xid, head + bytes(ground[:padded]), [])
    return RpcReply(reply.xid, head, [(len(head), Payload(ground[:padded], lease, eligible=False))])


def write_results(reply: RpcReply, into: memoryview) -> None:
    """The results of a reply, all of them, as they stand without chunks."""
    head, at, done = memoryview(reply.head), _HEAD, 0
    for offset, payload in reply.payloads:
        into[done : done + offset - at] = head[at:offset]
        done += offset - at
        at = offset
        size = len(payload)
        into[done : done + size] = payload.view
        into[done + size : done + size + (-size & 3)] = bytes(-size & 3)
        done += (size + 3) & ~3
    into[done:] = head[at:]
