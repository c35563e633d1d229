"""READ, WRITE and COMMIT of NFSv4. Implemented in ``data.pyx``."""

from nfsd.v4.direct_locks import DirectLocks

class Nfs4Data(DirectLocks):
    """Names, attributes, opens and locks too, and data; of use to native code only."""
