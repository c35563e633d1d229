"""What endpoints offer to native code besides the interface of :mod:`rpcrdma.verbs.interface`.

Owns the declarations, and the one loop that reports completions; imports :mod:`rpcrdma.memory` and
:mod:`rpcrdma.pipes`. An endpoint that derives
from :class:`NativeEndpoint` can be given replies and Reads without an object for each of their parts. The caller that posts so is
the endpoint's :class:`NativeOwner` and is told of the completions without Python code: replies have the token
:data:`ANSWERED`, and are told by their number; a call's Reads have the call, a :class:`Fetch`.
"""


cimport cython


class _Answered:
    """There is one of it."""

    __slots__ = ()


ANSWERED = _Answered()
cdef object answered = ANSWERED


@cython.freelist(128)
@cython.no_gc
cdef class Fetch:
    def __init__(self):
        raise TypeError("made where a call is received")


cdef class NativeOwner:
    cdef int answered(self, long count, bint ok) except -1:
        """So many replies have left, or not."""
        raise NotImplementedError

    cdef int fetched(self, Fetch fetch, bint ok) except -1:
        """The Reads of a call are over. What it holds is the owner's."""
        raise NotImplementedError

    cdef int pause(self) except -1:
        """No more is told for a while; called before anything else runs on this thread."""
        raise NotImplementedError


cdef class NativeEndpoint:
    cdef int repost(self, Lease lease) except -1:
        """Post one Receive; the endpoint takes the count."""
        raise NotImplementedError

    cdef int post_reply(
        self, const Target *targets, size_t count, Lease payload, Lease head, size_t length, bint invalidates,
        uint32_t handle
    ) except -1:
        """Post RDMA Writes to ``targets``, of octets in ``payload`` or in ``head``, and then ``length`` octets of ``head``
        as a Send, with Invalidate of ``handle`` if it ``invalidates``. Takes one count of each lease (``payload`` may be
        None where there is nothing to write), whatever happens."""
        raise NotImplementedError

    cdef bint takes_pages(self) except -1:
        """Whether :meth:`post_pages` is of use now."""
        return False

    cdef int post_pages(
        self, const Target *targets, size_t count, Pipe pages, Lease head, size_t length, bint invalidates,
        uint32_t handle
    ) except -1:
        """As :meth:`post_reply`, of a payload that is all there is in a pipe. Takes the pipe, whatever happens."""
        raise NotImplementedError

    cdef int post_fetch(self, const Target *sources, size_t count, Fetch fetch) except -1:
        """Post RDMA Reads of ``sources`` into the call's sink, one behind the other."""
        raise NotImplementedError

    cdef int tell(self, object handler, list tokens, bint ok) except -1:
        """Report completions, each to whom posted what has completed."""
        cdef long replies = 0
        cdef bint telling = False
        for token in tokens:
            try:
                if token is answered:
                    replies += 1
                elif type(token) is Fetch:
                    telling = True
                    self.native.fetched(<Fetch>token, ok)
                else:
                    if telling:
                        telling = False
                        self.native.pause()
                    handler.completed(token, ok)
            except Exception:
                self.handler_failed()
        if replies or telling:
            try:
                if replies:
                    self.native.answered(replies, ok)
                self.native.pause()
            except Exception:
                self.handler_failed()
        return 0

    cdef int handler_failed(self) except -1:
        """Our own mistake: it costs this connection, and is logged."""
        raise NotImplementedError
