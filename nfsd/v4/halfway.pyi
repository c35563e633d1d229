"""COMPOUNDs that stand between two operations. Implemented in ``halfway.pyx``."""

from nfsd.state.clients import Client
from nfsd.state.records import Slot
from nfsd.state.sessions import Session
from nfsd.state.types import StateidLike
from nfsd.vfs.records import Node
from rpcrdma.rpc.tally import Tally

class Halfway:
    """What the operations of a COMPOUND have done, for those that go on."""

    index: int
    """The operation to go on with."""
    offset: int
    """Where its number stands in the COMPOUND's arguments."""
    results: bytes
    """COMPOUND4res so far."""
    failure: int
    """The last operation's status, if the COMPOUND ends with it."""
    current: Node | None
    stateid: StateidLike | None
    """The current stateid, if there is one."""
    saved: Node | None
    """By SAVEFH."""
    saved_stateid: StateidLike | None
    opened_by: Client | None
    """v4.0: the client whose OPEN is part of this COMPOUND; it does not know yet what it was given."""
    used: bool
    """Whether the data that an RDMA Read fetched have been used."""
    changed: bool
    """Whether an operation has been carried out that may change something."""
    session: Session | None
    """None in NFSv4.0."""
    sequence: tuple[bytes, int, int, int, bool]
    """SEQUENCE4args, if there is a session."""
    room: int
    """Octets that the reply may have in all."""
    shown: int
    """The operation that the COMPOUND is about so far."""
    tally: Tally | None

    def give_back(self) -> None:
        """Nobody has gone on, and nothing is answered: if nothing has changed, the request may begin anew."""
    def take_slot(self) -> Slot | None:
        """The slot, which is to be finished by who takes it."""
