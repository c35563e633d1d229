"""C declarations of native COMPOUNDs: what their operations share."""

from libc.stdint cimport uint8_t, uint32_t

from nfsd.state.lookups cimport StateLookups
from nfsd.state.sequence cimport Sequencer
from nfsd.v4.fattr cimport Fattr
from nfsd.v4.under_way cimport Arguments, UnderWay, left, padded, room, store_opaque
from nfsd.vfs.records cimport Node
from rpcrdma.place cimport Place
from rpcrdma.rpc.work cimport Errand


cdef class NativeCompound(UnderWay):
    """COMPOUNDs, their SEQUENCE and the rules for all operations."""

    cdef StateLookups state
    cdef Sequencer sequencer
    cdef Fattr attributes
    cdef object delegations
    cdef size_t max_transfer
    cdef size_t max_reply
    cdef uint8_t changing[128]  # by operation: whether it may change something
    cdef uint8_t native[128]    # by operation: whether it has a native body
    cdef uint32_t versions          # that are spoken
    cdef size_t operations

    cdef int compound(self, Arguments *arguments, size_t octets, Place place) except -1
    cdef int run(self, Arguments *arguments, uint32_t tag, Place place) except -1
    cdef void over(self) noexcept
    cdef int step(self, Arguments *arguments, Place place) except -1
    cdef bint begins(self, Arguments *arguments, uint32_t *tag) except -1
    cdef bint anew(self, const uint8_t *whole, Arguments *arguments, uint32_t tag, size_t octets, Place place) except -1
    cdef int end(self, Place place) except -1
    cdef int fail(self, uint32_t status, Place place) except -1
    cdef int not_brought(self, Errand errand, Place place) except -1
    cdef int refuse(self, uint32_t status, Place place) except -1
    cdef int fail_too_big(self, Place place) except -1
    cdef bint sequence(self, Arguments *arguments, size_t octets, Place place) except -1
    cdef bytes kept(self, Place place)
    cdef int operation(self, uint32_t number, Arguments *arguments, Place place) except -1
    cdef int go(self, Node node) except -1
    cdef int arrived(self, tuple found) except -1
    cdef size_t size(self, Place place) noexcept
    cdef uint32_t fingerprint(self, Arguments *arguments, Place place) except? 0xFFFFFFFF
    cdef bint told_by_us(self) except -1
    cdef bint look(self) except -1
