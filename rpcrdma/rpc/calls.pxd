"""C declarations of what native calls are to the replay cache, and to others."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from rpcrdma.place cimport Held, Place
from rpcrdma.rpc.replay cimport Peer


cdef bytes key_of_call(
    uint32_t program, uint32_t version, uint32_t procedure, uint64_t caller, const uint8_t *message, size_t offset,
    size_t size, Place place, Peer peer
)
cdef tuple copy_of(Held held, Place place)
