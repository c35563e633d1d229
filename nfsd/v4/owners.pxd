"""C declarations of CLOSE, and of the turns of NFSv4.0's owners, in COMPOUNDs."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from nfsd.state.owners cimport SeqidOwner
from nfsd.state.records cimport OpenState
from nfsd.v4.in_python cimport PythonOperations
from nfsd.v4.native_compound cimport Arguments
from nfsd.vfs.records cimport Node
from rpcrdma.place cimport Place
from rpcrdma.rpc.work cimport Errand

cdef enum:
    BEGUN = 4                   # of an owner's turn: what is left is the operation


cdef object stateid_in(const uint8_t *at)
cdef uint8_t *store_stateid(uint8_t *at, object stateid) except NULL


cdef class Nfs4Owners(PythonOperations):
    cdef bint is_current(self, const uint8_t *stateid) noexcept
    cdef uint32_t not_regular(self, Node node) noexcept
    cdef int close(self, Arguments *arguments, Place place) except -1
    cdef object close_now(self, OpenState state)
    cdef int open_confirm(self, Arguments *arguments, Place place) except -1
    cdef object named_client(self, uint64_t clientid)
    cdef int take_turn(
        self, const uint8_t *stateid, uint32_t seqid, const uint8_t *behind, Arguments *arguments, Place place
    ) except -1
    cdef int give_again(self, object replay, Errand arrived, Place place) except -1
    cdef bint go_again(self, bytes handle, Errand arrived) except -1
    cdef object given(self, const uint8_t *stateid)
    cdef int recorded(self, SeqidOwner owner, uint32_t status, Place place, bytes handle) except -1
