"""OPEN of NFSv4. Implemented in ``opens.pyx``."""

from nfsd.protocol import nfs4 as p
from nfsd.state.records import Delegation
from nfsd.v4.name_changes import NameChanges

def open_delegation4(granted: Delegation | p.why_no_delegation4, wanted: int) -> bytes:
    """A delegation, or why there is none; ``wanted``: the wish of the client (OPEN4_SHARE_ACCESS_WANT_*)."""

class Opening:
    """The rest of an OPEN whose file has been found or made; of use to native code only."""

class Nfs4Opens(NameChanges):
    """Names and attributes too, and OPEN; of use to native code only."""
