"""COMPOUND: the one procedure of NFSv4 that does anything (RFC 7530 section 15.2, RFC 8881 section 16.2).

Operation. Operations are carried out one after the other, until one fails. One that has a native body is offered to
it, with those behind it (:mod:`nfsd.v4.stretches`). The others are decoded, run and encoded here, straight from the
call and into the reply. What they share stands in :class:`Compound`: the current and saved file, the stateids that go
with them, the session. In 4.1 and later the first operation is SEQUENCE, which finds the slot; that keeps the reply.
What native code has begun (:mod:`nfsd.v4.native_compound`) goes on here, with its results in front.

Failures. An operation raises :class:`Nfs4Error` (or OSError, BadHandle… mapped here and nowhere else). A failure of the
server itself is logged and answered SERVERFAULT.

Stable storage. The reply of a COMPOUND that changed anything leaves when what the operations promised is on stable
storage, asked once per COMPOUND.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nfsd.exports import Export
from nfsd.protocol import nfs4 as p
from nfsd.protocol.nfs4_ops import OPERATIONS
from nfsd.state import Nfs4Error
from nfsd.state.clients import Client
from nfsd.state.records import Slot
from nfsd.state.sessions import Session
from nfsd.state.types import INVALID, StateidLike
from nfsd.v4.arrivals import VERSIONS, arrive, credential_of, enter, may_use
from nfsd.v4.errors import EXPECTED, failure_of
from nfsd.v4.facts import Asking
from nfsd.v4.halfway import Halfway
from nfsd.v4.kept import give, keep
from nfsd.v4.operations import ENCODED, NATIVE, ROOM_FOR_RESULT, TABLE, Operation
from nfsd.v4.pseudofs import PseudoNode
from nfsd.v4.server import Nfs4Server
from nfsd.v4.stretches import carry_out, malformed, matches_chunks, take_chunks
from nfsd.versions import of_minor
from nfsd.vfs.service import Node
from nfsd.vfs.types import Credential
from rpcrdma.log_limits import limited_logger
from rpcrdma.rpc.program import Call, GarbageArguments
from rpcrdma.xdr import Decoder, Encoder, XdrError

if TYPE_CHECKING:
    from nfsd.v4.procedures import Nfs4Procedures

log = limited_logger(__name__)

MAX_OPERATIONS_40 = 256
"""Bound on a COMPOUND without a session; NFSv4.0 negotiates none."""
_TAG_LIMIT = 1024
_CURRENT_OTHER = bytes(12)


class SlotReplay(Exception):
    """The whole COMPOUND is a retransmission: the slot's reply is sent again (RFC 8881 section 2.10.6.1)."""

    def __init__(self, reply: bytes) -> None:
        super().__init__()
        self.reply = reply


