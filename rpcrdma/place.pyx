"""Where native code writes replies, and who writes them (contract: ``place.pyi``).

Owns the two interfaces between a transport, which knows where a reply's octets must go to leave without a copy, and the
direct calls of :mod:`rpcrdma.rpc.direct`, which know what a reply says. Layer 0: imports nothing of the project.

A place begins empty, with room for at least the head of any direct reply. The head is written at ``at``, which advances.
One payload may follow at a time: ``data`` gives room for it (NULL: there is none, and the call is declined), and
``data_done`` tells how long it has become and adds the XDR padding; then the head goes on behind it.

Data of a file that is in memory may need no room: a place that can send it from where it is takes it with ``pages``,
in the place of ``data``. It returns how many octets there were, fewer than asked for only at the end of the file, and
they are the payload whatever becomes of the file; -1: it cannot, and ``data`` is to be asked for room.

Data that did not come with the call's message (an RDMA Read fetched it) stands beside it, in ``bulk``: the
content of one item of the call, to be found at ``bulk_at``. Who expects nothing of the kind there declines.
"""

from libc.stdint cimport uint64_t


cdef class Place:
    cdef uint8_t *data(self, size_t room) except? NULL:
        raise NotImplementedError

    cdef ssize_t pages(self, int fd, uint64_t offset, size_t count) except -2:
        return -1

    cdef int data_done(self, size_t length) except -1:
        raise NotImplementedError

    cdef int forget_payload(self) except -1:
        """Let go of the payload, or of what was to become it: another reply is written, from the beginning."""
        raise NotImplementedError


cdef class Answerer:
    cdef bint answer(self, const uint8_t *message, size_t size, Place place) except -1:
        """Answer an RPC call, or decline: then nothing has happened, and what was written is void."""
        raise NotImplementedError

    cdef void decline(self, const uint8_t *message, size_t size, int reason) noexcept:
        """Count a call that the transport does not offer (:mod:`rpcrdma.declined`). NULL: its message is not known."""

    cdef int pause(self) except -1:
        """No call comes for a while; to be called before anything else runs on this thread."""
        raise NotImplementedError
