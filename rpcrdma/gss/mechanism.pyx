"""Security contexts of the Kerberos mechanism: made, and used on octets (contract: ``mechanism.pyi``).

Owns :class:`Acceptance` and :class:`Initiation`, which become a :class:`Sealer`. Imports :mod:`rpcrdma.gss.library`. All
cryptography is the library's; what takes long is done without the interpreter's lock.

The library's contexts are for one thread at a time. An established one is therefore exported, and imported as often as
there are threads that use it at the same time. Those copies count sequence numbers apart from each other, which nobody
looks at: RFC 2203 has numbers of its own (section 5.3.3.1), and replays and gaps that the library sees are no errors.

Messages are those of RFC 4121. Older keys, of triple DES and RC4, have messages of RFC 1964, and their contexts are
refused. MIT's library takes such messages in any context, and with a key that is not there its ``gss_unwrap_iov`` reads
beyond its memory (seen in 1.20). So what has not the form of RFC 4121 is not shown to it.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport uint8_t, uint32_t

from rpcrdma.gss.library cimport (
    GSS_ACCEPT, GSS_CONF_FLAG, GSS_CONTINUE_NEEDED, GSS_ERRORS, GSS_INITIATE, GSS_INTEG_FLAG,
    GSS_MUTUAL_FLAG, IOV_DATA, IOV_HEADER, IOV_MIC, IOV_PADDING, IOV_STREAM, IOV_TRAILER, KRB5, failure, gss,
    gss_buffer, gss_iov_buffer, gss_key_value, gss_key_value_set, gss_oid, gss_oid_set, load, taken,
)

from rpcrdma.gss.library import GssError

cdef enum:
    LONG = 16 << 10         # octets whose cryptography is done without the interpreter's lock
    MIC_FORM = 0x0404       # TOK_ID
    WRAP_FORM = 0x0504
    TOKEN_HEADER = 16       # octets of a token before what is in it

cdef gss_oid HOSTBASED      # GSS_C_NT_HOSTBASED_SERVICE: 1.2.840.113554.1.2.1.4 (RFC 2744)
HOSTBASED.length, HOSTBASED.elements = 10, <void *><char *>b"\x2a\x86\x48\x86\xf7\x12\x01\x02\x01\x04"
cdef gss_oid PRINCIPAL      # GSS_KRB5_NT_PRINCIPAL_NAME: 1.2.840.113554.1.2.2.1 (RFC 1964 section 2.1.1)
PRINCIPAL.length, PRINCIPAL.elements = 10, <void *><char *>b"\x2a\x86\x48\x86\xf7\x12\x01\x02\x02\x01"


cdef class Name:
    cdef void *handle

    def __cinit__(self, bytes text not None):
        cdef uint32_t minor, major
        cdef gss_buffer octets
        octets.length, octets.value = PyBytes_GET_SIZE(text), <void *>PyBytes_AS_STRING(text)
        load()
        major = gss.import_name(&minor, &octets, &PRINCIPAL if b"/" in text else &HOSTBASED, &self.handle)
        if major & GSS_ERRORS:
            raise failure(text.decode(), major, minor)

    def __dealloc__(self):
        cdef uint32_t minor
        if self.handle != NULL:
            gss.release_name(&minor, &self.handle)


cdef class Credential:
    def __cinit__(self, str service="", dict store=None, bint accepts=False):
        cdef uint32_t minor, major
        cdef gss_oid_set mechanisms
        cdef gss_key_value pairs[4]
        cdef gss_key_value_set given
        cdef Name name = Name(service.encode()) if service else None
        cdef list kept = [(key.encode(), value.encode()) for key, value in (store or {}).items()][:4]
        load()
        mechanisms.count, mechanisms.elements = 1, &KRB5
        given.count, given.elements = len(kept), pairs
        for index, (key, value) in enumerate(kept):
            pairs[index].key, pairs[index].value = PyBytes_AS_STRING(key), PyBytes_AS_STRING(value)
        cdef void *wanted = NULL if name is None else name.handle
        cdef int usage = GSS_ACCEPT if accepts else GSS_INITIATE
        with nogil:
            major = gss.acquire_cred_from(
                &minor, wanted, 0xFFFFFFFF, &mechanisms, usage, &given, &self.handle, NULL, NULL
            )
        if major & GSS_ERRORS:
            raise failure(f"no credentials for {service or 'any service'}", major, minor)

    cdef void *handle

    def __dealloc__(self):
        cdef uint32_t minor
        if self.handle != NULL:
            gss.release_cred(&minor, &self.handle)


cdef class Making:
    """A context that is being made; once it is ``made`` its sealers can be had."""

    cdef void *handle
    cdef readonly bint made
    cdef readonly uint32_t major, minor
    cdef readonly uint32_t flags
    cdef readonly uint32_t lifetime
    cdef readonly str principal

    def __dealloc__(self):
        cdef uint32_t minor
        if self.handle != NULL:
            gss.delete_sec_context(&minor, &self.handle, NULL)

    def export(self):
        cdef uint32_t minor, major
        cdef gss_buffer octets
        octets.length, octets.value = 0, NULL
        if not self.made:
            raise GssError("the context is not made yet")
        major = gss.export_sec_context(&minor, &self.handle, &octets)
        if major & GSS_ERRORS:
            raise failure("a context cannot be exported", major, minor)
        return taken(&octets)


cdef class Acceptance(Making):
    cdef readonly str why

    def step(self, Credential credential not None, bytes token not None):
        cdef uint32_t minor = 0, major, ignored, flags = 0, lifetime = 0
        cdef gss_buffer given, answer
        cdef void *source = NULL
        given.length, given.value = PyBytes_GET_SIZE(token), <void *>PyBytes_AS_STRING(token)
        answer.length, answer.value = 0, NULL
        with nogil:
            major = gss.accept_sec_context(
                &minor, &self.handle, credential.handle, &given, NULL, &source, NULL, &answer, &flags, &lifetime, NULL
            )
        self.major, self.minor, self.flags, self.lifetime = major, minor, flags, lifetime
        reply = taken(&answer)
        try:
            if major & GSS_ERRORS:
                # Here, and not where it is wanted: the library has the details in the thread in which it failed.
                self.why = str(failure("not accepted", major, minor))
                return reply
            if not major & GSS_CONTINUE_NEEDED:
                self.principal = displayed(source)
                self.made = True
        finally:
            if source != NULL:
                gss.release_name(&ignored, &source)
        return reply

    @property
    def failed(self):
        return bool(self.major & GSS_ERRORS)


cdef str displayed(void *name):
    cdef uint32_t minor, major
    cdef gss_buffer text
    text.length, text.value = 0, NULL
    major = gss.display_name(&minor, name, &text, NULL)
    if major & GSS_ERRORS:
        raise failure("a principal without a name", major, minor)
    return taken(&text).decode("utf-8", "backslashreplace")


cdef class Initiation(Making):
    cdef Name target
    cdef Credential credential
    cdef uint32_t asked

    def __init__(self, str target not None, Credential credential=None, uint32_t extra=0):
        self.target, self.credential = Name(target.encode()), credential
        self.asked = GSS_MUTUAL_FLAG | GSS_CONF_FLAG | GSS_INTEG_FLAG | extra

    def step(self, bytes token not None):
        cdef uint32_t minor = 0, major, flags = 0, lifetime = 0
        cdef gss_buffer given, answer
        cdef void *mine = NULL if self.credential is None else self.credential.handle
        given.length, given.value = PyBytes_GET_SIZE(token), <void *>PyBytes_AS_STRING(token)
        answer.length, answer.value = 0, NULL
        with nogil:
            major = gss.init_sec_context(
                &minor, mine, &self.handle, self.target.handle, &KRB5, self.asked, 0, NULL, &given, NULL, &answer, &flags,
                &lifetime
            )
        self.major, self.minor, self.flags, self.lifetime = major, minor, flags, lifetime
        reply = taken(&answer)
        if major & GSS_ERRORS:
            raise failure("no context", major, minor)
        self.made = not major & GSS_CONTINUE_NEEDED
        return reply


cdef class Sealer:
    def __cinit__(self, bytes exported not None):
        cdef uint32_t minor, major
        cdef gss_buffer octets
        octets.length, octets.value = PyBytes_GET_SIZE(exported), <void *>PyBytes_AS_STRING(exported)
        load()
        major = gss.import_sec_context(&minor, &octets, &self.handle)
        if major & GSS_ERRORS:
            raise failure("a context cannot be imported", major, minor)
        cdef uint8_t mic[MAX_MIC]
        cdef ssize_t length = self.sign_to(mic, 0, mic, sizeof(mic))
        if not has_form(mic, length, MIC_FORM):
            raise GssError("a context has keys of triple DES or RC4")
        self.mic_size = length
        self.measure()

    cdef int measure(self) except -1:
        """Find out what stands before and behind octets that are encrypted. With messages of RFC 4121 that is the same for
        any number of octets: ciphertext is not padded (RFC 3962 section 5; RFC 6803 section 3; RFC 8009 section 3)."""
        cdef gss_iov_buffer parts[4]
        cdef uint32_t minor, major
        cdef int private = 0
        part(&parts[0], IOV_HEADER, NULL, 0)
        part(&parts[1], IOV_DATA, NULL, 5)
        part(&parts[2], IOV_PADDING, NULL, 0)
        part(&parts[3], IOV_TRAILER, NULL, 0)
        major = gss.wrap_iov_length(&minor, self.handle, 1, 0, &private, parts, 4)
        if major & GSS_ERRORS or not private or parts[2].buffer.length:
            raise failure("nothing can be encrypted", major, minor)
        self.header, self.trailer = parts[0].buffer.length, parts[3].buffer.length
        return 0

    def __dealloc__(self):
        cdef uint32_t minor
        if self.handle != NULL:
            gss.delete_sec_context(&minor, &self.handle, NULL)

    cdef bint verifies(self, const uint8_t *octets, size_t size, const uint8_t *mic, size_t mic_size) noexcept:
        """Whether ``mic`` is the other side's, of these octets."""
        if size < LONG:
            return verify_mic(self.handle, octets, size, mic, mic_size)
        with nogil:
            return verify_mic(self.handle, octets, size, mic, mic_size)

    cdef ssize_t sign_to(self, const uint8_t *octets, size_t size, uint8_t *at, size_t room) noexcept:
        """Write our MIC of these octets. Returns its length; -1: it cannot be made, or there is no room."""
        cdef gss_iov_buffer parts[2]
        part(&parts[0], IOV_DATA, octets, size)
        part(&parts[1], IOV_MIC, at, room)
        return self.sign_parts(parts, 2, size)

    cdef ssize_t sign_parts(self, gss_iov_buffer *parts, int count, size_t size) noexcept:
        """As :meth:`sign_to`, of so many octets in all parts but the last, which has the room. The library reads them where
        they stand; of a message in one piece it would make a copy first."""
        if size < LONG:
            return make_mic(self.handle, parts, count)
        with nogil:
            return make_mic(self.handle, parts, count)

    cdef bint wrap_parts(self, gss_iov_buffer *parts, int count, size_t size) noexcept:
        """Encrypt what stands in the parts between the first and the last, so many octets in all, in place. These two are
        what ``header`` and ``trailer`` say that they take. False: it cannot be done, and nothing that stands there is good."""
        if size < LONG:
            return encrypt(self.handle, parts, count)
        with nogil:
            return encrypt(self.handle, parts, count)

    cdef ssize_t unwrap_at(self, uint8_t *token, size_t size, size_t *start) noexcept:
        """Decrypt in place: where the octets begin, and their length. -1: the other side has not encrypted them, and they
        are no more what they were."""
        if size < LONG:
            return decrypt(self.handle, token, size, start)
        with nogil:
            return decrypt(self.handle, token, size, start)

    def verify(self, octets, mic):
        cdef Py_buffer message, token
        cdef bint good
        PyObject_GetBuffer(octets, &message, PyBUF_SIMPLE)
        try:
            PyObject_GetBuffer(mic, &token, PyBUF_SIMPLE)
            good = self.verifies(<uint8_t *>message.buf, message.len, <uint8_t *>token.buf, token.len)
            PyBuffer_Release(&token)
        finally:
            PyBuffer_Release(&message)
        return good

    def sign(self, *pieces):
        cdef uint8_t mic[MAX_MIC]
        cdef ssize_t length
        cdef int count = len(pieces), taken = 0
        cdef size_t size = 0
        cdef Py_buffer *octets = <Py_buffer *>PyMem_Malloc(count * sizeof(Py_buffer) + (count + 1) * sizeof(gss_iov_buffer))
        cdef gss_iov_buffer *parts = <gss_iov_buffer *>(octets + count)
        if octets == NULL:
            raise MemoryError
        try:
            for taken in range(count):
                PyObject_GetBuffer(pieces[taken], &octets[taken], PyBUF_SIMPLE)
                part(&parts[taken], IOV_DATA, <uint8_t *>octets[taken].buf, octets[taken].len)
                size += octets[taken].len
            taken = count
            part(&parts[count], IOV_MIC, mic, sizeof(mic))
            length = self.sign_parts(parts, count + 1, size)
        finally:
            for index in range(taken):
                PyBuffer_Release(&octets[index])
            PyMem_Free(octets)
        if length < 0:
            raise GssError("no MIC can be made")
        return mic[:length]

    def room(self, size_t size):
        return self.header, 0, self.trailer

    def wrap(self, into, tuple room, size_t size):
        cdef gss_iov_buffer parts[3]
        cdef Py_buffer octets
        cdef uint8_t *at
        cdef bint good
        PyObject_GetBuffer(into, &octets, PyBUF_WRITABLE)
        try:
            if <size_t>octets.len < self.header + size + self.trailer:
                raise ValueError("there is no room")
            at = <uint8_t *>octets.buf
            part(&parts[0], IOV_HEADER, at, self.header)
            part(&parts[1], IOV_DATA, at + self.header, size)
            part(&parts[2], IOV_TRAILER, at + self.header + size, self.trailer)
            good = self.wrap_parts(parts, 3, size)
        finally:
            PyBuffer_Release(&octets)
        if not good:
            raise GssError("octets cannot be encrypted")
        return self.header + size + self.trailer

    def unwrap(self, token):
        cdef Py_buffer octets
        cdef ssize_t length
        cdef size_t start = 0
        PyObject_GetBuffer(token, &octets, PyBUF_WRITABLE)
        try:
            length = self.unwrap_at(<uint8_t *>octets.buf, octets.len, &start)
        finally:
            PyBuffer_Release(&octets)
        if length < 0:
            raise GssError("octets that the other side has not encrypted")
        return start, length