class Compound:
    """What the operations of one COMPOUND share."""

    __slots__ = (
        "after", "arguments_at", "begun", "call", "current", "engine", "failure_after_sequence", "foreign", "index",
        "minor", "native", "opener", "operations", "room", "saved", "saved_foreign", "saved_stateid", "sequence",
        "server", "service", "session", "slot", "start", "stateid",
    )  # fmt: skip

    def __init__(
        self, server: Nfs4Server, native: Nfs4Procedures, call: Call, arguments_at: int, minor: int, operations: int
    ) -> None:
        """``arguments_at``: where COMPOUND4args begins in the message."""
        self.server = server
        self.native = native
        self.begun: Halfway | None = None  # with what the next operation has begun natively
        self.arguments_at = arguments_at
        self.service = server.service
        self.engine = server.engine
        self.call = call
        self.minor = minor
        self.operations = operations
        self.index = 0
        self.start = call.results.position
        """Where COMPOUND4res begins in the reply."""
        self.room = server.max_reply
        """Octets COMPOUND4res and what stands before it may have in all."""
        self.current: Node | PseudoNode | None = None
        self.saved: Node | PseudoNode | None = None
        self.foreign = 0
        """What is wrong with the current file's handle, where that is not said before it is used (see PUTFH)."""
        self.saved_foreign = 0
        self.stateid: StateidLike = INVALID
        self.saved_stateid: StateidLike = INVALID
        self.session: Session | None = None
        self.slot: Slot | None = None
        self.sequence: p.SEQUENCE4args | None = None
        self.failure_after_sequence = 0
        self.opener: Client | None = None
        """v4.0: the client whose OPEN is part of this COMPOUND; it does not know yet what it was given."""
        self.after: list[Callable[[], None]] | None = None
        """What is to be done once the reply is on its way: callbacks about what it says must not overtake it."""

    def go_on(self, begun: Halfway) -> None:
        """Take up what native operations have begun."""
        self.follow(begun)
        self.begun = begun
        self.call.shown = begun.shown if begun.index else -1
        self.room = begun.room
        if begun.session is not None:
            self.session, self.slot = begun.session, begun.take_slot()
            self.sequence = p.SEQUENCE4args(*begun.sequence)

    def follow(self, begun: Halfway) -> None:
        """Come to where native operations have got."""
        call = self.call
        if begun.used and call.chunks:
            # Where the others belong is counted in what came with the message, and in chunks before them.
            used = len(call.chunks[0][1]) + 3 & ~3
            call.chunks = [(position - used, view) for position, view in call.chunks[1:]]
        call.arguments = Decoder(call.message, call.chunks, self.arguments_at + begun.offset)
        call.tally, call.forget, call.shown = begun.tally, not begun.changed, begun.shown
        self.index, self.opener = begun.index, begun.opened_by
        self.current, self.foreign = begun.current or begun.pseudo, begun.foreign
        self.saved, self.saved_foreign = begun.saved or begun.saved_pseudo, begun.saved_foreign
        self.stateid, self.saved_stateid = begun.stateid or INVALID, begun.saved_stateid or INVALID

    # -- files ---------------------------------------------------------------------------------------------------
    @property
    def version(self) -> str:
        """What the client speaks, in words."""
        return VERSIONS[self.minor]

    @property
    def here(self) -> Node | PseudoNode:
        """The current file, of either kind. Raises NOFILEHANDLE; MOVED in an absent file system, where no operation
        but GETATTR and its kin begins (RFC 8881 section 11.3)."""
        current = self.here_or_absent
        if type(current) is PseudoNode and current.referral is not None:
            raise Nfs4Error(p.NFS4ERR_MOVED)
        return current

    @property
    def here_or_absent(self) -> Node | PseudoNode:
        """The current file, wherever it is. Raises NOFILEHANDLE."""
        if self.current is None:
            raise Nfs4Error(self.foreign or p.NFS4ERR_NOFILEHANDLE)
        return self.current

    async def node(self, *, changing: bool = False) -> Node:
        """The current file on a real file system; ``changing`` also asks that this client may write there."""
        return await self.real(self.here, changing=changing)

    async def saved_node(self) -> Node:
        """The saved file on a real file system."""
        if self.saved is None:
            raise Nfs4Error(self.saved_foreign or p.NFS4ERR_NOFILEHANDLE)
        return await self.real(self.saved)

    async def real(self, node: Node | PseudoNode, *, changing: bool = False) -> Node:
        """The file on a real file system that a node stands for; the pseudo file system is read-only."""
        if isinstance(node, PseudoNode):
            if node.export is None or self.is_closed(node):
                raise Nfs4Error(p.NFS4ERR_ROFS if changing else p.NFS4ERR_INVAL)
            node = await self.service.root(node.export)
        if changing and self.server.exports.read_only(node.export, self.call.transport.peer_address):
            raise Nfs4Error(p.NFS4ERR_ROFS)
        return node

    async def resolve(self, handle: bytes) -> Node | PseudoNode:
        """The file of a handle, if this client may use its export. Raises as :func:`nfsd.v4.arrivals.arrive`."""
        return self._counted(await arrive(self.server, self.call.transport, self.minor, handle))

    async def enter(self, place: PseudoNode) -> Node | PseudoNode:
        """What a place of the pseudo file system leads to. Raises as :func:`nfsd.v4.arrivals.enter`."""
        return self._counted(await enter(self.server, self.call.transport, self.minor, place))

    def _counted(self, node: Node | PseudoNode) -> Node | PseudoNode:
        """Count the call as one on an export: on the last one that it comes to."""
        if isinstance(node, Node):
            self._count_on(node.export)
        return node

    def _count_on(self, export: Export) -> None:
        call = self.call
        tally = self.server.exports.tally(export, call.transport.peer_address)
        if call.tally is not None and call.tally is not tally:
            call.tally.leave()  # what has been done there is charged there, not where the COMPOUND ends
        call.tally = tally

    def transferred(self, *, read: int = 0, written: int = 0) -> None:
        """Count octets of the current file."""
        if isinstance(self.current, Node):
            self._count_on(self.current.export)  # RESTOREFH may have led back to another one
        tally = self.call.tally
        if tally is not None:
            tally.read += read
            tally.written += written

    async def listed(self, place: PseudoNode) -> Node | PseudoNode:
        """As :meth:`enter`, for a listing: what may not be entered is shown as the place itself. It is no use of it."""
        export, exports = place.export, self.server.exports
        if export is None or self.is_closed(place) or not exports.takes(export, self.call.transport):
            return place
        return await self.service.root(export)

    def is_closed(self, place: PseudoNode) -> bool:
        """Whether a place is an export's that this client may not use: to it, it is but a directory that leads on to
        others (its handle is no secret, and there may be exports below)."""
        export = place.export
        return export is not None and not may_use(self.server, self.call.transport, self.minor, export)

    async def credential(self, node: Node) -> Credential:
        """The caller as it acts on the node's export."""
        return await credential_of(self.server, self.call.transport, self.call.credential, node)

    def go(self, node: Node | PseudoNode | None) -> None:
        """Make a file the current one; the current stateid goes (RFC 8881 section 16.2.3.1.2)."""
        self.current = node
        self.foreign = 0
        self.stateid = INVALID

    # -- state ---------------------------------------------------------------------------------------------------
    @property
    def client(self) -> Client | None:
        """The session's client; None in v4.0, where the stateid tells."""
        return self.session.client if self.session is not None else None

    @property
    def speaker(self) -> Client | None:
        """The client, in v4.0 the one that the connection belongs to, if that is known."""
        return self.session.client if self.session is not None else self.server.speaker(self.call.transport)

    def given(self, stateid: StateidLike) -> StateidLike:
        """A stateid argument, with the special value for the current stateid replaced (RFC 8881 section 8.2.3)."""
        if self.minor and stateid.seqid == 1 and stateid.other == _CURRENT_OTHER:
            if self.stateid is INVALID:
                raise Nfs4Error(p.NFS4ERR_BAD_STATEID)
            return self.stateid
        return stateid

    @property
    def asking(self) -> Asking:
        """Who the caller is to what gathers attributes."""
        return Asking(self.minor, self.call.transport, self.call.credential)

    @property
    def principal(self) -> str:
        """Who the caller is for state: client records are bound to it."""
        caller = self.call.credential
        return f"{caller.flavor}:{caller.mark}"

    @property
    def host(self) -> str:
        """For which host the caller speaks: as much a part of who it is, with AUTH_SYS, as its user."""
        return self.server.exports.speaker(self.call.transport)

    def room_left(self) -> int:
        """Octets of reply still free."""
        return self.room - self.call.results.size


