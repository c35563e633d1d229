# distutils: extra_compile_args = -O2
"""The replies that the replay cache keeps, by their calls' keys.

Owns their memory; imports nothing. Knows neither hosts nor bounds: those are :mod:`rpcrdma.rpc.replay`'s.

Almost every reply is kept, never asked for, and thrown away many calls later, when none of it is in the processor's caches
any more. To wait for memory is most of what that costs. So a reply is one piece of memory with its key, and no Python
object. It has a slot in a table, by its key's hash (linear probing). The table never has to grow: it has twice as many slots
as replies may be kept. Python's hash of octets has a secret, so no client can choose calls that meet in one place.

Most calls that are looked for are new. An octet beside each slot tells that it is free, or that another hash is there: all
of these together stay in the caches that the slots are too many for.
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


cdef inline uint8_t tag_of(size_t key_hash) noexcept:
    """Of a hash, the bits that do not say where it stands; never 0."""
    return <uint8_t>(key_hash >> (8 * sizeof(key_hash) - 8)) | 1


cdef class KeptReplies:
    def __cinit__(self, size_t most):
        cdef size_t slots = 2
        while slots < 2 * most:
            slots *= 2
        self.slots = <slot_t *>malloc(slots * sizeof(slot_t))
        self.tags = <uint8_t *>calloc(slots, 1)
        if self.slots == NULL or self.tags == NULL:
            raise MemoryError
        self.mask = slots - 1

    def __dealloc__(self):
        cdef size_t at
        if self.slots != NULL and self.tags != NULL:
            for at in range(self.mask + 1):
                if self.tags[at]:
                    Py_XDECREF(self.slots[at].kept.cuts)
                    free(self.slots[at].kept)
        free(self.slots)
        free(self.tags)

    cdef size_t table_octets(self) noexcept:
        return (self.mask + 1) * (sizeof(slot_t) + 1)

    cdef size_t place_of(self, bytes key) noexcept:
        """Where the slot of this key's reply is, or the free one where that would be."""
        cdef size_t key_hash = <size_t>hash(key), at = key_hash & self.mask
        cdef size_t size = PyBytes_GET_SIZE(key)
        cdef uint8_t tag = tag_of(key_hash)
        cdef slot_t *slot
        while self.tags[at]:
            slot = &self.slots[at]
            if (
                self.tags[at] == tag
                and slot.hash == key_hash
                and slot.kept.key_size == size
                and memcmp(octets_of(slot.kept), PyBytes_AS_STRING(key), size) == 0
            ):
                break
            at = (at + 1) & self.mask
        return at

    cdef kept_t *find(self, bytes key) noexcept:
        """The reply to a call with this key. NULL: there is none. One is most likely added soon, and has its slot in the
        processor's cache by then."""
        cdef size_t at = self.place_of(key)
        if self.tags[at]:
            return self.slots[at].kept
        prefetch(&self.slots[at])
        return NULL

    cdef kept_t *add(self, bytes key, bytes reply, tuple cuts) except? NULL:
        """Keep the reply to a call. NULL: there is one of a call with this key."""
        cdef size_t key_size = PyBytes_GET_SIZE(key), reply_size = PyBytes_GET_SIZE(reply)
        cdef size_t at = self.place_of(key)
        cdef slot_t *slot = &self.slots[at]
        cdef kept_t *kept = NULL
        if self.tags[at]:
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
        slot.hash, slot.kept, self.tags[at] = kept.hash, kept, tag_of(kept.hash)
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
            if not self.tags[behind]:
                break
            distance = (behind - self.slots[behind].hash) & self.mask  # from where it would stand first
            if distance >= ((behind - at) & self.mask):
                self.slots[at], self.tags[at] = self.slots[behind], self.tags[behind]
                at = behind
        self.tags[at] = 0
