"""C declarations of what load generators share."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t


cdef struct Run:
    uint64_t until                  # no call begins later
    uint64_t moment                 # when the last octets arrived
    size_t most                     # calls at most; 0: any number
    size_t issued
    size_t answered
    const char *problem
    bint refused                    # by RPC: the status is not NFS's
    uint32_t status                 # of the call that failed
    uint8_t[64] seen                # what the message begins with that is the problem, if one is
    size_t seen_size


cdef struct Cut:
    size_t after                    # octets of what goes out that are before it
    const uint8_t *data             # what is sent from where it is
    size_t size


cdef class Latencies:
    cdef uint32_t *nanoseconds      # saturated
    cdef size_t samples
    cdef size_t room

    cdef void note(self, uint64_t elapsed) noexcept nogil
    cdef void sort(self) noexcept nogil


cdef class Load:
    cdef int fd
    cdef list templates
    cdef uint8_t **calls
    cdef size_t *sizes
    cdef size_t count
    cdef size_t next_call
    cdef uint32_t depth
    cdef uint32_t window            # of them, so many may be outstanding
    cdef uint32_t active            # slots in use
    cdef uint64_t *started          # by slot: an XID is a slot number and how often the slot was used
    cdef uint32_t *round
    cdef Latencies latencies
    cdef size_t sequence_at         # where SEQUENCE's sequence id and slot stand in a call; 0: nowhere
    cdef bint lenient               # whether calls may fail
    cdef size_t chain               # calls of a chain; 1: there are none
    cdef size_t chains              # and how many there are
    cdef size_t next_chain
    cdef size_t begun               # in this run
    cdef bint once                  # whether a run begins each of them once
    cdef size_t *chain_of           # by slot
    cdef size_t given_at            # where what a chain's first reply gives stands there, how much it is,
    cdef size_t given_size
    cdef size_t taken_at            # and where in the other calls it belongs; 0: nowhere
    cdef size_t *counted_at         # by call of a chain: where the slot's count of calls stands; 0: nowhere
    cdef uint32_t counted_from
    cdef uint8_t *given             # by slot
    cdef size_t response            # octets that go out, at most, for one message that is no reply
    cdef uint8_t *out
    cdef size_t outgoing            # octets in it
    cdef Cut *cuts
    cdef size_t cut_count
    cdef uint8_t *buffer
    cdef size_t have

    cdef size_t begin_call(self, uint8_t *at, uint32_t slot, const uint8_t *call, size_t size) noexcept nogil
    cdef size_t take(self, Run *run, const uint8_t *data, size_t size) noexcept nogil
    cdef int prepare(self) except -1
    cdef bint cut(self, const uint8_t *at, const uint8_t *data, size_t size) noexcept nogil
    cdef int transmit(self) noexcept nogil
    cdef void fill_in(self, uint8_t *call, uint32_t slot) noexcept nogil
    cdef void issue(self, Run *run, uint32_t slot) noexcept nogil
    cdef void begin(self, Run *run) noexcept nogil
    cdef void widen(self, Run *run) noexcept nogil
    cdef bint may_issue(self, Run *run, uint32_t slot) noexcept nogil
    cdef bint expects(self, uint32_t xid) noexcept nogil
    cdef bint succeeded(self, Run *run, const uint8_t *result) noexcept nogil
    cdef void learn(self, uint32_t slot, const uint8_t *reply, size_t size) noexcept nogil
    cdef void answered(self, Run *run, uint32_t slot) noexcept nogil
    cdef void turn(self, Run *run) noexcept nogil
