"""COMPOUNDs that stand between two operations. Implemented in ``halfway.pyx``."""

class Halfway:
    """What the operations of a COMPOUND have done, for those that go on."""

    index: int
    """The operation to go on with."""
    results: bytes
    """COMPOUND4res so far."""
    changed: bool
    """Whether it is to be carried through: an operation that may change something has been carried out, or goes on by
    itself."""

    def give_back(self) -> None:
        """Nobody has gone on, and nothing is answered: if nothing has changed, the request may begin anew."""
