"""C declarations of the executor: what native operations need to run chains of their own."""

from nfsd.vfs.identity cimport identity_t

ctypedef struct step_t:
    long number
    long arguments[6]
    signed char refers[6]       # index of the earlier step whose result is the argument, or -1
    unsigned char flags
    unsigned char reached
    long result
    int error

ctypedef struct job_t:
    job_t *next
    void *owner                 # the Chain, referenced while the job is queued or running
    void *lane
    int nsteps
    int failed                  # index of the step that stopped the chain, or -1
    int as_caller
    identity_t caller
    step_t steps[16]

cdef class Step:
    cdef Chain chain
    cdef int index

cdef class Chain:
    cdef job_t job
    cdef list keep              # buffers and bytes whose addresses are arguments
    cdef object credential
    cdef object future
    cdef bint started
    cdef int place(self, int index, int position, object argument) except -1
