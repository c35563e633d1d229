"""Attributes in native code: the fattr4 of what follows from one ``struct statx`` (RFC 8881 section 5).

Owns how these are encoded, for native operations and for Python; all others are encoded by :mod:`nfsd.v4.attributes`, which
has the octets of both put together here.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from nfsd.vfs.attributes cimport ATTRIBUTE_MOUNT_ROOT, HAS_BIRTH_TIME, fill_status, statx_t, statx_timestamp
from nfsd.vfs.native_files cimport NativeFiles, type_of
from nfsd.vfs.records cimport Node
from nfsd.wire.nfs4 cimport (
    FATTR4_CHANGE, FATTR4_FH_EXPIRE_TYPE, FATTR4_FILEHANDLE, FATTR4_FILEID, FATTR4_FSID, FATTR4_LEASE_TIME,
    FATTR4_MODE, FATTR4_MOUNTED_ON_FILEID, FATTR4_NUMLINKS, FATTR4_OWNER, FATTR4_OWNER_GROUP, FATTR4_RAWDEV,
    FATTR4_RDATTR_ERROR, FATTR4_SIZE, FATTR4_SPACE_USED, FATTR4_TIME_ACCESS, FATTR4_TIME_CREATE,
    FATTR4_TIME_METADATA, FATTR4_TIME_MODIFY, FATTR4_TYPE, FH4_PERSISTENT,
)
from rpcrdma.octets cimport store32, store64, store_opaque

cdef uint64_t NATIVE = sum(
    1 << number
    for number in (
        FATTR4_TYPE, FATTR4_FH_EXPIRE_TYPE, FATTR4_CHANGE, FATTR4_SIZE, FATTR4_FSID, FATTR4_LEASE_TIME,
        FATTR4_RDATTR_ERROR, FATTR4_FILEHANDLE, FATTR4_FILEID, FATTR4_MODE, FATTR4_NUMLINKS, FATTR4_OWNER,
        FATTR4_OWNER_GROUP, FATTR4_RAWDEV, FATTR4_SPACE_USED, FATTR4_TIME_ACCESS, FATTR4_TIME_CREATE,
        FATTR4_TIME_METADATA, FATTR4_TIME_MODIFY, FATTR4_MOUNTED_ON_FILEID,
    )
)
cdef uint64_t OWNERS = <uint64_t>1 << FATTR4_OWNER | <uint64_t>1 << FATTR4_OWNER_GROUP


cdef inline bint asks(uint64_t mask, int number) noexcept nogil:
    return (mask >> number) & 1


cdef inline uint8_t *store_time(uint8_t *at, statx_timestamp *time) noexcept nogil:
    """An nfstime4."""
    return store32(store64(at, <uint64_t>time.seconds), time.nanoseconds)


cdef inline uint8_t *store_number_as_text(uint8_t *at, uint32_t number) noexcept nogil:
    """An opaque: RFC 8881 section 5.9, ids as text stand for themselves."""
    cdef uint8_t digits[10]
    cdef size_t length = 0, written
    while True:
        digits[length] = <uint8_t>(48 + number % 10)
        number //= 10
        length += 1
        if number == 0:
            break
    at = store32(at, <uint32_t>length)
    store32(at + (length & ~<size_t>3), 0)  # the padding
    for written in range(length):
        at[written] = digits[length - 1 - written]
    return at + ((length + 3) & ~<size_t>3)


cdef bint all_native(uint64_t mask) noexcept nogil:
    return not mask & ~NATIVE


cdef bint wants_owners(uint64_t mask) noexcept nogil:
    return mask & OWNERS != 0


cdef uint8_t *store_mask(uint8_t *at, const uint32_t *words, size_t length) noexcept nogil:
    """A bitmap4 of so many words, without those behind the last that says anything."""
    cdef size_t index
    while length and words[length - 1] == 0:
        length -= 1
    at = store32(at, <uint32_t>length)
    for index in range(length):
        at = store32(at, words[index])
    return at


cdef uint8_t *store_fattr(uint8_t *at, uint64_t mask, statx_t *status, facts_t *facts) noexcept nogil:
    cdef uint8_t *values
    cdef uint32_t words[2]
    if not status.mask & HAS_BIRTH_TIME:
        mask &= ~(<uint64_t>1 << FATTR4_TIME_CREATE)
    words[0], words[1] = <uint32_t>mask, <uint32_t>(mask >> 32)
    values = store_mask(at, words, 2)
    at = store_values(values + 4, mask, status, facts)
    store32(values, <uint32_t>(at - values - 4))
    return at


cdef uint8_t *store_values(uint8_t *at, uint64_t mask, statx_t *status, facts_t *facts) noexcept nogil:
    """The values of these attributes, in the order of their numbers."""
    if asks(mask, FATTR4_TYPE):
        at = store32(at, type_of(status))
    if asks(mask, FATTR4_FH_EXPIRE_TYPE):
        at = store32(at, FH4_PERSISTENT)
    if asks(mask, FATTR4_CHANGE):
        facts.change_at = at
        at = store64(at, facts.change)
    if asks(mask, FATTR4_SIZE):
        at = store64(at, status.size)
    if asks(mask, FATTR4_FSID):
        at = store64(store64(at, facts.fsid[0]), facts.fsid[1])
    if asks(mask, FATTR4_LEASE_TIME):
        at = store32(at, facts.lease_time)
    if asks(mask, FATTR4_RDATTR_ERROR):
        at = store32(at, facts.error)
    if asks(mask, FATTR4_FILEHANDLE):
        at = store_opaque(at, facts.handle, facts.handle_size)
    if asks(mask, FATTR4_FILEID):
        at = store64(at, status.ino)
    if asks(mask, FATTR4_MODE):
        at = store32(at, status.mode & 0o7777)
    if asks(mask, FATTR4_NUMLINKS):
        at = store32(at, status.nlink)
    if asks(mask, FATTR4_OWNER):
        at = store_number_as_text(at, status.uid)
    if asks(mask, FATTR4_OWNER_GROUP):
        at = store_number_as_text(at, status.gid)
    if asks(mask, FATTR4_RAWDEV):
        at = store32(store32(at, status.rdev_major), status.rdev_minor)
    if asks(mask, FATTR4_SPACE_USED):
        at = store64(at, status.blocks << 9)
    if asks(mask, FATTR4_TIME_ACCESS):
        at = store_time(at, &status.atime)
    if asks(mask, FATTR4_TIME_CREATE):
        at = store_time(at, &status.btime)
    if asks(mask, FATTR4_TIME_METADATA):
        at = store_time(at, &status.ctime)
    if asks(mask, FATTR4_TIME_MODIFY):
        at = store_time(at, &status.mtime)
    if asks(mask, FATTR4_MOUNTED_ON_FILEID):
        at = store64(at, facts.mounted_on_fileid)
    return at


def native_of(mask, *, bint numeric=True):
    return mask & (NATIVE if numeric else NATIVE & ~OWNERS)


def encoded(mask, list others not None, attributes, bytes handle not None, uint32_t lease_time, uint32_t error):
    cdef statx_t status
    cdef facts_t facts
    cdef uint32_t words[WORDS]
    cdef uint64_t left = mask & NATIVE, before
    cdef size_t size = LARGEST_FATTR, index
    cdef bytes octets, whole
    cdef uint8_t *at
    cdef uint8_t *values
    fill_status(&status, attributes)
    facts.change = attributes.change
    facts.fsid[0], facts.fsid[1] = attributes.fsid
    facts.lease_time, facts.error = lease_time, error
    facts.handle, facts.handle_size = <const uint8_t *>handle, <uint32_t>len(handle)
    facts.mounted_on_fileid = attributes.mounted_on_fileid
    for index in range(WORDS):
        words[index] = mask >> (32 * index) & 0xFFFFFFFF
    for number, octets in others:
        size += len(octets)
        if number < 64:
            left &= ~(<uint64_t>1 << <int>number)
    whole = PyBytes_FromStringAndSize(NULL, size)
    values = store_mask(<uint8_t *>PyBytes_AS_STRING(whole), words, WORDS)
    at = values + 4
    for number, octets in others:
        before = left if number > 63 else left & ((<uint64_t>1 << <int>number) - 1)
        at = store_values(at, before, &status, &facts)
        left &= ~before
        memcpy(at, <const uint8_t *>octets, len(octets))
        at += len(octets)
    at = store_values(at, left, &status, &facts)
    store32(values, <uint32_t>(at - values - 4))
    return whole[:at - <uint8_t *>PyBytes_AS_STRING(whole)]


cdef class Fattr:
    def __init__(self, server, NativeFiles files not None):
        self.files = files
        self.server = server    # whose pseudo file system is another after a reload
        self.lease_time = server.facts.lease_time

    cdef uint8_t *store(self, uint8_t *at, uint64_t mask, Node node, statx_t *status) except NULL:
        """The fattr4 (:func:`nfsd.v4.attributes.encode`), ``status`` having been looked at just now."""
        cdef facts_t facts
        cdef bytes handle = node.handle
        facts.change = node.inode.change.value
        facts.fsid[0], facts.fsid[1] = node.fsid[0], node.fsid[1]
        facts.lease_time, facts.error = self.lease_time, 0
        facts.handle = <const uint8_t *>handle
        facts.handle_size = <uint32_t>len(handle)
        facts.mounted_on_fileid = status.ino
        if asks(mask, FATTR4_MOUNTED_ON_FILEID):
            if type_of(status) == 2 and self.files.service.is_root(node):
                # An export's root is mounted on its place in the pseudo file system.
                facts.mounted_on_fileid = self.server.pseudo.of_export(node.export).fileid
            elif status.attributes & ATTRIBUTE_MOUNT_ROOT and node.mount.mounted_on_fileid is not None:
                facts.mounted_on_fileid = node.mount.mounted_on_fileid
        return store_fattr(at, mask, status, &facts)
