"""From the kernel's ``struct statx`` to :class:`Attributes` (contract: ``attributes.pyi``). Makes no call.

Native because every operation reports attributes, most of them twice.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memset

from nfsd.vfs.change cimport ChangeRecord
from nfsd.vfs.kernel cimport CLOCK_REALTIME, clock_gettime, timespec
from nfsd.vfs.records cimport Inode

from nfsd.vfs.types import Attributes, FileType, Time

cdef object _attributes = Attributes
cdef object _time = Time
cdef object _new = tuple.__new__
cdef tuple _types = tuple(
    {1: FileType.FIFO, 2: FileType.CHR, 4: FileType.DIR, 6: FileType.BLK, 8: FileType.REG, 10: FileType.LNK,
     12: FileType.SOCK}.get(kind, FileType.REG)
    for kind in range(16)
)
"""By the four bits of the mode that tell the type (S_IFMT)."""
cdef dict _kinds = {FileType.FIFO: 1, FileType.CHR: 2, FileType.DIR: 4, FileType.BLK: 6, FileType.REG: 8, FileType.LNK: 10,
                    FileType.SOCK: 12}


def statx_buffer():
    return bytearray(sizeof(statx_t))


cdef statx_t *status_in(object buffer) except NULL:
    if not isinstance(buffer, bytearray) or PyByteArray_GET_SIZE(buffer) < <Py_ssize_t>sizeof(statx_t):
        raise ValueError("no struct statx")
    return <statx_t *>PyByteArray_AS_STRING(buffer)


cdef inline object time_of(statx_timestamp *at):
    return _new(_time, (at.seconds, at.nanoseconds))


cdef object type_in(statx_t *status):
    return _types[status.mode >> 12]


def raw_type(buffer):
    return type_in(status_in(buffer))


def raw_nlink(buffer):
    return status_in(buffer).nlink


def raw_uid(buffer):
    return status_in(buffer).uid


def changed_between(Inode inode not None, before, after):
    inode.changed_between(status_in(before), status_in(after))


def raw_fileid(buffer):
    return status_in(buffer).ino


def raw_size(buffer):
    return status_in(buffer).size


def raw_ctime(buffer):
    cdef statx_t *status = status_in(buffer)
    return <int64_t>(<uint64_t>status.ctime.seconds * 1000000000 + status.ctime.nanoseconds)


def raw_device(buffer):
    cdef statx_t *status = status_in(buffer)
    return status.dev_major, status.dev_minor


def raw_mount(buffer):
    return status_in(buffer).mnt_id


def attributes_of(buffer, mount, ChangeRecord record not None, *, bint changed=False):
    return attributes_in(status_in(buffer), mount, record, changed)


cdef object attributes_in(statx_t *status, mount, ChangeRecord record, bint changed):
    cdef timespec clock
    cdef uint64_t now = 0
    cdef bint fine = mount.fine
    cdef object fsid = mount.fsid
    cdef object mounted_on = None
    cdef uint64_t change
    if status.mask & COUNTED:
        change = status.count
    else:
        if not fine:
            clock_gettime(CLOCK_REALTIME, &clock)
            now = <uint64_t>clock.tv_sec * 1000000000 + <uint64_t>clock.tv_nsec
        change = record.look(
            <uint64_t>status.ctime.seconds * 1000000000 + status.ctime.nanoseconds, now, fine, changed
        )
    if (status.dev_major, status.dev_minor) != mount.device:
        # A btrfs subvolume: numbers its files anew.
        fsid = (fsid[0], <uint64_t>status.dev_major << 32 | status.dev_minor)
    if status.attributes & ATTRIBUTE_MOUNT_ROOT:
        mounted_on = mount.mounted_on_fileid
    return _new(
        _attributes,
        (
            _types[status.mode >> 12],
            status.mode & 0o7777,
            status.nlink,
            status.uid,
            status.gid,
            status.size,
            status.blocks << 9,
            (status.rdev_major, status.rdev_minor),
            fsid,
            status.ino,
            status.ino if mounted_on is None else mounted_on,
            time_of(&status.atime),
            time_of(&status.mtime),
            time_of(&status.ctime),
            time_of(&status.btime) if status.mask & HAS_BIRTH_TIME else None,
            change,
        ),
    )


cdef inline void set_time(statx_timestamp *into, object time):
    into.seconds, into.nanoseconds = time


cdef int fill_status(statx_t *status, object attributes) except -1:
    """What of a ``struct statx`` these attributes tell: all but the device."""
    memset(status, 0, sizeof(statx_t))
    status.mode = <uint32_t>_kinds[attributes.type] << 12 | <uint32_t>attributes.mode
    status.nlink, status.uid, status.gid = attributes.nlink, attributes.uid, attributes.gid
    status.size, status.blocks, status.ino = attributes.size, attributes.used >> 9, attributes.fileid
    status.rdev_major, status.rdev_minor = attributes.rdev
    set_time(&status.atime, attributes.atime)
    set_time(&status.mtime, attributes.mtime)
    set_time(&status.ctime, attributes.ctime)
    if attributes.birthtime is not None:
        status.mask |= HAS_BIRTH_TIME
        set_time(&status.btime, attributes.birthtime)
    return 0


cdef int set_status(statx_t *status, object attributes, object mount) except -1:
    """A ``struct statx`` from which :func:`attributes_in` would make these attributes, of a file of this mount."""
    cdef uint64_t device
    fill_status(status, attributes)
    status.dev_major, status.dev_minor = mount.device
    if attributes.fsid != mount.fsid:  # a btrfs subvolume
        device = attributes.fsid[1]
        status.dev_major, status.dev_minor = <uint32_t>(device >> 32), <uint32_t>device
    return 0
