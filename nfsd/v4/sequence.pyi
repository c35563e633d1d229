"""SEQUENCE in COMPOUNDs. Implemented in ``sequence.pyx``."""

from nfsd.v4.native_compound import NativeCompound

class Nfs4Sequence(NativeCompound):
    """The frame of COMPOUNDs, and their slots; of use to native code only."""
