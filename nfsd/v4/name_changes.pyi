"""CREATE, REMOVE, RENAME and LINK in native COMPOUNDs. Implemented in ``name_changes.pyx``."""

from nfsd.v4.direct_changes import DirectChanges

class NameChanges(DirectChanges):
    """Attributes, and what changes names; of use to native code only."""
