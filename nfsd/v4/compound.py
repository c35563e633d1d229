"""What an operation in Python knows of its COMPOUND, and how it is carried out.

Owns :class:`Compound` and :func:`carry_out`, the errand of :mod:`nfsd.v4.in_python`. The frame of all COMPOUNDs is
native (:mod:`nfsd.v4.native_compound`). It decodes the operation's arguments, takes its results into the reply, and
tells its failures: what it raises (Nfs4Error, OSError, BadHandle…) is mapped in :mod:`nfsd.v4.errors` and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nfsd.matching import peer_of
from nfsd.protocol import nfs4 as p
from nfsd.state import Nfs4Error
from nfsd.state.clients import Client
from nfsd.state.sessions import Session
from nfsd.state.types import INVALID, StateidLike
from nfsd.v4.arrivals import (
    VERSIONS,
    Barred,
    There,
    credential_of,
    disbelieve,
    enter,
    machine_of,
    may_use,
    principal_of,
    there,
    walked,
)  # fmt: skip
from nfsd.v4.facts import Asking
from nfsd.v4.operations import ENCODED, Operation
from nfsd.v4.pseudofs import PseudoNode
from nfsd.v4.server import Nfs4Server
from nfsd.vfs.service import Node
from nfsd.vfs.types import Credential
from rpcrdma.rpc.program import Call
from rpcrdma.xdr import Encoder

_CURRENT_OTHER = bytes(12)


class Compound:
    """What an operation in Python knows of its COMPOUND, and does to it."""

    __slots__ = (
        "after", "call", "current", "engine", "foreign", "index", "minor", "moved", "opener", "operations", "room",
        "saved", "saved_foreign", "saved_stateid", "sequence", "server", "service", "session", "stateid", "there",
    )  # fmt: skip

    def __init__(self, server: Nfs4Server, call: Call, minor: int) -> None:
        """``call``: the COMPOUND's."""
        self.server = server
        self.service = server.service
        self.engine = server.engine
        self.call = Call(
            call.transport,
            call.xid,
            call.program,
            call.version,
            call.procedure,
            call.credential,
            call.arguments,
            Encoder(),
        )
        """Its results are the operation's alone."""
        self.minor = minor
        self.operations = 0
        self.index = 0
        self.room = 0
        """Octets that the operation's result may have."""
        self.current: Node | PseudoNode | Barred | None = None
        self.saved: Node | PseudoNode | Barred | None = None
        self.foreign = 0
        """What is wrong with the current file's handle, where that is not said before it is used (see PUTFH)."""
        self.saved_foreign = 0
        self.stateid: StateidLike = INVALID
        self.saved_stateid: StateidLike = INVALID
        self.session: Session | None = None
        self.sequence: p.SEQUENCE4args | None = None
        self.opener: Client | None = None
        """v4.0: the client whose OPEN is part of this COMPOUND; it does not know yet what it was given."""
        self.moved = False
        """Whether the operation has made another file the current one, or none."""
        self.there: There | None = None
        """What the caller is there."""
        self.after: list[Callable[[], None]] | None = None
        """What is to be done once the reply is on its way: callbacks about what it says must not overtake it."""

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
        """The current file, wherever it is. Raises NOFILEHANDLE, and WRONGSEC where the caller is barred."""
        if self.current is None:
            raise Nfs4Error(self.foreign or p.NFS4ERR_NOFILEHANDLE)
        return walked(self.current)

    async def node(self, *, changing: bool = False) -> Node:
        """The current file on a real file system; ``changing`` also asks that this client may write there."""
        return await self.real(self.here, changing=changing)

    async def saved_node(self) -> Node:
        """The saved file on a real file system."""
        if self.saved is None:
            raise Nfs4Error(self.saved_foreign or p.NFS4ERR_NOFILEHANDLE)
        return await self.real(walked(self.saved))

    async def real(self, node: Node | PseudoNode, *, changing: bool = False) -> Node:
        """The file on a real file system that a node stands for; the pseudo file system is read-only."""
        if isinstance(node, PseudoNode):
            if node.export is None or self.is_closed(node):
                raise Nfs4Error(p.NFS4ERR_ROFS if changing else p.NFS4ERR_INVAL)
            caller, transport = self.call.credential, self.call.transport
            if not self.server.exports.believes(node.export, caller, transport):
                raise Nfs4Error(disbelieve(self.server, transport, self.minor, node.export, caller))
            node = await self.service.root(node.export)
        if changing and self.server.exports.read_only(node.export, peer_of(self.call.transport)):
            raise Nfs4Error(p.NFS4ERR_ROFS)
        return node

    async def enter(self, place: PseudoNode) -> Node | PseudoNode | Barred:
        """What a place of the pseudo file system leads to. Raises as :func:`nfsd.v4.arrivals.enter`."""
        return await enter(self.server, self.call.transport, self.minor, place, self.call.credential)

    def transferred(self, *, read: int = 0, written: int = 0) -> None:
        """Count octets of the current file."""
        if isinstance(self.current, Node):
            tally = self.server.exports.tally(self.current.export, self.call.transport.peer_address)
            tally.read += read
            tally.written += written

    def is_closed(self, place: PseudoNode) -> bool:
        """Whether a place is an export's that this client may not use: to it, it is but a directory that leads on to
        others (its handle is no secret, and there may be exports below)."""
        export = place.export
        return export is not None and not may_use(self.server, self.call.transport, self.minor, export)

    async def credential(self, node: Node) -> Credential:
        """The caller as it acts on the node's export."""
        return await credential_of(self.server, self.call.transport, self.call.credential, node)

    def go(self, node: Node | PseudoNode | Barred | None) -> None:
        """Make a file the current one; the current stateid goes (RFC 8881 section 16.2.3.1.2)."""
        self.current, self.moved = node, True

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
        return principal_of(self.call.credential)

    @property
    def machine(self) -> str:
        """The same, as :func:`machine_of`."""
        return machine_of(self.call.credential)

    @property
    def host(self) -> str:
        """For which host the caller speaks: as much a part of who it is, with AUTH_SYS, as its user."""
        return self.server.exports.speaker(self.call.transport)

    def room_left(self) -> int:
        """Octets of reply still free."""
        return self.room - self.call.results.size


async def carry_out(c: Compound, row: Operation, *arguments: Any) -> int:
    """Carry out an operation. Returns its status; its result without its number is in the call's results. Raises
    whatever it fails with."""
    assert row.handler is not None, "the others are native"
    value, results = await row.handler(c, *arguments), c.call.results
    status = int(p.NFS4_OK)
    if value is not ENCODED and type(value) is row.result:
        results.encode(row.result, value)
        status = int(value.status)
    elif value is not ENCODED:
        results.uint32(p.NFS4_OK)
        if row.succeeded is not None:
            results.encode(row.succeeded, value)
    if c.moved:
        c.there = await there(c.server, c.call.transport, c.current, c.call.credential)
    return status
