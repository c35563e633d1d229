"""C declarations of SEQUENCE."""

from libc.stdint cimport uint8_t, uint32_t

from nfsd.state.records cimport ClientRecord, SessionRecord, Slot


cdef struct SequenceRequest:
    # SEQUENCE4args
    const uint8_t *sessionid
    uint32_t sequenceid
    uint32_t slotid
    uint32_t highest_slotid
    bint cachethis
    # Of the COMPOUND
    size_t operations
    size_t octets


cdef class Sequencer:
    """SEQUENCE, of all sessions."""

    cdef object engine
    cdef object table
    cdef dict sessions
    # What the last request has come to, if its status was 0.
    cdef SessionRecord session
    cdef Slot slot
    cdef int verdict            # as Slot.begin has it: 0 new, 1 to be answered from the slot, 2 not kept
    cdef bint bound             # its connection has been bound by it

    cdef int run(self, object connection, const SequenceRequest *request, uint32_t fingerprint) except -1
    cdef int note_slots(self, SessionRecord session, Slot slot, const SequenceRequest *request) except -1
