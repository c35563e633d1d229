"""The common procedures of NFSv3, answered natively (RFC 1813 sections 3.3.1, 3.3.3, 3.3.4, 3.3.6 to 3.3.8,
3.3.12, 3.3.21).

Owns :class:`Nfs3Direct`; imports the file service's direct operations, :mod:`rpcrdma.place` and
:mod:`rpcrdma.rpc.direct`. Answers are octet for octet those of :mod:`nfsd.v3.attributes`, :mod:`nfsd.v3.names`,
:mod:`nfsd.v3.creation` and :mod:`nfsd.v3.data`, which do whatever is declined here: all that fails, waits or is rare.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from nfsd.vfs.attributes cimport statx_t, statx_timestamp
from nfsd.vfs.direct cimport Standing, type_of
from nfsd.vfs.direct_names cimport DirectNames
from nfsd.vfs.records cimport Node, OpenFile
from rpcrdma.place cimport Place, load32, load64, store32, store64
from rpcrdma.rpc.direct cimport Caller, DirectProgram

from nfsd.protocol import nfs3 as declared
from nfsd.v3.request import Limits

cdef enum:
    GETATTR = 1
    LOOKUP = 3
    ACCESS = 4
    READ = 6
    WRITE = 7
    CREATE = 8
    REMOVE = 12
    COMMIT = 21
    HANDLE_MAX = 64
    FATTR = 84
    WCC = 4 + 24 + 4 + FATTR
    GUARDED = 1
    UNSTABLE = 0
    FILE_SYNC = 2
    READ_HEAD = 4 + 4 + FATTR + 12
    MODIFYING = 0x04 | 0x08 | 0x10      # ACCESS3_MODIFY, EXTEND, DELETE

assert (declared.NFSPROC3_GETATTR, declared.NFSPROC3_LOOKUP, declared.NFSPROC3_ACCESS) == (GETATTR, LOOKUP, ACCESS)
assert (declared.NFSPROC3_READ, declared.NFSPROC3_WRITE, declared.NFSPROC3_COMMIT) == (READ, WRITE, COMMIT)

assert (declared.NFSPROC3_CREATE, declared.NFSPROC3_REMOVE, int(declared.createmode3.GUARDED)) == (CREATE, REMOVE, GUARDED)


cdef inline uint8_t *store_time(uint8_t *at, statx_timestamp *time) noexcept nogil:
    """The nearest nfstime3 (:func:`nfsd.v3.convert.time3`)."""
    if time.seconds < 0:
        return store64(at, 0)
    if time.seconds > <int64_t>0xFFFFFFFF:
        return store32(store32(at, <uint32_t>0xFFFFFFFF), 999999999)
    return store32(store32(at, <uint32_t>time.seconds), time.nanoseconds)


cdef inline uint8_t *store_fattr(uint8_t *at, statx_t *status, uint64_t fsid) noexcept nogil:
    """A fattr3 (:func:`nfsd.v3.convert.fattr`)."""
    cdef uint32_t kind = type_of(status)
    at = store32(at, kind)
    at = store32(at, status.mode & 0o7777)
    at = store32(at, status.nlink)
    at = store32(at, status.uid)
    at = store32(at, status.gid)
    at = store64(at, status.size)
    at = store64(at, status.blocks << 9)
    if kind == 3 or kind == 4:
        at = store32(store32(at, status.rdev_major), status.rdev_minor)
    else:
        at = store64(at, 0)
    at = store64(at, fsid)
    at = store64(at, status.ino)
    at = store_time(at, &status.atime)
    at = store_time(at, &status.mtime)
    return store_time(at, &status.ctime)


cdef inline uint8_t *store_wcc(uint8_t *at, statx_t *before, statx_t *after, uint64_t fsid) noexcept nogil:
    """A wcc_data with both parts."""
    at = store32(at, 1)
    at = store64(at, before.size)
    at = store_time(at, &before.mtime)
    at = store_time(at, &before.ctime)
    at = store32(at, 1)
    return store_fattr(at, after, fsid)


cdef inline uint8_t *store_handle(uint8_t *at, bytes handle):
    """An nfs_fh3."""
    cdef size_t length = len(handle)
    cdef const uint8_t *octets = handle
    at = store32(at, <uint32_t>length)
    memcpy(at, octets, length)
    at += length
    while length & 3:
        at[0] = 0
        at += 1
        length += 1
    return at


cdef inline bint plain_mode(const uint8_t *at, const uint8_t *end, uint32_t *mode) noexcept nogil:
    """Whether a sattr3, up to the end, sets nothing but the permissions of a new file, and a size of 0; which."""
    cdef uint32_t which
    cdef int field
    mode[0] = 0
    for field in range(3):  # mode, uid, gid: none may be, of the latter two
        if end - at < 8:
            return False
        which = load32(at)
        at += 4
        if which == 1 and field == 0:
            mode[0] = load32(at) & 0o7777
            at += 4
        elif which != 0:
            return False
    if end - at < 4:
        return False
    which = load32(at)
    at += 4
    if which == 1:
        if end - at < 8 or load64(at) != 0:
            return False
        at += 8
    elif which != 0:
        return False
    if end - at != 8 or load64(at) != 0:  # both times: DONT_CHANGE
        return False
    # Set-user-id and set-group-id bits are set again after the creation.
    return not mode[0] & 0o6000


cdef inline size_t handle_at(const uint8_t *arguments, size_t size) noexcept nogil:
    """Length of the nfs_fh3 that the arguments begin with; 0 when there is none."""
    cdef size_t length
    if size < 8:
        return 0
    length = load32(arguments)
    if length > HANDLE_MAX or 4 + ((length + 3) & ~<size_t>3) > size:
        return 0
    return length


cdef class Nfs3Direct(DirectProgram):
    cdef DirectNames files
    cdef size_t read_max
    cdef size_t write_max

    def __init__(self, service, limits=None):
        limits = limits or Limits()
        self.files = DirectNames(service)
        self.read_max = limits.read_max
        self.write_max = limits.write_max
        self.guarded = (1 << WRITE) | (1 << CREATE) | (1 << REMOVE)
        self.procedures = self.guarded | (1 << GETATTR) | (1 << LOOKUP) | (1 << ACCESS) | (1 << READ) | (1 << COMMIT)

    cdef int pause(self) except -1:
        return self.files.pause()

    cdef bint answer(
        self, Caller caller, uint32_t procedure, const uint8_t *arguments, size_t size, Place place
    ) except -1:
        cdef size_t length = handle_at(arguments, size)
        cdef size_t rest = 4 + ((length + 3) & ~<size_t>3)
        cdef Node node
        cdef Standing standing
        if length == 0:
            return False
        if place.bulk != NULL and (procedure != WRITE or place.bulk_at != arguments + size):
            return False
        node = self.files.find(arguments + 4, length)
        if node is None:
            return False
        standing = self.files.standing(caller, node)
        if standing is None:
            return False
        arguments += rest
        size -= rest
        if procedure == READ:
            return self.read(standing, node, arguments, size, place)
        if procedure == WRITE:
            return self.write(standing, node, arguments, size, place)
        if procedure == GETATTR:
            return self.getattr(node, size, place)
        if procedure == LOOKUP:
            return self.lookup(standing, node, arguments, size, place)
        if procedure == ACCESS:
            return self.access(standing, node, arguments, size, place)
        if procedure == CREATE:
            return self.create(standing, node, arguments, size, place)
        if procedure == REMOVE:
            return self.remove(standing, node, arguments, size, place)
        if procedure == COMMIT:
            return self.commit(standing, node, size, place)
        return False

    cdef uint64_t fsid(self, Node node) except? 0:
        """:func:`nfsd.v3.convert.fsid3` of the node's file system."""
        cdef tuple pair = node.mount.fsid
        return <uint64_t>pair[0] * <uint64_t>0x9E3779B97F4A7C15 + <uint64_t>pair[1]

    cdef bint getattr(self, Node node, size_t size, Place place) except -1:
        cdef statx_t status
        if size != 0 or place.end - place.at < 4 + FATTR or not self.files.look(node, &status):
            return False
        place.at = store_fattr(store32(place.at, 0), &status, self.fsid(node))
        return True

    cdef bint access(self, Standing standing, Node node, const uint8_t *arguments, size_t size, Place place) except -1:
        cdef statx_t status
        cdef int granted
        if size != 4 or place.end - place.at < 12 + FATTR or not self.files.look(node, &status):
            return False
        granted = self.files.access(standing.credential, node)
        if granted < 0:
            return False
        if standing.read_only:
            granted &= ~MODIFYING
        place.at = store_fattr(store32(store32(place.at, 0), 1), &status, self.fsid(node))
        place.at = store32(place.at, granted & load32(arguments))
        return True

    cdef bint lookup(
        self, Standing standing, Node directory, const uint8_t *arguments, size_t size, Place place
    ) except -1:
        cdef statx_t status, after
        cdef size_t length
        cdef Node node
        if size < 4:
            return False
        length = load32(arguments)
        if length > 255 or size != 4 + ((length + 3) & ~<size_t>3) or place.end - place.at < 12 + HANDLE_MAX + 2 * FATTR + 8:
            return False
        node = self.files.lookup(standing.credential, directory, arguments + 4, length, &status)
        if node is None or not self.files.look(directory, &after):
            return False
        place.at = store_handle(store32(place.at, 0), node.handle)
        place.at = store_fattr(store32(place.at, 1), &status, self.fsid(node))
        place.at = store_fattr(store32(place.at, 1), &after, self.fsid(directory))
        return True

    cdef bint read(self, Standing standing, Node node, const uint8_t *arguments, size_t size, Place place) except -1:
        cdef statx_t after
        cdef OpenFile opened
        cdef uint64_t offset
        cdef size_t count
        cdef uint8_t *head = place.at
        cdef ssize_t got
        cdef bint eof
        if size != 12 or place.end - place.at < READ_HEAD:
            return False
        offset = load64(arguments)
        count = min(<size_t>load32(arguments + 8), self.read_max)
        if count == 0 or offset > <uint64_t>0x7FFFFFFFFFFFFFFF - count:
            return False
        if node.inode.delegated == 2:
            return False
        opened = self.files.opened(node, standing.credential, 1)
        if opened is None:
            return False
        place.at += READ_HEAD
        got = self.files.read(opened, False, offset, place, count, &after, &eof)
        if got < 0:
            return False
        head = store_fattr(store32(store32(head, 0), 1), &after, self.fsid(node))
        store32(store32(store32(head, <uint32_t>got), eof), <uint32_t>got)
        place.data_done(got)
        return True

    cdef bint write(self, Standing standing, Node node, const uint8_t *arguments, size_t size, Place place) except -1:
        cdef statx_t before, after
        cdef OpenFile opened
        cdef uint64_t offset
        cdef uint32_t stable
        cdef size_t count
        cdef ssize_t done
        cdef bytes verifier
        cdef const uint8_t *octets
        cdef const uint8_t *source = arguments + 20
        if size < 20 or place.end - place.at < 4 + WCC + 16 or standing.read_only or node.export.read_only:
            return False
        offset = load64(arguments)
        count = load32(arguments + 8)
        stable = load32(arguments + 12)
        if count != load32(arguments + 16) or count > self.write_max:
            return False
        if place.bulk != NULL:
            if size != 20 or place.bulk_size != count:
                return False
            source = place.bulk
        elif size != 20 + ((count + 3) & ~<size_t>3):
            return False
        if stable > FILE_SYNC:
            return False
        if node.inode.delegated:
            return False
        opened = self.files.opened(node, standing.credential, 2)
        if opened is None:
            return False
        verifier = self.files.service.write_verifier
        octets = verifier
        done = self.files.write(opened, False, offset, source, count, stable != UNSTABLE, &before, &after)
        if done < 0:
            return False
        place.at = store_wcc(store32(place.at, 0), &before, &after, self.fsid(node))
        place.at = store32(store32(place.at, <uint32_t>done), stable)
        memcpy(place.at, octets, 8)
        place.at += 8
        return True

    cdef bint commit(self, Standing standing, Node node, size_t size, Place place) except -1:
        cdef statx_t before, after
        cdef bytes verifier
        cdef const uint8_t *octets
        if size != 12 or place.end - place.at < 4 + WCC + 8 or standing.read_only or node.export.read_only:
            return False
        if node.export.asynchronous or not self.files.commit(node, &before, &after):
            return False
        verifier = self.files.service.write_verifier
        octets = verifier
        place.at = store_wcc(store32(place.at, 0), &before, &after, self.fsid(node))
        memcpy(place.at, octets, 8)
        place.at += 8
        return True

    cdef bint create(
        self, Standing standing, Node directory, const uint8_t *arguments, size_t size, Place place
    ) except -1:
        """UNCHECKED and GUARDED, of a name that is not taken."""
        cdef statx_t status, before, after
        cdef size_t length, rest
        cdef uint32_t mode
        cdef Node node
        if size < 4 or standing.read_only or place.end - place.at < 4 + 8 + HANDLE_MAX + 4 + FATTR + WCC:
            return False
        length = load32(arguments)
        rest = 8 + ((length + 3) & ~<size_t>3)
        if length > 255 or size < rest or load32(arguments + rest - 4) > GUARDED:
            return False
        if not plain_mode(arguments + rest, arguments + size, &mode):
            return False
        node = self.files.create(
            standing.credential, directory, arguments + 4, length, mode, &status, &before, &after
        )
        if node is None:
            return False
        place.at = store_handle(store32(store32(place.at, 0), 1), node.handle)
        place.at = store_fattr(store32(place.at, 1), &status, self.fsid(node))
        place.at = store_wcc(place.at, &before, &after, self.fsid(directory))
        return True

    cdef bint remove(
        self, Standing standing, Node directory, const uint8_t *arguments, size_t size, Place place
    ) except -1:
        cdef statx_t before, after
        cdef size_t length
        if size < 4 or standing.read_only or place.end - place.at < 4 + WCC:
            return False
        length = load32(arguments)
        if length > 255 or size != 4 + ((length + 3) & ~<size_t>3):
            return False
        if not self.files.remove(standing.credential, directory, arguments + 4, length, &before, &after):
            return False
        place.at = store_wcc(store32(place.at, 0), &before, &after, self.fsid(directory))
        return True
