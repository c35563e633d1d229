"""What native calls are to the replay cache, to those who execute them instead, and to the log (contract: ``calls.pyi``).

Owns nothing. Imports :mod:`rpcrdma.place`, digests and :mod:`rpcrdma.rpc.replay`.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from rpcrdma.digest cimport Digest, digest_add
from rpcrdma.octets cimport load32
from rpcrdma.place cimport Held, Place
from rpcrdma.rpc.replay cimport Peer, digest_arguments, key_of

from rpcrdma.log_limits import limited_logger

_log = limited_logger(__name__)


cdef bytes key_of_call(
    uint32_t program, uint32_t version, uint32_t procedure, uint64_t caller, const uint8_t *message, size_t offset,
    size_t size, Place place, Peer peer
):
    """The key of a call, whose arguments begin at ``offset``, in the replay cache."""
    cdef size_t padding = -place.bulk_size & 3
    cdef Digest digest
    digest_arguments(&digest, message + offset, size - offset, peer)
    if place.bulk != NULL:
        # As if it were in the message, padding included (see rpcrdma.rpc.replay.make_key).
        digest_add(&digest, place.bulk, place.bulk_size)
        digest_add(&digest, <const uint8_t *>b"\0\0\0", padding)
    return key_of(load32(message), program, version, procedure, caller, &digest, peer)


cdef tuple copy_of(Held held, Place place):
    """The octets of a call that was held: its message, and what its chunks carry."""
    cdef list chunks = []
    message = memoryview(PyBytes_FromStringAndSize(<char *>held.message, held.size))
    if place.bulk != NULL:
        fetched = PyBytes_FromStringAndSize(<char *>place.bulk, place.bulk_size)
        chunks.append((place.bulk_at - held.message, memoryview(fetched)))
    return message, chunks


def failed(transport, xid, row, what, error):
    if row is not None:
        row.calls += 1
        row.native_calls += 1
        row.errors += 1
        what = f"{row.label[0]}v{row.label[1]} {row.label[2]}"
    _log.error("%s xid %#010x %s failed", transport, xid, what, exc_info=error)
