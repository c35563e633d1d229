"""LOCK and LOCKU in native COMPOUNDs. Implemented in ``locks.pyx``."""

from nfsd.v4.delegations import Nfs4Delegations

class Nfs4Locks(Nfs4Delegations):
    """Names, attributes, opens and delegations too, and byte-range locks; of use to native code only."""
