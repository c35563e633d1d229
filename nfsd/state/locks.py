"""Byte-range locks (RFC 8881 sections 9.1 to 9.6, 18.10 to 18.12; RFC 7530 sections 9.3, 9.4, 16.10 to 16.12, 16.37).

Offsets are 64-bit, a length of 2**64-1 reaches to the end of the file. What must be held towards local processes is the
union of all owners' ranges; the layer above sets and clears it, under the file's gate, as told here.
"""

from __future__ import annotations

from nfsd.state.clients import Client
from nfsd.state.errors import LockDenied
from nfsd.state.opens import FileState, OpenState, SeqidOwner
from nfsd.state.stateids import StateEntry
from nfsd.state.types import LocalRange, Stateid


class LockOwner(SeqidOwner):
    """Who locks: one owner string of one client."""


class LockState(StateEntry):
    """One lock owner's locks under one open."""

    owner: LockOwner
    open_state: OpenState


class LockPlan:
    """A lock that conflicts with no NFS client's and is reserved; commit or abort exactly once."""

    local: LocalRange | None
    """What to set locally before ``commit``; None when the union holds it already."""

    def commit(self) -> Stateid:
        """Grant it; returns the lock stateid. Raises EXPIRED, BAD_STATEID when client or open went away meanwhile (its
        local range is then among ``local_clears``)."""
        raise NotImplementedError

    def abort(self) -> None:
        """A local process is in the way: nothing has happened."""
        raise NotImplementedError


class LockTable:
    """All byte-range locks."""

    def lock_new(
        self,
        open_state: OpenState,
        owner: bytes,
        exclusive: bool,
        offset: int,
        length: int,
        *,
        reclaim: bool,
        wait: bool,
        lock_seqid: int = 0,
    ) -> LockPlan:
        """LOCK with open_to_lock_owner4. ``wait``: READW_LT or WRITEW_LT (a denied one joins the file's queue).
        Raises LockDenied, INVAL, OPENMODE, GRACE, NO_GRACE, RECLAIM_BAD, RECLAIM_CONFLICT, BAD_SEQID, DELAY."""
        raise NotImplementedError

    def lock(
        self, state: LockState, exclusive: bool, offset: int, length: int, *, reclaim: bool, wait: bool
    ) -> LockPlan:
        """LOCK with exist_lock_owner4. Raises as ``lock_new``."""
        raise NotImplementedError

    def test(self, client: Client, owner: bytes, file_key: bytes, exclusive: bool, offset: int, length: int) -> None:
        """LOCKT against NFS clients' locks (ask test_local_lock after). Raises LockDenied, INVAL, GRACE."""
        raise NotImplementedError

    def unlock(self, state: LockState, offset: int, length: int) -> Stateid:
        """LOCKU; then clear ``local_clears(state.file)``. Raises INVAL."""
        raise NotImplementedError

    def local_clears(self, file: FileState) -> list[LocalRange]:
        """What is held locally without need; to be cleared now, under the file's gate. Each range is told once."""
        raise NotImplementedError

    def release_lockowner(self, client: Client, owner: bytes) -> None:
        """v4.0 RELEASE_LOCKOWNER. Raises LOCKS_HELD."""
        raise NotImplementedError


__all__ = ["LockDenied", "LockOwner", "LockPlan", "LockState", "LockTable"]
