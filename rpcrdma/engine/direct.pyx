"""Direct calls over RPC-over-RDMA version One: short messages answered in the stack in which they arrive.

Owns :class:`DirectResponder`, which stands before a connection's :class:`~rpcrdma.engine.responder.Responder` and
shares its credits, counters and thresholds. Imports :mod:`rpcrdma.memory`, :mod:`rpcrdma.pipes`, :mod:`rpcrdma.place`
and the vocabulary of :mod:`rpcrdma.verbs`.

A message is taken up here if it is an RDMA_MSG without Reply chunk, in the version that the connection has settled on
(RFC 8166 section 4.2), with at most one chunk: a Write chunk, or a Read chunk behind all that was sent inline. Everything
else, and every call that is declined, is the responder's, also one whose Read chunk has been fetched meanwhile. What is
sent is what the responder would send: the DDP-eligible result in the Write chunk (RFC 8267 section 6.4.1), the rest
inline, chunks returned with the lengths written (RFC 8166 section 4.3.2), Send-with-Invalidate of the chunk's first
handle where both sides can (RFC 8797 section 4.1).

Credits. A call answered at once never counts as outstanding: its Receive is posted again, the very same buffer, before
its reply is posted. One whose chunk is to be fetched, or that waits for something else, is outstanding until it is
answered, and keeps its buffer; another is posted in its place.

A call that waits has the memory for its reply's head before anything is done for it. Its connection counts it among its
calls in progress. When the connection has gone it is carried through all the same, and the reply is dropped.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from rpcrdma.declined cimport CHUNKS, CREDITS, LONG_CALL, MEMORY, REPLY_CHUNK, SHAPE, SIZE, VERSION
from rpcrdma.engine.credits cimport Credits
from rpcrdma.memory cimport Account, Lease
from rpcrdma.pipes cimport Pipe, take_pipe, worth
from rpcrdma.place cimport ANSWERED, DECLINED, WAITS, Answerer, Held, Place, load32, load64, store32, store64
from rpcrdma.verbs.native cimport Fetch, NativeEndpoint, NativeOwner, Target
from rpcrdma.wire.places cimport READ_SEGMENT, call_at
from rpcrdma.wire.rdma1 cimport RDMA_NOMSG, SMALLEST_HEADER, VERSION as VERSION_ONE

from rpcrdma.memory import OutOfMemory

cdef enum:
    SEGMENTS = 16
    REMEMBERED = 64


cdef struct Written:
    uint32_t xid
    uint32_t count
    uint32_t handles[SEGMENTS]


cdef class DirectReply(Place):
    """A reply's head in a send buffer, and its payload in a buffer of its own if it goes to a Write chunk."""

    cdef Account account
    cdef NativeEndpoint endpoint
    cdef Lease head
    cdef bint reduced           # the payload goes to the Write chunk
    cdef size_t capacity        # of that chunk
    cdef Lease payload
    cdef Pipe pipe              # or is in one
    cdef size_t payload_length

    cdef uint8_t *data(self, size_t room) except? NULL:
        if not self.reduced:
            return self.at if room + 4 <= <size_t>(self.end - self.at) else NULL
        if self.payload is not None or self.pipe is not None or room > self.capacity:
            return NULL
        try:
            self.payload = self.account.lease(room)
        except OutOfMemory:
            return NULL
        return <uint8_t *>self.payload.address

    cdef ssize_t pages(self, int fd, uint64_t offset, size_t count) except -2:
        cdef ssize_t got
        if not self.reduced or self.payload is not None or self.pipe is not None or count > self.capacity:
            return -1
        if not worth(offset, count) or not self.endpoint.takes_pages():
            return -1
        self.pipe = take_pipe()
        if self.pipe is None:
            return -1
        got = self.pipe.fill(fd, offset, count)
        if got < 0:
            self.forget_pipe()
        return got

    cdef int forget_payload(self) except -1:
        self.payload_length = 0
        if self.payload is not None:
            self.payload.release()
            self.payload = None
        return self.forget_pipe()

    cdef int forget_pipe(self) except -1:
        """Let go of what was to become the payload."""
        if self.pipe is not None:
            pipe, self.pipe = self.pipe, None
            pipe.release()
        return 0

    cdef int data_done(self, size_t length) except -1:
        if self.reduced:
            self.payload_length = length
            return 0
        self.at += length
        while length & 3:
            self.at[0] = 0
            self.at += 1
            length += 1
        return 0

    cdef Lease sink(self, size_t room):
        if room > self.capacity if self.reduced else room + 4 > <size_t>(self.end - self.at):
            return None
        try:
            return self.account.lease(room)
        except OutOfMemory:
            return None

    cdef bint take(self, Lease payload, size_t length) except -1:
        cdef bint first = self.payload is None and self.pipe is None
        if not (first if self.reduced else length + 4 <= <size_t>(self.end - self.at)):
            payload.release()  # behind an item of no octets, whose the chunk is is for the responder to say
            return False
        if self.reduced:
            self.payload, self.payload_length = payload, length
            return True
        memcpy(self.at, <const uint8_t *>payload.address, length)
        payload.release()
        return self.data_done(length) == 0

    cdef int drop(self) except -1:
        if self.head is not None:
            self.head.release()
            self.head = None
        return self.forget_payload()


