"""CREATE, and OPEN that creates, in native COMPOUNDs. Implemented in ``direct_creates.pyx``."""

from nfsd.v4.direct_changes import DirectChanges

class DirectCreates(DirectChanges):
    """Changes, and what makes files; of use to native code only."""
