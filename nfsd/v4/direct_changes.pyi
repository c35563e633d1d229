from nfsd.v4.direct_opens import DirectOpens

class DirectChanges(DirectOpens):
    """OPEN and CLOSE too, and what changes names and attributes. Implemented in ``direct_changes.pyx``."""
