"""C declarations of the file service's native operations: for native programs, on the loop's thread."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from nfsd.vfs.attributes cimport statx_t
from nfsd.vfs.records cimport Credential, Inode, Node, OpenFile
from nfsd.vfs.tables cimport Tables
from nfsd.vfs.transfers cimport Sync, Transfer
from rpcrdma.place cimport Place
from rpcrdma.rpc.callers cimport Caller
from rpcrdma.rpc.tally cimport Tally

cdef enum:
    NAME_MAX = 255
    NO_ID = 0xFFFFFFFF          # leaves an owner as it is
    UTIME_NOW = 0x3FFFFFFF      # instead of nanoseconds
    UTIME_OMIT = 0x3FFFFFFE

cdef struct when_t:             # struct timespec
    int64_t seconds
    int64_t nanoseconds

cdef struct changes_t:          # attributes to be set
    int mode                    # -1: not to be set
    uint32_t uid
    uint32_t gid
    when_t times[2]             # atime, mtime
    bint guarded                # only if ctime is this
    int64_t ctime


cdef class Standing:
    """What one caller is on one export."""

    cdef object export
    cdef Credential credential
    cdef Tally tally
    cdef bint read_only
    cdef unsigned int versions      # of NFS, that the export is for
    cdef size_t max_read            # octets of one READ, of one WRITE
    cdef size_t max_write
    cdef uint64_t only              # the operations of NFSv4, as bits, that are all it may do; 0: it may do any
    cdef unsigned long edition      # of the exports' answers
    cdef uint64_t learnt            # when, in nanoseconds


cdef class NativeFiles:
    """Operations that do not wait. Those that could, or that fail, are declined: the general path does them."""

    cdef readonly object service
    cdef readonly object exports    # the service's
    cdef Tables tables              # likewise
    cdef unsigned int version       # of NFS, that is spoken in the present call
    cdef int why                    # the present call is declined (rpcrdma.declined), by this or by who asks it
    cdef bint tells_devices         # who asks tells a btrfs subvolume, which numbers its files anew, by its device

    cdef Node find(self, const uint8_t *handle, size_t size)
    cdef Node reopened(self, bytes handle)
    cdef Standing standing(self, Caller caller, Node node)
    cdef Standing asked(self, Caller caller, object export)
    cdef bint become(self, Credential credential) noexcept
    cdef int pause(self) except -1
    cdef bint look(self, Node node, statx_t *status) except -1
    cdef OpenFile opened(self, Node node, Credential credential, int access)
    cdef bint take(self, Node node, statx_t *status) except -1
    cdef ssize_t read(self, OpenFile opened, bint held, uint64_t offset, Place place, size_t size, statx_t *after, bint *eof) except -2
    cdef ssize_t write(self, OpenFile opened, bint held, uint64_t offset, const uint8_t *source, size_t size, bint stable, statx_t *before, statx_t *after, bint fetched) except -2
    cdef Transfer to_read(self, Node node, OpenFile opened, bint held, uint64_t offset, Place place, size_t size,
                          bint again)
    cdef bint have_read(self, Transfer transfer, Place place, bint *eof) except -1
    cdef Transfer to_write(self, Node node, OpenFile opened, bint held, uint64_t offset, const uint8_t *source, size_t size,
                           Caller caller)
    cdef bint was_written(self, Transfer transfer) noexcept
    cdef int have_written(self, Transfer transfer) except -1
    cdef Sync to_sync_written(self, Transfer transfer)
    cdef Sync to_flush(self, Credential credential, Node node, statx_t *before)
    cdef bint commit(self, Credential credential, Node node, statx_t *before, statx_t *after) except -1
    cdef int access(self, Credential credential, Node node) except -2
    cdef ssize_t readlink(self, Credential credential, Node node, uint8_t *sink, size_t size) except -2
    cdef void observe(self, Node node, statx_t *status, bint changed) noexcept


cdef Standing standing_on(object export, Credential credential, bint read_only, Tally tally, uint64_t only=*)
cdef bint allows(Standing standing, uint32_t operation) noexcept


cdef inline bint no(NativeFiles files, int why) noexcept:
    """Decline, and say why."""
    files.why = why
    return False


# What the thread may do with a file: bits of ACCESS3_*; -1: that cannot be told.
cdef int access_to(int fd, bint directory) noexcept nogil
cdef int synchronise(int fd) except -1
cdef bint stat_of(int fd, statx_t *status) noexcept nogil


cdef inline bint other_device(Node node, statx_t *status) noexcept:
    """Whether a file is on another device than its mount: a btrfs subvolume."""
    return status.dev_major != node.device_major or status.dev_minor != node.device_minor


cdef inline int64_t ctime_of(statx_t *status) noexcept nogil:
    return status.ctime.seconds * 1000000000 + status.ctime.nanoseconds


cdef inline uint32_t type_of(statx_t *status) noexcept nogil:
    """The file's type as both NFS versions number it (ftype3, nfs_ftype4), by S_IFMT's four bits: one digit for each."""
    return <uint32_t>((<uint64_t>0x1116151113121471 >> (4 * (status.mode >> 12))) & 15)


cdef inline void no_changes(changes_t *changes) noexcept nogil:
    changes.mode, changes.uid, changes.gid, changes.guarded = -1, NO_ID, NO_ID, False
    changes.times[0].seconds = changes.times[1].seconds = 0
    changes.times[0].nanoseconds = changes.times[1].nanoseconds = UTIME_OMIT
