"""DELEGRETURN and GET_DIR_DELEGATION in native COMPOUNDs. Implemented in ``delegations.pyx``."""

from nfsd.v4.opens import Nfs4Opens

class Nfs4Delegations(Nfs4Opens):
    """Names, attributes and opens too, and delegations; of use to native code only."""
