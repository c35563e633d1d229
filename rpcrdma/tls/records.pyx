"""TLS's records (RFC 8446 section 5), enciphered and deciphered by OpenSSL's ciphers (contract: ``records.pyi``).

Owns :class:`Sealing` and :class:`Opening`, one for each direction; imports the library and :mod:`rpcrdma.memory`. The
directions share nothing, so one thread may encipher while another deciphers. Keys come from the handshake
(:mod:`rpcrdma.tls.secrets`), and change when the peer says so (section 4.6.3).

Data are enciphered on their way from where they are to where they leave from, and deciphered on their way to where they
are wanted. What has been deciphered is looked at when its tag has been found good, not before.

Bounds: a record has 16640 octets at most, and is refused by its header. The peer may send MOST_EMPTY octets without
data in them. The buffer for what arrives is the connection's, which gives it back when nothing is left in it.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport uint8_t
from libc.string cimport memcpy, memmove

from rpcrdma.memory cimport Lease
from rpcrdma.tls.library cimport AEAD_GET_TAG, AEAD_SET_TAG, crypto, load

from rpcrdma.tls.kernel import KeysStay

cdef extern from *:
    """
    #include <errno.h>
    static inline void set_errno(int number) { errno = number; }
    """
    void set_errno(int number) noexcept nogil

cdef extern from "<sys/socket.h>" nogil:
    ssize_t recv(int fd, void *at, size_t length, int flags)
    int MSG_DONTWAIT

cdef enum:
    TAG = 16
    LONGEST = 16384 + 256           # section 5.2
    NEW_SESSION_TICKET = 4
    KEY_UPDATE = 24
    LONGEST_MESSAGE = 65536         # of a handshake; only a ticket may be long
    # Alerts (section 6)
    CLOSE_NOTIFY = 0
    UNEXPECTED_MESSAGE = 10
    BAD_RECORD_MAC = 20
    RECORD_OVERFLOW = 22
    ILLEGAL_PARAMETER = 47
    DECODE_ERROR = 50
    INTERNAL_ERROR = 80

MOST_EMPTY = 1 << 18
cdef size_t most_empty = MOST_EMPTY


cdef bint begin_record(direction_t *direction, uint8_t *at, size_t length) noexcept nogil:
    """Begin a record of so many octets of data: write its header, which is what is authenticated beside them."""
    cdef uint8_t nonce[12]
    cdef int written
    at[0], at[1], at[2] = DATA, 3, 3
    at[3], at[4] = <uint8_t>((length + TRAILER) >> 8), <uint8_t>(length + TRAILER)
    make_nonce(direction, nonce)
    return (
        crypto.cipher_init(direction.context, NULL, NULL, NULL, nonce, -1) == 1
        and crypto.cipher_update(direction.context, NULL, &written, at, HEADER) == 1
    )


cdef bint add_to_record(direction_t *direction, uint8_t *at, const uint8_t *octets, size_t length) noexcept nogil:
    """Encipher data into a record. They may stand there."""
    cdef int written
    return crypto.cipher_update(direction.context, at, &written, octets, <int>length) == 1


cdef bint end_record(direction_t *direction, uint8_t *behind, uint8_t kind) noexcept nogil:
    """Say of what kind the data are, and write the tag behind that: TRAILER octets."""
    cdef int written
    direction.sequence += 1
    return (
        crypto.cipher_update(direction.context, behind, &written, &kind, 1) == 1
        and crypto.cipher_final(direction.context, behind + 1, &written) == 1
        and crypto.cipher_ctrl(direction.context, AEAD_GET_TAG, TAG, behind + 1) == 1
    )


cdef inline void make_nonce(direction_t *direction, uint8_t *nonce) noexcept nogil:
    """Section 5.3."""
    cdef int index
    memcpy(nonce, direction.iv, 12)
    for index in range(8):
        nonce[11 - index] ^= <uint8_t>(direction.sequence >> (8 * index))


cdef class Direction:
    def __dealloc__(self):
        if self.keys.context != NULL:
            crypto.cipher_ctx_free(self.keys.context)

    cdef int set_keys(self, secret) except -1:
        """Go on with these. Raises OSError."""
        cdef const void *cipher
        key, iv = secret.keys()
        if self.keys.context == NULL:
            self.keys.context = crypto.cipher_ctx_new()
        if "CHACHA20" in secret.cipher:
            cipher = crypto.chacha20_poly1305()
        else:
            cipher = crypto.aes_128_gcm() if len(key) == 16 else crypto.aes_256_gcm()
        if self.keys.context == NULL or not crypto.cipher_init(
            self.keys.context, cipher, NULL, <const uint8_t *>PyBytes_AS_STRING(key), NULL, isinstance(self, Sealing)
        ):
            crypto.clear_error()
            raise OSError(f"the library does not encipher with {secret.cipher}")
        memcpy(self.keys.iv, PyBytes_AS_STRING(iv), 12)
        self.keys.sequence = 0
        self.secret = secret
        return 0

    cdef int update(self) except -1:
        """Change keys."""
        return self.set_keys(self.secret.next())


cdef class Sealing(Direction):
    cdef bytes record(self, uint8_t kind, bytes content):
        """A record of its own."""
        cdef size_t length = len(content)
        cdef bytes record = PyBytes_FromStringAndSize(NULL, HEADER + length + TRAILER)
        cdef uint8_t *at = <uint8_t *>PyBytes_AS_STRING(record)
        cdef bint made = (
            begin_record(&self.keys, at, length)
            and add_to_record(&self.keys, at + HEADER, <const uint8_t *>PyBytes_AS_STRING(content), length)
            and end_record(&self.keys, at + HEADER + length, kind)
        )
        if not made:
            crypto.clear_error()
            raise OSError("the library does not encipher")
        return record


cdef class Opening(Direction):
    cdef int begin(self, Lease buffer) except -1:
        """Use this buffer, whose count becomes this one's."""
        self.buffer = buffer
        self.start = self.end = self.clear = self.clear_end = 0
        if self.early:
            self.end = len(self.early)  # no more than a step of a handshake takes
            memcpy(<void *>buffer.address, PyBytes_AS_STRING(self.early), self.end)
            self.early = b""
        return 0

    cdef int drop(self) except -1:
        """Give the buffer back."""
        buffer, self.buffer = self.buffer, None
        self.start = self.end = self.clear = self.clear_end = 0
        if buffer is not None:
            buffer.release()
        return 0

    cdef size_t holds(self) noexcept:
        """Octets that have come and have not been taken, as they are there."""
        return self.end - self.start + self.clear_end - self.clear + <size_t>len(self.early)

    cdef bint more(self) noexcept:
        """Whether :meth:`receive` would find something though nothing comes."""
        if self.failed is not None or self.ended or self.early:
            return True
        return self.clear < self.clear_end or (self.buffer is not None and self.whole() != 0)

    cdef ssize_t whole(self) noexcept:
        """Octets of the record at ``start``, header and all; 0: it is not there whole. A header that must not be is."""
        cdef const uint8_t *at = <const uint8_t *>self.buffer.address + self.start
        cdef size_t have = self.end - self.start, length
        if have < HEADER:
            return 0
        length = (<size_t>at[3] << 8) | at[4]
        if at[0] != DATA or length > LONGEST:
            return HEADER
        return HEADER + length if have >= HEADER + length else 0

    cdef ssize_t receive(self, int fd, iovec *vectors, size_t count) except -2:
        """Data that the peer has sent, into as many places as there are: see recvmsg(2), whose errno is set with -1. The
        socket is read from as long as it has more. Raises OSError where the peer does not keep to the protocol."""
        cdef size_t index = 0, filled = 0, part
        cdef ssize_t total = 0, got
        cdef bint dry = False
        cdef char *at
        while index < count:
            at = <char *>vectors[index].iov_base + filled
            part = min(vectors[index].iov_len - filled, self.clear_end - self.clear)
            if filled == vectors[index].iov_len:
                index, filled = index + 1, 0
            elif part:
                memcpy(at, <char *>self.buffer.address + self.clear, part)
                self.clear += part
                filled += part
                total += part
            elif self.failed is not None or self.ended:
                if self.failed is not None and not total:
                    raise self.failed
                return total
            elif self.whole():
                part = self.open(<uint8_t *>at, vectors[index].iov_len - filled)
                filled += part
                total += part
            elif dry:
                if not total:
                    set_errno(EAGAIN)
                    return -1
                return total
            else:
                got = self.fetch(fd, &dry)
                if got <= 0:
                    return total if total else got
        return total

    cdef ssize_t fetch(self, int fd, bint *dry) noexcept:
        """Take what the socket has. Octets; 0 at the end; -1 with errno. ``dry``: there is no more."""
        cdef char *base = <char *>self.buffer.address
        cdef size_t room
        cdef ssize_t got
        if self.start:
            memmove(base, base + self.start, self.end - self.start)
            self.end -= self.start
            self.start = self.clear = self.clear_end = 0
        room = self.buffer.capacity - self.end
        while True:
            got = recv(fd, base + self.end, room, MSG_DONTWAIT)
            if got >= 0 or errno != EINTR:
                break
        if got > 0:
            self.end += got
            dry[0] = <size_t>got < room
        return got

    cdef ssize_t open(self, uint8_t *into, size_t room) except -1:
        """Decipher the record at ``start``: into its place, if there is ``room``, or where it is. Octets of data in its
        place."""
        cdef uint8_t *at = <uint8_t *>self.buffer.address + self.start
        cdef size_t length = (<size_t>at[3] << 8) | at[4]
        cdef ssize_t size
        cdef bint there
        if at[0] != DATA:
            return self.fail(UNEXPECTED_MESSAGE, "a record in the clear")
        if length > LONGEST:
            return self.fail(RECORD_OVERFLOW, "a record that is too long")
        self.start += HEADER + length
        self.empty += HEADER + length
        there = length <= TAG + room
        if not there:
            into = at + HEADER
        size = -1
        if length >= TAG:
            if length < 4096:
                size = self.decipher(into, at, length)
            else:
                with nogil:
                    size = self.decipher(into, at, length)
        if size < 0:
            crypto.clear_error()
            return self.fail(BAD_RECORD_MAC, "a record that is not the peer's")
        while size > 0 and into[size - 1] == 0:
            size -= 1
        if size == 0:
            return self.fail(UNEXPECTED_MESSAGE, "a record of no kind")
        size -= 1
        if size > MOST:
            return self.fail(RECORD_OVERFLOW, "a record that is too long")
        if into[size] != DATA:
            self.take(into[size], PyBytes_FromStringAndSize(<char *>into, size))
        elif self.messages:
            self.fail(UNEXPECTED_MESSAGE, "data in the midst of a message")
        else:
            if size:
                self.empty = 0
            if there:
                return size if self.empty <= most_empty else self.exhausted()
            self.clear = self.start - length
            self.clear_end = self.clear + size
        return 0 if self.empty <= most_empty else self.exhausted()

    cdef int exhausted(self) except -1:
        """The peer could keep us at work with such records."""
        return self.fail(UNEXPECTED_MESSAGE, "the peer sends records without data")

    cdef ssize_t decipher(self, uint8_t *into, const uint8_t *record, size_t length) noexcept nogil:
        """Octets, with the kind and what pads the record; -1: the tag is not good."""
        cdef uint8_t nonce[12]
        cdef int written
        cdef size_t size = length - TAG
        make_nonce(&self.keys, nonce)
        self.keys.sequence += 1
        if (
            crypto.cipher_init(self.keys.context, NULL, NULL, NULL, nonce, -1) != 1
            or crypto.cipher_update(self.keys.context, NULL, &written, record, HEADER) != 1
            or crypto.cipher_update(self.keys.context, into, &written, record + HEADER, <int>size) != 1
            or crypto.cipher_ctrl(self.keys.context, AEAD_SET_TAG, TAG, <void *>(record + HEADER + size)) != 1
            or crypto.cipher_final(self.keys.context, into + size, &written) != 1
        ):
            return -1
        return size

    # -- what is no data -----------------------------------------------------------------------------------------

    cdef int take(self, uint8_t kind, bytes content) except -1:
        """Do what the peer says of the connection."""
        if kind == ALERT:
            if len(content) != 2:
                return self.fail(DECODE_ERROR, "an alert that is none")
            if content[1] == CLOSE_NOTIFY:
                self.ended = True
            else:
                self.failed = ConnectionError(f"the peer has sent alert {content[1]}")
            return 0
        if kind != HANDSHAKE or not content:
            return self.fail(UNEXPECTED_MESSAGE, "a record of another kind")
        self.messages += content
        while len(self.messages) >= 4 and self.failed is None:
            length = int.from_bytes(self.messages[1:4], "big")
            if length > LONGEST_MESSAGE:
                return self.fail(DECODE_ERROR, "a message that is too long")
            if len(self.messages) < 4 + length:
                break
            message, self.messages = self.messages[: 4 + length], self.messages[4 + length :]
            self.take_message(message[0], message[4:])
        return 0

    cdef int take_message(self, uint8_t kind, bytes content) except -1:
        """A handshake message behind the handshake (section 4.6)."""
        if kind == NEW_SESSION_TICKET and not self.is_server:
            return 0  # no session is resumed
        if kind != KEY_UPDATE or self.messages:
            return self.fail(UNEXPECTED_MESSAGE, "a message that does not belong there")
        if len(content) != 1:
            return self.fail(DECODE_ERROR, "a change of keys that is none")
        if content[0] > 1:
            return self.fail(ILLEGAL_PARAMETER, "a change of keys that is none")
        self.update()
        if content[0] == 1 and self.sealing.fixed:
            # It must be told of new keys before any more data (section 4.6.3), and cannot be.
            self.failed, self.sealing.parting = KeysStay(), INTERNAL_ERROR
        elif content[0] == 1:
            self.sealing.update_due = True
        return 0

    cdef int fail(self, int alert, str why) except -1:
        """The peer has broken the protocol: nothing that comes is looked at any more. Returns 0."""
        self.failed = ConnectionError(f"TLS: {why}")
        self.sealing.parting = alert
        return 0


def directions(secrets):
    cdef Opening opening = Opening.__new__(Opening)
    cdef Sealing sealing = Sealing.__new__(Sealing)
    load()
    opening.set_keys(secrets.incoming)
    sealing.set_keys(secrets.outgoing)
    opening.sealing, opening.is_server = sealing, secrets.is_server
    opening.early, opening.messages = secrets.early, b""
    return opening, sealing
