from collections.abc import Callable
from typing import Any, Self

from nfsd.state.charges import HostAccount
from nfsd.state.clients import Client
from nfsd.state.files import FileState
from nfsd.state.owners import LockOwner, OpenOwner
from nfsd.state.sessions import Backchannel
from nfsd.state.types import CallbackCredential, ChannelAttributes, Connection, Stateid

class Slot:
    """One slot of a session's fore channel; ``start`` is the sequence id before its first request's, which may also
    be 1 if the slot is ``renewed``."""

    generation: int
    """The session's when the last reply went out on the slot."""
    def __new__(cls, start: int = 0, renewed: bool = False) -> Self: ...
    @property
    def seqid(self) -> int: ...
    @property
    def in_use(self) -> bool: ...
    @property
    def used(self) -> bool: ...
    @property
    def renewed(self) -> bool: ...
    @property
    def cachethis(self) -> bool: ...
    @property
    def fingerprint(self) -> int: ...
    promised: int
    """The reply is not to be given before so many of the engine's writes are committed; 0: it may be."""
    @property
    def reply(self) -> bytes | None:
        """The encoded COMPOUND4res (after the RPC accepted-reply header) of the last request, if it was kept;
        :class:`nfsd.v4.kept.KeptReply` if it has DDP-eligible items."""

    def begin(self, seqid: int, cachethis: bool, fingerprint: int) -> int:
        """The verdict: 0 new, 1 replay, 2 replay of a reply not kept, 3 original still executing, 4 misordered,
        5 false retry. Only 0 changes the slot."""

    def finish(self, reply: bytes | None) -> None:
        """The compound is over; keep ``reply`` for replays (give None when sa_cachethis was false or it is longer
        than ``session.fore.maxresponsesize_cached``; a reply of SEQUENCE alone should always be given)."""

class ClientRecord:
    """What every request of a client looks at: base of Client."""

    clock: Callable[[], float]
    """The engine's."""
    lease: float
    """Seconds."""
    minor: int
    clientid: int
    hosts: dict[str, None]
    """The addresses that this instance has shown itself at, the first one first."""
    recorded: bool
    """On stable storage as of this instance."""
    longest_result: int
    """Octets of what an owner keeps of its last operation, at most."""
    lease_end: float
    courtesy: bool
    """Its lease ran out; its state is kept until somebody else wants it."""
    expired: bool
    """Gone: expired, destroyed or replaced. Nothing may be added to it."""
    may_reclaim: bool
    reclaim_complete: bool
    tag: bytes
    """What its stateids begin with, behind the epoch."""
    account: HostAccount
    """What it has is on this account."""
    states: dict[bytes, StateEntry]
    open_owners: dict[bytes, OpenOwner]
    lock_states: int
    delegations: int
    """Delegations it has, revoked ones not among them."""
    unheard: bool
    """v4.0: came back in the grace period, and has not been heard of since its end."""
    binds: bool
    """Its connections must be bound by BIND_CONN_TO_SESSION."""
    revoked: int
    """States revoked and not yet freed by FREE_STATEID."""
    def renew(self) -> None:
        """Its lease begins anew; what was kept out of courtesy is its own again."""

def backchannel_usable(client: Client) -> bool:
    """Whether a callback to the client is worth trying over the backchannel of one of its sessions."""

class BackchannelRecord:
    """What every request in a session looks at of its backchannel: base of Backchannel."""

    credentials: tuple[CallbackCredential, ...]
    """What callbacks are sent with: one, or none that can be."""
    fault: bool
    """SEQ4_STATUS_BACKCHANNEL_FAULT: the sender has lost track of a slot."""
    lapsed: bool
    """SEQ4_STATUS_CB_GSS_CONTEXTS_EXPIRED: the security context of callbacks is gone."""
    @property
    def connections(self) -> list[Connection]:
        """Those that are bound for callbacks."""

    @property
    def silent(self) -> set[Connection]:
        """Those of them on which the latest callback got no answer."""

    @property
    def up(self) -> bool:
        """Whether there is a connection that is not known to be dead."""

    @property
    def usable(self) -> bool:
        """Whether a callback is worth trying."""

