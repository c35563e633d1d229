"""Stateids: what they name, whether they are current, and what they allow.

Owns the layout of ``other``: boot epoch, the client's tag, and what is the stateid's own,
4 octets each. The last two are random: in v4.0 a stateid is all that tells whose it is, so nobody may guess one.
RFC 8881 section 8.2, 18.38, 18.48; RFC 7530 section 9.1.4.
"""

from __future__ import annotations

import enum
import struct
from typing import TYPE_CHECKING

from nfsd.protocol import nfs4 as codes
from nfsd.state.copies import CopyState
from nfsd.state.entries import StateEntries
from nfsd.state.errors import Nfs4Error
from nfsd.state.records import Delegation, LockState, OpenState, StateEntry
from nfsd.state.types import UINT32_MAX, StateidLike

if TYPE_CHECKING:
    from nfsd.state.clients import Client
    from nfsd.state.engine import StateEngine

_ZEROS = bytes(12)
_ONES = b"\xff" * 12
_EPOCH = struct.Struct(">I")


class StateKind(enum.IntEnum):
    """What a stateid stands for."""

    OPEN = 1
    LOCK = 2
    DELEGATION = 3
    LAYOUT = 4
    COPY = 5


class StateidTable(StateEntries):
    """All stateids.

    ``client`` is the session's client in v4.1 and later, None in v4.0 (then the stateid itself tells the client, whose
    lease is renewed, and another instance's stateid is STALE_STATEID instead of BAD_STATEID).
    """

    def __init__(self, engine: StateEngine) -> None:
        super().__init__(_EPOCH.pack(engine.epoch), engine.random)
        self._engine = engine

    # -- lookups -------------------------------------------------------------------------------------------------
    def locate(self, other: bytes, client: Client | None) -> StateEntry:
        """The entry whatever its seqid and status. Raises BAD_STATEID, STALE_STATEID, EXPIRED."""
        entry = self.entries.get(other)
        if entry is None:
            raise self._missing(other, client)
        if client is None:
            if entry.client.minor:
                raise Nfs4Error(codes.NFS4ERR_BAD_STATEID, "a stateid of another minor version")
            entry.client.renew()
        elif entry.client is not client:
            raise Nfs4Error(codes.NFS4ERR_BAD_STATEID, "a stateid of another client")
        return entry

    def find(self, stateid: StateidLike, client: Client | None) -> StateEntry:
        """The entry, its seqid checked. Raises BAD_STATEID, OLD_STATEID, STALE_STATEID, EXPIRED, ADMIN_REVOKED,
        DELEG_REVOKED. Special stateids are BAD_STATEID here."""
        entry = self.locate(stateid.other, client)
        if entry.status:
            raise Nfs4Error(entry.status)
        seqid = stateid.seqid
        if seqid == entry.seqid or (seqid == 0 and client is not None):
            return entry  # zero means "the current one" in v4.1 (RFC 8881 section 8.2.2)
        raise Nfs4Error(_seqid_error(seqid, entry.seqid))

    def find_open(self, stateid: StateidLike, client: Client | None, file_key: bytes) -> OpenState:
        """As ``find``, for CLOSE, OPEN_DOWNGRADE, OPEN_CONFIRM, LOCK of a new lock owner: BAD_STATEID too when it is no
        open or of another file."""
        entry = self.find(stateid, client)
        if not isinstance(entry, OpenState) or entry.file.key != file_key:
            raise Nfs4Error(codes.NFS4ERR_BAD_STATEID, "not an open of this file")
        return entry

    def find_lock(self, stateid: StateidLike, client: Client | None, file_key: bytes) -> LockState:
        """As ``find``, for LOCKU and LOCK of an existing lock owner."""
        entry = self.find(stateid, client)
        if not isinstance(entry, LockState) or entry.file.key != file_key:
            raise Nfs4Error(codes.NFS4ERR_BAD_STATEID, "not a lock of this file")
        return entry

    def check_io(
        self, stateid: StateidLike, client: Client | None, file_key: bytes, *, write: bool
    ) -> OpenState | Delegation | None:
        """The stateid of READ, WRITE, SETATTR (size), SEEK, ALLOCATE…: returns the open it rests on or the delegation
        it names (both have ``opened``), or None for a
        special stateid that may pass (access is then the caller's; a READ bypass counts as anonymous for
        ``write``). Raises, besides those of ``find``: OPENMODE, LOCKED (a share deny against it), GRACE."""
        other = stateid.other
        if other == _ZEROS and stateid.seqid == 0:
            self._engine.opens.check_anonymous(file_key, write=write)
            return None
        if other == _ONES and stateid.seqid == UINT32_MAX:
            if write:
                self._engine.opens.check_anonymous(file_key, write=True)
            return None
        entry = self.find(stateid, client)
        if isinstance(entry, OpenState):
            opened = entry
        elif isinstance(entry, LockState):
            opened = entry.open_state
        elif isinstance(entry, Delegation):
            if entry.file.key != file_key:
                raise Nfs4Error(codes.NFS4ERR_BAD_STATEID, "a stateid of another file")
            if write and not entry.write:
                raise Nfs4Error(codes.NFS4ERR_OPENMODE)
            return entry
        else:
            raise Nfs4Error(codes.NFS4ERR_BAD_STATEID)
        if entry.file.key != file_key:
            raise Nfs4Error(codes.NFS4ERR_BAD_STATEID, "a stateid of another file")
        if not opened.owner.confirmed:
            # RFC 7530 section 16.18.5: an open not yet confirmed is good for OPEN_CONFIRM only.
            raise Nfs4Error(codes.NFS4ERR_BAD_STATEID, "an open not yet confirmed")
        # Reading under a write-only open is allowed (RFC 8881 section 9.1.2): clients fill partial pages that way.
        if write and not opened.access & codes.OPEN4_SHARE_ACCESS_WRITE:
            raise Nfs4Error(codes.NFS4ERR_OPENMODE)
        return opened

    # -- operations ----------------------------------------------------------------------------------------------
    def test(self, stateid: StateidLike, client: Client) -> int:
        """TEST_STATEID of one stateid: its status. Never raises."""
        try:
            self.find(stateid, client)
        except Nfs4Error as error:
            return error.status
        return codes.NFS4_OK

    def free(self, stateid: StateidLike, client: Client) -> None:
        """FREE_STATEID. Raises BAD_STATEID, OLD_STATEID, LOCKS_HELD (an open, a copy under way…)."""
        entry = self.locate(stateid.other, client)
        if stateid.seqid not in (0, entry.seqid):
            raise Nfs4Error(_seqid_error(stateid.seqid, entry.seqid))
        if entry.status:
            self._engine.drop_revoked(entry)
        elif isinstance(entry, LockState):
            self._engine.locks.free(entry)
        elif isinstance(entry, CopyState) and entry.result is not None:
            self._engine.copies.release(entry)
        else:
            raise Nfs4Error(codes.NFS4ERR_LOCKS_HELD)

    # -- inside --------------------------------------------------------------------------------------------------
    def _missing(self, other: bytes, client: Client | None) -> Nfs4Error:
        """Why there is no such stateid (RFC 7530 section 9.1.4.4; v4.1 knows only BAD_STATEID, RFC 8881 8.2.4)."""
        if client is not None or len(other) != 12 or other in (_ZEROS, _ONES):
            return Nfs4Error(codes.NFS4ERR_BAD_STATEID)
        if other[:4] != self._epoch:
            return Nfs4Error(codes.NFS4ERR_STALE_STATEID)
        owner = self._engine.clients.tagged(other[4:8])
        if owner is None and self._engine.clients.was_issued(other[4:8]):
            return Nfs4Error(codes.NFS4ERR_EXPIRED)
        if owner is not None and owner.minor == 0:
            owner.renew()
        return Nfs4Error(codes.NFS4ERR_BAD_STATEID)


def _seqid_error(given: int, current: int) -> int:
    """A seqid ahead of ours was never given out; one behind is outdated (RFC 8881 section 8.2.4, wrapping)."""
    ahead = (given - current) & UINT32_MAX
    return codes.NFS4ERR_BAD_STATEID if given == 0 or ahead < 0x80000000 else codes.NFS4ERR_OLD_STATEID
