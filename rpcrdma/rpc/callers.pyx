"""Who calls natively.

Owns :class:`Caller`, and :class:`Callers`, those of a connection. Imports signatures, and how credentials are told apart. Who
is not simple to tell is for the general path to say.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp

from rpcrdma.rpc.call_header cimport BODY, call_header_t
from rpcrdma.rpc.replay cimport caller_digest
from rpcrdma.rpc.signed cimport Known, UNSIGNED, Signed, signature
from rpcrdma.wire.rpc cimport AUTH_SYS, RPCSEC_GSS

from rpcrdma.rpc.program import RpcCredential

cdef enum:
    CALLERS = 256           # per connection; beyond it all are forgotten and learnt again


cdef class Caller:
    def __init__(self):
        raise TypeError("callers are made by NativeCalls")


cdef class Callers:
    def __init__(self, transport, read_credential, Known secured=None):
        self.transport, self.peer_address = transport, transport.peer_address
        self.read_credential, self.secured = read_credential, secured
        self.known = {}
        self.signed = UNSIGNED

    cdef Caller find(self, const uint8_t *message, call_header_t *header, double now):
        """Who calls; None: for the general path to say."""
        cdef bytes key = self.latest_key
        # The stamp in front is arbitrary (RFC 5531 appendix A): without it equal callers have equal octets.
        cdef const uint8_t *body = message + BODY + 4
        cdef size_t arguments = header.arguments, size = header.length
        cdef Signed signed
        cdef Caller caller
        self.signed = UNSIGNED
        if header.flavor == RPCSEC_GSS:
            signed = signature(self.secured, message, header, now)
            if signed is None:
                return None
            self.signed = signed
            label = signed.context.labels[signed.service - 1]
            caller = self.known.get(label)
            if caller is None or caller.credential is not signed.credential or caller.header != arguments:
                caller = self.add(label, signed.credential, signed.context.digest, arguments)
            return caller
        if header.flavor != AUTH_SYS or size < 20 or header.verifier_flavor or header.verifier_length:
            return None
        size -= 4
        if key is not None and <size_t>PyBytes_GET_SIZE(key) == size and memcmp(PyBytes_AS_STRING(key), body, size) == 0:
            return self.latest
        key = PyBytes_FromStringAndSize(<char *>body, size)
        caller = self.known.get(key)
        if caller is None:
            credential = self.read_credential(AUTH_SYS, memoryview(bytes(4) + key))
            if not isinstance(credential, RpcCredential):
                return None
            caller = self.add(key, credential, caller_digest(AUTH_SYS, body - 4, size + 4), arguments)
        self.latest_key, self.latest = key, caller
        return caller

    cdef Caller add(self, object key, object credential, uint64_t digest, size_t header):
        cdef Caller caller = Caller.__new__(Caller)
        caller.take(credential)
        caller.peer_address, caller.transport, caller.digest, caller.header = self.peer_address, self.transport, digest, header
        if len(self.known) >= CALLERS:
            self.known.clear()
        self.known[key] = caller
        return caller
