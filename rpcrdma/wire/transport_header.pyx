"""Transport headers of calls and replies in native code, versions One and Two (C declarations: ``transport_header.pxd``).

Owns reading the header of a received message where it stands, and writing that of a reply. Imports the generated numbers
only. The reference codecs, :mod:`rpcrdma.wire.version_one` and :mod:`rpcrdma.wire.version_two`, see the same in every
message, errors included. RFC 8166 section 4; draft-cel version Two.

Nothing is copied from a header: a ``header_t`` says where the chunk lists stand, each of which has been found to be whole.
No more than ``most`` segments are looked at in all lists together.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
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

cdef enum:
    OPTION_HEAD = 28        # before rdma_optinfo

cdef dict WORDS = {DISCARD: "discard", BAD_VERSION: "version", BAD_PROCEDURE: "procedure", BAD_HEADER: "header"}


cdef int load_header(const uint8_t *octets, size_t size, size_t most, header_t *into) noexcept nogil:
    """Read the header of a message of ``size`` octets. GOOD, or what else it is; then ``into`` holds nothing of use."""
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
    if into.procedure > RDMA_NOMSG:
        # Sections 4.6.2 and 4.2.4: the one was never answered, the other is an answer.
        if into.procedure == RDMA_DONE or into.procedure == RDMA_ERROR:
            return DISCARD
        return BAD_PROCEDURE
    into.reads = LISTS_ONE
    if not load_lists(octets, size, most, into):
        return BAD_HEADER
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
    if into.procedure > RDMA_NOMSG and into.procedure != RDMA2_OPTIONAL:
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
        if load_lists(octets, size, most, into):
            return GOOD
    return DISCARD if into.direction == REPLY else BAD_HEADER  # RFC 8166 section 4.5: errors in the header of a reply


cdef bint load_lists(const uint8_t *octets, size_t size, size_t most, header_t *into) noexcept nogil:
    """Read the chunk lists (section 4.3), which begin at ``reads``. False: they are not whole, or too many segments."""
    cdef size_t at = into.reads, left = most, count
    while at + WORD <= size and load32(octets + at) == 1:
        if left == 0 or at + READ_ENTRY_SIZE > size:
            return False
        left -= 1
        into.read_count += 1
        at += READ_ENTRY_SIZE
    if at + WORD > size or load32(octets + at) != 0:
        return False
    at += WORD
    into.writes = at
    while at + 2 * WORD <= size and load32(octets + at) == 1:
        count = load32(octets + at + WORD)
        # An empty Write chunk counts as well.
        if max(count, <size_t>1) > left or count * SEGMENT_SIZE > size - at - 2 * WORD:
            return False
        left -= max(count, <size_t>1)
        if into.write_count == 0:
            into.write_size = <uint32_t>count
        into.write_count += 1
        at += 2 * WORD + count * SEGMENT_SIZE
    if at + WORD > size or load32(octets + at) != 0:
        return False
    at += WORD
    into.reply = at
    if at + WORD > size or load32(octets + at) > 1:
        return False
    if load32(octets + at) == 1:
        if at + 2 * WORD > size:
            return False
        count = load32(octets + at + WORD)
        if count > left or count * SEGMENT_SIZE > size - at - 2 * WORD:
            return False
        into.has_reply = True
        into.reply_size = <uint32_t>count
        at += WORD + count * SEGMENT_SIZE
    into.payload = at + WORD
    return True


cdef size_t reply_header_size(const header_t *header) noexcept nogil:
    """Octets of the header of any reply: an empty Read list (section 4.3.1), and the other lists as they came."""
    cdef size_t lists = LISTS_ONE if header.version == VERSION_ONE else LISTS_TWO
    return lists + WORD + (header.payload - header.writes)


cdef bint first_handle(const uint8_t *segments, size_t count, size_t step, uint32_t *handle) noexcept nogil:
    """The first handle of a chunk that holds anything. A last segment behind others may be padding in memory that serves
    all calls of the peer, and is never chosen (:meth:`rpcrdma.wire.version_one.VersionOne.invalidates`)."""
    cdef size_t index
    for index in range(max(count, <size_t>2) - 1 if count else 0):
        if load32(segments + index * step + 4):
            handle[0] = load32(segments + index * step)
            return True
    return False


cdef bint names(const uint8_t *segments, size_t count, size_t step, uint32_t handle) noexcept nogil:
    cdef size_t index
    for index in range(count):
        if load32(segments + index * step) == handle:
            return True
    return False


cdef bint invalidates(const uint8_t *octets, const header_t *header, uint32_t *handle) noexcept nogil:
    """Whether the reply is to invalidate a handle, where both peers can, and which. Version One: the first of the call's
    first chunk that holds anything (RFC 8797 section 4.1). Version Two: the one that the call names, if it is one of the
    call's ("Remote Invalidation")."""
    cdef bint one = header.version == VERSION_ONE
    cdef const uint8_t *read = octets + header.reads + 2 * WORD
    cdef size_t at = header.writes, index, count = header.read_count
    if not one:
        handle[0] = header.inv_handle
        if header.inv_handle == 0:
            return False
        if names(read, count, READ_ENTRY_SIZE, handle[0]):
            return True
    elif count:
        # The segments of the first chunk's position; they need not stand together.
        if first_read_handle(read, count, handle):
            return True
    for index in range(header.write_count):
        count = load32(octets + at + WORD)
        at += 2 * WORD
        if first_handle(octets + at, count, SEGMENT_SIZE, handle) if one else names(
            octets + at, count, SEGMENT_SIZE, handle[0]
        ):
            return True
        at += count * SEGMENT_SIZE
    at = reply_segments(header)
    if one:
        return first_handle(octets + at, header.reply_size, SEGMENT_SIZE, handle)
    return names(octets + at, header.reply_size, SEGMENT_SIZE, handle[0])