async def compound(server: Nfs4Server, native: Nfs4Procedures, call: Call) -> None:
    """Run a COMPOUND. Raises GarbageArguments when not even its frame decodes."""
    arguments, results = call.arguments, call.results
    arguments_at = arguments.position
    try:
        tag = arguments.opaque(_TAG_LIMIT)
        minor = arguments.uint32()
        count = arguments.uint32()
    except XdrError:
        raise GarbageArguments from None
    status_at = results.position
    results.uint32(p.NFS4_OK)
    results.opaque(tag)
    count_at = results.position
    results.uint32(0)
    if not of_minor(minor) & server.versions:
        results.patch_uint32(status_at, p.NFS4ERR_MINOR_VERS_MISMATCH)
        return
    c = Compound(server, native, call, arguments_at, minor, count)
    c.start = status_at
    call.forget, call.shown = True, -1
    begun, call.begun = call.begun, None
    if begun is not None:
        results.truncate(status_at)
        results.append(begun.results)
        c.go_on(begun)
    engine, issued = server.engine, server.engine.writes_issued
    try:
        status = begun.failure if begun is not None and begun.failure else await _run(c, count_at)
        results.patch_uint32(status_at, status)
        if not engine.stable and not (call.forget and engine.writes_issued == issued):
            # Somebody else's write counts as well: what this COMPOUND was granted may rest on it. One that changed
            # nothing (a READ, a SEQUENCE that failed) promises nothing, and waits for nobody.
            await server.store.flush(engine)
        if c.slot is not None:
            assert c.session is not None and c.sequence is not None  # noqa: PT018
            # Only if the client has asked for that; a lone SEQUENCE's in any case.
            wanted = c.sequence.sa_cachethis or c.operations == 1
            c.slot.finish(keep(results, c.start, c.session.fore.maxresponsesize_cached) if wanted else None)
            c.slot = None
    except SlotReplay as replay:
        results.truncate(status_at)
        give(replay.reply, results)
    finally:
        if c.slot is not None:
            # The server failed: a retransmission may try again.
            c.slot.finish(None)
        for action in c.after or ():
            action()


