"""C declarations of opens and share reservations."""

from nfsd.state.entries cimport StateEntries
from nfsd.state.files cimport FileState
from nfsd.state.grace cimport GraceRules
from nfsd.state.owners cimport OpenOwner, SeqidOwner
from nfsd.state.records cimport ClientRecord, OpenState


cdef class OpenReservation:
    cdef OpenTable _table
    cdef bint _done
    cdef readonly OpenOwner owner
    cdef readonly FileState file
    cdef readonly int access
    cdef readonly int deny


cdef class OpenTable:
    """All opens of all files."""

    cdef object _engine
    cdef GraceRules grace
    cdef StateEntries stateids
    cdef readonly dict _files           # FileState by key
    cdef dict _lingering
    cdef readonly dict _idle

    cpdef FileState file(self, bytes key)
    cpdef FileState make_file(self, bytes key)
    cpdef int drop_if_idle(self, FileState file) except -1
    cpdef int check_claim(self, ClientRecord client, bint reclaim, bint held=*) except -1
    cpdef tuple begin40(self, ClientRecord client, bytes owner, unsigned int seqid)
    cpdef tuple begin_seqid(self, bytes other, unsigned int seqid)
    cpdef object begin(self, SeqidOwner owner, unsigned int seqid)
    cpdef OpenOwner owner(self, ClientRecord client, bytes owner)
    cpdef OpenOwner _new_owner(self, ClientRecord client, bytes owner)
    cdef bint is_room(self, ClientRecord client, long long octets) except -1
    cdef bint is_full(self, ClientRecord client) except -1
    cpdef int forget_owner(self, OpenOwner owner) except -1
    cdef int owner_idle(self, OpenOwner owner) except -1
    cdef bint is_clear(self, bytes file_key, ClientRecord client, int access, int deny) except -1
    cdef FileState admitted(self, OpenOwner owner, bytes file_key, int access, int deny, bint reclaim, bint changes)
    cdef object conflict(self, bytes file_key, int access, int deny)
    cdef OpenState given(self, OpenOwner owner, FileState file, int access, int deny)
    cdef OpenState open_now(self, OpenOwner owner, bytes file_key, int access, int deny)
    cdef int forget_reservation(self, OpenReservation reservation) except -1
    cdef int set_share(self, OpenState state, int access, int deny) except -1
    cpdef object close(self, OpenState state)
    cdef int check_confirmed(self, OpenState state) except -1
    cpdef int release(self, OpenState state) except -1
