"""What the current file is: PUTFH, GETFH, LOOKUP, SAVEFH, RESTOREFH, and RENEW. Implemented in ``filehandles.pyx``."""

from nfsd.v4.file_attributes import Nfs4Attributes

class FileHandles(Nfs4Attributes):
    """Attributes too, and what the current file is; of use to native code only."""
