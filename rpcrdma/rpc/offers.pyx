"""General calls, offered to the native function of their procedure (contract: ``offers.pyi``).

Owns :class:`Offer` and the place in which such a call's reply is written; imports :mod:`rpcrdma.rpc` and
:mod:`rpcrdma.memory`. The dispatcher has read the call's header and knows of its retransmissions.

So there is one body of each common operation, wherever its call comes from: on a transport's native path, or as a
general call, because of how the message came (version Two, Reply chunks, Long Calls, datagrams).

The reply's head stands in memory of its own. Data stands in a lease of the transport, and travels as the payload that it
is, so that the transport may reduce it (RFC 8166 section 3.4.2; RFC 8267). Where there is no memory for it, the function
declines, as it does on a transport's own path; then the call waits for the memory, and is offered again with it.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint32_t

from rpcrdma.memory cimport Lease
from rpcrdma.place cimport ANSWERED, DECLINED, WAITS, Held, Place
from rpcrdma.rpc.native cimport Caller, NativeProgram, accepted
from rpcrdma.rpc.work cimport Work, kept_by

from rpcrdma.addresses import host_of
from rpcrdma.rpc import eager
from rpcrdma.rpc.program import RpcReply
from rpcrdma.xdr.payload import Payload

cdef enum:
    HEAD = 4096             # octets of a reply, without data: as many as a transport's own path has
    LARGEST_LEASE = 4 << 20


cdef class ReplyPlace(Place):
    """Where the reply of one general call is written."""

    cdef uint8_t octets[HEAD]
    cdef uint8_t *head      # these, or those of ``large``
    cdef size_t size        # of the head
    cdef bytearray large
    cdef Offer offer
    cdef list payloads      # (where in the head, Payload)
    cdef Lease room         # for the payload that is being written
    cdef Lease spare        # what was lent and is not in use
    cdef bint asking        # the transport is still to say whether it lends something
    cdef bint over

    cdef int have(self, size_t size) except -1:
        """Have room for so many octets, without data."""
        self.head, self.size = self.octets, HEAD
        if size > HEAD:
            self.large = bytearray(size)
            self.head, self.size = <uint8_t *><char *>self.large, size
        return 0

    cdef int begin(self, uint32_t xid) except -1:
        """A reply begins: an accepted one without results."""
        self.forget_payload()
        self.payloads = []
        self.at = accepted(self.head, xid)
        self.end = self.head + self.size
        return 0

    cdef Lease borrow(self, size_t size):
        """Memory of the transport; None: there is none, or it has yet to come."""
        cdef Lease lease = self.spare
        if lease is None or lease.capacity < size:
            self.give_back()
            if size > LARGEST_LEASE:
                self.refused = True
            if self.asking or self.refused:
                return None
            self.asking = True
            eager.start(self.offer.call.lease(size), self.lent)
            lease = self.spare
        self.spare = None
        return lease

    def lent(self, lease, error):
        """What the transport says to :meth:`borrow`."""
        self.asking = False
        if self.over:
            if lease is not None:
                lease.release()
            return
        self.refused, self.spare = error is not None, lease
        self.offer.go_on()

    cdef int give_back(self) except -1:
        cdef Lease lease = self.spare
        if lease is not None:
            self.spare = None
            lease.release()
        return 0

    cdef int finish(self) except -1:
        """Nothing more is written."""
        self.over = True
        self.forget_payload()
        return self.give_back()

    cdef object reply(self, uint32_t xid):
        """What has been written; its payloads go with it."""
        payloads, self.payloads = self.payloads, []
        return RpcReply(xid, PyBytes_FromStringAndSize(<char *>self.head, self.at - self.head), payloads)

    cdef int add(self, Lease lease, size_t length) except -1:
        """A payload stands here. Takes the count. One of no octets is one all the same: a Write chunk may be for it."""
        if lease is not None and length == 0:
            lease.release()
            lease = None
        view = memoryview(b"") if lease is None else lease.view[:length]
        self.payloads.append((self.at - self.head, Payload(view, lease)))
        return 0

    cdef uint8_t *data(self, size_t room) except? NULL:
        if room == 0:
            return self.at
        if self.room is not None:
            return NULL
        self.room = self.borrow(room)
        return <uint8_t *>self.room.address if self.room is not None else NULL

    cdef int data_done(self, size_t length) except -1:
        lease, self.room = self.room, None
        return self.add(lease, length)

    cdef int forget_payload(self) except -1:
        cdef Lease lease = self.room
        if lease is not None:
            self.give_back()
            self.room, self.spare = None, lease
        if self.payloads:
            payloads, self.payloads = self.payloads, []
            for _, payload in payloads:
                payload.release()
        return 0

    cdef Lease sink(self, size_t room):
        return self.borrow(room)

    cdef bint take(self, Lease payload, size_t length) except -1:
        self.add(payload, length)
        return True

    cdef bint pass_on(self, object begun, bint changed) except -1:
        if self.asking and not changed:
            return False  # the call is offered again when the transport has lent memory
        self.begun = begun
        return True


cdef class Offer(Held):
    cdef readonly object transport
    cdef object execution
    cdef object call
    cdef NativeProgram program
    cdef Caller caller
    cdef ReplyPlace place
    cdef Work work              # what the call waits for, or goes on from
    cdef bint resting           # the call waits for memory
    cdef bint begun             # whoever has offered it has been told that it goes on in here
    cdef uint32_t procedure
    cdef size_t offset
    cdef Py_buffer message_octets
    cdef Py_buffer chunk
    cdef bint has_message
    cdef bint has_chunk
    cdef const uint8_t *chunk_at

    def __init__(self, NativeProgram program not None, execution, size_t offset, size_t head=HEAD):
        cdef Caller caller = Caller.__new__(Caller)
        call = self.call = execution.call
        self.program, self.execution, self.offset = program, execution, offset
        self.transport = call.transport
        self.procedure = call.procedure
        self.caller = caller
        caller.take(call.credential)
        caller.transport = call.transport
        caller.peer_address = call.transport.peer_address
        caller.header = offset
        self.place = ReplyPlace.__new__(ReplyPlace)
        self.place.offer = self
        self.place.have(head)
        begun, call.begun = call.begun, None
        if begun is not None:
            self.work = kept_by(begun)
        PyObject_GetBuffer(call.message, &self.message_octets, PyBUF_SIMPLE)
        self.has_message = True
        self.message, self.size = <const uint8_t *>self.message_octets.buf, self.message_octets.len
        if call.chunks:
            position, view = call.chunks[0]
            PyObject_GetBuffer(view, &self.chunk, PyBUF_SIMPLE)
            self.has_chunk = True
            self.chunk_at = self.message + <size_t>position

    def __dealloc__(self):
        self.let_go()

    cdef void let_go(self) noexcept:
        """Let go of the call's octets."""
        if self.has_message:
            self.has_message = False
            PyBuffer_Release(&self.message_octets)
        if self.has_chunk:
            self.has_chunk = False
            PyBuffer_Release(&self.chunk)

    def begin(self):
        cdef bint goes_on = self.step()
        self.begun = goes_on
        if not goes_on:
            self.end()
        return goes_on

    cdef int again(self) except -1:
        """What the call waited for is there."""
        if not self.step():
            self.end()
            self.execution.declined()
        return 0

    def go_on(self):
        """The transport has lent memory, or has refused to."""
        if self.resting:
            self.resting = False
            self.again()

    cdef int end(self) except -1:
        """The call is over, or others do it."""
        self.place.finish()
        self.place.offer = None
        self.let_go()
        self.work = None
        return 0

    cdef int over(self, object reply, object error) except -1:
        self.end()
        self.execution.over(reply, error)
        return 0

    cdef bint step(self) except -1:
        """Offer the call. False: it is declined; otherwise it is over, or waits."""
        cdef int outcome
        try:
            outcome = self.attempt()
            if outcome == WAITS:
                self.wait()
                return True
        except Exception as error:
            self.over(None, error)
            return True
        self.call.begun, self.place.begun = self.place.begun, None
        if outcome == ANSWERED:
            self.over(self.place.reply(self.call.xid), None)
            return True
        self.resting = self.place.asking and self.call.begun is None
        if self.resting:
            self.execution.waits()
        return self.resting

    cdef int attempt(self) except -1:
        cdef NativeProgram program = self.program
        cdef ReplyPlace place = self.place
        cdef int outcome
        place.begin(self.call.xid)
        place.begun = None
        if self.has_chunk:
            # Of one that is empty, too, it must be seen that it is there.
            place.bulk = <const uint8_t *>self.chunk.buf if self.chunk.buf != NULL else place.octets
            place.bulk_size, place.bulk_at = self.chunk.len, self.chunk_at
        program.shown, program.tally = self.procedure, None
        try:
            outcome = program.answer(
                self.caller, self.procedure, self.message + self.offset, self.size - self.offset, place, self.work
            )
        finally:
            program.pause()
        if outcome != DECLINED:
            self.call.shown, self.call.tally = program.shown, program.tally
        return outcome

    cdef int wait(self) except -1:
        """Begin with what the call waits for."""
        cdef NativeProgram program = self.program
        cdef uint32_t row = self.procedure
        cdef int reason = program.reason(self.procedure, &row)
        self.work, program.work = program.work, None
        program.waited.add(row, reason)
        self.work.held = self
        self.execution.waits()
        self.work.host = host_of(self.caller.peer_address)
        try:
            return self.work.start()
        except Exception:
            self.work.held = None
            program.give_up(self.work)
            raise


def offers(NativeProgram program not None, uint32_t procedure):
    return procedure < 64 and (program.procedures >> procedure) & 1 == 1
