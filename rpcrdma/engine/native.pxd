"""C declarations of who answers calls natively, before a connection's responder."""

from libc.stdint cimport uint8_t

from rpcrdma.engine.credits cimport Credits
from rpcrdma.engine.held cimport HeldCalls
from rpcrdma.engine.replies cimport Replies
from rpcrdma.engine.state cimport ResponderState
from rpcrdma.memory cimport Account, Lease
from rpcrdma.pace cimport Pace
from rpcrdma.place cimport Answerer
from rpcrdma.verbs.native cimport Fetch, NativeOwner
from rpcrdma.wire.transport_header cimport header_t


cdef class NativeResponder(NativeOwner):
    cdef ResponderState responder
    cdef Replies replies
    cdef HeldCalls held
    cdef Credits credits
    cdef object run
    cdef Answerer native
    cdef Account receive_account
    cdef size_t receive_buffer
    cdef size_t most                # octets of a Read chunk
    cdef size_t most_segments
    cdef Pace pace                  # of the host; None: it may do anything
    cdef readonly list late         # calls of the last batch that the host may not have yet; None: there are none
    # What holds for this batch.
    cdef bint begun
    cdef bint takes                 # calls
    cdef bint fetches               # calls with a Read chunk
    cdef bint wary                  # some calls may be poisoned
    cdef bint passed_on             # the responder has something to do
    cdef long spare                 # what a grant may not count on: messages of the batch that may be no calls

    cdef bint over(self) noexcept
    cdef bint begins_call(self, Lease message, size_t size) except -1
    cdef int begin(self) except -1
    cdef object take(self, messages)
    cdef object left(self, object message, Lease lease)
    cdef bint answer(self, Lease message, size_t size) except -1
    cdef bint fetch(self, Lease message, size_t size, const header_t *header) except -1
    cdef bint answer_fetched(self, Fetch call) except -1