cdef class HeldMessage(Held):
    """A call that waits, in its Receive's buffer."""

    cdef DirectResponder responder
    cdef Lease lease            # of the message
    cdef size_t length          # of all of it
    cdef Lease head             # for its reply
    cdef size_t header          # octets of the reply's transport header
    cdef Lease sink             # what its Read chunk was fetched to
    cdef const uint8_t *bulk_at
    cdef size_t bulk_size
    cdef const uint8_t *chunk   # its Write chunk's segments
    cdef size_t segments
    cdef size_t capacity        # of that chunk
    cdef bint invalidates
    cdef uint32_t handle

    cdef int again(self) except -1:
        return self.responder.again(self)


cdef class DirectResponder(NativeOwner):
    cdef object responder
    cdef Credits credits
    cdef object counters
    cdef object run
    cdef object owner               # of the connection; None: no call can be kept
    cdef NativeEndpoint endpoint
    cdef Answerer direct
    cdef Account receive_account
    cdef size_t receive_buffer
    cdef size_t most                # octets of a Read chunk
    cdef DirectReply reply
    # What holds for this batch.
    cdef bint begun
    cdef bint takes                 # calls
    cdef bint fetches               # calls with a Read chunk
    cdef bint wary                  # some calls may be poisoned
    cdef bint passed_on             # the responder has something to do
    cdef size_t threshold
    cdef bint invalidate
    cdef long spare                 # what a grant may not count on: messages of the batch that may be no calls
    # Added to the counters at its end.
    cdef long received_calls
    cdef long answered_calls
    cdef long invalidations
    cdef long writes
    cdef long write_octets
    cdef long reads
    cdef long read_octets
    # The calls that were written to last.
    cdef Written written[REMEMBERED]
    cdef size_t latest

    def __init__(
        self, responder, NativeEndpoint endpoint not None, Answerer direct not None, Account account not None,
        Account receive_account not None, options, run, owner=None,
    ):
        self.responder = responder
        self.credits = responder.credits
        self.counters = responder.counters
        self.run = run
        self.owner = owner
        self.endpoint = endpoint
        self.direct = direct
        self.receive_account = receive_account
        self.receive_buffer = options.receive_buffer
        self.most = options.max_call_size
        self.reply = DirectReply.__new__(DirectReply)
        self.reply.account = account
        self.reply.endpoint = endpoint
        endpoint.native = self

    cdef int begin(self) except -1:
        """Find out what holds until :meth:`pause`."""
        self.begun = True
        self.spare = 0
        self.takes = self.responder.answers_directly
        if self.takes:
            self.wary = self.responder.wary
            properties = self.responder.versions.properties
            self.threshold = properties.send_threshold
            self.invalidate = properties.remote_invalidation
            self.fetches = self.responder.may_read and not self.responder.awaits_memory
        return 0

    cdef int pause(self) except -1:
        """The end of a batch: other code may run, and the responder goes on."""
        self.begun = False
        self.direct.pause()
        self.count()
        if self.passed_on or self.credits.posted < self.credits.target or not self.responder.answers_directly:
            self.passed_on = False
            self.responder.proceed()
            self.run()
        return 0

    def set_endpoint(self, NativeEndpoint endpoint not None):
        self.endpoint = self.reply.endpoint = endpoint

    def received(self, messages):
        cdef list rest = []
        cdef Lease lease
        cdef size_t taken = 0
        self.begin()
        if not self.takes:
            self.begun = False
            for _ in messages:
                self.direct.decline(NULL, 0, VERSION)
            return messages
        try:
            try:
                for message in messages:
                    lease = message[0]
                    taken += 1
                    if not self.answer(lease, message[1]):
                        self.spare += 1
                        rest.append(message)
            finally:
                self.begun = False
                self.reply.drop()
                self.direct.pause()
                self.count()
        except BaseException:
            # The connection ends of it: what nobody has taken goes with it.
            for message in rest + list(messages[taken:]):
                (<Lease>message[0]).release()
            raise
        return rest

    cdef int count(self) except -1:
        counters = self.counters
        if self.received_calls:
            self.responder.received_messages += self.received_calls
            counters.receives += self.received_calls
            counters.calls += self.received_calls
            self.credits.taken += self.received_calls
            self.received_calls = 0
        if self.answered_calls:
            counters.replies += self.answered_calls
            counters.inline_replies += self.answered_calls
            counters.direct_calls += self.answered_calls
            self.answered_calls = 0
        if self.reads:
            counters.reads += self.reads
            counters.read_bytes += self.read_octets
            self.reads = self.read_octets = 0
        if self.invalidations:
            counters.invalidations += self.invalidations
            self.invalidations = 0
        if self.writes:
            counters.writes += self.writes
            counters.write_bytes += self.write_octets
            self.writes = self.write_octets = 0
        return 0

    cdef bint crowded(self) noexcept:
        """Whether a peer takes no replies: it loses its Receives (:meth:`~rpcrdma.engine.credits.Credits.wanted`)."""
        return self.credits.outstanding + self.credits.unsent >= self.credits.unfinished_limit

    cdef long grant(self) noexcept:
        """:meth:`rpcrdma.engine.credits.Credits.grant` for a call that takes no Receive; 0: the responder's to say."""
        cdef Credits credits = self.credits
        cdef long covered = credits.posted - credits.backward + credits.outstanding - self.spare
        if self.crowded():
            return 0
        return min(credits.limit, covered) if covered > 0 else 0

    cdef bint answer(self, Lease message, size_t size) except -1:
        """Answer one message, or leave it alone."""
        cdef DirectReply reply = self.reply
        cdef const uint8_t *octets = <const uint8_t *>message.address
        cdef const uint8_t *chunk = NULL
        cdef size_t payload = SMALLEST_HEADER, header = SMALLEST_HEADER, segments = 0, index, length
        cdef uint32_t xid
        cdef long grant
        cdef int outcome
        if size < SMALLEST_HEADER or load32(octets + 4) != VERSION_ONE or load32(octets + 12) != 0:
            return self.leave(octets, size, LONG_CALL if size >= 16 and load32(octets + 12) == RDMA_NOMSG else SHAPE)
        xid = load32(octets)
        if self.wary and xid in self.responder.poisoned:
            return False
        if load32(octets + 16) != 0:
            return self.fetch(message, size)
        reply.reduced = load32(octets + 20) == 1
        if reply.reduced:
            if size < 28:
                return False
            segments = load32(octets + 24)
            chunk = octets + 28
            payload = header = 28 + 16 * segments + 8
            if segments == 0 or segments > SEGMENTS or size < payload:
                return self.leave(octets, size, CHUNKS)
            reply.capacity = 0
            for index in range(segments):
                length = load32(chunk + 16 * index + 4)
                if length == 0:
                    return False
                reply.capacity += length
            if load64(chunk + 16 * segments) != 0:
                return self.leave(octets, size, REPLY_CHUNK if load32(chunk + 16 * segments) == 0 else CHUNKS)
        elif load64(octets + 20) != 0:
            return self.leave(octets, size, REPLY_CHUNK if load32(octets + 20) == 0 else CHUNKS)
        if size < payload + 8 or load32(octets + payload) != xid or header >= self.threshold:
            return False
        grant = self.grant()
        if grant <= 0:
            return self.leave(octets, size, CREDITS)
        try:
            outcome = self.write_reply(octets + payload, size - payload, header)
        except BaseException:
            message.release()
            raise
        if outcome != ANSWERED:
            return outcome == WAITS and self.hold_message(message, size, payload, header, chunk, segments)
        self.received_calls += 1
        self.credits.asked = load32(octets + 8)
        self.endpoint.repost(message)
        if segments:
            return self.send(xid, grant, chunk, segments, self.invalidate, load32(chunk))
        return self.send(xid, grant, NULL, 0, False, 0)

    cdef bint leave(self, const uint8_t *octets, size_t size, int reason) noexcept:
        """Leave a message to the responder, and count that. Returns False."""
        cdef size_t at = call_at(octets, size)
        self.direct.decline(octets + at if at else NULL, size - at, reason)
        return False

    cdef int write_reply(self, const uint8_t *call, size_t size, size_t header) except -1:
        """Have the call answered in ``reply``, behind so many octets for the transport header. WAITS: the head's memory
        stays there."""
        cdef DirectReply reply = self.reply
        cdef int outcome
        try:
            reply.head = reply.account.lease(self.threshold)
        except OutOfMemory:
            self.direct.decline(call, size, MEMORY)
            return DECLINED
        reply.at = <uint8_t *>reply.head.address + header
        reply.end = <uint8_t *>reply.head.address + self.threshold
        reply.payload_length = 0
        try:
            outcome = self.direct.answer(call, size, reply)
        except BaseException:
            reply.drop()
            raise
        if outcome == DECLINED:
            reply.drop()
        return outcome

    # -- calls that wait -----------------------------------------------------------------------------------------

    cdef HeldMessage held_message(self, Lease message, size_t size, size_t offset, size_t header):
        """The call that has just been answered so, or None: it cannot be kept."""
        cdef DirectReply reply = self.reply
        cdef HeldMessage held
        reply.forget_payload()
        if self.owner is None or not self.owner.begin_held():
            reply.drop()
            self.direct.dismiss()
            return None
        held = HeldMessage.__new__(HeldMessage)
        held.responder = self
        held.lease, held.length = message, size
        held.message, held.size = <const uint8_t *>message.address + offset, size - offset
        held.head, reply.head = reply.head, None
        held.header = header
        return held

    cdef bint hold_message(
        self, Lease message, size_t size, size_t offset, size_t header, const uint8_t *chunk, size_t segments
    ) except -1:
        """Keep a call in its Receive's buffer; another takes that one's place."""
        cdef HeldMessage held
        cdef Lease receive
        try:
            if self.crowded():
                raise OutOfMemory
            receive = self.receive_account.lease(self.receive_buffer)
        except OutOfMemory:
            self.reply.drop()
            self.direct.dismiss()
            return self.leave(<const uint8_t *>message.address, size, MEMORY)
        held = self.held_message(message, size, offset, header)
        if held is None:
            receive.release()
            return self.leave(<const uint8_t *>message.address, size, CREDITS)
        held.chunk, held.segments = chunk, segments
        held.capacity = self.reply.capacity
        if segments:
            held.invalidates, held.handle = self.invalidate, load32(chunk)
        self.received_calls += 1
        self.credits.asked = load32(<const uint8_t *>message.address + 8)
        self.credits.outstanding += 1
        self.endpoint.repost(receive)
        self.direct.hold(held)
        return True

    cdef int again(self, HeldMessage held) except -1:
        """What a call waited for is there."""
        cdef DirectReply reply = self.reply
        cdef int outcome
        reply.head, held.head = held.head, None
        reply.at = <uint8_t *>reply.head.address + held.header
        reply.end = <uint8_t *>reply.head.address + min(self.threshold, reply.head.capacity)
        reply.payload_length = 0
        reply.reduced, reply.capacity = held.segments != 0, held.capacity
        if held.sink is not None:
            reply.bulk, reply.bulk_size = <const uint8_t *>held.sink.address, held.bulk_size
            reply.bulk_at = held.bulk_at
        try:
            outcome = self.direct.answer_again(held, reply)
        finally:
            reply.bulk, reply.bulk_size, reply.bulk_at = NULL, 0, NULL
        if outcome == WAITS:
            reply.forget_payload()
            held.head, reply.head = reply.head, None
            self.direct.hold(held)
            return 0
        self.conclude(held, outcome)
        self.owner.end_held()
        return 0

    cdef int conclude(self, HeldMessage held, int outcome) except -1:
        """Send the reply of a call that waited, or leave the call to the responder."""
        cdef DirectReply reply = self.reply
        cdef Lease message = held.lease, sink = held.sink
        cdef long grant = self.credits.grant()
        held.lease = held.sink = None
        if outcome != ANSWERED and not self.responder.closed:
            reply.drop()
            self.responder.take_back(message, held.length, sink)
            self.run()
            return 0
        if self.responder.closed:
            reply.drop()
        elif grant > 0:
            self.credits.outstanding -= 1
            self.send(
                load32(<const uint8_t *>message.address), grant, held.chunk, held.segments, held.invalidates,
                held.handle,
            )
        else:
            # No Receive is left, and no memory for one: zero must not be granted (RFC 8166 section 3.3.1).
            reply.drop()
            self.responder.lost(1)
        message.release()
        if sink is not None:
            sink.release()
        self.count()
        if self.responder.failure is not None:
            self.run()
        return 0

    cdef bint send(
        self, uint32_t xid, long grant, const uint8_t *chunk, size_t segments, bint invalidates, uint32_t handle
    ) except -1:
        """Post the reply that stands in ``reply``, its payload in the Write chunk if there is one. Returns True."""
        cdef DirectReply reply = self.reply
        cdef Target targets[SEGMENTS]
        cdef size_t index, length, count = 0, left = reply.payload_length
        cdef uint8_t *at = <uint8_t *>reply.head.address
        cdef Written *written
        cdef Lease head, payload
        cdef Pipe pipe
        at = store64(at, (<uint64_t>xid << 32) | VERSION_ONE)
        at = store32(store64(at, <uint64_t>grant << 32), 0)
        if segments:
            at = store32(store32(at, 1), <uint32_t>segments)
            for index in range(segments):
                length = min(<size_t>load32(chunk + 16 * index + 4), left)
                left -= length
                memcpy(at, chunk + 16 * index, 16)
                store32(at + 4, <uint32_t>length)
                at += 16
                if length:
                    targets[count].handle = load32(chunk + 16 * index)
                    targets[count].offset = load64(chunk + 16 * index + 8)
                    targets[count].length = length
                    count += 1
        store64(at, 0)
        if count:
            written = &self.written[self.latest]
            self.latest = (self.latest + 1) % REMEMBERED
            written.xid, written.count = xid, <uint32_t>count
            for index in range(count):
                written.handles[index] = targets[index].handle
            self.writes += count
            self.write_octets += reply.payload_length
        else:
            reply.forget_payload()
        self.answered_calls += 1
        self.invalidations += invalidates
        self.credits.unsent += 1
        length = reply.at - <uint8_t *>reply.head.address
        head, payload, reply.head, reply.payload = reply.head, reply.payload, None, None
        if reply.pipe is not None:
            pipe, reply.pipe = reply.pipe, None
            self.endpoint.post_pages(targets, count, pipe, head, length, invalidates, handle)
        else:
            self.endpoint.post_reply(targets, count, payload, head, length, invalidates, handle)
        return True

    cdef int answered(self, long count, bint ok) except -1:
        self.credits.unsent -= count
        if not ok:
            self.responder.lost(count)
        return 0

    # -- Calls with a Read chunk ---------------------------------------------------------------------------------

    cdef bint fetch(self, Lease message, size_t size) except -1:
        """Begin to fetch the one Read chunk of a call, wherever in it that belongs."""
        cdef const uint8_t *octets = <const uint8_t *>message.address
        cdef Target sources[SEGMENTS]
        cdef size_t at = 16, count = 0, length = 0, position = load32(octets + 20)
        cdef Fetch call
        cdef Lease receive, sink
        if not self.fetches or self.crowded():
            return self.leave(octets, size, CREDITS if self.fetches else MEMORY)
        while at + 4 <= size and load32(octets + at) == 1:
            if count == SEGMENTS or at + READ_SEGMENT + 4 > size or load32(octets + at + 4) != load32(octets + 20):
                return self.leave(octets, size, CHUNKS)
            sources[count].handle = load32(octets + at + 8)
            sources[count].length = load32(octets + at + 12)
            sources[count].offset = load64(octets + at + 16)
            if sources[count].length == 0:
                return False
            length += sources[count].length
            count += 1
            at += READ_SEGMENT
        # The end of the Read list, no Write list, no Reply chunk; and a call of the same XID.
        if at + 20 > size or load32(octets + at) != 0 or load64(octets + at + 4) != 0:
            return self.leave(octets, size, CHUNKS if at + 20 > size or load32(octets + at + 4) else REPLY_CHUNK)
        at += 12
        if position == 0 or position & 3 or position > size - at:
            return self.leave(octets, size, CHUNKS)
        if load32(octets + at) != load32(octets) or load32(octets + at + 4) != 0:
            return False
        if size & 3:
            return False  # so is the position: an error, for the responder to say (RFC 8166 section 3.4.5)
        if length > self.most or SMALLEST_HEADER >= self.threshold:
            return self.leave(octets, size, SIZE)
        try:
            receive = self.receive_account.lease(self.receive_buffer)
        except OutOfMemory:
            return self.leave(octets, size, MEMORY)
        try:
            sink = self.reply.account.lease(length)
        except OutOfMemory:
            # The responder waits for some, and who comes later waits behind it.
            self.fetches = False
            receive.release()
            return self.leave(octets, size, MEMORY)
        call = Fetch.__new__(Fetch)
        call.message, call.size, call.offset = message, size, at
        call.sink, call.length = sink, length
        self.received_calls += 1
        self.credits.asked = load32(octets + 8)
        self.reads += count
        self.read_octets += length
        self.credits.outstanding += 1
        self.endpoint.repost(receive)
        self.endpoint.post_fetch(sources, count, call)
        return True

    cdef int fetched(self, Fetch call, bint ok) except -1:
        cdef Lease message, sink
        if not self.begun:
            self.begin()
        try:
            if ok and self.takes and self.answer_fetched(call):
                return 0
        except BaseException:
            call.message.release()
            call.sink.release()
            self.direct.pause()
            raise
        self.direct.pause()
        self.passed_on = True
        message, sink, call.message, call.sink = call.message, call.sink, None, None
        self.responder.fetched(message, call.size, sink, ok)
        return 0

    cdef bint answer_fetched(self, Fetch call) except -1:
        """Answer a call whose Read chunk has been fetched, or leave it as it is."""
        cdef DirectReply reply = self.reply
        cdef const uint8_t *octets = <const uint8_t *>call.message.address
        cdef uint32_t xid = load32(octets), handle = load32(octets + 24)
        cdef long grant = self.credits.grant()
        cdef HeldMessage held
        cdef int outcome
        if grant <= 0:
            return False
        reply.reduced = False
        reply.bulk, reply.bulk_size = <const uint8_t *>call.sink.address, call.length
        reply.bulk_at = octets + call.offset + load32(octets + 20)
        try:
            outcome = self.write_reply(octets + call.offset, call.size - call.offset, SMALLEST_HEADER)
        finally:
            reply.bulk, reply.bulk_size, reply.bulk_at = NULL, 0, NULL
        if outcome == WAITS:
            held = self.held_message(call.message, call.size, call.offset, SMALLEST_HEADER)
            if held is None:
                return False
            held.sink, held.bulk_size = call.sink, call.length
            held.bulk_at = octets + call.offset + load32(octets + 20)
            held.invalidates, held.handle = self.invalidate, handle
            call.message = call.sink = None
            self.direct.hold(held)
            return True
        if outcome != ANSWERED:
            return False
        self.credits.outstanding -= 1
        self.send(xid, grant, NULL, 0, self.invalidate, handle)
        call.message.release()
        call.sink.release()
        call.message = call.sink = None
        return True

    def refused_call(self, handle):
        cdef size_t back, index
        cdef Written *written
        if handle is None:
            return None
        for back in range(1, REMEMBERED + 1):
            written = &self.written[(self.latest + REMEMBERED - back) % REMEMBERED]
            for index in range(written.count):
                if written.handles[index] == <uint32_t>handle:
                    return written.xid
        return None
