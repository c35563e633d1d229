"""SAVEFH and RESTOREFH in native COMPOUNDs (RFC 8881 sections 18.27, 18.28; RFC 7530 sections 16.29, 16.30).

Imports :mod:`nfsd.v4.name_changes`.
"""

from libc.stdint cimport uint8_t

from nfsd.v4.direct_compound cimport room
from nfsd.vfs.direct cimport no
from nfsd.wire.nfs4 cimport NFS4_OK, OP_RESTOREFH, OP_SAVEFH
from rpcrdma.declined cimport PROCEDURE, SIZE, STANDING
from rpcrdma.place cimport store32


cdef class DirectMoves(NameChanges):
    cdef bint savefh(self, Place place) except -1:
        if not room(place, 8):
            return no(self.files, SIZE)
        self.saved, self.saved_standing, self.saved_stateid = self.current, self.standing, self.stateid
        place.at = store32(store32(place.at, OP_SAVEFH), NFS4_OK)
        return True

    cdef bint restorefh(self, Place place) except -1:
        if self.saved is None:
            return no(self.files, PROCEDURE)
        if not room(place, 8):
            return no(self.files, SIZE)
        if self.charged_elsewhere(self.saved_standing):
            return no(self.files, STANDING)
        self.seen = self.seen and self.saved is self.current
        self.current, self.standing, self.stateid = self.saved, self.saved_standing, self.saved_stateid
        place.at = store32(store32(place.at, OP_RESTOREFH), NFS4_OK)
        return True
