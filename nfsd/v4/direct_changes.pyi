"""SETATTR in native COMPOUNDs. Implemented in ``direct_changes.pyx``."""

from nfsd.v4.direct_opens import DirectOpens

class DirectChanges(DirectOpens):
    """OPEN and CLOSE too, and what changes attributes; of use to native code only."""
