"""fattr3 and wcc_data in native code (RFC 1813 section 2.5, 2.6): the octets of :mod:`nfsd.v3.convert`."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from nfsd.vfs.attributes cimport statx_t, statx_timestamp
from nfsd.vfs.native_files cimport type_of
from nfsd.wire.nfs3 cimport NF3BLK, NF3CHR, fattr3_t, nfstime3_t, store_fattr3, store_wcc_data, wcc_data_t


cdef inline uint64_t fsid3(uint64_t major, uint64_t minor) noexcept nogil:
    """128 bits of file system identity in NFSv3's 64 (:func:`nfsd.v3.convert.fsid3`)."""
    return major * <uint64_t>0x9E3779B97F4A7C15 + minor


cdef inline void set_time(nfstime3_t *into, statx_timestamp *time) noexcept nogil:
    """The nearest nfstime3 (:func:`nfsd.v3.convert.time3`)."""
    if time.seconds < 0:
        into.seconds = into.nseconds = 0
    elif time.seconds > <int64_t>0xFFFFFFFF:
        into.seconds, into.nseconds = <uint32_t>0xFFFFFFFF, 999999999
    else:
        into.seconds, into.nseconds = <uint32_t>time.seconds, time.nanoseconds


cdef inline void set_fattr(fattr3_t *into, statx_t *status, uint64_t fsid) noexcept nogil:
    """A fattr3 (:func:`nfsd.v3.convert.fattr`)."""
    into.type = type_of(status)
    into.mode = status.mode & 0o7777
    into.nlink = status.nlink
    into.uid = status.uid
    into.gid = status.gid
    into.size = status.size
    into.used = status.blocks << 9
    into.rdev.specdata1 = into.rdev.specdata2 = 0
    if into.type == NF3BLK or into.type == NF3CHR:
        into.rdev.specdata1, into.rdev.specdata2 = status.rdev_major, status.rdev_minor
    into.fsid = fsid
    into.fileid = status.ino
    set_time(&into.atime, &status.atime)
    set_time(&into.mtime, &status.mtime)
    set_time(&into.ctime, &status.ctime)


cdef inline uint8_t *store_fattr(uint8_t *at, statx_t *status, uint64_t fsid) noexcept nogil:
    cdef fattr3_t value
    set_fattr(&value, status, fsid)
    return store_fattr3(at, &value)


cdef inline uint8_t *store_wcc(uint8_t *at, statx_t *before, statx_t *after, uint64_t fsid) noexcept nogil:
    """A wcc_data with both parts."""
    cdef wcc_data_t value
    value.before_given = value.after_given = True
    value.before.size = before.size
    set_time(&value.before.mtime, &before.mtime)
    set_time(&value.before.ctime, &before.ctime)
    set_fattr(&value.after, after, fsid)
    return store_wcc_data(at, &value)
