"""C declarations of what is remembered of one directory for a moment: for those who list it, and the list's owner."""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from nfsd.vfs.nodes cimport NodeTable

cdef extern from *:
    """
    #define load_entry(where) __atomic_load_n((where), __ATOMIC_ACQUIRE)
    #define link_entry(where, entry) __atomic_store_n((where), (entry), __ATOMIC_RELEASE)
    """
    recent_t *load_entry(recent_t **where) noexcept nogil
    void link_entry(recent_t **where, recent_t *entry) noexcept nogil

cdef enum:
    STATUS_WORDS = 19           # of a struct statx, as far as the kernel fills it in
    LARGEST_NOTE = 1024         # octets of an entry at most: its name has 255

# One entry. Behind it: its name, a zero, its handle, the key of its inode.
ctypedef struct recent_t:
    recent_t *next              # the entry that comes behind it; NULL: none that is remembered
    bint ends                   # it is the directory's last
    uint64_t cookie
    uint64_t fileid
    Py_hash_t key_hash          # of the whole key
    Py_hash_t name_hash
    uint32_t size               # octets of all this
    uint32_t name_size
    uint32_t handle_size
    uint32_t key_size
    bint looked                 # handle and attributes are remembered, too
    uint64_t status[STATUS_WORDS]

# What a turn of a listing has noted, to be remembered.
ctypedef struct noted_t:
    uint8_t *start
    uint8_t *at                 # NULL: nothing is to be noted
    uint8_t *end

ctypedef struct slot_t:
    uint64_t hash               # of a cookie, a key or a name
    recent_t *entry             # NULL: the slot is free

ctypedef struct chunk_t:        # memory of entries, which stand behind it
    chunk_t *next


cdef class RecentListing:
    cdef readonly long long ctime       # of the directory
    cdef readonly size_t octets         # of memory
    cdef size_t most                    # of them, as long as more is added
    cdef bint over                      # nothing is remembered any more
    cdef readonly uint64_t count        # of entries
    cdef readonly unsigned long heard   # of changes
    cdef readonly uint64_t recalled     # entries that have been listed from here
    cdef uint64_t seen                  # of the nodes that the table was given
    cdef chunk_t *chunks
    cdef slot_t *slots
    cdef size_t slot_count
    cdef size_t used                    # slots

    cdef recent_t *behind(self, uint64_t cookie) noexcept
    cdef bint grows(self) noexcept
    cdef int add(self, noted_t *noted, uint64_t cookie, bint end, bytes prefix, NodeTable nodes, uint64_t seen) except -1
    cdef uint8_t *copied(self, noted_t *noted) except NULL
    cdef recent_t *known(self, uint64_t cookie, recent_t *like) noexcept
    cdef void put(self, recent_t *entry) noexcept
    cdef int reserve(self) except -1
    cdef int identify(self, recent_t *entry, bytes prefix, NodeTable nodes) except -1
    cdef int make_slots(self) except -1
    cdef void find_by(self, uint64_t hash, recent_t *entry) noexcept
    cdef void forget_those(self, uint64_t hash) noexcept


cdef inline recent_t *next_of(recent_t *entry) noexcept nogil:
    """What the loop may be linking to it at the moment."""
    return load_entry(&entry.next)


cdef inline uint8_t *name_of(recent_t *entry) noexcept nogil:
    return <uint8_t *>entry + sizeof(recent_t)


cdef inline uint8_t *handle_of(recent_t *entry) noexcept nogil:
    return name_of(entry) + entry.name_size + 1


cdef inline uint8_t *key_of(recent_t *entry) noexcept nogil:
    return handle_of(entry) + entry.handle_size
