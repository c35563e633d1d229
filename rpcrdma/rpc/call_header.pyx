"""The header of an RPC call, read in this one place (RFC 5531 section 9; contract: ``call_header.pyi``).

Owns :func:`read_call`, and :class:`CallHeader` for Python. It is told where credential and verifier stand; what they say is
for those to find out who know their flavors.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer

from rpcrdma.octets cimport load32, padded
from rpcrdma.wire.rpc cimport AUTH_TLS, MAX_AUTH_BYTES


cdef Flaw read_call(const uint8_t *message, size_t size, call_header_t *header) noexcept nogil:
    """Read the header. Of a call with a flaw nothing but the XID is known."""
    if size < 8 or load32(message + 4) != 0:
        return NO_CALL
    header.xid = load32(message)
    if size >= 12 and load32(message + 8) != RPC_VERSION:
        return OTHER_VERSION
    if size < CALL_HEADER:
        return CUT_SHORT
    header.program, header.version, header.procedure = load32(message + 12), load32(message + 16), load32(message + 20)
    header.flavor, header.length = load32(message + 24), load32(message + 28)
    if header.length > MAX_AUTH_BYTES:
        return LONG_CREDENTIAL
    header.verifier = BODY + padded(header.length)
    if header.verifier + 8 > size:
        return CUT_SHORT
    header.verifier_flavor = load32(message + header.verifier)
    header.verifier_length = load32(message + header.verifier + 4)
    header.arguments = header.verifier + 8 + padded(header.verifier_length)
    return FLAWLESS


cdef class CallHeader:
    def __init__(self, octets not None):
        cdef Py_buffer buffer
        PyObject_GetBuffer(octets, &buffer, PyBUF_SIMPLE)
        self.flaw = read_call(<const uint8_t *>buffer.buf, buffer.len, &self.header)
        PyBuffer_Release(&buffer)
        self.octets = octets

    @property
    def xid(self):
        return self.header.xid

    @property
    def number(self):
        return self.header.program, self.header.version, self.header.procedure

    @property
    def flavor(self):
        return self.header.flavor

    @property
    def credential(self):
        return self.octets[BODY:BODY + self.header.length]

    @property
    def signed(self):
        return self.octets[:self.header.verifier]

    @property
    def verifier_flavor(self):
        return self.header.verifier_flavor

    @property
    def verifier(self):
        return self.octets[self.header.verifier + 8:self.header.verifier + 8 + self.header.verifier_length]

    @property
    def unverified(self):
        return self.header.verifier_flavor == 0 and self.header.verifier_length == 0

    @property
    def arguments(self):
        return self.header.arguments

    @property
    def asks_for_tls(self):
        return (
            self.header.flavor == AUTH_TLS and self.header.procedure == 0 and len(self.octets) == CALL_HEADER
        )
