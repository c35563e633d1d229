"""sattr3 in native code (RFC 1813 section 2.5.3): what is to be set, as the kernel takes it."""

from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.string cimport memset

from nfsd.vfs.native_files cimport NO_ID, UTIME_NOW, UTIME_OMIT, changes_t, when_t
from nfsd.wire.nfs3 cimport (
    NFS3ERR_FBIG, NFS3ERR_INVAL, NFS3_OK, SET_TO_CLIENT_TIME, SET_TO_SERVER_TIME, load_sattr3, nfstime3_t, sattr3_t,
)


cdef inline bint set_when(when_t *when, uint32_t how, nfstime3_t *time) noexcept nogil:
    """A set_atime or set_mtime; False: a time that no file can have."""
    when.seconds = 0
    when.nanoseconds = UTIME_NOW if how == SET_TO_SERVER_TIME else UTIME_OMIT
    if how != SET_TO_CLIENT_TIME:
        return True
    when.seconds, when.nanoseconds = time.seconds, time.nseconds
    return time.nseconds <= 999999999


cdef inline const uint8_t *load_sattr(
    const uint8_t *at, const uint8_t *end, changes_t *changes, int64_t *size, uint32_t *status
) noexcept nogil:
    """Behind a sattr3, which goes to ``changes`` and ``size`` (-1: none); NULL: it is none. ``status`` is not NFS3_OK for
    what no file can have."""
    cdef sattr3_t given
    cdef bint fits
    # What is not given has no value in what is loaded.
    memset(&given, 0, sizeof(given))
    at = load_sattr3(at, end, &given)
    if at == NULL:
        return NULL
    changes.guarded = False
    changes.mode = <int>(given.mode & 0o7777) if given.mode_given else -1
    changes.uid = given.uid if given.uid_given else NO_ID
    changes.gid = given.gid if given.gid_given else NO_ID
    size[0] = <int64_t>given.size if given.size_given else -1
    fits = set_when(&changes.times[0], given.atime.set_it, &given.atime.atime)
    fits = set_when(&changes.times[1], given.mtime.set_it, &given.mtime.mtime) and fits
    status[0] = NFS3_OK
    if given.size_given and size[0] < 0:
        status[0] = NFS3ERR_FBIG
    elif not fits or (given.uid_given and given.uid == NO_ID) or (given.gid_given and given.gid == NO_ID):
        status[0] = NFS3ERR_INVAL
    return at
