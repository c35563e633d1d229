"""OPEN of NFSv4. Implemented in ``opens.pyx``."""

from nfsd.v4.direct_moves import DirectMoves

class Opening:
    """The rest of an OPEN whose file has been found or made; of use to native code only."""

class Nfs4Opens(DirectMoves):
    """Names and attributes too, and OPEN; of use to native code only."""