class SessionRecord:
    """What every request in a session looks at: base of Session."""

    highest_slotid: int
    """sr_highest_slotid."""
    target_highest_slotid: int
    """sr_target_highest_slotid."""
    generation: int
    """Goes up whenever the target goes down."""
    tells: bool
    """Whether its client has ever told of fewer slots in use than it has."""
    wants_backchannel: bool
    """A backchannel was once granted: its absence is worth a status flag."""
    def __init__(self, sessionid: bytes, client: Client, fore: ChannelAttributes, backchannel: Backchannel) -> None: ...
    @property
    def sessionid(self) -> bytes: ...
    @property
    def client(self) -> Client: ...
    @property
    def fore(self) -> ChannelAttributes: ...
    @property
    def slots(self) -> list[Slot]: ...
    @property
    def retired(self) -> list[int]:
        """Sequence ids of slots that were given up, the lowest slot's last."""

    @property
    def connections(self) -> set[Connection]:
        """Connections bound to the fore channel."""

    @property
    def backchannel(self) -> Backchannel: ...
    def status_flags(self) -> int:
        """sr_status_flags now (RFC 8881 section 18.46.3)."""

class StateEntry:
    """What one stateid names: base of OpenState, LockState and, in Python, of what is less hot."""

    def __init__(self, kind: int, other: bytes, client: Client, file: FileState) -> None: ...

    seqid: int
    status: int
    """NFS4_OK, or what its use raises: NFS4ERR_EXPIRED, NFS4ERR_ADMIN_REVOKED, NFS4ERR_DELEG_REVOKED."""
    @property
    def kind(self) -> int:
        """A StateKind."""

    @property
    def other(self) -> bytes: ...
    @property
    def client(self) -> Client: ...
    @property
    def file(self) -> FileState: ...
    @property
    def stateid(self) -> Stateid:
        """The current stateid4."""

    def bump(self) -> None:
        """Advance the seqid; zero is skipped (RFC 8881 section 8.2.2)."""

class OpenState(StateEntry):
    """One open owner's open of one file."""

    access: int
    deny: int
    combos: int
    """Bit ``access * 4 + deny`` for every (access, deny) it was opened with and that is still in effect."""
    opened: Any
    """For the layer above (its descriptors); starts as None, handed to ``on_release`` when the open goes away."""
    def __init__(self, other: bytes, client: Client, file: FileState, owner: OpenOwner) -> None: ...
    @property
    def owner(self) -> OpenOwner: ...
    @property
    def lock_states(self) -> dict[LockOwner, LockState]: ...

class LockState(StateEntry):
    """One lock owner's locks under one open."""

    def __init__(
        self, other: bytes, client: Client, file: FileState, owner: LockOwner, open_state: OpenState
    ) -> None: ...
    @property
    def owner(self) -> LockOwner: ...
    @property
    def open_state(self) -> OpenState: ...

class Delegation(StateEntry):
    """One client's delegation of one file (RFC 8881 section 10.4)."""

    offered: bool
    """Not yet told to the client; see DelegationTable.settle."""
    unwanted: bool
    """A conflict came while it was offered: it will not be given."""
    disclaimed: bool
    """Its client said last that it has none, when it was recalled."""
    recall_by: float | None
    """When it is revoked unless it has been returned; None: it is not being recalled."""
    opened: Any
    """For the layer above (its descriptors), handed to ``on_release`` when the delegation goes away."""
    lease: Any
    """For the layer above (the local lease that protects it), handed to ``on_release`` too."""
    referring: Any
    """For the layer above: the call whose reply gave it (RFC 8881 section 2.10.6.3)."""
    change: int | None
    """For the layer above: the change attribute the client holds the file at (section 10.4.3)."""
    times: tuple[tuple[int, int], tuple[int, int]] | None
    """Likewise: the file's access and modify time when the times were delegated, too (RFC 9754 section 5)."""
    handle: bytes
    """For the layer above: the filehandle the client knows the file by."""
    def __init__(self, other: bytes, client: Client, file: FileState, write: bool) -> None: ...
    @property
    def write(self) -> bool:
        """OPEN_DELEGATE_WRITE; otherwise OPEN_DELEGATE_READ."""
