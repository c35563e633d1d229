"""C declarations of a responder's numbers."""

from libc.stdint cimport uint64_t


cdef class Counters:
    """Shared by all connections of a server, and counted by native code too."""

    cdef public uint64_t backward_calls
    cdef public uint64_t backward_replies
    cdef public uint64_t calls
    cdef public uint64_t native_calls    # those of the calls that were answered natively
    cdef public uint64_t discards
    cdef public uint64_t err_bad_xdr
    cdef public uint64_t err_cant_reply
    cdef public uint64_t err_chunk
    cdef public uint64_t err_inval_option
    cdef public uint64_t err_inval_proc
    cdef public uint64_t err_vers
    cdef public uint64_t inline_replies
    cdef public uint64_t invalidations
    cdef public uint64_t long_calls
    cdef public uint64_t long_replies
    cdef public uint64_t memory_waits
    cdef public uint64_t no_replies
    cdef public uint64_t options
    cdef public uint64_t read_bytes
    cdef public uint64_t read_failures
    cdef public uint64_t reads
    cdef public uint64_t receives
    cdef public uint64_t replies
    cdef public uint64_t send_failures
    cdef public uint64_t starved_grants
    cdef public uint64_t version_one     # connections that settled on it
    cdef public uint64_t version_two
    cdef public uint64_t write_bytes
    cdef public uint64_t writes
