"""SAVEFH and RESTOREFH in native COMPOUNDs. Implemented in ``direct_moves.pyx``."""

from nfsd.v4.direct_creates import DirectCreates

class DirectMoves(DirectCreates):
    """What makes files too, and what remembers them; of use to native code only."""
