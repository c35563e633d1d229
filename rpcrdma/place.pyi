"""Where native code writes replies, and who writes them. Implemented in ``place.pyx``; of use to native code only."""

class Place:
    """Where one reply is written; transports derive theirs."""

class Answerer:
    """Who answers calls natively, in the stack in which they arrive."""
