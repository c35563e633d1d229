"""LOCK and LOCKU in native COMPOUNDs. Implemented in ``direct_locks.pyx``."""

from nfsd.v4.direct_moves import DirectMoves

class DirectLocks(DirectMoves):
    """Names, attributes and opens too, and byte-range locks; of use to native code only."""
