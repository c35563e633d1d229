"""Transport headers of calls and replies, versions One and Two (C declarations: ``transport_header.pxd``).

Owns reading the header of a received message, and what a reply's header is: its size, its octets, and the handle that
the reply invalidates. Imports numbers, and the decoded header (:mod:`rpcrdma.wire.header`). RFC 8166 section 4;
draft-cel version Two.

Native calls read a header where it stands: a ``header_t`` says where the chunk lists are, each of which has been found
to be whole, and nothing is copied. For all others (:mod:`rpcrdma.wire.codec`) :func:`decode` makes a Python object of
it, with a copy of the lists as they came, of which the same functions make the reply's header. No more than ``most``
segments are looked at in all lists together.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.string cimport memcpy, memset

from rpcrdma.octets cimport load32, load64, padded, store32
from rpcrdma.wire.chunk_lists cimport READ_ENTRY_SIZE, SEGMENT_SIZE, WORD
from rpcrdma.wire.rdma cimport (
    CALL,
    LISTS_ONE,
    LISTS_TWO,
    OPTION,
    RDMA2_OPTIONAL,
    RDMA_DONE,
    RDMA_ERROR,
    RDMA_NOMSG,
    REPLY,
    SMALLEST_HEADER,
    UNDECIDED,
    VERSION_ONE,
    VERSION_TWO,
)

from rpcrdma.wire.header import Discard, Fault, Header, HeaderFault, MessageHeader, OptionHeader

cdef enum:
    OPTION_HEAD = 28        # before rdma_optinfo


cdef int load_header(const uint8_t *octets, size_t size, size_t most, header_t *into) noexcept nogil:
    """Read the header of a message of ``size`` octets. GOOD, or what else it is; then ``into`` is of use only to
    :c:func:`fault_of`."""
    if size < SMALLEST_HEADER:
        return DISCARD  # RFC 8166 section 4.5: no field can be trusted
    memset(into, 0, sizeof(header_t))
    into.xid = load32(octets)
    into.version = load32(octets + 4)
    into.credit = load32(octets + 8)
    into.procedure = load32(octets + 12)
    if into.version == VERSION_ONE:
        return load_one(octets, size, most, into)
    if into.version == VERSION_TWO:
        return load_two(octets, size, most, into)
    return BAD_VERSION


cdef int load_one(const uint8_t *octets, size_t size, size_t most, header_t *into) noexcept nogil:
    cdef int outcome
    if into.procedure > RDMA_NOMSG:
        # Sections 4.6.2 and 4.2.4: the one was never answered, the other is an answer. (An error that answers a backward
        # call is looked for before.) RDMA_MSGP is as good as a procedure that never was (sections 4.5.2, 4.6.1).
        return DISCARD if into.procedure == RDMA_DONE or into.procedure == RDMA_ERROR else BAD_PROCEDURE
    into.reads = LISTS_ONE
    outcome = load_lists(octets, size, most, into)
    if outcome != GOOD:
        return outcome
    into.direction = CALL
    if into.procedure == RDMA_NOMSG:
        if into.payload == SMALLEST_HEADER:
            return BAD_HEADER  # without any chunk
        if into.read_count == 0:
            into.direction = UNDECIDED
    # RFC 8167 section 4.1: only the RPC message says which direction this belongs to.
    elif into.payload + 8 <= size and load32(octets + into.payload + 4) == REPLY:
        into.direction = REPLY
    return GOOD


cdef int load_two(const uint8_t *octets, size_t size, size_t most, header_t *into) noexcept nogil:
    cdef size_t length
    cdef int outcome = BAD_HEADER
    if into.procedure > RDMA_NOMSG and into.procedure != RDMA2_OPTIONAL:
        # "Transport Errors". Two and three, which version One knows, are as unknown here as any other.
        return DISCARD if into.procedure == RDMA_ERROR else BAD_PROCEDURE
    into.direction = load32(octets + 16)
    if into.direction > REPLY:
        return BAD_HEADER
    if into.procedure == RDMA2_OPTIONAL:
        length = OPTION_HEAD + padded(load32(octets + 24))
        if length <= size:
            into.payload = length
            into.direction = OPTION
            return GOOD
    else:
        into.inv_handle = load32(octets + 20)
        into.reads = LISTS_TWO
        outcome = load_lists(octets, size, most, into)
        if outcome == GOOD:
            return GOOD
    return DISCARD if into.direction == REPLY else outcome  # RFC 8166 section 4.5: errors in the header of a reply


cdef int load_lists(const uint8_t *octets, size_t size, size_t most, header_t *into) noexcept nogil:
    """Read the chunk lists (section 4.3), which begin at ``reads``. GOOD; BAD_HEADER: they are not whole; TOO_MANY
    segments. Then ``into`` says where each list begins that was come to, and ``reply_size`` how many segments a chunk
    should have that does not fit."""
    cdef size_t at = into.reads, left = most, count
    while at + WORD <= size and load32(octets + at) == 1:
        if at + READ_ENTRY_SIZE > size:
            return BAD_HEADER
        if left == 0:
            return TOO_MANY
        left -= 1
        into.read_count += 1
        at += READ_ENTRY_SIZE
    if at + WORD > size or load32(octets + at) != 0:
        return BAD_HEADER
    at += WORD
    into.writes = at
    while at + 2 * WORD <= size and load32(octets + at) == 1:
        count = load32(octets + at + WORD)
        if count * SEGMENT_SIZE > size - at - 2 * WORD:
            into.reply_size = <uint32_t>count
            return BAD_HEADER
        # An empty Write chunk counts as well: it costs memory, too.
        if max(count, <size_t>1) > left:
            return TOO_MANY
        left -= max(count, <size_t>1)
        if into.write_count == 0:
            into.write_size = <uint32_t>count
        into.write_count += 1
        at += 2 * WORD + count * SEGMENT_SIZE
    if at + WORD > size or load32(octets + at) != 0:
        return BAD_HEADER
    at += WORD
    into.reply = at
    if at + WORD > size or load32(octets + at) > 1:
        return BAD_HEADER
    if load32(octets + at) == 1:
        if at + 2 * WORD > size:
            return BAD_HEADER
        count = load32(octets + at + WORD)
        if count * SEGMENT_SIZE > size - at - 2 * WORD:
            into.reply_size = <uint32_t>count
            return BAD_HEADER
        if count > left:
            return TOO_MANY
        into.has_reply = True
        into.reply_size = <uint32_t>count
        at += WORD + count * SEGMENT_SIZE
    into.payload = at + WORD
    return GOOD


cdef size_t reply_header_size(const header_t *header) noexcept nogil:
    """Octets of the header of any reply: an empty Read list (section 4.3.1), and the other lists as they came."""
    cdef size_t lists = LISTS_ONE if header.version == VERSION_ONE else LISTS_TWO
    return lists + WORD + (header.payload - header.writes)


cdef bint first_handle(const uint8_t *segments, size_t count, uint32_t *handle) noexcept nogil:
    """The first handle of a chunk that holds anything. Linux registers one pad buffer per connection and appends it to
    Write chunks of unaligned length. So a last segment behind others is never chosen."""
    cdef size_t index
    for index in range(max(count, <size_t>2) - 1 if count else 0):
        if load32(segments + index * SEGMENT_SIZE + 4):
            handle[0] = load32(segments + index * SEGMENT_SIZE)
            return True
    return False


cdef bint first_read_handle(const uint8_t *read, size_t count, uint32_t *handle) noexcept nogil:
    """As :c:func:`first_handle`, of the first Read chunk: the segments that have the first one's position. They need not
    stand together."""
    cdef uint32_t position = load32(read - WORD)
    cdef size_t index
    cdef bint first = True, chosen = False
    for index in range(count):
        if load32(read - WORD) == position:
            if chosen:
                return True  # and it was not the last one
            if load32(read + 4):
                handle[0] = load32(read)
                chosen = True
                if first:
                    return True
            first = False
        read += READ_ENTRY_SIZE
    return False


cdef bint names(const uint8_t *segments, size_t count, size_t step, uint32_t handle) noexcept nogil:
    cdef size_t index
    for index in range(count):
        if load32(segments + index * step) == handle:
            return True
    return False


cdef bint offered(const uint8_t *octets, const header_t *header, uint32_t handle) noexcept nogil:
    """Whether one of the chunks is in the memory that ``handle`` names."""
    cdef size_t at = header.writes, index, count
    if names(octets + header.reads + 2 * WORD, header.read_count, READ_ENTRY_SIZE, handle):
        return True
    for index in range(header.write_count):
        count = load32(octets + at + WORD)
        at += 2 * WORD
        if names(octets + at, count, SEGMENT_SIZE, handle):
            return True
        at += count * SEGMENT_SIZE
    return names(octets + reply_segments(header), header.reply_size, SEGMENT_SIZE, handle)


cdef bint invalidates(const uint8_t *octets, const header_t *header, uint32_t *handle) noexcept nogil:
    """Whether the reply is to invalidate a handle, where both peers can, and which.

    Version One: the first of the call's first chunk that holds anything, since Send With Invalidate must name a handle
    of that very call (RFC 8797 section 4.1). Version Two: the one that the call names ("Remote Invalidation"). A
    handle that is none of the call's is one that the requester must not name: it is echoed but not invalidated, which
    might end the connection, or pull memory from under another of its calls."""
    cdef size_t at = header.writes, index, count
    if header.version != VERSION_ONE:
        handle[0] = header.inv_handle
        return header.inv_handle != 0 and offered(octets, header, header.inv_handle)
    if header.read_count and first_read_handle(octets + header.reads + 2 * WORD, header.read_count, handle):
        return True
    for index in range(header.write_count):
        count = load32(octets + at + WORD)
        at += 2 * WORD
        if first_handle(octets + at, count, handle):
            return True
        at += count * SEGMENT_SIZE
    return first_handle(octets + reply_segments(header), header.reply_size, handle)


cdef uint8_t *fill_lengths(uint8_t *segments, size_t count, size_t length) noexcept nogil:
    """Say that ``length`` octets stand in a chunk, each segment full before the next (section 3.4.6). Returns what is
    behind the segments."""
    cdef size_t index, there
    for index in range(count):
        there = min(<size_t>load32(segments + 4), length)
        store32(segments + 4, <uint32_t>there)
        length -= there
        segments += SEGMENT_SIZE
    return segments


cdef uint8_t *store_reply_header(
    uint8_t *at, const uint8_t *octets, const header_t *header, uint32_t credit, uint32_t procedure,
    const size_t *in_writes, size_t count, size_t in_reply
) noexcept nogil:
    """Write a reply's header, for which there is room: the chunks come back as they are, but for the lengths, with
    ``in_writes`` octets in the first ``count`` Write chunks, none in those behind (section 4.3.2.2), and ``in_reply`` in
    the Reply chunk. Returns what is behind it."""
    cdef size_t index
    at = store32(store32(store32(store32(at, header.xid), header.version), credit), procedure)
    if header.version == VERSION_TWO:
        at = store32(store32(at, REPLY), header.inv_handle)
    at = store32(at, 0)
    memcpy(at, octets + header.writes, header.payload - header.writes)
    for index in range(header.write_count):
        at = fill_lengths(at + 2 * WORD, load32(at + WORD), in_writes[index] if index < count else 0)
    at += WORD
    return fill_lengths(at + 2 * WORD, header.reply_size, in_reply) if header.has_reply else at + WORD


# -- for the general path, and the requester -------------------------------------------------------------------------
cdef class ChunkLists:
    """The chunk lists of a message, apart from it: what the headers of its replies are made of."""

    cdef header_t header        # whose places are in these octets
    cdef bytes octets

    cdef const uint8_t *start(self) noexcept:
        return <const uint8_t *><const char *>self.octets


cdef ChunkLists copied(const uint8_t *octets, const header_t *header):
    cdef ChunkLists lists = ChunkLists.__new__(ChunkLists)
    lists.octets = (<const char *>octets)[header.reads : header.payload]
    lists.header = header[0]
    lists.header.reads = 0
    lists.header.writes -= header.reads
    lists.header.reply -= header.reads
    lists.header.payload -= header.reads
    return lists


cdef list segments_at(const uint8_t *segments, size_t count):
    return [
        (
            load32(segments + SEGMENT_SIZE * index), load32(segments + SEGMENT_SIZE * index + 4),
            load64(segments + SEGMENT_SIZE * index + 8),
        )
        for index in range(count)
    ]


cdef object object_of(const uint8_t *octets, const header_t *header):
    """The Header or MessageHeader of a message whose lists are good."""
    cdef const uint8_t *read = octets + header.reads + WORD
    cdef size_t at = header.writes, index, count
    cdef list reads = [], writes = []
    for index in range(header.read_count):
        reads.append((load32(read), load32(read + 4), load32(read + 8), load64(read + 12)))
        read += READ_ENTRY_SIZE
    for index in range(header.write_count):
        count = load32(octets + at + WORD)
        writes.append(segments_at(octets + at + 2 * WORD, count))
        at += 2 * WORD + SEGMENT_SIZE * count
    made = (MessageHeader if header.version == VERSION_TWO else Header)(
        header.xid, header.version, header.credit, header.procedure, header.direction, reads, writes,
        segments_at(octets + reply_segments(header), header.reply_size) if header.has_reply else None,
        header.payload, copied(octets, header),
    )
    if header.version == VERSION_TWO:
        made.inv_handle = header.inv_handle
    return made


cdef object option_of(object view, const uint8_t *octets, const header_t *header):
    """The OptionHeader of a message that has been found to be one."""
    made = OptionHeader(
        header.xid, header.version, header.credit, header.procedure, OPTION, [], [], None, header.payload, None
    )
    made.optdir = load32(octets + 16)
    made.opttype = load32(octets + 20)
    made.info = view[OPTION_HEAD : OPTION_HEAD + <size_t>load32(octets + 24)]
    return made


cdef object fault_of(int outcome, const uint8_t *octets, const header_t *header, size_t most):
    """What is raised for a message that is not GOOD."""
    if outcome == DISCARD:
        return Discard()
    if outcome == BAD_VERSION:
        return HeaderFault(header.xid, header.version, Fault.VERSION, f"version {header.version}")
    if outcome == BAD_PROCEDURE:
        return HeaderFault(header.xid, header.version, Fault.PROCEDURE, f"procedure {header.procedure}")
    if header.direction > REPLY:
        reason = f"direction {header.direction}"
    elif header.procedure == RDMA2_OPTIONAL:
        reason = f"{load32(octets + 24)} octets of rdma_optinfo do not fit the message"
    elif header.payload:
        reason = "RDMA_NOMSG without any chunk"
    else:
        if header.writes == 0:
            reason = f"the Read list at octet {header.reads}"
        elif header.reply == 0:
            reason = f"the Write list at octet {header.writes}"
        else:
            reason = f"the Reply chunk at octet {header.reply}"
        if outcome == TOO_MANY:
            reason += f" makes more than {most} segments"
        elif header.reply_size:
            reason += f": {header.reply_size} segments do not fit the message"
        else:
            reason += " is malformed or not whole"
    return HeaderFault(header.xid, header.version, Fault.HEADER, reason)


def decode(view, size_t max_segments):
    cdef Py_buffer message
    cdef header_t header
    cdef const uint8_t *octets
    cdef int outcome
    PyObject_GetBuffer(view, &message, PyBUF_SIMPLE)
    try:
        octets = <const uint8_t *>message.buf
        outcome = load_header(octets, message.len, max_segments, &header)
        if outcome != GOOD:
            raise fault_of(outcome, octets, &header, max_segments)
        if header.direction == OPTION:
            return option_of(view, octets, &header)
        return object_of(octets, &header)
    finally:
        PyBuffer_Release(&message)


def reply_size(call):
    cdef ChunkLists lists = <ChunkLists?>call.lists
    return reply_header_size(&lists.header)


def invalidated(call):
    cdef ChunkLists lists = <ChunkLists?>call.lists
    cdef uint32_t handle = 0
    return handle if invalidates(lists.start(), &lists.header, &handle) else None


def offers(call, uint32_t handle):
    cdef ChunkLists lists = <ChunkLists?>call.lists
    return offered(lists.start(), &lists.header, handle)


def encode_reply(buffer, call, uint32_t credit_value, uint32_t procedure, writes, size_t reply):
    cdef ChunkLists lists = <ChunkLists?>call.lists
    cdef size_t size = reply_header_size(&lists.header), count = len(writes), index, length
    cdef bytearray room = bytearray(count * sizeof(size_t))
    cdef size_t *in_writes = <size_t *><char *>room
    cdef Py_buffer into
    if count > lists.header.write_count or (reply and not lists.header.has_reply):
        raise ValueError("the call has no such chunk")
    for index in range(count):
        length = writes[index]
        in_writes[index] = length
    PyObject_GetBuffer(buffer, &into, PyBUF_SIMPLE | PyBUF_WRITABLE)
    try:
        if size > <size_t>into.len:
            raise ValueError(f"{into.len} octets for a header of {size}")
        store_reply_header(
            <uint8_t *>into.buf, lists.start(), &lists.header, credit_value, procedure, in_writes, count, reply
        )
    finally:
        PyBuffer_Release(&into)
    return size
