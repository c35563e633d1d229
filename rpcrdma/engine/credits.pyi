"""Credits and the Receives that back them. Implemented in ``credits.pyx``."""

class Credits:
    """The ledger of one connection."""

    limit: int
    """Calls a peer may have outstanding when nothing is short."""
    target: int
    """Receives to keep posted."""
    unfinished_limit: int
    most: int
    """What the limit may become."""
    asked: int
    """What the peer's last call asks for."""
    taken: int
    """Calls since the limit was set."""
    posted: int
    outstanding: int
    """Messages received and not answered yet, those being read included."""
    unsent: int
    """Replies, errors and backward calls whose Send has not completed."""
    backward: int
    """Backward calls that await their reply."""

    def __init__(self, limit: int, backward_limit: int, posted: int, most: int = 0) -> None: ...
    def due(self) -> bool:
        """Whether the peer has used what it has and asks for more."""
    def grow(self) -> None:
        """Double the limit, up to ``most`` and to what is asked for; the Receives are to be posted then."""
    def shrink(self, limit: int) -> None:
        """Promise no more than ``limit`` from now on; more may stay posted until calls have taken it."""
    def wanted(self) -> int:
        """How many Receives are to be posted now."""
    def grant(self, apart: int = 1) -> int:
        """What a reply may grant; 0 when it must wait for a Receive to be posted. ``apart`` is what cannot be counted on:
        1 for the call that is answered, one of the ``outstanding``; 0 for one whose Receive is posted again first, and
        that has never been ``outstanding``; and whatever else was received that may turn out to be no call."""
    def can_call_back(self) -> bool:
        """Whether a backward call's reply would find a Receive that no grant of ours counts on."""