async def _run(c: Compound, count_at: int) -> int:
    """Run the operations; returns the last one's status."""
    results, counts = c.call.results, c.server.counts
    status, chunks = int(p.NFS4_OK), bool(c.call.chunks)
    while c.index < c.operations:
        offset = c.call.arguments.position - c.arguments_at
        try:
            number = c.call.arguments.uint32()
        except XdrError:
            # Arguments that do not decode are their operation's BADXDR; here there is not even an operation's number.
            raise GarbageArguments from None
        at = results.position
        row = TABLE.get(number)
        status, shown = _admit(c, number, row)
        if status == p.NFS4_OK and number in NATIVE and matches_chunks(c, number):
            begun = await carry_out(c.native, c, c.arguments_at, offset)
            if begun is not None:
                c.follow(begun)
                results.patch_uint32(count_at, c.index)
                status = begun.failure
                if status != p.NFS4_OK:
                    _count_failure(c, begun.number, status)
                    return status
                continue
        if number < 128 and counts.weight(number) >= counts.weight(max(c.call.shown, 0)):
            c.call.shown = number
        results.uint32(shown)
        if status == p.NFS4_OK:
            assert row is not None
            status = await _run_one(c, row, at)
        else:
            _encode_failure(results, shown, status)
        c.index += 1
        results.patch_uint32(count_at, c.index)
        counts.note(number)
        if status != p.NFS4_OK:
            _count_failure(c, shown, status)
            return status
        take_chunks(c)
    if chunks:
        try:
            c.call.arguments.finish()
        except XdrError:
            raise GarbageArguments from None  # a chunk behind the last operation
    return status


def _count_failure(c: Compound, number: int, status: int) -> None:
    c.call.failed = True
    name = OPERATIONS[number].name if number in OPERATIONS else "ILLEGAL"
    c.server.exports.usage.failed(4, name, p.nfsstat4(status).name.removeprefix("NFS4ERR_"))


