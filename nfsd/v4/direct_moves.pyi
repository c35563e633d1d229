"""SAVEFH and RESTOREFH in native COMPOUNDs. Implemented in ``direct_moves.pyx``."""

from nfsd.v4.name_changes import NameChanges

class DirectMoves(NameChanges):
    """What makes files too, and what remembers them; of use to native code only."""
