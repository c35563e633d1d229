"""Operations in Python, in COMPOUNDs. Implemented in ``in_python.pyx``."""

from nfsd.v4.sequence import Nfs4Sequence

class PythonOperations(Nfs4Sequence):
    """The frame of COMPOUNDs, their slots, and operations without a native body; of use to native code only."""
