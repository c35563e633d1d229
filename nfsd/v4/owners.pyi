"""OPEN and CLOSE in native COMPOUNDs. Implemented in ``owners.pyx``."""

from nfsd.v4.native_compound import NativeCompound

class Nfs4Owners(NativeCompound):
    """COMPOUNDs with OPEN and CLOSE; of use to native code only."""
