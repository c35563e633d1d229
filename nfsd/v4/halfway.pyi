"""COMPOUNDs that stand between two operations. Implemented in ``halfway.pyx``."""

from nfsd.state.clients import Client
from nfsd.state.records import Slot
from nfsd.state.sessions import Session
from nfsd.state.types import StateidLike
from nfsd.v4.compound import Compound
from nfsd.v4.pseudofs import PseudoNode
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
    pseudo: PseudoNode | None
    """A place in the pseudo file system, instead of the current file."""
    foreign: int
    """What is wrong with the current file's handle, where that is not said before it is used; otherwise 0."""
    stateid: StateidLike | None
    """The current stateid, if there is one."""
    saved: Node | None
    """By SAVEFH."""
    saved_pseudo: PseudoNode | None
    saved_foreign: int
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
    driven: bool
    """Whether the COMPOUND is :mod:`nfsd.v4.compound`'s, which has the slot and the results before ``base``."""
    alone: bool
    """Whether the operation to go on with is the only one that is to be carried out so."""
    base: int
    """The first operation whose result is in ``results``."""
    elsewhere: int
    """Octets of the reply that are not in ``results``."""
    number: int
    """Of the last operation."""
    room: int
    """Octets that the reply may have in all."""
    shown: int
    """The operation that the COMPOUND is about so far."""
    tally: Tally | None

    def give_back(self) -> None:
        """Nobody has gone on, and nothing is answered: if nothing has changed, the request may begin anew."""
    def take_slot(self) -> Slot | None:
        """The slot, which is to be finished by who takes it."""

def stretch_of(compound: Compound, offset: int, alone: bool) -> Halfway:
    """A COMPOUND as it stands in Python, for its next operations to be carried out natively: the one at ``offset`` of its
    arguments, and if it is not to be ``alone`` those behind it."""
