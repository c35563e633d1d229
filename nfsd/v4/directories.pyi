"""READDIR in native COMPOUNDs. Implemented in ``directories.pyx``."""

from nfsd.v4.file_attributes import Nfs4Attributes

class Nfs4Directories(Nfs4Attributes):
    """Attributes too, and READDIR; of use to native code only."""
