from typing import Any

from nfsd.state.clients import Client
from nfsd.state.files import FileState
from nfsd.state.records import LockState, OpenState
from nfsd.state.types import SeqidReplay

SEQID_KEEPING: frozenset[int]
"""The errors that leave an owner's seqid where it was (RFC 7530 section 9.1.7)."""

class SeqidOwner:
    """An open owner or lock owner; in v4.0 its operations are ordered by seqid.

    Within a compound: ``replay = owner.begin(seqid)``; if it is not None, give that result again; else do the operation
    and always call ``owner.finish`` (success or failure; ``abandon`` when there is no result). In between it is busy.
    """

    gate: Any
    """For the layer above (its queue, e.g. an asyncio.Lock)."""
    seqid: int | None
    """The last one accepted; None before the first."""
    last_closed: bytes | None
    """The stateid of the CLOSE that may still be replayed."""
    def __init__(self, client: Client, owner: bytes) -> None: ...
    @property
    def client(self) -> Client: ...
    @property
    def owner(self) -> bytes: ...
    @property
    def pending_seqid(self) -> int: ...
    @property
    def busy(self) -> bool: ...
    @property
    def replay(self) -> SeqidReplay | None: ...
    def begin(self, seqid: int) -> SeqidReplay | None:
        """None: a new operation, to be followed by ``finish``. Raises BAD_SEQID; DELAY while another is between begin
        and finish."""

    def finish(self, status: int, result: bytes, filehandle: bytes | None = None) -> None:
        """Record the result; the seqid advances unless ``status`` is one that must not advance it."""

    def abandon(self) -> None:
        """The operation was cut off without a result: it is as if it had not been sent."""

class OpenOwner(SeqidOwner):
    """Who opens: one owner string of one client."""

    confirmed: bool
    """v4.0: OPEN_CONFIRM has been done (new owners need OPEN4_RESULT_CONFIRM). Always true in v4.1."""
    pending: int
    """Reservations not yet committed."""
    def __init__(self, client: Client, owner: bytes, *, confirmed: bool) -> None: ...
    @property
    def states(self) -> dict[bytes, OpenState]:
        """Opens by file key."""

class LockOwner(SeqidOwner):
    """Who locks: one owner string of one client."""

    states: set[LockState]
    def __init__(self, client: Client, owner: bytes) -> None: ...
    @property
    def files(self) -> dict[FileState, int]:
        """How many of these there are on a file."""
