# distutils: extra_compile_args = -O2
"""Chains: what is posted as one unit, with the memory it refers to and the token to report.

Owns the native form of posted work. A chain takes a buffer-protocol hold on every piece of memory at posting time and
gives it up when the chain is done or dropped, so payloads are neither copied nor able to go away meanwhile.
Imports :mod:`stags`, :mod:`rpcrdma.pipes` and :mod:`rpcrdma.verbs.native` only.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, malloc

from rpcrdma.memory cimport Lease
from rpcrdma.pipes cimport Pipe
from rpcrdma.verbs.softiwarp.framing cimport (
    OP_READ_REQUEST,
    OP_READ_RESPONSE,
    OP_SEND,
    OP_SEND_INVALIDATE,
    OP_TERMINATE,
    OP_WRITE,
)

from rpcrdma.verbs.native import ANSWERED


@cython.freelist(128)
@cython.no_gc
cdef class Chain:
    """Messages in the order they go out.

    ``no_gc``: the token may refer to anything, but every chain is completed or flushed, which drops it.
    """

    def __dealloc__(self):
        self.release()

    cdef int allocate(self, size_t messages, size_t pieces) except -1:
        """Make room: one block for messages, pieces and holds."""
        cdef size_t size = messages * sizeof(Message) + pieces * (sizeof(Piece) + sizeof(Py_buffer))
        if size == 0:
            return 0
        self.block = malloc(size)
        if self.block == NULL:
            raise MemoryError
        self.buffers = <Py_buffer *>self.block
        self.messages = <Message *>(self.buffers + pieces)
        self.pieces = <Piece *>(self.messages + messages)
        return 0

    cdef int hold(self, object view, int flags) except -1:
        """Add ``view`` as the next piece."""
        cdef Py_buffer *buffer = self.buffers + self.buffer_count
        PyObject_GetBuffer(view, buffer, flags)
        self.buffer_count += 1
        self.pieces[self.piece_count].data = <char *>buffer.buf
        self.pieces[self.piece_count].length = buffer.len
        self.piece_count += 1
        return 0

    cdef void release(self):
        """Give up the memory. Harmless when repeated."""
        cdef uint32_t i
        for i in range(self.buffer_count):
            PyBuffer_Release(self.buffers + i)
        self.buffer_count = 0
        free(self.block)
        self.block = NULL
        self.registration = None
        if self.head is not None:
            head, self.head = self.head, None
            head.release()
        if self.payload is not None:
            payload, self.payload = self.payload, None
            payload.release()
        if self.pages is not None:
            pages, self.pages = self.pages, None
            pages.release()


cdef class ChainQueue:
    """First in, first out. A chain is in one queue at a time."""

    cdef void append(self, Chain chain):
        chain.next = None
        if self.first is None:
            self.first = chain
        else:
            self.last.next = chain
        self.last = chain
        self.length += 1

    cdef Chain pop(self):
        """Take the first chain, or None."""
        cdef Chain chain = self.first
        if chain is not None:
            self.first = chain.next
            chain.next = None
            self.length -= 1
            if self.first is None:
                self.last = None
        return chain


cdef Chain chain_of_post(object writes, object send, object token):
    """RDMA Writes, then a Send. Raises ValueError, TypeError or OverflowError for what no header can carry."""
    cdef Chain chain = Chain.__new__(Chain)
    cdef Message *message
    cdef size_t write_count = len(writes)
    cdef object segments = None
    cdef object invalidate = None
    cdef size_t segment_count = 0
    if send is not None:
        segments, invalidate = send
        segment_count = len(segments)
    chain.token = token
    chain.signalled = True
    chain.allocate(write_count + 1, write_count + segment_count)
    for handle, offset, source in writes:
        message = chain.messages + chain.message_count
        message.opcode = OP_WRITE
        message.stag = handle
        message.offset = offset
        message.first = chain.piece_count
        message.pieces = 1
        chain.hold(source, PyBUF_SIMPLE)
        message.length = chain.pieces[message.first].length
        chain.message_count += 1
        check_length(message)
    if send is not None:
        message = chain.messages + chain.message_count
        message.opcode = OP_SEND if invalidate is None else OP_SEND_INVALIDATE
        message.stag = 0 if invalidate is None else invalidate
        message.offset = 0
        message.first = chain.piece_count
        message.pieces = 0
        message.length = 0
        for source in segments:
            chain.hold(source, PyBUF_SIMPLE)
            message.length += chain.pieces[chain.piece_count - 1].length
            message.pieces += 1
        chain.message_count += 1
        check_length(message)
    return chain


cdef Chain chain_of_reply(
    const Target *targets, size_t count, Lease payload, Pipe pages, Lease head, size_t length, bint invalidates,
    uint32_t handle
):
    """RDMA Writes of a reply's parts, then a Send. Takes one count of each lease, or the pipe the payload is in."""
    cdef Chain chain = Chain.__new__(Chain)
    cdef Message *message
    cdef size_t i
    chain.head = head
    chain.payload = payload
    chain.pages = pages
    chain.token = ANSWERED
    chain.signalled = True
    chain.allocate(count + 1, count + 1)
    for i in range(count + 1):
        message = chain.messages + i
        message.first = <uint32_t>i
        message.pieces = 1
        if i < count:
            message.opcode = OP_WRITE
            message.stag = targets[i].handle
            message.offset = targets[i].offset
            message.length = targets[i].length
            chain.pieces[i].data = <char *>targets[i].source
        else:
            message.opcode = OP_SEND_INVALIDATE if invalidates else OP_SEND
            message.stag = handle if invalidates else 0
            message.offset = 0
            message.length = length
            chain.pieces[i].data = <char *>head.address
        chain.pieces[i].length = message.length
    chain.message_count = chain.piece_count = <uint32_t>(count + 1)
    return chain


