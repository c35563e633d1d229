"""Open owners and lock owners, and the seqid order of their v4.0 operations (RFC 7530 section 9.1.7).

Imports the records' types and codes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nfsd.protocol import nfs4 as codes
from nfsd.state.errors import Nfs4Error
from nfsd.state.types import UINT32_MAX, SeqidReplay

if TYPE_CHECKING:
    from nfsd.state.clients import Client
    from nfsd.state.files import FileState
    from nfsd.state.records import LockState, OpenState

SEQID_KEEPING = frozenset(
    (
        codes.NFS4ERR_STALE_CLIENTID,
        codes.NFS4ERR_STALE_STATEID,
        codes.NFS4ERR_BAD_STATEID,
        codes.NFS4ERR_BAD_SEQID,
        codes.NFS4ERR_BADXDR,
        codes.NFS4ERR_RESOURCE,
        codes.NFS4ERR_NOFILEHANDLE,
        codes.NFS4ERR_MOVED,
    )
)
"""The errors that leave an owner's seqid where it was (RFC 7530 section 9.1.7)."""


class SeqidOwner:
    """An open owner or lock owner; in v4.0 its operations are ordered by seqid.

    Within a compound: ``replay = owner.begin(seqid)``; if it is not None, give that result again; else do the operation
    and always call ``owner.finish`` (success or failure; ``abandon`` when there is no result). In between it is busy.
    """

    __slots__ = ("busy", "client", "gate", "last_closed", "owner", "pending_seqid", "replay", "seqid")

    def __init__(self, client: Client, owner: bytes) -> None:
        self.client = client
        self.owner = owner
        self.gate: Any = None
        """For the layer above (its queue, e.g. an asyncio.Lock)."""
        self.seqid: int | None = None
        """The last one accepted; None before the first."""
        self.pending_seqid = 0
        self.busy = False
        self.replay: SeqidReplay | None = None
        self.last_closed: bytes | None = None
        """The stateid of the CLOSE that may still be replayed."""

    def begin(self, seqid: int) -> SeqidReplay | None:
        """None: a new operation, to be followed by ``finish``. Raises BAD_SEQID; DELAY while another is between begin
        and finish."""
        if self.busy:
            raise Nfs4Error(codes.NFS4ERR_DELAY, "the owner's operation before is still executing")
        if self.seqid is not None:
            if seqid == self.seqid and self.replay is not None:
                return self.replay
            if seqid != (self.seqid + 1) & UINT32_MAX:
                raise Nfs4Error(codes.NFS4ERR_BAD_SEQID)
        self.busy = True
        self.pending_seqid = seqid
        return None

    def finish(self, status: int, result: bytes, filehandle: bytes | None = None) -> None:
        """Record the result; the seqid advances unless ``status`` is one that must not advance it."""
        self.busy = False
        if status in SEQID_KEEPING:
            return
        self.seqid = self.pending_seqid
        # A longer result than any of these operations has would be the layer above's mistake; keep the bound anyway.
        limit = self.client.engine.limits.seqid_reply_octets
        self.replay = SeqidReplay(status, result, filehandle) if len(result) <= limit else None

    def abandon(self) -> None:
        """The operation was cut off without a result: it is as if it had not been sent."""
        self.busy = False


class OpenOwner(SeqidOwner):
    """Who opens: one owner string of one client."""

    __slots__ = ("confirmed", "pending", "states")

    def __init__(self, client: Client, owner: bytes, *, confirmed: bool) -> None:
        super().__init__(client, owner)
        self.confirmed = confirmed
        """v4.0: OPEN_CONFIRM has been done (new owners need OPEN4_RESULT_CONFIRM). Always true in v4.1."""
        self.states: dict[bytes, OpenState] = {}
        """Opens by file key."""
        self.pending = 0
        """Reservations not yet committed."""


class LockOwner(SeqidOwner):
    """Who locks: one owner string of one client."""

    __slots__ = ("files", "states")

    def __init__(self, client: Client, owner: bytes) -> None:
        super().__init__(client, owner)
        self.states: set[LockState] = set()
        self.files: dict[FileState, int] = {}
        """How many of these there are on a file."""
