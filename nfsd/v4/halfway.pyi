"""COMPOUNDs that change hands. Implemented in ``halfway.pyx``."""

from nfsd.state.records import Slot
from nfsd.state.sessions import Session
from nfsd.vfs.records import Node
from rpcrdma.rpc.tally import Tally

class Halfway:
    """What the native operations of a COMPOUND have done, for those that go on."""

    index: int
    """The operation to go on with."""
    offset: int
    """Where its number stands in the COMPOUND's arguments."""
    results: bytes
    """COMPOUND4res so far."""
    current: Node | None
    saved: Node | None
    session: Session | None
    """None in NFSv4.0."""
    sequence: tuple[bytes, int, int, int, bool]
    """SEQUENCE4args, if there is a session."""
    room: int
    """Octets that the reply may have in all."""
    changed: bool
    """Whether something has changed."""
    shown: int
    """The operation that the COMPOUND is about so far."""
    tally: Tally | None

    def take_slot(self) -> Slot | None:
        """The slot, which is to be finished by who takes it."""