def _admit(c: Compound, number: int, row: Operation | None) -> tuple[int, int]:
    """Whether an operation may run here: its status if not, and the number to show in the result."""
    declared = OPERATIONS.get(number)
    if declared is None or number == p.OP_ILLEGAL:
        return p.NFS4ERR_OP_ILLEGAL, p.OP_ILLEGAL
    if c.minor not in declared.minors:
        if 0 not in declared.minors:
            return p.NFS4ERR_OP_ILLEGAL, p.OP_ILLEGAL
        row = None  # what 4.0 alone has is NOTSUPP later (RFC 8881 section 8.8), not illegal
    if c.failure_after_sequence:
        return c.failure_after_sequence, number
    if c.minor == 0:
        if c.operations > MAX_OPERATIONS_40:
            return p.NFS4ERR_RESOURCE, number
    elif c.index == 0:
        if number != p.OP_SEQUENCE:
            if row is None or not row.alone:
                return p.NFS4ERR_OP_NOT_IN_SESSION, number
            if c.operations != 1:
                return p.NFS4ERR_NOT_ONLY_OP, number
    elif number == p.OP_SEQUENCE:
        return p.NFS4ERR_SEQUENCE_POS, number
    elif number == p.OP_BIND_CONN_TO_SESSION:
        # RFC 8881 section 18.34.3; the others that go without SEQUENCE (18.35.3, 18.36.3…) may also follow one.
        return p.NFS4ERR_NOT_ONLY_OP, number
    if row is None:
        return p.NFS4ERR_NOTSUPP, number
    if row.changes and c.room_left() < ROOM_FOR_RESULT:
        return _too_big(c), number
    return p.NFS4_OK, number


def _too_big(c: Compound) -> int:
    if c.sequence is None:
        return p.NFS4ERR_RESOURCE
    return p.NFS4ERR_REP_TOO_BIG_TO_CACHE if c.sequence.sa_cachethis else p.NFS4ERR_REP_TOO_BIG


async def _run_one(c: Compound, row: Operation, at: int) -> int:
    """Run one operation whose number stands at ``at``; returns its status, its result encoded behind the number."""
    results = c.call.results
    body = results.position
    if row.changes:
        c.call.forget = False
    try:
        if row.handler is None:
            raise malformed(c, row)
        if row.arguments is None:
            value = await row.handler(c)
        else:
            arguments = c.call.arguments.decode(row.arguments)
            if c.call.chunks and c.call.arguments.skipped_chunk:
                # RFC 8166 section 4.5.2: it took something out that may not be, or put it where nothing is wanted.
                raise XdrError("a Read chunk within these arguments matches no item")
            value = await row.handler(c, arguments)
        status = _encode(results, row, value)
        if results.size > c.room:
            results.truncate(body)
            status = _too_big(c)
            results.uint32(status)
    except EXPECTED as error:
        results.truncate(body)
        status = failure_of(error)
        _encode_failure(results, row.number, status)
    except SlotReplay:
        raise
    except Exception:
        log.exception("%s failed (xid %08x from %s)", row.name, c.call.xid, c.call.transport.peer_address)
        results.truncate(body)
        status = p.NFS4ERR_SERVERFAULT
        _encode_failure(results, row.number, status)
    return status


def _encode(results: Encoder, row: Operation, value: Any) -> int:
    if value is ENCODED:
        return p.NFS4_OK
    if type(value) is row.result:
        results.encode(row.result, value)
        return int(value.status)
    results.uint32(p.NFS4_OK)
    if row.succeeded is not None:
        results.encode(row.succeeded, value)
    return p.NFS4_OK


def _encode_failure(results: Encoder, number: int, status: int) -> None:
    results.uint32(status)
    if number == p.OP_SETATTR:
        results.uint32(0)  # SETATTR4res has its bitmap in any case
