"""Native calls under RPCSEC_GSS: their signatures, the protection of their arguments and results (RFC 2203 section 5.3).

Owns :class:`Signed`, which a call without a signature has, too, and :class:`Known` (contract: ``signed.pyi``); imports
contexts, and places. What is looked at here, and is
not good, or is not simple, is for the general path to answer (:mod:`rpcrdma.rpc.secured`). A call that is declined is
verified there once more, but its sequence number has been taken, and its arguments may have been decrypted where they stand:
that goes along (:class:`~rpcrdma.rpc.replay.Passed`).

Results that are signed or encrypted are so where they have been written, when they have been.
"""

from cython cimport freelist
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memmove, memset

from rpcrdma.crew cimport MOST_THREADS, Crew
from rpcrdma.gss.contexts cimport FRESH, Context
from rpcrdma.gss.library cimport IOV_DATA, IOV_HEADER, IOV_MIC, IOV_TRAILER, gss_iov_buffer
from rpcrdma.gss.mechanism cimport Sealer, part
from rpcrdma.octets cimport load32, load64, padded, store32
from rpcrdma.place cimport MOST_SPANS, Place, span_t
from rpcrdma.rpc.ciphering cimport (
    DECRYPT, ENCRYPT, SIGN, VERIFY, Opening, Sealing, Turns, cipher_t, do_cipher,
)
from rpcrdma.rpc.headers cimport accepted
from rpcrdma.wire.rpc cimport RPCSEC_GSS

from rpcrdma.gss.library import GssError

cdef enum:
    HANDLE = 16             # octets of a context's


cdef const uint8_t *handle_of(const uint8_t *message) noexcept:
    """The context that a call under RPCSEC_GSS names; NULL: the call is not one of version 1 with data."""
    cdef const uint8_t *body = message + 32
    if load32(message + 28) != 20 + HANDLE or load32(body + 16) != HANDLE or load64(body) != <uint64_t>1 << 32:
        return NULL
    return body + 20 if 1 <= load32(body + 12) <= SERVICES else NULL


cdef bint is_protected(const uint8_t *message, const call_header_t *header) noexcept:
    """Whether more than the header is protected of a call."""
    return header.flavor == RPCSEC_GSS and handle_of(message) != NULL and load32(message + 44) != NONE


cdef class Known:
    def __init__(self, dict contexts not None, look_up not None, Crew crew=None):
        self.contexts, self.look_up, self.turns = contexts, look_up, Turns(crew, MOST_THREADS)

    def taken(self):
        return [self.calls[index] for index in range(SERVICES)]

    cdef Context find(self, const uint8_t *handle, double now):
        """The context that a client calls so, with credentials."""
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
    signed.context, signed.sequence, signed.service = context, load32(message + 40), load32(message + 44)
    signed.credential = context.credentials[signed.service - 1]
    return signed


