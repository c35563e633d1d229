"""What endpoints offer to native code besides the interface of :mod:`rpcrdma.verbs.interface`.

Owns the declaration only; imports :mod:`rpcrdma.memory`. An endpoint that derives from :class:`NativeEndpoint` can be
given replies without an object for each. Their completion is reported to the handler with the token
:data:`ANSWERED`, once for each of them.
"""


class _Answered:
    """There is one of it."""

    __slots__ = ()


ANSWERED = _Answered()


cdef class NativeEndpoint:
    cdef int repost(self, Lease lease) except -1:
        """Post one Receive; the endpoint takes the count."""
        raise NotImplementedError

    cdef int post_reply(
        self, const Target *targets, size_t count, Lease payload, Lease head, size_t length, bint invalidates,
        uint32_t handle
    ) except -1:
        """Post the octets of ``payload`` as RDMA Writes to ``targets``, one behind the other, and then ``length`` octets
        of ``head`` as a Send, with Invalidate of ``handle`` if it ``invalidates``. Takes one count of each lease
        (``payload`` may be None where there is nothing to write), whatever happens."""
        raise NotImplementedError
