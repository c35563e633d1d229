"""How delegations are given and go. Implemented in ``delegating.pyx``."""

from collections.abc import Callable

from nfsd.protocol import nfs4 as codes
from nfsd.state.clients import Client
from nfsd.state.engine import StateEngine
from nfsd.state.files import FileState
from nfsd.state.records import Delegation

Why = codes.why_no_delegation4

class Delegating:
    """What is done to the tables when a delegation is given, and when it goes."""

    _engine: StateEngine
    _holds: dict[bytes, int]
    _paused: dict[bytes, float]
    _recalling: dict[Delegation, None]
    _to_recall: dict[Delegation, None]
    on_gone: Callable[[Delegation], None]
    """Called when a delegation has left the tables, however; must not call back into the engine."""

    def __init__(self, engine: StateEngine) -> None: ...
    @property
    def count(self) -> int:
        """Delegations now, revoked ones not among them."""

    @property
    def granted(self) -> int:
        """Given so far, of files."""

    @property
    def granted_directories(self) -> int:
        """Likewise, of directories."""

    @property
    def reclaimed(self) -> int:
        """Of these, given back after a restart of the server."""

    @property
    def returned(self) -> int:
        """DELEGRETURNs so far."""

    def offer(self, client: Client, file_key: bytes, write: bool, reclaim: bool = False) -> Delegation | Why:
        """A delegation for the client, or why there is none. ``reclaim``: the client had it before the restart, so
        only a conflict stands against it (RFC 8881 section 10.2.1)."""

    def refusal(self, client: Client, file_key: bytes, write: bool, reclaim: bool = False) -> Why | None:
        """Why the client would not be given a delegation now; None: it would."""

    def settle(self, delegation: Delegation, directory: bool = False) -> bool:
        """What was offered is to be told to the client now: whether it may. If not, it is gone."""

    def holds(self, delegation: Delegation) -> bool:
        """Whether the delegation is in force: not returned, revoked or lost with its client."""

    def held_by(self, client: Client, file_key: bytes) -> Delegation | None:
        """The client's delegation of a file."""

    def writing(self, file: FileState) -> Delegation | None:
        """The file's write delegation, beside which there is no other."""

    def give_back(self, delegation: Delegation) -> None:
        """DELEGRETURN."""

    def release(self, delegation: Delegation) -> None:
        """Take a delegation out of the tables (return, expiry, revocation…). Harmless when it is out."""