@freelist(8)
cdef class Signed:
    cdef bint take(self) noexcept:
        """Whether the call may be answered, as far as its sequence number goes."""
        if self.context is None:
            return True
        if self.context.take(self.sequence) != FRESH:
            return False
        self.known.calls[self.service - 1] += 1
        return True

    cdef tuple number(self):
        """The context, and the sequence number that was taken there, and where in the message arguments are that have been
        unprotected; None: nobody has signed the call."""
        return None if self.context is None else (self.context, self.sequence, self.begin, self.end)

    cdef bint find(self, uint8_t *message, size_t at, size_t size, cipher_t *cipher) noexcept:
        """See where in a message of ``size`` octets what is protected stands: all of it from ``at`` on. False: it is not as it
        should be (sections 5.3.2.2 and 5.3.2.3)."""
        cdef size_t length, end
        if size - at < 4:
            return False
        length = load32(message + at)
        at += 4
        if length > size - at:
            return False
        cipher.octets, cipher.size = message + at, length
        if self.service == PRIVACY:
            cipher.kind = DECRYPT
            return padded(length) == size - at
        end = at + length
        if length & 3 or size - end < 4:
            return False
        cipher.kind = VERIFY
        cipher.mic, cipher.mic_size = message + end + 4, load32(message + end)
        return cipher.mic_size <= size - end - 4 and padded(cipher.mic_size) == size - end - 4

    cdef bint opened(self, const uint8_t *message, const cipher_t *cipher) noexcept:
        """What has been protected has been looked at. False: it is not good."""
        cdef const uint8_t *at = cipher.octets + cipher.start
        if cipher.length < 4 or load32(at) != self.sequence:
            self.begin, self.end = 4, 1  # none: the general path need not look at them again
            return False
        self.begin, self.end = at - message + 4, at - message + cipher.length
        return True

    cdef bint open(self, const uint8_t *message, size_t at, size_t size) noexcept:
        """Take the arguments out of their protection, where they stand, which is from there on. False: they are not good, and
        the general path says so."""
        cdef cipher_t cipher
        cdef Sealer sealer = self.context.sealer
        if not self.find(<uint8_t *>message, at, size, &cipher):
            return False
        cipher.handle = sealer.handle
        do_cipher(&cipher.task)
        return self.opened(message, &cipher)

    cdef Opening to_open(self, const uint8_t *message, size_t at, size_t size):
        """As :meth:`open`, to be done by a thread; None: they are not good."""
        cdef Opening opening = Opening.__new__(Opening)
        opening.turns, opening.context = self.known.turns, self.context
        return opening if self.find(<uint8_t *>message, at, size, &opening.own.cipher) else None

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
        self.covered = NULL
        return 0

    cdef bint protect(self, Place place) except -1:
        """Begin the results, if they are to be protected, with what stands before them. False: there is no room."""
        cdef Sealer sealer
        cdef size_t before, behind
        if self.end == 0:
            return True
        sealer = self.context.sealer
        before = 4 + (sealer.header if self.service == PRIVACY else 0)
        behind = padded(sealer.trailer) if self.service == PRIVACY else 4 + padded(sealer.mic_size)
        if <size_t>(place.end - place.at) < before + 4 or not place.protect(behind + 3):
            return False
        self.covered = place.at + before
        place.at = store32(self.covered, self.sequence)
        return True

    cdef size_t lay_out(self, Place place, cipher_t *cipher) except 0:
        """Write what protects the results, but for what is to be done by the cipher. Octets of what that covers."""
        cdef Sealer sealer = self.context.sealer
        cdef span_t spans[MOST_SPANS]
        cdef uint8_t *covered = self.covered
        cdef uint8_t *at
        cdef size_t size = 0, length
        cdef int index, count = place.spans(covered, spans)
        self.covered = NULL
        at = place.at
        for index in range(count):
            part(&cipher.parts[index + 1], IOV_DATA, spans[index].at, spans[index].length)
            size += spans[index].length
        if self.service == PRIVACY:
            cipher.kind, cipher.count = ENCRYPT, count + 2
            part(&cipher.parts[0], IOV_HEADER, covered - sealer.header, sealer.header)
            part(&cipher.parts[count + 1], IOV_TRAILER, at, sealer.trailer)
            length = sealer.header + size + sealer.trailer
            store32(covered - sealer.header - 4, <uint32_t>length)
            at += sealer.trailer
        else:
            cipher.kind, cipher.count = SIGN, count + 1
            part(&cipher.parts[count + 1], IOV_MIC, at + 4, sealer.mic_size)
            memmove(&cipher.parts[0], &cipher.parts[1], (count + 1) * sizeof(gss_iov_buffer))
            store32(covered - 4, <uint32_t>size)
            length = sealer.mic_size
            at = store32(at, <uint32_t>length) + length
        memset(at, 0, -length & 3)
        place.at = at + (-length & 3)
        return size

    cdef bint sealed(self, const cipher_t *cipher) except -1:
        """The results have been protected. Raises GssError if they have not been."""
        cdef Sealer sealer = self.context.sealer
        if cipher.length < 0 or (cipher.kind == SIGN and cipher.length != <ssize_t>sealer.mic_size):
            raise GssError("results cannot be protected")
        return True

    cdef int seal(self, Place place) except -1:
        """Protect the results, which have been written, with the call's sequence number before them."""
        cdef cipher_t cipher
        cdef Sealer sealer = None
        if self.covered == NULL:
            return 0
        sealer = self.context.sealer
        self.lay_out(place, &cipher)
        cipher.handle = sealer.handle
        do_cipher(&cipher.task)
        self.sealed(&cipher)
        return 0

    cdef Sealing to_seal(self, Place place):
        """As :meth:`seal`, to be done by a thread: the reply is set aside. None: it is not long, or cannot wait."""
        cdef Sealing sealing
        if self.covered == NULL or not place.long_payload():
            return None
        sealing = Sealing.__new__(Sealing)
        sealing.turns, sealing.context = self.known.turns, self.context
        self.lay_out(place, &sealing.own.cipher)
        sealing.payload = place.put_by(&sealing.aside)
        return sealing

    cdef bint succeeded(self, const uint8_t *start) noexcept:
        """Whether the reply that begins there says SUCCESS."""
        return load32(start + self.headed - 4) == 0

    cdef bytes plain(self, const uint8_t *start, Place place):
        """The reply's head as the replay cache keeps it: who is answered with it gets a verifier of their own."""
        cdef const uint8_t *status = start + self.headed - 4
        cdef const uint8_t *results
        if self.context is None:
            return PyBytes_FromStringAndSize(<char *>start, place.at - start)
        head = PyBytes_FromStringAndSize(<char *>start, 12) + bytes(8) + PyBytes_FromStringAndSize(<char *>status, 4)
        results = status + 4 if self.covered == NULL else self.covered + 4
        return head + PyBytes_FromStringAndSize(<char *>results, place.at - results)


cdef Signed UNSIGNED = Signed.__new__(Signed)
