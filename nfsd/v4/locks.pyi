"""LOCK and LOCKU in native COMPOUNDs. Implemented in ``locks.pyx``."""

from nfsd.v4.opens import Nfs4Opens

class Nfs4Locks(Nfs4Opens):
    """Names, attributes and opens too, and byte-range locks; of use to native code only."""
