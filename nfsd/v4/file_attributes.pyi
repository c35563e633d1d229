"""GETATTR, SETATTR and ACCESS of NFSv4. Implemented in ``file_attributes.pyx``."""

from nfsd.v4.data import Nfs4Data

class Nfs4Attributes(Nfs4Data):
    """Names, opens, locks and data too, and attributes; of use to native code only."""
