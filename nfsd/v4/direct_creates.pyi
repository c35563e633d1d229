"""OPEN that creates, in native COMPOUNDs. Implemented in ``direct_creates.pyx``."""

from nfsd.v4.name_changes import NameChanges

class DirectCreates(NameChanges):
    """Changes, and OPEN that makes files; of use to native code only."""
