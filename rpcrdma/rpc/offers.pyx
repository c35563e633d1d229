"""General calls, offered to the native function of their procedure (contract: ``offers.pyi``).

Owns :class:`Offer` and the place in which such a call's reply is written; imports :mod:`rpcrdma.rpc` and
:mod:`rpcrdma.memory`. The dispatcher has read the call's header and knows of its retransmissions.

So there is one body of each common operation, wherever its call comes from: on a transport's native path, or as a
general call, because of how the message came (version Two, Reply chunks, Long Calls, datagrams).

The reply's head stands in memory of its own, and a long one in a lease of the transport: what has too little room is offered
again with more. Data stands in leases of the transport, too, and travels as the payload that it is, so that the transport
may reduce it (RFC 8166 section 3.4.2; RFC 8267). Where there is no memory for it, the function declines, as it does on a
transport's own path; then the call waits for the memory, and is offered again with it.

A call may have several chunks of data that did not come with its message. The present one is where any place has it.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memcpy

from rpcrdma.declined cimport SIZE
from rpcrdma.memory cimport Lease
from rpcrdma.octets cimport padded
from rpcrdma.place cimport ANSWERED, DECLINED, WAITS, Held, Place
from rpcrdma.rpc.headers cimport accepted
from rpcrdma.rpc.callers cimport Caller
from rpcrdma.rpc.native_program cimport NativeProgram
from rpcrdma.rpc.work cimport Work, kept_by

from rpcrdma.addresses import host_of
from rpcrdma.rpc import eager
from rpcrdma.rpc.program import RpcReply
from rpcrdma.xdr import Decoder
from rpcrdma.xdr.payload import Payload

cdef enum:
    LARGE_HEAD = 256 << 10
    LARGEST_HEAD = (1 << 20) + (128 << 10)      # more than any reply may have beside its data
    LARGEST_LEASE = 4 << 20
    SPARE = 16              # octets behind the room in a head: to tell a failure in


cdef class ReplyPlace(Place):
    cdef int begin(self, uint32_t xid) except -1:
        """A reply begins: an accepted one without results."""
        cdef Lease lease
        self.forget_behind(NULL)
        lease = self.spare
        if self.growing and lease is not None and lease.capacity >= self.growing:
            self.spare = None
            self.stand_in(lease)
        self.growing = 0
        self.payloads = []
        self.at = accepted(self.head, xid)
        self.end = self.head + self.size - SPARE
        return self.go_to_chunk(0)

    cdef bint full(self) noexcept:
        """Whether the head has all the room that there is for heads."""
        return self.size >= LARGEST_HEAD

    cdef bint grow(self) except -1:
        """Have more room for the head from the next beginning on, in memory that is on the caller's account. False: there
        is no more. That has yet to come if the transport is ``asking``."""
        cdef size_t size = LARGE_HEAD if self.size < LARGE_HEAD else LARGEST_HEAD
        cdef Lease lease
        if self.refused or self.full():
            return False
        lease = self.borrow(size)
        if lease is None:
            self.growing = size
        else:
            self.stand_in(lease)
        return True

    cdef int stand_in(self, Lease lease) except -1:
        """The head stands there from now on. Takes the count."""
        cdef Lease before = self.ground
        self.ground, self.head, self.size = lease, <uint8_t *>lease.address, lease.capacity
        if before is not None:
            before.release()
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
            self.call.holding = self.holds()
            eager.start(self.call.lease(size), self.lent)
            lease = self.spare
        self.spare = None
        return lease

    cdef bint holds(self) except -1:
        """Whether there is memory already that others may wait for."""
        return self.ground is not None or self.aside or bool(self.payloads)

    def lent(self, lease, error):
        """What the transport says to :meth:`borrow`."""
        self.asking = False
        if self.over:
            if lease is not None:
                lease.release()
            return
        self.refused, self.spare = error is not None, lease
        self.lent_to()

    cdef int give_back(self) except -1:
        cdef Lease lease = self.spare
        if lease is not None:
            self.spare = None
            lease.release()
        return 0

    cdef int finish(self) except -1:
        """Nothing more is written."""
        cdef Lease ground = self.ground
        self.over = True
        self.forget_behind(NULL)
        self.let_go()
        self.lent_to = None
        if ground is not None:
            self.ground = None
            ground.release()
        return self.give_back()

    cdef object reply(self, uint32_t xid):
        """What has been written; its payloads go with it."""
        payloads, self.payloads = self.payloads, []
        return RpcReply(xid, PyBytes_FromStringAndSize(<char *>self.head, self.at - self.head), payloads)

    # -- data ------------------------------------------------------------------------------------------------------
    cdef int add(self, Lease lease, size_t length) except -1:
        """A payload stands here. Takes the count. One of no octets is one all the same: a Write chunk may be for it."""
        if lease is not None and length == 0:
            lease.release()
            lease = None
        view = memoryview(b"") if lease is None else lease.view[:length]
        self.payloads.append((self.at - self.head, Payload(view, lease)))
        return 0

    cdef int put(self, const uint8_t *octets, size_t length, object payloads) except -1:
        """Write what has been encoded elsewhere, with its payloads. Takes these."""
        cdef size_t start = self.at - self.head
        for offset, payload in payloads:
            self.payloads.append((start + offset, payload))
        memcpy(self.at, octets, length)
        self.at += length
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
        """There are several: let go of what was to become one."""
        cdef Lease lease = self.room
        if lease is not None:
            self.give_back()
            self.room, self.spare = None, lease
        return 0

    cdef int forget_behind(self, const uint8_t *at) except -1:
        """Let go of the payloads behind this octet of the head, and of what was to become one."""
        cdef size_t kept = 0 if at == NULL else at - self.head
        self.forget_payload()
        while self.payloads and self.payloads[len(self.payloads) - 1][0] > kept:
            self.payloads.pop()[1].release()
        return 0

    cdef list set_aside(self):
        """The payloads so far, for whoever goes on."""
        payloads, self.payloads = self.payloads, []
        self.aside = bool(payloads)
        return payloads

    cdef int take_back(self, list payloads) except -1:
        """What has been set aside, with the head up to here."""
        self.payloads, self.aside = payloads, False
        return 0

    cdef Lease sink(self, size_t room):
        return self.borrow(room)

    cdef bint take(self, Lease payload, size_t length) except -1:
        self.add(payload, length)
        return True

    # -- what did not come with the message ------------------------------------------------------------------------
    def __dealloc__(self):
        self.let_go()

    cdef void let_go(self) noexcept:
        if self.has_chunk:
            self.has_chunk = False
            PyBuffer_Release(&self.chunk)

    cdef int go_to_chunk(self, size_t used) except -1:
        """The present chunk is the one behind so many; perhaps there is none."""
        cdef size_t index
        self.let_go()
        if used < self.used:
            self.used = self.before = 0
        for index in range(self.used, used):
            self.before += padded(len(self.call.chunks[index][1]))
        self.used = used
        self.bulk, self.bulk_at, self.bulk_size = NULL, NULL, 0
        if used >= <size_t>len(self.call.chunks):
            return 0
        position, view = self.call.chunks[used]
        PyObject_GetBuffer(view, &self.chunk, PyBUF_SIMPLE)
        self.has_chunk = True
        # Of one that is empty, too, it must be seen that it is there.
        self.bulk = <const uint8_t *>self.chunk.buf if self.chunk.buf != NULL else self.octets
        self.bulk_size, self.bulk_at = self.chunk.len, self.message + <size_t>position - self.before
        return 0

    cdef object decoder(self, const uint8_t *at):
        """What decodes the message from there on, with the present chunk and those behind it."""
        before = self.before
        rest = [(position - before, view) for position, view in self.call.chunks[self.used:]]
        return Decoder(self.call.message, rest, at - self.message)

    cdef const uint8_t *decoded(self, object decoder) except NULL:
        """Behind what a decoder has decoded; the chunks among that have been used."""
        cdef size_t octets = decoder.unreduced_position - decoder.position, used = self.used
        while octets:
            octets -= padded(len(self.call.chunks[used][1]))
            used += 1
        if used != self.used:
            self.go_to_chunk(used)
        return self.message + <size_t>decoder.position


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
    cdef bint has_message

    def __init__(self, NativeProgram program not None, execution, size_t offset):
        cdef Caller caller = Caller.__new__(Caller)
        cdef ReplyPlace place = ReplyPlace.__new__(ReplyPlace)
        call = self.call = execution.call
        self.program, self.execution, self.offset = program, execution, offset
        self.transport = call.transport
        self.procedure = call.procedure
        self.caller = caller
        caller.take(call.credential)
        caller.transport = call.transport
        caller.peer_address = call.transport.peer_address
        caller.header = offset
        self.place, place.call, place.lent_to = place, call, self.go_on
        place.head, place.size = place.octets, HEAD
        begun, call.begun = call.begun, None
        if begun is not None:
            self.work = kept_by(begun)
        PyObject_GetBuffer(call.message, &self.message_octets, PyBUF_SIMPLE)
        self.has_message = True
        self.message, self.size = <const uint8_t *>self.message_octets.buf, self.message_octets.len
        place.message = self.message

    def __dealloc__(self):
        self.let_go()

    cdef void let_go(self) noexcept:
        """Let go of the call's octets."""
        if self.has_message:
            self.has_message = False
            PyBuffer_Release(&self.message_octets)

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
        self.let_go()
        self.work = None
        return 0

    cdef int over(self, object reply, object error) except -1:
        self.end()
        self.execution.over(reply, error)
        return 0

    cdef bint step(self) except -1:
        """Offer the call. False: it is declined; otherwise it is over, or waits."""
        cdef NativeProgram program = self.program
        cdef ReplyPlace place = self.place
        cdef int outcome
        cdef uint32_t row
        try:
            while True:
                outcome = self.attempt()
                if outcome == WAITS:
                    self.wait()
                    return True
                if outcome == ANSWERED:
                    break
                begun, place.begun = place.begun, None
                if begun is not None:
                    self.work = kept_by(begun)
                if not place.asking and not (program.reason(self.procedure, &row) == SIZE and place.grow()):
                    self.call.begun = begun
                    return False
                if place.asking:
                    self.resting = True
                    self.execution.waits()
                    return True
        except Exception as error:
            self.over(None, error)
            return True
        self.over(place.reply(self.call.xid), None)
        return True

    cdef int attempt(self) except -1:
        cdef NativeProgram program = self.program
        cdef ReplyPlace place = self.place
        cdef int outcome
        place.begin(self.call.xid)
        place.begun = None
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
