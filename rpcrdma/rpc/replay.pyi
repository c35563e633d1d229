"""The duplicate request cache. Implemented in ``replay.pyx``."""

from collections.abc import Callable, Sequence
from typing import Any

from rpcrdma.gss.contexts import Context
from rpcrdma.rpc.program import RpcReply, Transport

Key = bytes
"""What a call is known by: peer, XID, program, version, procedure, the caller's credential, and length and digest of all
its arguments (over TCP and UDP, of long ones the beginning and the end)."""

ENTRY_COST: int
"""Octets an entry is taken to need besides its reply: its record, the longest key, and what the C library adds."""

HOST_COST: int
"""Octets that what is known of a host is taken to need, as long as it has entries."""

CUT_COST: int
"""Octets for each payload in a reply."""

class Peer:
    """Who retransmits from here: on TCP and UDP that is an address with its port, which clients keep; on RDMA the port
    means nothing (RFC 8267 section 6.3)."""

    name: bytes
    host: str
    """On whose account its entries are: a :func:`rpcrdma.hosts.host_of`."""
    def __init__(self, transport: Transport) -> None: ...

def make_key(
    peer: Peer,
    xid: int,
    procedure: tuple[int, int, int],
    data: memoryview,
    offset: int,
    chunks: Sequence[tuple[int, memoryview]],
    who: int | None = None,
) -> Key:
    """The key of a call whose arguments begin at ``offset`` of ``data``. ``who`` is a digest of the caller; None: of the
    credential in the header before them, whose stamp may differ between transmissions; ValueError when there is none.
    Length and digest are those of the unreduced arguments, so that they do not depend on how a client cut them into chunks."""

class Entry:
    """One call, from its first arrival on."""

    key: Key
    reply: bytes
    """The whole reply, once there is one."""
    def recall(self) -> RpcReply:
        """The reply, as it was given first."""

class Passed:
    """Holds a call on its way from the one to the other. The code that drops the call releases this, as one would a lease."""

    @property
    def view(self) -> memoryview:
        """The lease's, which the call's message is in."""
    @property
    def wanted(self) -> bool:
        """Whether the call is to be executed though its connection has gone: part of it has been done, or somebody waits
        for it on another connection."""
    taken: tuple[Context, int, int, int] | None
    """The security context whose sequence window has the call already, with its number there; None: none has. And where in
    the message arguments begin and end that have been taken out of their protection; 0: they have not been."""
    def take_begun(self) -> Any:
        """What others have begun of the call, once; None: nothing."""
    def release(self) -> None:
        """Nobody needs the message any more; if nobody has begun with the call, nobody will."""

class ReplayCache:
    """Bounded in octets, its table, :data:`ENTRY_COST` for each entry and :data:`HOST_COST` for each host among them; for want of room the host that holds the most
    loses what was finished longest ago. Nothing is given out after ``ttl`` seconds: by then no client retransmits, while
    XIDs may have been used anew."""

    max_bytes: int
    room: int
    """Of these, for entries and hosts."""
    hosts: int
    """Peers' hosts of which anything is kept."""
    size: int
    """Octets accounted for finished entries."""
    hits: int
    """Retransmissions answered from here or made to wait."""
    def __init__(
        self,
        max_bytes: int = ...,
        *,
        ttl: float = ...,
        clock: Callable[[], float] | None = None,
    ) -> None: ...
    def __len__(self) -> int: ...
    def look_up(self, key: Key) -> Entry | None:
        """The entry with the finished reply to this call, if there is one."""
    def begin(self, key: Key, transport: Transport, passed: Passed | None = None) -> Entry | None:
        """Take note that the call is being executed. None: it is already (then :meth:`join` or drop it). One that native
        code began and ``passed`` on is taken up again, with those who joined: by that very call, not by a retransmission
        that comes before it."""
    def join(self, key: Key, transport: Transport, done: Callable[[RpcReply | None], None]) -> bool:
        """Have ``done`` called with the result of the running call ``key``. False: its reply is on its way on this very
        connection, so there is nothing to wait for."""
    def finish(self, entry: Entry, reply: RpcReply) -> None:
        """The call is over: keep its reply and give it to those who joined."""
    def abandon(self, entry: Entry, reply: RpcReply | None) -> None:
        """The call was not executed (it could not be decoded, was dropped, or failed inside the server): forget it, so
        that a retransmission tries again, and give those who joined a copy of ``reply``."""

def join_reply(reply: RpcReply) -> bytes:
    """The whole reply in one piece, payloads and their padding in place; the reply itself stays as it is."""

def cuts(reply: RpcReply) -> tuple[tuple[int, int], ...]:
    """Where the payloads stand in the reply that :func:`join_reply` makes."""
