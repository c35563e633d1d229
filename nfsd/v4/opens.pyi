"""OPEN of NFSv4. Implemented in ``opens.pyx``."""

from nfsd.v4.name_changes import NameChanges

class Opening:
    """The rest of an OPEN whose file has been found or made; of use to native code only."""

class Nfs4Opens(NameChanges):
    """Names and attributes too, and OPEN; of use to native code only."""
