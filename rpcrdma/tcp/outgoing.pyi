"""What a record stream has to send. Implemented in ``outgoing.pyx``; of use to native code only."""

class Outgoing:
    """A queue of pieces of records."""