cdef inline bint has_form(const uint8_t *token, ssize_t size, int form) noexcept nogil:
    """Whether the octets are a token with this TOK_ID (RFC 4121 sections 4.2.6.1 and 4.2.6.2), as far as can be seen."""
    return size >= TOKEN_HEADER and (token[0] << 8 | token[1]) == form


# -- what threads may do, each with a handle of its own -------------------------------------------------------------
cdef bint verify_mic(void *handle, const uint8_t *octets, size_t size, const uint8_t *mic, size_t mic_size) noexcept nogil:
    """Not by gss_verify_mic_iov, although it would not copy the octets: MIT's ends the process by an assertion for a token
    whose octets 6 and 7 are zeros."""
    cdef uint32_t minor
    cdef gss_buffer message, token
    if not has_form(mic, mic_size, MIC_FORM):
        return False
    message.length, message.value = size, <void *>octets
    token.length, token.value = mic_size, <void *>mic
    return not gss.verify_mic(&minor, handle, &message, &token, NULL) & GSS_ERRORS


cdef ssize_t make_mic(void *handle, gss_iov_buffer *parts, int count) noexcept nogil:
    cdef uint32_t minor
    if gss.get_mic_iov(&minor, handle, 0, parts, count) & GSS_ERRORS:
        return -1
    return parts[count - 1].buffer.length


cdef bint encrypt(void *handle, gss_iov_buffer *parts, int count) noexcept nogil:
    cdef uint32_t minor
    cdef int private = 0
    cdef size_t header = parts[0].buffer.length, trailer = parts[count - 1].buffer.length
    if gss.wrap_iov(&minor, handle, 1, 0, &private, parts, count) & GSS_ERRORS or not private:
        return False
    return parts[0].buffer.length == header and parts[count - 1].buffer.length == trailer


cdef ssize_t decrypt(void *handle, uint8_t *token, size_t size, size_t *start) noexcept nogil:
    cdef gss_iov_buffer parts[2]
    cdef uint32_t minor
    cdef int private = 0
    cdef uint8_t *octets
    if not has_form(token, size, WRAP_FORM):
        return -1
    part(&parts[0], IOV_STREAM, token, size)
    part(&parts[1], IOV_DATA, NULL, 0)
    if gss.unwrap_iov(&minor, handle, &private, NULL, parts, 2) & GSS_ERRORS or not private:
        return -1
    octets = <uint8_t *>parts[1].buffer.value
    if octets < token or octets + parts[1].buffer.length > token + size:
        return -1
    start[0] = octets - token
    return parts[1].buffer.length
