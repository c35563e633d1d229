"""C declarations of the codec of transport headers."""

from libc.stdint cimport uint8_t, uint32_t

cdef enum:
    # What a message's header is.
    GOOD = 0
    DISCARD = 1             # nothing: to be discarded silently
    BAD_VERSION = 2         # of a version that is not known here
    BAD_PROCEDURE = 3
    BAD_HEADER = 4
    TOO_MANY = 5            # segments


cdef struct header_t:
    uint32_t xid
    uint32_t version
    uint32_t credit
    uint32_t procedure
    uint32_t direction      # CALL, REPLY, UNDECIDED or OPTION, as in rpcrdma.wire.header
    uint32_t inv_handle     # version Two
    # Where in the message they begin; of an option, "payload" only.
    size_t reads
    size_t writes
    size_t reply
    size_t payload
    uint32_t read_count     # Read segments
    uint32_t write_count    # Write chunks
    uint32_t write_size     # segments of the first of them
    uint32_t reply_size     # segments of the Reply chunk
    bint has_reply


cdef int load_header(const uint8_t *octets, size_t size, size_t most, header_t *into) noexcept nogil
cdef size_t reply_header_size(const header_t *header) noexcept nogil
cdef bint invalidates(const uint8_t *octets, const header_t *header, uint32_t *handle) noexcept nogil
cdef uint8_t *store_reply_header(
    uint8_t *at, const uint8_t *octets, const header_t *header, uint32_t credit, uint32_t procedure,
    const size_t *in_writes, size_t count, size_t in_reply
) noexcept nogil


cdef inline size_t write_segments(const header_t *header) noexcept nogil:
    """Where the segments of the first Write chunk begin."""
    return header.writes + 8


cdef inline size_t reply_segments(const header_t *header) noexcept nogil:
    """Where the segments of the Reply chunk begin."""
    return header.reply + 8
