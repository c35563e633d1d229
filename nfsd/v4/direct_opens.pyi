"""OPEN and CLOSE in native COMPOUNDs. Implemented in ``direct_opens.pyx``."""

from nfsd.v4.direct_compound import DirectCompound

class DirectOpens(DirectCompound):
    """COMPOUNDs with OPEN and CLOSE; of use to native code only."""
