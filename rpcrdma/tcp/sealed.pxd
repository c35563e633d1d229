"""C declarations of how what is enciphered leaves."""

from rpcrdma.crew cimport Crew, Finished
from rpcrdma.memory cimport Account, Lease
from rpcrdma.tcp.outgoing cimport Cipher, Outgoing
from rpcrdma.tls.records cimport Sealing
from rpcrdma.tls.enciphering cimport job_t


cdef class Job(Finished):
    cdef job_t job
    cdef Sealed of              # None: nobody is told any more


cdef class Sealed(Cipher):
    cdef Job own
    cdef object wake
    cdef Sealing sealing
    cdef object kernel          # rpcrdma.tls.kernel.Transmitter, which enciphers; None: we do
    cdef Account account
    cdef Crew crew              # None: everything is done at once
    cdef Lease lease            # for records
    cdef void *spare            # for one of them, while there is no lease to be had

    cdef bint prepare(self, Outgoing outgoing, size_t most) except -1
    cdef bint update(self) except -1
    cdef int find_room(self, size_t octets) except -1
    cdef int gather(self, Outgoing outgoing, size_t most) except -1
    cdef int settle(self, Outgoing outgoing) except -1
    cdef int drop(self) except -1


cdef Sealed sealed(Sealing sealing, Account account, Crew crew, object wake, object kernel)
