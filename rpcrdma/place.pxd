"""C declarations of what lies between transports and native calls: places for replies, and who answers."""

from libc.stdint cimport uint8_t, uint64_t

from rpcrdma.octets cimport load32, load64, store32, store64

from rpcrdma.memory cimport Lease
from rpcrdma.pipes cimport Pipe

cdef enum:
    # What has become of a call.
    DECLINED = 0
    ANSWERED = 1
    WAITS = 2


    MOST_SPANS = 3          # that a reply may consist of
    LONG_WHOLE = 32 << 10   # octets of data that is protected as a part of a reply at once; for more the call must be kept


cdef struct span_t:
    uint8_t *at
    size_t length


cdef struct aside_t:            # of a reply that is set aside
    size_t size                 # octets of its head
    size_t payload_at           # those of them before its payload
    size_t payload_length


cdef class Place:
    """Where one reply is written. Each transport derives its own."""

    cdef uint8_t *at                # the next octet of the reply's head
    cdef uint8_t *end               # behind the last octet there is room for
    # The call's one chunk of data that was not sent with its message: what one opaque item of it consists of.
    cdef const uint8_t *bulk        # NULL: there is none
    cdef size_t bulk_size           # 0: likewise
    cdef const uint8_t *bulk_at     # where in the message it belongs
    cdef bint refused               # there is no room for data, and nobody else who has some
    cdef object begun               # what others go on from if the call is declined; None: they begin anew
    cdef bint kept                  # the call is: its reply may wait where it is
    cdef bint wants                 # that it were: there was no room for data because it is not

    cdef uint8_t *data(self, size_t room) except? NULL
    cdef ssize_t pages(self, int fd, uint64_t offset, size_t count) except -2
    cdef bint reduces(self) noexcept
    cdef int data_done(self, size_t length) except -1
    cdef int forget_payload(self) except -1
    cdef Lease sink(self, size_t room)
    cdef bint take(self, Lease payload, size_t length) except -1
    cdef bint takes_pages(self, uint64_t offset, size_t count) except -1
    cdef Pipe vessel(self, uint64_t offset, size_t count)
    cdef bint take_pages(self, Pipe pipe, size_t length) except -1
    cdef bint pass_on(self, object begun, bint changed) except -1
    cdef bint protect(self, size_t behind) except -1
    cdef int spans(self, uint8_t *begin, span_t *spans) except -1
    cdef bint long_payload(self) except -1
    cdef Lease put_by(self, aside_t *aside)
    cdef int bring_back(self, Lease payload, const aside_t *aside) except -1


cdef class Held:
    """A call that waits. Each transport derives its own."""

    cdef const uint8_t *message
    cdef size_t size
    cdef object state               # the answerer's

    cdef int again(self) except -1


cdef class Answerer:
    """Who answers calls natively."""

    cdef int answer(self, const uint8_t *message, size_t size, Place place) except -1
    cdef int hold(self, Held held) except -1
    cdef int dismiss(self) except -1
    cdef int answer_again(self, Held held, Place place) except -1
    cdef object passed_on(self, Held held, Lease message)
    cdef void decline(self, const uint8_t *message, size_t size, int reason) noexcept
    cdef int pause(self) except -1
