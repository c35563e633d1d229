"""The signatures of native calls under RPCSEC_GSS, and the headers of their replies (RFC 2203 section 5.3).

Owns :class:`Signed`, which a call without a signature has, too, and :class:`Known` (contract: ``signed.pyi``); imports
contexts, and places. What is looked at here, and is
not good, or is not simple, is for the general path to answer (:mod:`rpcrdma.rpc.secured`). A call that is declined is
verified there once more, but its sequence number has been taken: that goes along (:class:`~rpcrdma.rpc.replay.Passed`).
"""

from cython cimport freelist
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint64_t
from libc.string cimport memcmp

from rpcrdma.gss.contexts cimport FRESH, Context
from rpcrdma.octets cimport load32, load64, padded, store32
from rpcrdma.place cimport Place
from rpcrdma.rpc.headers cimport accepted
from rpcrdma.wire.rpc cimport RPCSEC_GSS

from rpcrdma.gss.library import GssError

cdef enum:
    HANDLE = 16             # octets of a context's


cdef const uint8_t *handle_of(const uint8_t *message) noexcept:
    """The context that a call under RPCSEC_GSS names; NULL: the call is not one of version 1 with data that nothing but its
    header is protected of."""
    cdef const uint8_t *body = message + 32
    if load32(message + 28) != 20 + HANDLE or load32(body + 16) != HANDLE or load64(body) != <uint64_t>1 << 32:
        return NULL
    return body + 20 if load32(body + 12) == 1 else NULL


cdef class Known:
    def __init__(self, dict contexts not None, look_up not None):
        self.contexts, self.look_up = contexts, look_up

    cdef Context find(self, const uint8_t *handle, double now):
        """The context that a client calls so, with credentials, of which the first is that of calls without protection."""
        cdef Context context = self.latest
        if context is None or context.gone or memcmp(PyBytes_AS_STRING(context.handle), handle, HANDLE) != 0:
            context = self.latest = self.contexts.get(PyBytes_FromStringAndSize(<char *>handle, HANDLE))
        if context is not None and context.credentials:
            if now < context.expires and now <= context.known_until:
                context.recent = True
                return context
        return self.look_up(PyBytes_FromStringAndSize(<char *>handle, HANDLE))


cdef Signed signature(Known known, const uint8_t *message, call_header_t *header, double now):
    """That of a call under RPCSEC_GSS; None: for the general path to say. ``known``: the contexts; None: there are none."""
    cdef const uint8_t *handle = handle_of(message)
    cdef Context context = None if handle == NULL or known is None else known.find(handle, now)
    cdef Signed signed
    if context is None or header.verifier_flavor != RPCSEC_GSS:
        return None
    if not context.sealer.verifies(message, header.verifier, message + header.verifier + 8, header.verifier_length):
        return None
    signed = Signed.__new__(Signed)
    signed.known = known
    signed.context, signed.sequence, signed.credential = context, load32(message + 40), context.credentials[0]
    return signed


@freelist(8)
cdef class Signed:
    cdef bint take(self) noexcept:
        """Whether the call may be answered, as far as its sequence number goes."""
        if self.context is None:
            return True
        if self.context.take(self.sequence) != FRESH:
            return False
        self.known.calls += 1
        return True

    cdef tuple number(self):
        """The context, and the sequence number that was taken there; None: nobody has signed the call."""
        return None if self.context is None else (self.context, self.sequence)

    cdef int head(self, Place place, uint32_t xid) except -1:
        """Write the header of an accepted reply, with the verifier that belongs to the call."""
        cdef uint8_t *start = place.at
        cdef uint8_t *at
        cdef ssize_t length
        if self.context is None:
            place.at = accepted(start, xid)
        else:
            at = store32(store32(store32(store32(start, xid), 1), 0), RPCSEC_GSS)
            length = self.context.verifier(self.sequence, at + 4, LONGEST_HEAD - 24)
            if length < 0:
                raise GssError("a reply cannot be signed")
            place.at = store32(store32(at, length) + padded(length), 0)
        self.headed = place.at - start
        return 0

    cdef bint succeeded(self, const uint8_t *start) noexcept:
        """Whether the reply that begins there says SUCCESS."""
        return load32(start + self.headed - 4) == 0

    cdef bytes plain(self, const uint8_t *start, Place place):
        """The reply's head as the replay cache keeps it: who is answered with it gets a verifier of their own."""
        cdef const uint8_t *status = start + self.headed - 4
        if self.context is None:
            return PyBytes_FromStringAndSize(<char *>start, place.at - start)
        head = PyBytes_FromStringAndSize(<char *>start, 12) + bytes(8)
        return head + PyBytes_FromStringAndSize(<char *>status, place.at - status)


cdef Signed UNSIGNED = Signed.__new__(Signed)
