"""Attributes in native code: the fattr4 of what follows from one ``struct statx`` (RFC 8881 section 5).

Owns nothing; the table of all attributes is :mod:`nfsd.v4.attributes`, whose octets these are. A request for anything
else is declined as a whole.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from nfsd.vfs.attributes cimport ATTRIBUTE_MOUNT_ROOT, HAS_BIRTH_TIME, statx_t, statx_timestamp
from nfsd.vfs.direct cimport DirectFiles, type_of
from nfsd.vfs.records cimport Node
from nfsd.wire.nfs4 cimport (
    FATTR4_CHANGE, FATTR4_FH_EXPIRE_TYPE, FATTR4_FILEHANDLE, FATTR4_FILEID, FATTR4_FSID, FATTR4_LEASE_TIME,
    FATTR4_MODE, FATTR4_MOUNTED_ON_FILEID, FATTR4_NUMLINKS, FATTR4_OWNER, FATTR4_OWNER_GROUP, FATTR4_RAWDEV,
    FATTR4_RDATTR_ERROR, FATTR4_SIZE, FATTR4_SPACE_USED, FATTR4_TIME_ACCESS, FATTR4_TIME_CREATE,
    FATTR4_TIME_METADATA, FATTR4_TIME_MODIFY, FATTR4_TYPE, FH4_PERSISTENT,
)
from rpcrdma.octets cimport load32, store32, store64, store_opaque

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


cdef uint8_t *store_fattr(uint8_t *at, uint64_t mask, statx_t *status, facts_t *facts) noexcept nogil:
    cdef uint8_t *values
    cdef size_t length
    if not status.mask & HAS_BIRTH_TIME:
        mask &= ~(<uint64_t>1 << FATTR4_TIME_CREATE)
    length = 2 if mask >> 32 else 1 if mask else 0
    at = store32(at, <uint32_t>length)
    if length > 0:
        at = store32(at, <uint32_t>mask)
    if length > 1:
        at = store32(at, <uint32_t>(mask >> 32))
    values = at
    at += 4
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
        at = store32(at, 0)
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
    store32(values, <uint32_t>(at - values - 4))
    return at


cdef class DirectAttributes:
    def __init__(self, server, DirectFiles files not None):
        self.files = files
        self.server = server    # whose pseudo file system is another after a reload
        self.names = server.names
        self.lease_time = server.facts.lease_time

    cdef bint known(self, const uint8_t *arguments, size_t size, size_t *used, uint64_t *mask) except -1:
        """Whether a GETATTR4args asks for nothing but what is known here."""
        cdef size_t words, index
        cdef uint32_t word
        if size < 4:
            return False
        words = load32(arguments)
        if words > 3 or size < 4 + 4 * words:
            return False
        mask[0] = 0
        for index in range(words):
            word = load32(arguments + 4 + 4 * index)
            if index < 2:
                mask[0] |= <uint64_t>word << (32 * index)
            elif word:
                return False
        used[0] = 4 + 4 * words
        return not mask[0] & ~NATIVE and (not mask[0] & OWNERS or self.names.numeric)

    cdef uint8_t *store(self, uint8_t *at, uint64_t mask, Node node, statx_t *status) except NULL:
        """The fattr4 (:func:`nfsd.v4.attributes.encode`), ``status`` having been looked at just now."""
        cdef facts_t facts
        cdef bytes handle = node.handle
        cdef tuple fsid = node.mount.fsid
        facts.change = node.inode.change.value
        facts.fsid[0] = <uint64_t>fsid[0]
        facts.fsid[1] = <uint64_t>fsid[1]
        facts.lease_time = self.lease_time
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
