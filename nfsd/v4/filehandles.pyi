"""What the current file is: PUTFH, GETFH, LOOKUP, SAVEFH, RESTOREFH, and RENEW. Implemented in ``filehandles.pyx``."""

from nfsd.v4.directories import Nfs4Directories

class FileHandles(Nfs4Directories):
    """Attributes and directories too, and what the current file is; of use to native code only."""
