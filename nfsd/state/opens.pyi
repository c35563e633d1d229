from typing import Self

from nfsd.state.clients import Client
from nfsd.state.engine import StateEngine
from nfsd.state.errors import Nfs4Error
from nfsd.state.files import FileState
from nfsd.state.owners import OpenOwner, SeqidOwner
from nfsd.state.records import OpenState
from nfsd.state.types import SeqidReplay, Stateid

class OpenReservation:
    """A share reservation that holds while the file is being opened; commit or abort exactly once. As a context
    manager it aborts unless it was committed."""

    def __init__(self, table: OpenTable, owner: OpenOwner, file: FileState, access: int, deny: int) -> None: ...
    @property
    def owner(self) -> OpenOwner: ...
    @property
    def file(self) -> FileState: ...
    @property
    def access(self) -> int: ...
    @property
    def deny(self) -> int: ...
    def commit(self) -> OpenState:
        """Grant it: the new or upgraded open, its seqid advanced. Raises EXPIRED if the client went away meanwhile."""

    def abort(self) -> None:
        """Take it back. Harmless after ``commit``."""

    def take(self) -> bool:
        """Whether this is the first end of the reservation (for the table)."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...

class OpenTable:
    """All opens of all files."""

    def __init__(self, engine: StateEngine) -> None: ...
    @property
    def _files(self) -> dict[bytes, FileState]: ...
    @property
    def _idle(self) -> dict[OpenOwner, float]: ...
    def file(self, key: bytes) -> FileState | None:
        """What is known of a file, if anything is."""

    def make_file(self, key: bytes) -> FileState:
        """What is known of a file; something is from now on, until ``drop_if_idle`` finds it idle."""

    def drop_if_idle(self, file: FileState) -> None:
        """Forget a file nothing is known of any more. One whose gate is held stays for now: the next to open it must
        meet the same gate, behind which local locks may still be on their way out."""

    def sweep_files(self) -> None:
        """Forget files that lingered for their gate."""

    def check_claim(self, client: Client, reclaim: bool, held: bool = False) -> None:
        """Whether an OPEN may go ahead under grace rules; to be asked before anything is created. ``held``: it claims
        what a delegation covers. Raises GRACE, NO_GRACE."""

    def owner(self, client: Client, owner: bytes) -> OpenOwner:
        """v4.1: the owner, made if need be. Raises NOSPC at limits."""

    def begin40(self, client: Client, owner: bytes, seqid: int) -> tuple[OpenOwner, SeqidReplay | None]:
        """v4.0 OPEN: the owner, made if need be, with its seqid begun. An unconfirmed owner that opens again
        starts over. Raises BAD_SEQID, DELAY, RESOURCE."""

    def begin_seqid(self, other: bytes, seqid: int) -> tuple[SeqidOwner, SeqidReplay | None]:
        """v4.0 CLOSE, OPEN_DOWNGRADE, OPEN_CONFIRM, LOCK, LOCKU: the owner behind the stateid (a just-closed one too),
        with its seqid begun. Raises as StateidTable.find without OLD_STATEID, and as ``begin``."""

    def _new_owner(self, client: Client, owner: bytes) -> OpenOwner: ...
    def refusal(self, client: Client, owner: bytes) -> Nfs4Error | None:
        """Why an OPEN of a file that no open of the client's is of would be refused at limits: to be asked before one
        is made for it."""

    def forget_owner(self, owner: OpenOwner) -> None:
        """Take an owner without opens out of the tables."""

    def sweep_owners(self, before: float) -> None:
        """Forget owners without opens that have been idle since ``before`` (RFC 7530 section 9.1.10)."""

    def reserve(
        self, owner: OpenOwner, file_key: bytes, access: int, deny: int, *, reclaim: bool, changes: bool = False
    ) -> OpenReservation:
        """Reserve access (OPEN4_SHARE_ACCESS_*, want bits stripped) and deny on a file. ``changes``: the OPEN changes
        the file whatever the access. Raises SHARE_DENIED, INVAL, DelegationConflict (another client's delegation, now
        being recalled), RECLAIM_CONFLICT, NOSPC or RESOURCE at limits, and as ``check_claim``."""

    def grant(self, reservation: OpenReservation) -> OpenState:
        """See OpenReservation.commit."""

    def withdraw(self, reservation: OpenReservation) -> None:
        """See OpenReservation.abort."""

    def confirm(self, state: OpenState) -> Stateid:
        """v4.0 OPEN_CONFIRM. Raises BAD_STATEID when already confirmed."""

    def downgrade(self, state: OpenState, access: int, deny: int) -> Stateid:
        """OPEN_DOWNGRADE. Raises INVAL unless the union of some of its OPENs is exactly this."""

    def close(self, state: OpenState) -> Stateid:
        """CLOSE: the open and the locks under it go. Returns the stateid to answer with. Afterwards
        ``LockTable.local_clears(state.file)`` says what to give up locally. Raises BAD_STATEID when another CLOSE came
        first."""

    def release(self, state: OpenState) -> None:
        """Take an open and everything under it out of the tables (CLOSE, expiry…)."""

    def check_anonymous(self, file_key: bytes, *, write: bool) -> None:
        """I/O under a special stateid: against share denies, and not in the grace period, since an open that denies it
        may yet be reclaimed (RFC 8881 section 8.4.2). Raises LOCKED, GRACE."""
