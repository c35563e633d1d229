# distutils: extra_compile_args = -O2
"""Native calls over RPC-over-RDMA: messages answered in the stack in which they arrive.

Owns :class:`NativeResponder`, which stands before a connection's :class:`~rpcrdma.engine.responder.Responder` and
shares its credits, counters and thresholds. Imports :mod:`rpcrdma.memory`, :mod:`rpcrdma.place`, the vocabulary of
:mod:`rpcrdma.verbs`, :mod:`rpcrdma.wire` and, of this package, :mod:`~rpcrdma.engine.replies` and
:mod:`~rpcrdma.engine.held`.

A message is taken up here if it is a call in the version that the connection has settled on (RFC 8166 section 4.2; draft-cel
version Two) with at most one Read chunk, which is all of the call (a Long Call, section 3.5.3), or belongs behind
something that was sent inline. What is sent is what the responder would send, placed by :mod:`~rpcrdma.engine.replies`,
with Send-with-Invalidate of the handle that the version's rules choose. Everything else is the responder's: errors, control
messages, what is not a call, calls that are declined, also those whose Read chunk has been fetched meanwhile.

While the host is over its rates calls are left alone (``late``), with their Receives; what is no call is not.

Credits. A call answered at once never counts as outstanding: its Receive is posted again, the very same buffer, before
its reply is posted. One whose chunk is to be fetched is outstanding until it is answered, and keeps its buffer; another
is posted in its place.
"""

from libc.stdint cimport uint8_t, uint32_t

from rpcrdma.declined cimport CHUNKS, CREDITS, MEMORY, SHAPE, SIZE, VERSION
from rpcrdma.engine.credits cimport Credits
from rpcrdma.engine.held cimport HeldCalls, HeldMessage, place_chunk
from rpcrdma.engine.replies cimport SEGMENTS, NativeReply, Replies
from rpcrdma.memory cimport Account, Lease
from rpcrdma.pace cimport Pace
from rpcrdma.place cimport ANSWERED, WAITS, Answerer, load32, load64
from rpcrdma.verbs.native cimport Fetch, NativeEndpoint, NativeOwner, Target
from rpcrdma.wire.chunk_lists cimport READ_ENTRY_SIZE
from rpcrdma.wire.rdma cimport CALL, RDMA_NOMSG
from rpcrdma.wire.transport_header cimport DISCARD, GOOD, header_t, load_header

from rpcrdma.memory import OutOfMemory

cdef enum:
    SMALLEST_RPC = 8        # xid and msg_type: what the transport itself looks at


cdef NativeEndpoint nobodys_endpoint = NativeEndpoint.__new__(NativeEndpoint)   # takes nothing


cdef bint is_call(const uint8_t *rpc, size_t size, const header_t *header) noexcept nogil:
    """Whether an RPC message is a call with the header's XID (section 4.2.1)."""
    return size >= SMALLEST_RPC and load32(rpc) == header.xid and load32(rpc + 4) == CALL


cdef size_t sources_of(const uint8_t *octets, const header_t *header, Target *sources, size_t *count) noexcept nogil:
    """What is to be read to fetch the call's one Read chunk, and how much that is. Empty segments need no Read."""
    cdef const uint8_t *segment = octets + header.reads
    cdef size_t index, length = 0
    count[0] = 0
    for index in range(header.read_count):
        sources[count[0]].handle = load32(segment + 8)
        sources[count[0]].length = load32(segment + 12)
        sources[count[0]].offset = load64(segment + 16)
        length += sources[count[0]].length
        count[0] += sources[count[0]].length != 0
        segment += READ_ENTRY_SIZE
    return length


cdef bint one_chunk(const uint8_t *octets, const header_t *header) noexcept nogil:
    """Whether all Read segments have one position, and are few."""
    cdef const uint8_t *segment = octets + header.reads + 4
    cdef size_t index
    if header.read_count > SEGMENTS:
        return False
    for index in range(1, header.read_count):
        if load32(segment + index * READ_ENTRY_SIZE) != load32(segment):
            return False
    return True


