"""Stateids: what they name, whether they are current, and what they allow (RFC 8881 section 8.2, RFC 7530 9.1.4)."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from nfsd.state.clients import Client
from nfsd.state.types import Stateid, StateidLike

if TYPE_CHECKING:
    from nfsd.state.locks import LockState
    from nfsd.state.opens import FileState, OpenState


class StateKind(enum.IntEnum):
    """What a stateid stands for."""

    OPEN = 1
    LOCK = 2
    DELEGATION = 3
    LAYOUT = 4


class StateEntry:
    """What one stateid names: base of OpenState and LockState (a Cython class)."""

    kind: int
    other: bytes
    seqid: int
    client: Client
    file: FileState

    @property
    def stateid(self) -> Stateid:
        """The current stateid."""
        raise NotImplementedError


class StateidTable:
    """All stateids.

    ``client`` is the session's client in v4.1 and later, None in v4.0 (then the stateid itself tells the client, whose
    lease is renewed, and another instance's stateid is STALE_STATEID instead of BAD_STATEID).
    """

    def find(self, stateid: StateidLike, client: Client | None) -> StateEntry:
        """The entry, its seqid checked. Raises BAD_STATEID, OLD_STATEID, STALE_STATEID, EXPIRED, ADMIN_REVOKED,
        DELEG_REVOKED. Special stateids are BAD_STATEID here."""
        raise NotImplementedError

    def find_open(self, stateid: StateidLike, client: Client | None, file_key: bytes) -> OpenState:
        """As ``find``, for CLOSE, OPEN_DOWNGRADE, OPEN_CONFIRM, LOCK of a new lock owner: BAD_STATEID too when it is no
        open or of another file."""
        raise NotImplementedError

    def find_lock(self, stateid: StateidLike, client: Client | None, file_key: bytes) -> LockState:
        """As ``find``, for LOCKU and LOCK of an existing lock owner."""
        raise NotImplementedError

    def check_io(
        self, stateid: StateidLike, client: Client | None, file_key: bytes, *, write: bool
    ) -> OpenState | None:
        """The stateid of READ, WRITE, SETATTR (size), SEEK, ALLOCATE…: returns the open it rests on, or None for a
        special stateid that may pass (access is then the caller's; a READ bypass counts as anonymous for
        ``write``). Raises, besides those of ``find``: OPENMODE, LOCKED (a share deny against it), GRACE."""
        raise NotImplementedError

    def test(self, stateid: StateidLike, client: Client) -> int:
        """TEST_STATEID of one stateid: its status. Never raises."""
        raise NotImplementedError

    def free(self, stateid: StateidLike, client: Client) -> None:
        """FREE_STATEID. Raises BAD_STATEID, OLD_STATEID, LOCKS_HELD."""
        raise NotImplementedError
