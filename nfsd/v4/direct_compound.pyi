"""COMPOUND and SEQUENCE in native code. Implemented in ``direct_compound.pyx``."""

from nfsd.v4.server import Nfs4Server
from rpcrdma.rpc.direct import DirectProgram

def unguarded(arguments: memoryview) -> bool:
    """Whether nothing but the RPC replay cache protects what a COMPOUND does: it is of NFSv4.0, and not all its operations
    are common ones that change nothing."""

class DirectCompound(DirectProgram):
    """COMPOUNDs that do not wait, without their operations; of use to native code only."""

    def __init__(self, server: Nfs4Server) -> None: ...
