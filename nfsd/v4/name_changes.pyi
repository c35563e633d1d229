"""CREATE, REMOVE, RENAME and LINK in native COMPOUNDs. Implemented in ``name_changes.pyx``."""

from nfsd.v4.changes import Nfs4Changes

class NameChanges(Nfs4Changes):
    """Attributes, and what changes names; of use to native code only."""
