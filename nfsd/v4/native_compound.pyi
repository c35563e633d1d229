"""COMPOUND and SEQUENCE in native code. Implemented in ``native_compound.pyx``."""

from nfsd.v4.server import Nfs4Server
from nfsd.v4.under_way import UnderWay

class NativeCompound(UnderWay):
    """COMPOUNDs that do not wait, without their operations; of use to native code only."""

    def __init__(self, server: Nfs4Server) -> None: ...