cdef Chain chain_of_reads(object reads, object token):
    """RDMA Reads. Raises as chain_of_post does, and BufferError when a sink is not writable."""
    cdef Chain chain = Chain.__new__(Chain)
    cdef Message *message
    cdef size_t count = len(reads)
    chain.token = token
    chain.signalled = True
    chain.allocate(count, count)
    for handle, offset, sink in reads:
        message = chain.messages + chain.message_count
        message.opcode = OP_READ_REQUEST
        message.stag = handle
        message.offset = offset
        message.first = chain.piece_count
        message.pieces = 1
        chain.hold(sink, PyBUF_WRITABLE)
        message.length = chain.pieces[message.first].length
        chain.message_count += 1
        check_length(message)
    return chain


cdef Chain chain_of_fetch(const Target *sources, size_t count, Fetch fetch):
    """RDMA Reads into the sink of ``fetch``, one behind the other; it is the token."""
    cdef Chain chain = Chain.__new__(Chain)
    cdef Message *message
    cdef size_t i, done = 0
    chain.token = fetch
    chain.signalled = True
    chain.allocate(count, count)
    for i in range(count):
        message = chain.messages + i
        message.opcode = OP_READ_REQUEST
        message.stag = sources[i].handle
        message.offset = sources[i].offset
        message.length = sources[i].length
        message.first = <uint32_t>i
        message.pieces = 1
        chain.pieces[i].data = <char *>fetch.sink.address + done
        chain.pieces[i].length = sources[i].length
        done += sources[i].length
    chain.message_count = chain.piece_count = <uint32_t>count
    return chain


cdef Chain chain_of_response(
    Registration registration, char *data, uint64_t length, uint32_t sink_stag, uint64_t sink_offset
):
    """The answer to a Read Request; ``registration`` (None for a zero-length one) keeps ``data`` valid."""
    cdef Chain chain = Chain.__new__(Chain)
    chain.allocate(1, 1)
    chain.messages[0].opcode = OP_READ_RESPONSE
    chain.messages[0].stag = sink_stag
    chain.messages[0].offset = sink_offset
    chain.messages[0].length = length
    chain.messages[0].first = 0
    chain.messages[0].pieces = 1
    chain.message_count = 1
    chain.pieces[0].data = data
    chain.pieces[0].length = length
    chain.piece_count = 1
    chain.registration = registration
    return chain


cdef Chain chain_of_empty_write():
    """The zero-length RDMA Write: of RFC 6581's peer-to-peer model, or to no effect. Its STag is not looked at."""
    cdef Chain chain = Chain.__new__(Chain)
    chain.allocate(1, 1)
    chain.messages[0].opcode = OP_WRITE
    chain.messages[0].stag = 1
    chain.messages[0].offset = 0
    chain.messages[0].length = 0
    chain.messages[0].first = 0
    chain.messages[0].pieces = 0
    chain.message_count = 1
    return chain


cdef Chain chain_of_terminate(bytes message):
    """A Terminate whose control field and attached headers are ``message``."""
    cdef Chain chain = Chain.__new__(Chain)
    chain.allocate(1, 1)
    chain.messages[0].opcode = OP_TERMINATE
    chain.messages[0].stag = 0
    chain.messages[0].offset = 0
    chain.messages[0].first = 0
    chain.messages[0].pieces = 1
    chain.hold(message, PyBUF_SIMPLE)
    chain.messages[0].length = chain.pieces[0].length
    chain.message_count = 1
    return chain


cdef int check_length(Message *message) except -1:
    # RFC 5041 section 5.2: "The ULP Message Length MUST be less than 2^32."
    if message.length >> 32:
        raise ValueError(f"a message of {message.length} octets")
    return 0
