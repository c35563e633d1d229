"""READ, WRITE and COMMIT of NFSv4. Implemented in ``data.pyx``."""

from nfsd.v4.locks import Nfs4Locks

class Nfs4Data(Nfs4Locks):
    """Names, attributes, opens and locks too, and data; of use to native code only."""
