# distutils: extra_compile_args = -O2
"""The replies that the replay cache keeps, by their calls' keys.

Owns their memory; imports nothing. Knows neither hosts nor bounds: those are :mod:`rpcrdma.rpc.replay`'s.

Almost every reply is kept, never asked for, and thrown away many calls later, when none of it is in the processor's caches
any more. To wait for memory is most of what that costs. So a reply is one piece of memory with its key, and no Python
object. It has a slot in a table, by its key's hash (linear probing). The table never has to grow: it has twice as many slots
as replies may be kept. Python's hash of octets has a secret, so no client can choose calls that meet in one place.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF, Py_XDECREF
from libc.stdint cimport uint8_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy

cdef extern from *:
    void prefetch "__builtin_prefetch"(const void *address) noexcept nogil


cdef inline uint8_t *octets_of(const kept_t *kept) noexcept:
    """Those of the key, and of the reply behind it."""
    return <uint8_t *>(kept + 1)


cdef bytes reply_of(const kept_t *kept):
    return PyBytes_FromStringAndSize(<char *>octets_of(kept) + kept.key_size, kept.reply_size)


cdef tuple cuts_of(const kept_t *kept):
    return () if kept.cuts == NULL else <tuple>kept.cuts


cdef class KeptReplies:
    def __cinit__(self, size_t most):
        cdef size_t slots = 2
        while slots < 2 * most:
            slots *= 2
        self.slots = <slot_t *>calloc(slots, sizeof(slot_t))
        if self.slots == NULL:
            raise MemoryError
        self.mask = slots - 1

    def __dealloc__(self):
        cdef size_t at
        if self.slots == NULL:
            return
        for at in range(self.mask + 1):
            if self.slots[at].kept != NULL:
                Py_XDECREF(self.slots[at].kept.cuts)
                free(self.slots[at].kept)
        free(self.slots)

    cdef size_t table_octets(self) noexcept:
        return (self.mask + 1) * sizeof(slot_t)

    cdef slot_t *slot_of(self, bytes key) noexcept:
        """The slot of this key's reply, or the free one where that would be."""
        cdef size_t key_hash = <size_t>hash(key), at = key_hash & self.mask
        cdef size_t size = PyBytes_GET_SIZE(key)
        cdef slot_t *slot = &self.slots[at]
        while slot.kept != NULL and not (
            slot.hash == key_hash
            and slot.kept.key_size == size
            and memcmp(octets_of(slot.kept), PyBytes_AS_STRING(key), size) == 0
        ):
            at = (at + 1) & self.mask
            slot = &self.slots[at]
        return slot

    cdef kept_t *find(self, bytes key) noexcept:
        """The reply to a call with this key, or NULL."""
        return self.slot_of(key).kept

    cdef void expect(self, bytes key) noexcept:
        """A reply to a call with this key is added soon: have its slot in the processor's cache by then."""
        prefetch(&self.slots[<size_t>hash(key) & self.mask])

    cdef kept_t *add(self, bytes key, bytes reply, tuple cuts) except? NULL:
        """Keep the reply to a call. NULL: there is one of a call with this key."""
        cdef size_t key_size = PyBytes_GET_SIZE(key), reply_size = PyBytes_GET_SIZE(reply)
        cdef slot_t *slot = self.slot_of(key)
        cdef kept_t *kept = NULL
        if slot.kept != NULL:
            return NULL
        kept = <kept_t *>malloc(sizeof(kept_t) + key_size + reply_size)
        if kept == NULL:
            raise MemoryError
        kept.hash, kept.key_size, kept.reply_size = <size_t>hash(key), key_size, reply_size
        kept.newer, kept.expires, kept.cuts = NULL, 0, NULL
        if cuts:
            Py_INCREF(cuts)
            kept.cuts = <PyObject *>cuts
        memcpy(octets_of(kept), PyBytes_AS_STRING(key), key_size)
        memcpy(octets_of(kept) + key_size, PyBytes_AS_STRING(reply), reply_size)
        slot.hash, slot.kept = kept.hash, kept
        self.count += 1
        return kept

    cdef void drop(self, kept_t *kept) noexcept:
        """Forget a reply. The next one of its host will most likely be next: it is at hand since the last time, and so it
        tells where its slot is, and which one comes behind it."""
        cdef size_t at = kept.hash & self.mask
        cdef kept_t *newer = kept.newer
        if newer != NULL:
            prefetch(newer.newer)
            prefetch(&self.slots[newer.hash & self.mask])
        while self.slots[at].kept != kept:
            at = (at + 1) & self.mask
        self.clear(at)
        Py_XDECREF(kept.cuts)
        free(kept)
        self.count -= 1

    cdef void clear(self, size_t at) noexcept:
        """Free a slot. Those behind it that would not be found over the gap come nearer."""
        cdef size_t behind = at, distance
        while True:
            behind = (behind + 1) & self.mask
            if self.slots[behind].kept == NULL:
                break
            distance = (behind - self.slots[behind].hash) & self.mask  # from where it would stand first
            if distance >= ((behind - at) & self.mask):
                self.slots[at] = self.slots[behind]
                at = behind
        self.slots[at].kept = NULL
