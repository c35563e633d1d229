"""Open owners and lock owners, and v4.0's order of their operations (RFC 7530 section 9.1.7). Contract: ``owners.pyi``."""

from nfsd.protocol import nfs4 as codes
from nfsd.state.errors import Nfs4Error
from nfsd.state.types import SeqidReplay

SEQID_KEEPING = frozenset(
    (
        codes.NFS4ERR_STALE_CLIENTID,
        codes.NFS4ERR_STALE_STATEID,
        codes.NFS4ERR_BAD_STATEID,
        codes.NFS4ERR_BAD_SEQID,
        codes.NFS4ERR_BADXDR,
        codes.NFS4ERR_RESOURCE,
        codes.NFS4ERR_NOFILEHANDLE,
        codes.NFS4ERR_MOVED,
    )
)


cdef class SeqidOwner:
    def __init__(self, ClientRecord client not None, bytes owner not None):
        self.client = client
        self.owner = owner
        self.gate = None
        self.seqid = None
        self.pending_seqid = 0
        self.busy = False
        self.result = self.filehandle = self.last_closed = None

    @property
    def replay(self):
        return None if self.result is None else SeqidReplay(self.status, self.result, self.filehandle)

    cpdef object begin(self, unsigned int seqid):
        if self.busy:
            raise Nfs4Error(codes.NFS4ERR_DELAY, "the owner's operation before is still executing")
        if self.seqid is not None:
            if self.result is not None and seqid == <unsigned int>self.seqid:
                return self.replay
            if seqid != <unsigned int>self.seqid + 1:  # wraps at 2**32 as the protocol's does
                raise Nfs4Error(codes.NFS4ERR_BAD_SEQID)
        self.busy = True
        self.pending_seqid = seqid
        return None

    cpdef int finish(self, int status, bytes result, bytes filehandle=None) except -1:
        self.busy = False
        if status and status in SEQID_KEEPING:
            return 0
        self.seqid = self.pending_seqid
        # A longer result than any of these operations has would be the layer above's mistake; keep the bound anyway.
        self.status, self.filehandle = status, filehandle
        self.result = result if len(result) <= self.client.longest_result else None
        return 0

    cpdef int abandon(self) except -1:
        self.busy = False
        return 0


cdef class OpenOwner(SeqidOwner):
    def __init__(self, ClientRecord client not None, bytes owner not None, *, bint confirmed):
        SeqidOwner.__init__(self, client, owner)
        self.confirmed = confirmed
        self.states = {}
        self.pending = 0


cdef class LockOwner(SeqidOwner):
    def __init__(self, ClientRecord client not None, bytes owner not None):
        SeqidOwner.__init__(self, client, owner)
        self.states = set()
        self.files = {}
