"""SETATTR in native COMPOUNDs. Implemented in ``changes.pyx``."""

from nfsd.v4.owners import Nfs4Owners

class Nfs4Changes(Nfs4Owners):
    """OPEN and CLOSE too, and what changes attributes; of use to native code only."""