cdef class NativeResponder(NativeOwner):
    def __init__(
        self, ResponderState responder not None, NativeEndpoint endpoint not None, Answerer native not None,
        Account account not None, Account receive_account not None, options, run, owner=None,
    ):
        self.responder = responder
        self.replies = Replies(responder, endpoint, native, account)
        self.held = HeldCalls(responder, self.replies, receive_account, options, run, owner)
        self.credits = responder.credits
        self.run = run
        self.native = native
        self.receive_account = receive_account
        self.receive_buffer = options.receive_buffer
        self.most = options.max_call_size
        self.most_segments = options.max_segments
        endpoint.native = self

    def set_pace(self, Pace pace not None):
        self.pace = pace

    cdef bint over(self) noexcept:
        """Whether the host is over its rates."""
        return self.pace is not None and self.pace.limited and self.pace.over()

    cdef bint begins_call(self, Lease message, size_t size) except -1:
        """Whether a message is (the beginning of) a call."""
        cdef header_t header
        cdef int outcome = load_header(<const uint8_t *>message.address, size, self.most_segments, &header)
        return outcome == GOOD and header.direction == CALL

    def calls_and_others(self, messages):
        calls, others = [], []
        for message in messages:
            (calls if self.begins_call(message[0], message[1]) else others).append(message)
        return calls, others

    cdef int begin(self) except -1:
        """Find out what holds until :meth:`pause`."""
        self.begun = True
        self.spare = 0
        self.takes = (self.replies.version or self.replies.learn()) and self.responder.answers_natively()
        if self.takes:
            self.wary = self.responder.is_wary()
            self.fetches = self.responder.may_read and not self.responder.to_read
        return 0

    cdef int pause(self) except -1:
        """The end of a batch: other code may run, and the responder goes on."""
        self.begun = False
        self.native.pause()
        self.replies.count()
        if self.passed_on or self.credits.posted < self.credits.target or not self.responder.answers_natively():
            self.passed_on = False
            self.responder.proceed()
            self.run()
        return 0

    def set_endpoint(self, NativeEndpoint endpoint not None):
        self.replies.endpoint = self.replies.reply.endpoint = endpoint

    cdef object take(self, messages):
        """Answer what can be answered, and return the others."""
        cdef list rest = []
        cdef Lease lease
        cdef size_t taken = 0
        self.late = None
        self.begin()
        if not self.takes:
            self.begun = False
            for _ in messages:
                self.native.decline(NULL, 0, VERSION)
            return messages
        try:
            try:
                for message in messages:
                    lease = (<tuple?>message)[0]
                    taken += 1
                    if (self.late is not None or self.over()) and self.begins_call(lease, message[1]):
                        self.late = self.late or []
                        self.late.append(message)
                        continue
                    if not self.answer(lease, message[1]):
                        self.spare += 1
                        rest.append(self.left(message, lease))
            finally:
                self.begun = False
                self.replies.reply.drop()
                self.native.pause()
                self.replies.count()
        except BaseException:
            # The connection ends of it: what nobody has taken goes with it.
            for message in rest + (self.late or []) + list(messages[taken:]):
                message[0].release()
            self.late = None
            raise
        return rest

    cdef object left(self, object message, Lease lease):
        """A message that is the responder's, with what holds it."""
        holder = self.native.passed_on(None, lease)
        return message if holder is lease else (holder, *message[1:])

    cdef bint answer(self, Lease message, size_t size) except -1:
        """Answer one message, or leave it alone."""
        cdef const uint8_t *octets = <const uint8_t *>message.address
        cdef header_t header
        cdef long grant
        cdef int outcome = load_header(octets, size, self.most_segments, &header)
        if outcome != GOOD:
            return outcome != DISCARD and self.replies.leave(octets, size, NULL, SHAPE)
        if header.direction != CALL:
            return False
        if header.version != self.replies.version:
            return self.replies.leave(octets, size, NULL, VERSION)
        if self.wary and header.xid in self.responder.poisoned:
            return False
        if header.read_count:
            return self.fetch(message, size, &header)
        if header.procedure == RDMA_NOMSG or not is_call(octets + header.payload, size - header.payload, &header):
            return False
        outcome = self.replies.prepare(octets, &header)
        if outcome >= 0:
            return self.replies.leave(octets, size, &header, outcome)
        grant = 0 if self.credits.crowded() else self.credits.grant(self.spare)
        if grant <= 0:
            return self.replies.leave(octets, size, &header, CREDITS)
        try:
            outcome = self.replies.write(octets + header.payload, size - header.payload, &header)
        except BaseException:
            message.release()
            raise
        if outcome != ANSWERED:
            return outcome == WAITS and self.held.keep_message(message, size, &header)
        self.replies.received_calls += 1
        self.credits.asked = header.credit
        return self.replies.send(octets, &header, grant, message)

    cdef int answered(self, long count, bint ok) except -1:
        self.credits.unsent -= count
        if not ok:
            self.responder.lost(count)
        return 0

    # -- Calls with a Read chunk ---------------------------------------------------------------------------------

    cdef bint fetch(self, Lease message, size_t size, const header_t *header) except -1:
        """Begin to fetch the one Read chunk of a call, wherever in it that belongs."""
        cdef const uint8_t *octets = <const uint8_t *>message.address
        cdef Target sources[SEGMENTS]
        cdef size_t count, length, position = load32(octets + header.reads + 4)
        cdef Fetch call
        cdef Lease receive, sink
        cdef int reason
        if not self.fetches or self.credits.crowded():
            return self.replies.leave(octets, size, header, CREDITS if self.fetches else MEMORY)
        if not one_chunk(octets, header):
            return self.replies.leave(octets, size, header, CHUNKS)
        if header.procedure == RDMA_NOMSG:
            if position != 0:
                return False
        elif position == 0 or not is_call(octets + header.payload, size - header.payload, header):
            return False
        elif position & 3 or position > size - header.payload or size & 3:
            return False  # an error, for the responder to say (RFC 8166 section 3.4.5)
        length = sources_of(octets, header, sources, &count)
        if length < (SMALLEST_RPC if header.procedure == RDMA_NOMSG else 1):
            return False
        reason = SIZE if length > self.most else self.replies.prepare(octets, header)
        if reason >= 0:
            return self.replies.leave(octets, size, header, reason)
        try:
            receive = self.receive_account.lease(self.receive_buffer)
        except OutOfMemory:
            return self.replies.leave(octets, size, header, MEMORY)
        try:
            sink = self.replies.reply.account.lease(length)
        except OutOfMemory:
            # The responder waits for some, and who comes later waits behind it.
            self.fetches = False
            receive.release()
            return self.replies.leave(octets, size, header, MEMORY)
        call = Fetch.__new__(Fetch)
        call.message, call.size = message, size
        call.sink, call.length = sink, length
        self.replies.received_calls += 1
        self.credits.asked = header.credit
        self.replies.reads += count
        self.replies.read_octets += length
        if self.pace is not None:
            self.pace.promise(length)
        self.credits.outstanding += 1
        self.replies.endpoint.repost(receive)
        self.replies.endpoint.post_fetch(sources, count, call)
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
            self.native.pause()
            raise
        self.native.pause()
        self.passed_on = True
        message, sink, call.message, call.sink = call.message, call.sink, None, None
        if ok:
            self.responder.take_back(message, call.size, sink, self.native.passed_on(None, message))
        else:
            self.responder.unfetched(message, call.size, sink)
        return 0

    cdef bint answer_fetched(self, Fetch call) except -1:
        """Answer a call whose Read chunk has been fetched, or leave it as it is."""
        cdef NativeReply reply = self.replies.reply
        cdef const uint8_t *octets = <const uint8_t *>call.message.address
        cdef const uint8_t *rpc = octets
        cdef size_t size = call.size
        cdef long grant = self.credits.grant()
        cdef header_t header
        cdef HeldMessage held
        cdef int outcome
        load_header(octets, call.size, self.most_segments, &header)
        if header.procedure == RDMA_NOMSG:
            rpc, size = <const uint8_t *>call.sink.address, call.length
        else:
            rpc += header.payload
            size -= header.payload
        if grant <= 0 or header.version != self.replies.version or not is_call(rpc, size, &header):
            return False
        self.replies.prepare(octets, &header)
        place_chunk(reply, octets, &header, call.sink, call.length)
        try:
            outcome = self.replies.write(rpc, size, &header)
        finally:
            place_chunk(reply, octets, &header, None, 0)
        if outcome == WAITS:
            held = self.held.keep(call.message, call.size, call.sink, call.length, &header)
            if held is None:
                return False
            call.message = call.sink = None
            self.native.hold(held)
            return True
        if outcome != ANSWERED:
            return False
        self.credits.outstanding -= 1
        self.replies.send(octets, &header, grant, None)
        call.message.release()
        call.sink.release()
        call.message = call.sink = None
        return True

    def refused_call(self, handle):
        return self.replies.refused_call(handle)

    def let_go(self):
        self.replies.endpoint = self.replies.reply.endpoint = nobodys_endpoint
        self.pace = None
