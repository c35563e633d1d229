"""What a grace period lets clients do, asked for every open and lock (contract: ``grace.pyi``).

Owns the rule; who may reclaim, and when it is over, is in :mod:`nfsd.state.recovery`.
"""

from nfsd.protocol import nfs4 as codes
from nfsd.state.errors import Nfs4Error
from nfsd.state.types import NLM as _NLM

cdef int NLM = _NLM


cdef class GraceRules:
    def __init__(self, bint active):
        self.active = active
        self.elsewhere = False
        self.unheard = set()
        self.on_new_lock = None

    @property
    def holds_back(self):
        return self.active or self.elsewhere

    cpdef int check(self, ClientRecord client, bint reclaim, bint held=False) except -1:
        # NLM's clients do not say so: they may reclaim as long as the grace period lasts.
        cdef bint complete = client.reclaim_complete if client.minor != NLM else not self.active
        if reclaim:
            if not self.active or complete:
                raise Nfs4Error(codes.NFS4ERR_NO_GRACE)
            if not client.may_reclaim:
                # RFC 8881 sections 8.4.3, 15.1.9.3: no role in reclaiming, or an edge condition has cost it its claim.
                raise Nfs4Error(codes.NFS4ERR_NO_GRACE, "nothing on record that this client could reclaim")
        elif ((self.active or self.elsewhere) and not held) or (client.minor and not complete):
            # RFC 8881 section 18.51.3: no new locks before the client's RECLAIM_COMPLETE either. Nobody can reclaim what
            # would conflict with a delegation, and its holder must be able to give it back (sections 8.4.2.1, 10.4.4).
            raise Nfs4Error(codes.NFS4ERR_GRACE)
        elif self.unheard and self.on_new_lock is not None:
            self.on_new_lock()
        return 0