cdef bint first_read_handle(const uint8_t *read, size_t count, uint32_t *handle) noexcept nogil:
    """As :c:func:`first_handle`, of the first Read chunk: the segments that have the first one's position."""
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
    uint8_t *at, const uint8_t *octets, const header_t *header, uint32_t credit, uint32_t procedure, size_t in_write,
    size_t in_reply
) noexcept nogil:
    """Write a reply's header, for which there is room: the chunks come back as they are, but for the lengths, with
    ``in_write`` octets in the first Write chunk and ``in_reply`` in the Reply chunk (section 4.3.2.2). Returns what is
    behind it."""
    cdef size_t index
    at = store32(store32(store32(store32(at, header.xid), header.version), credit), procedure)
    if header.version == VERSION_TWO:
        at = store32(store32(at, REPLY), header.inv_handle)
    at = store32(at, 0)
    memcpy(at, octets + header.writes, header.payload - header.writes)
    for index in range(header.write_count):
        at = fill_lengths(at + 2 * WORD, load32(at + WORD), 0 if index else in_write)
    at += WORD
    return fill_lengths(at + 2 * WORD, header.reply_size, in_reply) if header.has_reply else at + WORD


# -- for tests -------------------------------------------------------------------------------------------------------
cdef list segments_at(const uint8_t *segments, size_t count):
    return [
        (
            load32(segments + SEGMENT_SIZE * index), load32(segments + SEGMENT_SIZE * index + 4),
            load64(segments + SEGMENT_SIZE * index + 8),
        )
        for index in range(count)
    ]


cdef tuple seen(const uint8_t *octets, const header_t *header):
    cdef const uint8_t *read = octets + header.reads + WORD
    cdef size_t at = header.writes, index, count
    cdef list reads = [], writes = []
    for index in range(header.read_count):
        reads.append((load32(read), *segments_at(read + WORD, 1)[0]))
        read += READ_ENTRY_SIZE
    for index in range(header.write_count):
        count = load32(octets + at + WORD)
        writes.append(segments_at(octets + at + 2 * WORD, count))
        at += 2 * WORD + SEGMENT_SIZE * count
    reply = segments_at(octets + reply_segments(header), header.reply_size) if header.has_reply else None
    return (
        header.xid, header.version, header.credit, header.procedure, header.direction, header.inv_handle, reads, writes,
        reply, header.payload,
    )


def decode(view, size_t max_segments):
    cdef Py_buffer message
    cdef header_t header
    cdef int outcome
    PyObject_GetBuffer(view, &message, PyBUF_SIMPLE)
    try:
        outcome = load_header(<const uint8_t *>message.buf, message.len, max_segments, &header)
        return seen(<const uint8_t *>message.buf, &header) if outcome == GOOD else WORDS[outcome]
    finally:
        PyBuffer_Release(&message)


def encode_reply(view, size_t max_segments, uint32_t credit_value, uint32_t procedure, size_t in_write, size_t in_reply):
    cdef Py_buffer message
    cdef header_t header
    cdef bytearray into
    cdef uint8_t *start
    cdef size_t size
    PyObject_GetBuffer(view, &message, PyBUF_SIMPLE)
    try:
        if load_header(<const uint8_t *>message.buf, message.len, max_segments, &header) != GOOD:
            raise ValueError("no header")
        into = bytearray(reply_header_size(&header))
        start = into
        size = store_reply_header(
            start, <const uint8_t *>message.buf, &header, credit_value, procedure, in_write, in_reply
        ) - start
        if size != <size_t>len(into):
            raise ValueError(f"{size} octets were written to a header of {len(into)}")
        return bytes(into)
    finally:
        PyBuffer_Release(&message)


def invalidated(view, size_t max_segments):
    cdef Py_buffer message
    cdef header_t header
    cdef uint32_t handle = 0
    PyObject_GetBuffer(view, &message, PyBUF_SIMPLE)
    try:
        if load_header(<const uint8_t *>message.buf, message.len, max_segments, &header) != GOOD:
            raise ValueError("no header")
        return handle if invalidates(<const uint8_t *>message.buf, &header, &handle) else None
    finally:
        PyBuffer_Release(&message)
