"""C declarations of who calls natively."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from rpcrdma.rpc.call_header cimport call_header_t
from rpcrdma.rpc.signed cimport Known, Signed


cdef class Caller:
    """One caller on one connection, as far as native programs know it."""

    cdef readonly object credential     # RpcCredential
    cdef readonly str peer_address
    cdef readonly object transport      # the connection
    cdef uint64_t digest                # of the credential, for the replay cache
    cdef uint32_t mark                  # likewise 32 bits, which differ for callers of different uids and flavors
    cdef readonly size_t header         # octets of its calls before the procedure's arguments
    cdef public object notes            # what the program has found out about the caller
    cdef object note                    # the latest of it; None: there is none

    cdef inline int take(self, object credential) except -1:
        """Note whose calls these are."""
        self.credential = credential
        self.mark = <uint32_t>credential.mark ^ <uint32_t>credential.flavor << 28
        return 0


cdef class Callers:
    """Those of one connection."""

    cdef object transport
    cdef str peer_address
    cdef object read_credential
    cdef Known secured                  # the contexts of signed calls; None: there are none
    cdef Signed signed                  # whose signature the call has whose caller was found last
    cdef dict known                     # by the octets of a credential, or by a context's label
    cdef bytes latest_key
    cdef Caller latest

    cdef Caller find(self, const uint8_t *message, call_header_t *header, double now)
    cdef Caller add(self, object key, object credential, uint64_t digest, size_t header)
