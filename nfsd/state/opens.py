"""Opens and share reservations.

RFC 8881 sections 9.7 to 9.11, 18.2, 18.16, 18.18; RFC 7530 sections 9.1.7, 9.9, 16.2, 16.16 to 16.19.
"""

from __future__ import annotations

from typing import Any

from nfsd.state.clients import Client
from nfsd.state.stateids import StateEntry
from nfsd.state.types import SeqidReplay, Stateid, StateidLike


class SeqidOwner:
    """An open owner or lock owner; in v4.0 its operations are ordered by seqid (RFC 7530 section 9.1.7).

    Within a compound: ``replay = owner.begin(seqid)``; if it is not None, give that result again; else do the operation
    and always call ``owner.finish`` (success or failure). Between begin and finish the owner is busy.
    """

    client: Client
    owner: bytes
    gate: Any
    """For the layer above (its queue, e.g. an asyncio.Lock); starts as None."""

    def begin(self, seqid: int) -> SeqidReplay | None:
        """None: a new operation. Raises BAD_SEQID; DELAY while another is between begin and finish."""
        raise NotImplementedError

    def finish(self, status: int, result: bytes, filehandle: bytes | None = None) -> None:
        """Record the result; the seqid advances unless ``status`` is one that must not advance it."""
        raise NotImplementedError


class OpenOwner(SeqidOwner):
    """Who opens: one owner string of one client."""

    confirmed: bool
    """v4.0: OPEN_CONFIRM has been done (new owners need OPEN4_RESULT_CONFIRM). Always true in v4.1."""


class FileState:
    """Everything the engine knows of one file; exists while somebody holds state on it."""

    key: bytes
    gate: Any
    """For the layer above: one lock per file around lock plans and local locks; starts as None."""
    node: Any
    """For the layer above: what reaches the file when local locks must be cleared later; starts as None."""


class OpenState(StateEntry):
    """One open owner's open of one file."""

    owner: OpenOwner
    access: int
    deny: int
    opened: Any
    """For the layer above (its descriptors); starts as None. ``StateEngine.on_release`` is called when it goes away."""


class OpenReservation:
    """A share reservation that holds while the file is being opened; commit or abort exactly once."""

    file: FileState
    existing: OpenState | None
    """The owner's open that this one upgrades, if there is one."""

    def commit(self) -> OpenState:
        """Grant it: the new or upgraded open, its seqid advanced. Raises EXPIRED if the client went away meanwhile."""
        raise NotImplementedError

    def abort(self) -> None:
        """Take it back."""
        raise NotImplementedError


class OpenTable:
    """All opens of all files."""

    def check_claim(self, client: Client, *, reclaim: bool) -> None:
        """Whether an OPEN may go ahead under grace rules; to be asked before anything is created. Raises GRACE,
        NO_GRACE, RECLAIM_BAD."""
        raise NotImplementedError

    def owner(self, client: Client, owner: bytes) -> OpenOwner:
        """v4.1: the owner, made if need be. Raises RESOURCE→DELAY at limits."""
        raise NotImplementedError

    def begin40(self, client: Client, owner: bytes, seqid: int) -> tuple[OpenOwner, SeqidReplay | None]:
        """v4.0 OPEN: the owner, made if need be, with its seqid begun. An unconfirmed owner that opens again
        starts over."""
        raise NotImplementedError

    def begin_seqid(self, stateid: StateidLike, seqid: int) -> tuple[SeqidOwner, SeqidReplay | None]:
        """v4.0 CLOSE, OPEN_DOWNGRADE, OPEN_CONFIRM, LOCK, LOCKU: the owner behind the stateid (a just-closed one too),
        with its seqid begun. Raises as StateidTable.find without OLD_STATEID, and as ``begin``."""
        raise NotImplementedError

    def reserve(self, owner: OpenOwner, file_key: bytes, access: int, deny: int, *, reclaim: bool) -> OpenReservation:
        """Reserve access (OPEN4_SHARE_ACCESS_*, want bits stripped) and deny on a file. Raises SHARE_DENIED, INVAL,
        RECLAIM_CONFLICT, DELAY at limits, and as ``check_claim``."""
        raise NotImplementedError

    def confirm(self, state: OpenState) -> Stateid:
        """v4.0 OPEN_CONFIRM. Raises BAD_STATEID when already confirmed."""
        raise NotImplementedError

    def downgrade(self, state: OpenState, access: int, deny: int) -> Stateid:
        """OPEN_DOWNGRADE. Raises INVAL unless the union of some of its OPENs is exactly this."""
        raise NotImplementedError

    def close(self, state: OpenState) -> Stateid:
        """CLOSE: the open and the locks under it go. Returns the stateid to answer with. Afterwards
        ``LockTable.local_clears(state.file)`` says what to give up locally."""
        raise NotImplementedError
