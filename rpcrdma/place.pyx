"""Where native code writes replies, and who writes them (contract: ``place.pyi``).

Owns the two interfaces between a transport, which knows where a reply's octets must go to leave without a copy, and the
native calls of :mod:`rpcrdma.rpc.native`, which know what a reply says. Imports :mod:`rpcrdma.memory` and
:mod:`rpcrdma.pipes`.

A place begins empty, with room for at least the head of any native reply. The head is written at ``at``, which advances.
One payload may follow at a time: ``data`` gives room for it (NULL: there is none, and the call is declined), and
``data_done`` tells how long it has become and adds the XDR padding; then the head goes on behind it.

Data of a file that is in memory may need no room: a place that can send it from where it is takes it with ``pages``,
in the place of ``data``. It returns how many octets there were, fewer than asked for only at the end of the file, and
they are the payload whatever becomes of the file; -1: it cannot, and ``data`` is to be asked for room.

Calls that wait
    What an answerer cannot answer yet WAITS: nothing has happened so far, but it knows what it waits for. The transport
    keeps the call, in a :class:`Held`, which it hands to ``hold``; or it cannot, says ``dismiss``, and the call counts as
    declined. When what was waited for is there, :meth:`Held.again` has the transport offer the call again
    (``answer_again``), to the same function, with a place of its own; it may wait once more. Data that is fetched
    meanwhile goes to a ``sink`` of the place, and is its payload once it ``take``-s it. Pages of a file go to a ``vessel``
    (:mod:`rpcrdma.pipes`) likewise, for ``take_pages``. A call that was held and is then
    DECLINED is for others.

Calls that change hands
    A call that is DECLINED is for others, together with what ``passed_on`` gives in the place of its message's lease: whoever
    drops the call releases that. It may have been *begun*: then others go on from there (``pass_on``), and nothing is done
    twice, though something has happened.

Replies that are protected
    What is written behind ``protect`` is protected as a whole: none of its data is placed by itself, nor left where others
    may change it. When all is written, ``spans`` says where it stands, and what protects it goes behind. What is long is
    protected by threads, and its call waits for that: it has to be ``kept``. The reply is ``put_by`` then, where it is, and
    when the call is offered again it is brought back (``bring_back``) in the place that it has then.

Data that did not come with the call's message (an RDMA Read fetched it) stands beside it, in ``bulk``: the
content of one item of the call, to be found at ``bulk_at``. A procedure that expects nothing of the kind there declines.
"""

from libc.stdint cimport uint64_t

from rpcrdma.pipes cimport take_pipe


cdef class Place:
    cdef uint8_t *data(self, size_t room) except? NULL:
        raise NotImplementedError

    cdef bint takes_pages(self, uint64_t offset, size_t count) except -1:
        """Whether so much of a file, from there, may leave from the pages it is in."""
        return False

    cdef Pipe vessel(self, uint64_t offset, size_t count):
        """An empty pipe for pages that come later; None: there is none, or they could not leave from there."""
        return take_pipe() if self.takes_pages(offset, count) else None

    cdef bint take_pages(self, Pipe pipe, size_t length) except -1:
        """So many octets in a ``vessel`` are the payload, padding is added. Takes the pipe. False: they cannot leave."""
        raise NotImplementedError

    cdef ssize_t pages(self, int fd, uint64_t offset, size_t count) except -2:
        return -1

    cdef bint reduces(self) noexcept:
        """Whether the payload goes to where only data may (RFC 8166 section 3.4.2): a Write chunk."""
        return False

    cdef int data_done(self, size_t length) except -1:
        raise NotImplementedError

    cdef int forget_payload(self) except -1:
        """Let go of the payload, or of what was to become it: another reply is written, from the beginning."""
        raise NotImplementedError

    cdef Lease sink(self, size_t room):
        """Memory for a payload that comes later; None: there is none, or a payload of this size has no place."""
        return None

    cdef bint take(self, Lease payload, size_t length) except -1:
        """So many octets of a ``sink`` are the payload, padding is added. Takes the count. False: there is no room."""
        raise NotImplementedError

    cdef bint protect(self, size_t behind) except -1:
        """What is written from here on is protected as a whole, and takes up to so many octets more behind it. False: there is
        no room."""
        return False

    cdef int spans(self, uint8_t *begin, span_t *spans) except -1:
        """Where the octets are that have been written from ``begin`` on, with padding: in so many pieces. At ``at`` there is
        the room that was wanted behind them."""
        raise NotImplementedError

    cdef bint long_payload(self) except -1:
        """Whether the call is kept, and its reply has a payload of its own that is not protected at once."""
        return False

    cdef Lease put_by(self, aside_t *aside):
        """Have the call wait though its reply is written: give up its payload. The head stays where the call is kept."""
        raise NotImplementedError

    cdef int bring_back(self, Lease payload, const aside_t *aside) except -1:
        """The reply that was set aside is to be sent. Takes the payload."""
        raise NotImplementedError

    cdef bint pass_on(self, object begun, bint changed) except -1:
        """The call is going to be declined, and ``begun`` is what others are to go on from; it says whether it has
        ``changed`` something, and ``give_back`` tells it that nobody goes on. False, unless something has been changed: they
        begin anew."""
        self.begun = begun
        return True


cdef class Held:
    cdef int again(self) except -1:
        """What the call waited for is there, or will not come."""
        raise NotImplementedError


cdef class Answerer:
    cdef int answer(self, const uint8_t *message, size_t size, Place place) except -1:
        """Answer an RPC call (ANSWERED), or not: what was written is void. DECLINED: others do, with what
        :meth:`passed_on` gives. WAITS: call :meth:`hold` or :meth:`dismiss` before anything else. What of the message is
        encrypted is decrypted where it stands."""
        raise NotImplementedError

    cdef int hold(self, Held held) except -1:
        """The call that WAITS is kept: begin with what it waits for."""
        raise NotImplementedError

    cdef int dismiss(self) except -1:
        """The call that WAITS cannot be kept: it is DECLINED."""
        raise NotImplementedError

    cdef int answer_again(self, Held held, Place place) except -1:
        """As :meth:`answer`, of a call that was held. WAITS: call :meth:`hold` once more, now or later."""
        raise NotImplementedError

    cdef object passed_on(self, Held held, Lease message):
        """What holds a call that is DECLINED: ``message``, or what releases that as well. ``held``: where it was; None: it
        has just been offered for the first time."""
        return message

    cdef void decline(self, const uint8_t *message, size_t size, int reason) noexcept:
        """Count a call that the transport does not offer (:mod:`rpcrdma.declined`). NULL: its message is not known."""

    cdef int pause(self) except -1:
        """No call comes for a while; to be called before anything else runs on this thread."""
        raise NotImplementedError
