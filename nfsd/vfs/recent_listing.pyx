"""What is remembered of one directory for a moment (contract: ``recent_listing.pyi``).

Owns the entries and what finds them. They are added as turns of listings have noted them (:mod:`nfsd.vfs.dirents`), each
turn's in one piece of memory, and never move, because turns read them on other threads. Each leads to the entry behind it,
also where that was noted by another turn, earlier or later. Only the loop adds entries and forgets what is known of a file.

One table finds entries by their cookies and by those they come behind, by the keys of their inodes and by their names. It
holds all of them, each under a hash of its kind. Different cookies have different hashes. Of keys and names, too many may
be forgotten.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.dict cimport PyDict_GetItem
from cpython.long cimport PyLong_AsVoidPtr
from cpython.object cimport PyObject
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy

from nfsd.vfs.attributes cimport statx_t
from nfsd.vfs.nodes cimport ADDED_KEPT, NodeTable
from nfsd.vfs.records cimport Inode

from os import urandom
from struct import unpack

cdef enum:
    FEWEST_SLOTS = 64
    OF_EACH = 4             # slots of one entry, at most

# The kinds of hashes. Nobody can choose names that meet a cookie, because these differ from process to process.
cdef uint64_t COOKIE, BEHIND, KEY, NAME
COOKIE, BEHIND, KEY, NAME = unpack("=4Q", urandom(32))

if <size_t>&(<statx_t *>NULL).spare != STATUS_WORDS * sizeof(uint64_t):
    raise ImportError("the layout of struct statx is not the one that is remembered")


cdef inline uint64_t mixed(uint64_t value, uint64_t kind) noexcept nogil:
    """A hash of its kind (the finalizer of MurmurHash3)."""
    value ^= kind
    value = (value ^ (value >> 33)) * <uint64_t>0xFF51AFD7ED558CCD
    value = (value ^ (value >> 33)) * <uint64_t>0xC4CEB9FE1A85EC53
    return value ^ (value >> 33)


cdef bint same(recent_t *one, recent_t *other) noexcept:
    return (
        one.fileid == other.fileid and one.name_size == other.name_size
        and memcmp(name_of(one), name_of(other), one.name_size) == 0
    )


cdef class RecentListing:
    def __init__(self, long long ctime, size_t most, NodeTable nodes not None):
        self.ctime = ctime
        self.most = most
        self.seen = nodes.added

    def __dealloc__(self):
        cdef chunk_t *chunk
        while self.chunks != NULL:
            chunk, self.chunks = self.chunks, self.chunks.next
            free(chunk)
        free(self.slots)

    cdef recent_t *behind(self, uint64_t cookie) noexcept:
        """The entry behind a cookie; NULL: it is not known."""
        cdef recent_t *entry
        cdef uint64_t hash
        cdef size_t at
        if self.over or self.count == 0:
            return NULL
        entry = self.known(cookie, NULL)
        if entry != NULL and entry.next != NULL:
            return entry.next
        hash = mixed(cookie, BEHIND)
        at = hash & (self.slot_count - 1)
        while self.slots[at].entry != NULL and self.slots[at].hash != hash:
            at = (at + 1) & (self.slot_count - 1)
        return self.slots[at].entry

    cdef recent_t *known(self, uint64_t cookie, recent_t *like) noexcept:
        """The entry with a cookie. Of several, as hashes of names may be the same, the one that is like another, or else the
        first: behind that the kernel goes on. NULL: there is none."""
        cdef uint64_t hash = mixed(cookie, COOKIE)
        cdef size_t at
        cdef recent_t *entry
        if self.count == 0:
            return NULL
        at = hash & (self.slot_count - 1)
        while True:
            entry = self.slots[at].entry
            if entry == NULL:
                return NULL
            if self.slots[at].hash == hash and entry.cookie == cookie and (like == NULL or same(entry, like)):
                return entry
            at = (at + 1) & (self.slot_count - 1)

    cdef bint grows(self) noexcept:
        """Whether anything is still added."""
        return not self.over and self.octets < self.most

    cdef int add(self, noted_t *noted, uint64_t cookie, bint end, bytes prefix, NodeTable nodes, uint64_t seen) except -1:
        """Remember what a turn has noted behind a cookie. ``end``: there is nothing behind that. ``seen``: how many nodes
        the table had been given when the turn began."""
        cdef recent_t *entry
        cdef recent_t *there
        cdef recent_t *before = self.known(cookie, NULL)
        cdef uint8_t *at = noted.start
        cdef uint8_t *stop = noted.at
        if at < stop and self.known((<recent_t *>at).cookie, <recent_t *>at) == NULL:
            at = self.copied(noted)
            stop = at + (noted.at - noted.start)
        self.seen = min(self.seen, seen)
        while at < stop:
            self.reserve()
            entry = <recent_t *>at
            at += entry.size
            there = self.known(entry.cookie, entry)
            if there == NULL:
                there = entry
                self.identify(entry, prefix, nodes)
                self.put(entry)
            if before == NULL:
                self.find_by(mixed(cookie, BEHIND), there)
            elif before.next == NULL:
                link_entry(&before.next, there)
            if there != entry:
                return 0  # another turn has gone the same way from here
            before = entry
        if before != NULL and end:
            before.ends = True
        return 0

    cdef uint8_t *copied(self, noted_t *noted) except NULL:
        """The same entries, in memory of their own."""
        cdef size_t size = sizeof(chunk_t) + (noted.at - noted.start)
        cdef chunk_t *chunk = <chunk_t *>malloc(size)
        if chunk == NULL:
            raise MemoryError
        chunk.next, self.chunks = self.chunks, chunk
        self.octets += size
        memcpy(<uint8_t *>chunk + sizeof(chunk_t), noted.start, size - sizeof(chunk_t))
        return <uint8_t *>chunk + sizeof(chunk_t)

    cdef int identify(self, recent_t *entry, bytes prefix, NodeTable nodes) except -1:
        """Hash its name, and its key as a node's is hashed. If there is a node of its file, that is to be looked at."""
        cdef Py_ssize_t common = len(prefix)
        cdef bytes key
        cdef PyObject *known
        if not entry.looked:
            return 0
        key = PyBytes_FromStringAndSize(NULL, common + entry.key_size)
        memcpy(PyBytes_AS_STRING(key), PyBytes_AS_STRING(prefix), common)
        memcpy(PyBytes_AS_STRING(key) + common, key_of(entry), entry.key_size)
        known = PyDict_GetItem(nodes.inodes, key)
        entry.looked = known == NULL or (<Inode>PyLong_AsVoidPtr(<object>known)).first == NULL
        entry.key_hash = hash(key)
        entry.name_hash = hash(PyBytes_FromStringAndSize(<char *>name_of(entry), entry.name_size))
        return 0

    cdef int reserve(self) except -1:
        """Have slots for one entry more, with half of them free."""
        if self.slot_count < 2 * (self.used + OF_EACH):
            self.make_slots()
        return 0

    cdef void put(self, recent_t *entry) noexcept:
        """Find an entry from now on."""
        self.count += 1
        self.find_by(mixed(entry.cookie, COOKIE), entry)
        if entry.looked:
            self.find_by(mixed(<uint64_t>entry.key_hash, KEY), entry)
            self.find_by(mixed(<uint64_t>entry.name_hash, NAME), entry)

    cdef int make_slots(self) except -1:
        """Twice as many. Those that collide stay in the order in which they came."""
        cdef size_t count = max(<size_t>FEWEST_SLOTS, 2 * self.slot_count), before = self.slot_count
        cdef size_t number, first = 0
        cdef slot_t *slots = <slot_t *>calloc(count, sizeof(slot_t))
        cdef slot_t *old = self.slots
        cdef slot_t *slot
        if slots == NULL:
            raise MemoryError
        self.octets += (count - before) * sizeof(slot_t)
        self.slots, self.slot_count, self.used = slots, count, 0
        # From behind a free slot on: no run of them begins before it.
        while first < before and old[first].entry != NULL:
            first += 1
        for number in range(before):
            slot = &old[(first + number) & (before - 1)]
            if slot.entry != NULL:
                self.find_by(slot.hash, slot.entry)
        free(old)
        return 0

    cdef void find_by(self, uint64_t hash, recent_t *entry) noexcept:
        cdef size_t at = hash & (self.slot_count - 1)
        while self.slots[at].entry != NULL:
            at = (at + 1) & (self.slot_count - 1)
        self.slots[at].hash, self.slots[at].entry = hash, entry
        self.used += 1

    cdef void forget_those(self, uint64_t hash) noexcept:
        """Look at these files anew from now on."""
        cdef size_t at
        if self.count == 0:
            return
        at = hash & (self.slot_count - 1)
        while self.slots[at].entry != NULL:
            if self.slots[at].hash == hash:
                self.slots[at].entry.looked = False
            at = (at + 1) & (self.slot_count - 1)

    def forget_used(self, NodeTable nodes not None):
        cdef uint64_t number
        if nodes.added - self.seen > ADDED_KEPT:
            return False
        for number in range(self.seen, nodes.added):
            self.forget_those(mixed(<uint64_t>nodes.added_keys[number % ADDED_KEPT], KEY))
        self.seen = nodes.added
        return True

    def forget(self):
        self.over = True

    def forget_name(self, bytes name not None):
        self.heard += 1
        self.forget_those(mixed(<uint64_t>hash(name), NAME))
