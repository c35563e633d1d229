# distutils: extra_compile_args = -O2
"""Native operations of the file service: what is known not to wait, done at once on the loop's thread.

Owns nothing. Works on the records and tables of :mod:`nfsd.vfs`; a native
program (:mod:`nfsd.v3.procedures`) calls it. Each operation does what the one of the same name in
:class:`~nfsd.vfs.service.FileService` does, or declines before it has changed anything.

What does not wait: everything on file systems in memory; on those with a page cache statx of an open file,
RWF_NOWAIT reads and RESOLVE_CACHED lookups (:class:`~nfsd.vfs.mounts.Mount`).

Identity. The kernel checks permissions as of the calling thread. A switch and back costs microseconds, so the thread
stays the last caller until :meth:`NativeFiles.pause`, before which nothing else may run on it. What concerns a caller
that it cannot become is declined.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.dict cimport PyDict_Next
from cpython.object cimport PyObject
from libc.errno cimport EACCES, EINVAL, EPERM, EROFS, ETXTBSY, errno
from libc.stdint cimport uint32_t
from libc.string cimport memcpy

from nfsd.edition cimport Edition
from nfsd.vfs.attributes cimport type_in
from nfsd.vfs.kernel cimport (
    AT_EACCESS, AT_EMPTY_PATH, CLOCK_REALTIME, SYS_faccessat2, SYS_open_by_handle_at, SYS_readlinkat, SYS_statx, c_close, c_syscall,
    clock_gettime, fsync, kernel_handle_t, pread, pwrite, timespec,
)
from nfsd.vfs.flushes cimport Sync, sync_of, sync_through
from nfsd.vfs.identity cimport Switch
from nfsd.vfs.nodes cimport NodeTable
from nfsd.vfs.resident cimport in_memory, was_read
from nfsd.wire.nfs3 cimport (
    ACCESS3_DELETE, ACCESS3_EXECUTE, ACCESS3_EXTEND, ACCESS3_LOOKUP, ACCESS3_MODIFY, ACCESS3_READ,
)
from rpcrdma.declined cimport BUSY, CALLER, DATA, FAILED, MAY_WAIT, NODE, OPEN, RARE, RECALL, SIZE, STANDING, TURN
from nfsd.vfs.stored_files cimport StoredFile
from nfsd.vfs.transfers cimport Transfer, pouring, reading, writing
from rpcrdma.clock cimport nanoseconds
from rpcrdma.memory cimport Lease
from rpcrdma.pipes cimport Pipe
from rpcrdma.turns cimport BULK, crowded

from nfsd.vfs.syscalls import (
    O_PATH as _O_PATH,
    STATX_MASK as _STATX_MASK,
)
from nfsd.vfs.inspect import ACCESSES_KEPT as _ACCESSES_KEPT
from nfsd.vfs.types import FileType
from nfsd.vfs.unstable import MOST_OF_ONE_FILE as _MOST_OF_ONE_FILE

cdef extern from "sys/uio.h" nogil:
    cdef struct iovec:
        void *iov_base
        size_t iov_len
    ssize_t preadv2(int fd, const iovec *vectors, int count, long offset, int flags)

cdef enum:
    RWF_NOWAIT = 8
    ANSWERS_GOOD_FOR = 1000000000   # nanoseconds, where name services are behind them

cdef unsigned int STATX_MASK = _STATX_MASK
cdef uint64_t O_PATH = _O_PATH
cdef object REG = FileType.REG
cdef Py_ssize_t MOST_OF_ONE_FILE = _MOST_OF_ONE_FILE
cdef Py_ssize_t ACCESSES_KEPT = _ACCESSES_KEPT
cdef object DIR = FileType.DIR
cdef int64_t OFFSET_MAX = 0x7FFFFFFFFFFFFFFF


cdef bint stat_of(int fd, statx_t *status) noexcept nogil:
    return c_syscall(SYS_statx, fd, b"", AT_EMPTY_PATH, STATX_MASK, status) == 0


cdef inline bint unchanged(Inode inode, statx_t *status) noexcept:
    """Whether nobody can have changed the file's permissions since they were last looked at: our own writes, which may
    be under way, move ctime as well."""
    return ctime_of(status) == inode.ctime or inode.serial.moving()


cdef int access_to(int fd, bint directory) noexcept nogil:
    cdef int bits = 0, number
    cdef bint may[3]
    for number in range(3):
        may[number] = c_syscall(SYS_faccessat2, fd, b"", 4 >> number, AT_EMPTY_PATH | AT_EACCESS) == 0
        if not may[number] and errno != EACCES and errno != EPERM and errno != EROFS and errno != ETXTBSY:
            return -1
    if may[0]:
        bits = ACCESS3_READ
    if not directory:
        return bits | (ACCESS3_MODIFY | ACCESS3_EXTEND if may[1] else 0) | (ACCESS3_EXECUTE if may[2] else 0)
    if may[2]:
        bits |= ACCESS3_LOOKUP | (ACCESS3_MODIFY | ACCESS3_EXTEND | ACCESS3_DELETE if may[1] else 0)
    return bits


cdef int synchronise(int fd) except -1:
    """fsync of what is in memory, which has nothing to write that could fail."""
    if fsync(fd) != 0 and errno != EINVAL and errno != EROFS:
        raise OSError(errno, "fsync of a file in memory")
    return 0


cdef Standing standing_on(export, Credential credential, bint read_only, Tally tally, uint64_t only=0):
    """What a caller is on an export, good for the present call."""
    cdef Standing standing = Standing.__new__(Standing)
    standing.export, standing.credential, standing.read_only = export, credential, read_only
    standing.tally, standing.only = tally, only
    standing.versions, standing.max_read, standing.max_write = export.versions, export.max_read, export.max_write
    return standing


cdef bint allows(Standing standing, uint32_t operation) noexcept:
    """Whether a caller may do this operation of NFSv4 where it is standing."""
    if standing is None or standing.only == 0:
        return True
    return operation < 64 and (standing.only >> operation) & 1


cdef inline Standing spoken(NativeFiles files, Standing standing):
    """Where the export is for the version of NFS that is spoken; None elsewhere."""
    if standing.versions & files.version:
        return standing
    files.why = STANDING
    return None


cdef class NativeFiles:
    def __cinit__(self, service):
        self.service = service
        self.exports = service.exports
        self.tables = service.tables

    # -- files and callers ---------------------------------------------------------------------------------------
    cdef Node find(self, const uint8_t *handle, size_t size):
        """The node of a handle if it is among those in use, or its file is in memory; None otherwise."""
        cdef NodeTable nodes = self.tables.nodes
        cdef Node node = nodes.in_use(handle, size)
        return self.reopened(PyBytes_FromStringAndSize(<char *>handle, size)) if node is None else node

    cdef Node reopened(self, bytes handle):
        """The node of a handle that is not among those in use: there may be more files than descriptors. Whatever is
        amiss is the general path's to tell."""
        cdef Node node = self.tables.nodes.find(handle)
        cdef kernel_handle_t kernel
        cdef statx_t status
        cdef bytes octets
        cdef long descriptor
        if node is not None:
            return node
        self.why = NODE
        found = self.service.finding.in_memory(handle)
        if found is None:
            return None
        mount, kernel.kind, octets = found
        kernel.size = len(octets)
        memcpy(kernel.octets, <char *>octets, kernel.size)
        self.pause()  # callers may not open by handle
        descriptor = c_syscall(SYS_open_by_handle_at, <int>mount.fd, &kernel, <int>O_PATH)
        if descriptor < 0:
            return None
        if not stat_of(<int>descriptor, &status) or status.nlink == 0:
            c_close(<int>descriptor)
            return None
        return self.tables.known.adopt_handle(mount, handle, kernel.kind, octets, descriptor, type_in(&status))

    cdef Standing standing(self, Caller caller, Node node):
        """The caller on the node's export; None when that takes time to find out, or it may not use it."""
        cdef Standing standing = <Standing>caller.note
        cdef Edition edition = self.tables.edition
        if standing is None or standing.export is not node.export:
            standing = None if caller.notes is None else (<dict>caller.notes).get(node.export.id)
        if standing is None or standing.edition != edition.number or (
            edition.ages and nanoseconds() - standing.learnt >= <uint64_t>ANSWERS_GOOD_FOR
        ):
            standing = self.asked(caller, node.export)
            if standing is None:
                self.why = STANDING
                return None
        caller.note = standing
        return spoken(self, standing)

    cdef Standing asked(self, Caller caller, object export):
        """What the exports say of the caller, which is kept; None: as :meth:`standing`."""
        cdef Standing standing
        cdef dict notes = caller.notes
        cdef unsigned long edition = self.tables.edition.number  # as of before they are asked
        caller.note = None
        if notes is None:
            notes = caller.notes = {}
        found = self.exports.standing(export, caller.credential, caller.transport)
        if found is None:
            notes.pop(export.id, None)
            return None
        standing = standing_on(export, found[0], found[1], self.exports.tally(export, caller.peer_address))
        standing.edition, standing.learnt = edition, nanoseconds()
        notes[export.id] = standing
        return standing

    cdef bint become(self, Credential credential) noexcept:
        """The thread acts as this caller from now on; or it is the server's own, and the call is to be declined."""
        cdef Switch switch = self.tables.switch
        return (switch is not None and switch.become(&credential.identity)) or no(self, CALLER)

    cdef int pause(self) except -1:
        """The thread is the server again."""
        cdef Switch switch = self.tables.switch
        if switch is not None:
            switch.become_own()
        return 0

    # -- attributes ----------------------------------------------------------------------------------------------
    cdef void observe(self, Node node, statx_t *status, bint changed) noexcept:
        """Keep the change attribute's record up to date, as every look at a file does."""
        cdef timespec clock
        cdef uint64_t now = 0
        if not node.fine:
            clock_gettime(CLOCK_REALTIME, &clock)
            now = <uint64_t>clock.tv_sec * 1000000000 + <uint64_t>clock.tv_nsec
        node.inode.change.look(<uint64_t>ctime_of(status), now, node.fine, changed)

    cdef bint look(self, Node node, statx_t *status) except -1:
        """A fresh ``struct statx``."""
        if not node.inline and not node.caching:
            return no(self, MAY_WAIT)
        return (stat_of(node.fd, status) or no(self, FAILED)) and self.take(node, status)

    cdef bint take(self, Node node, statx_t *status) except -1:
        """Look at what another call has just got of the file: as :meth:`look`."""
        if (status.nlink == 0 and node.inode.used_count == 0) or (not self.tells_devices and other_device(node, status)):
            return no(self, RARE)  # gone: what is to be told then takes more than this look
        node.inode.saw_ctime(ctime_of(status))
        self.observe(node, status, False)
        return True

    cdef int access(self, Credential credential, Node node) except -2:
        """ACCESS3_* bits (after :meth:`look`), as long as nothing has changed those that were found before; -1 declines."""
        cdef int bits = 0
        cdef Inode inode = node.inode
        known = inode.accesses.get(credential)
        if known is not None and known[0] == inode.epoch:
            bits = known[1]
        elif not node.inline:
            self.why = MAY_WAIT
            return -1
        else:
            if not self.become(credential):
                return -1
            bits = access_to(node.fd, node.type is DIR)
            if bits < 0:
                return -1
            if len(inode.accesses) >= ACCESSES_KEPT:
                inode.accesses.clear()
            inode.accesses[credential] = (inode.epoch, bits)
        return bits & (ACCESS3_READ | ACCESS3_LOOKUP | ACCESS3_EXECUTE if node.export.read_only else ~0)

    cdef ssize_t readlink(self, Credential credential, Node node, uint8_t *sink, size_t size) except -2:
        """The text of a symbolic link; -1 declines."""
        if not node.inline:
            self.why = MAY_WAIT
            return -1
        if not self.become(credential):
            return -1
        self.why = FAILED
        return c_syscall(SYS_readlinkat, node.fd, b"", sink, size)

    # -- data ----------------------------------------------------------------------------------------------------
    cdef OpenFile opened(self, Node node, Credential credential, int access):
        """An open file for this access in the cache, that was allowed when permissions were last seen to change; the
        caller looks whether they have since."""
        cdef Inode inode = node.inode
        cdef OpenFile opened
        cdef int wider, its
        cdef Py_ssize_t at = 0
        cdef PyObject *first = NULL
        self.why = OPEN
        if node.type is not REG:
            return None
        # Most files are open once. To make the keys below, and to look for them, takes longer than to see that.
        if PyDict_Next(<dict>inode.opens, &at, NULL, &first):
            opened = <OpenFile>first
            its = opened.readable | opened.writable << 1
            if opened.credential is credential and its & access == access and <unsigned long long>opened.epoch == inode.epoch:
                opened.used = self.tables.open_files.sweep_number
                return opened
        for wider in (access, 3):
            for helped in (False, True):
                opened = inode.opens.get((credential, wider, helped))
                if opened is not None and <unsigned long long>opened.epoch == inode.epoch:
                    opened.used = self.tables.open_files.sweep_number
                    return opened
        return None

    cdef ssize_t read(
        self, OpenFile opened, bint held, uint64_t offset, Place place, size_t size, statx_t *after, bint *eof
    ) except -2:
        """Read what is in memory, all of it, as the place's payload; -1 declines. A caller that has not ``held`` the file open
        since it was allowed to must not have lost the permission. The look comes afterwards: had the file's permissions
        changed meanwhile, nothing has been read yet as far as anybody knows."""
        cdef Node node = opened.node
        cdef ssize_t got
        cdef iovec vector
        self.why = MAY_WAIT
        if not node.inline and not node.caching:
            return -1
        self.why = DATA
        if not node.inline:
            if place.takes_pages(offset, size):
                return -1  # a worker may wait for pages, and to hand it so much is cheaper than to copy it
            self.pause()  # who may not write a file is not told what of it is in memory
            if not in_memory(opened.fd, <uint64_t><void *>node.inode, offset, size):
                return -1
        # splice(2) has no RWF_NOWAIT: on this thread only what is always in memory may leave from where it is.
        got = place.pages(opened.fd, offset, size) if node.inline else -1
        if got < 0:
            vector.iov_base = place.data(size)
            vector.iov_len = size
            if vector.iov_base == NULL:
                self.why = SIZE
                return -1
            if node.inline:
                got = pread(opened.fd, vector.iov_base, size, <long>offset)
            else:
                got = preadv2(opened.fd, &vector, 1, <long>offset, RWF_NOWAIT)
        if got < 0:
            return -1
        self.why = OPEN
        if not stat_of(opened.fd, after) or not (held or unchanged(node.inode, after)):
            return -1
        self.why = DATA
        eof[0] = offset + <size_t>got >= after.size
        if <size_t>got < size and not eof[0]:
            return -1
        if not node.inline:
            was_read(<uint64_t><void *>node.inode, offset, got, False)
        if not held:
            self.observe(node, after, False)
        return got

    cdef ssize_t write(
        self, OpenFile opened, bint held, uint64_t offset, const uint8_t *source, size_t size, bint stable,
        statx_t *before, statx_t *after, bint fetched
    ) except -2:
        """Write into memory; -1 declines. ``held``: as for :meth:`read`; ``stable``: to be synchronised before the answer;
        ``fetched``: by RDMA. Raises OSError if that fails, which in memory it does not: what was written is written."""
        cdef Node node = opened.node
        cdef Inode inode = node.inode
        cdef ssize_t done
        self.why = RARE
        if size == 0 or offset > <uint64_t>OFFSET_MAX - size:
            return -1
        self.why = MAY_WAIT if not node.inline else BUSY
        if not node.inline or inode.serial.busy:
            return -1
        if size >= BULK and not fetched and crowded():
            self.why = TURN
            # A worker copies so much while others have their turns; what was fetched costs more to hand over.
            return -1
        stable = stable and not node.export.late_data
        if stable and inode.sync.running:
            return -1
        self.why = OPEN
        if not stat_of(opened.fd, before) or (not held and ctime_of(before) != inode.ctime):
            return -1
        if opened.credential is not None:
            # As the caller: blocks reserved for root, quotas and the clearing of set-user-id bits go by who writes.
            if not self.become(<Credential>opened.credential):
                return -1
        else:
            self.pause()
        self.why = FAILED
        done = pwrite(opened.fd, source, size, <long>offset)
        if done < 0:
            return -1
        if not stat_of(opened.fd, after):
            raise OSError(errno, "statx of a file just written")
        inode.changed_between(before, after)
        self.observe(node, before, False)
        self.observe(node, after, True)
        if stable:
            synchronise(opened.fd)
        return done

    cdef Transfer to_read(
        self, Node node, OpenFile opened, bint held, uint64_t offset, Place place, size_t size, bint again
    ):
        """What is to be waited for where :meth:`read` declines; None: that is of no use. ``again``: its pages have been
        waited for, and could not be had."""
        cdef Transfer transfer
        cdef Pipe pipe
        cdef Lease sink
        place.forget_payload()
        pipe = place.vessel(offset, size) if node.caching and not again else None
        if pipe is not None:
            transfer = pouring(self.tables.executor, opened, offset, pipe, size)
        else:
            sink = place.sink(size)
            if sink is None:
                return None
            transfer = reading(self.tables.executor, opened, offset, sink, size)
        transfer.node, transfer.held = node, held
        return transfer

    cdef bint have_read(self, Transfer transfer, Place place, bint *eof) except -1:
        """As :meth:`read`, of what has been brought: its octets are the place's payload. False declines."""
        cdef Node node = transfer.opened.node
        cdef statx_t *after = &transfer.data.after
        cdef size_t got = transfer.data.done
        cdef Lease sink = transfer.sink
        cdef Pipe pipe = transfer.pipe
        if not transfer.held and not unchanged(node.inode, after):
            return no(self, OPEN)
        # Where the file has grown since the kernel came to its end, fewer octets than asked for are not the end.
        eof[0] = transfer.data.where.offset + got >= after.size
        was_read(<uint64_t><void *>node.inode, transfer.data.where.offset, got, True)
        self.why = SIZE
        if not transfer.held:
            self.observe(node, after, False)
        if pipe is not None:
            transfer.pipe = None
            return place.take_pages(pipe, got)
        transfer.sink = None
        return place.take(sink, got)

    cdef Transfer to_write(
        self, Node node, OpenFile opened, bint held, uint64_t offset, const uint8_t *source, size_t size, Caller caller
    ):
        """What is to be waited for where :meth:`write` declines; None: that is of no use. ``source`` stays there."""
        cdef Inode inode = opened.node.inode
        cdef Transfer transfer
        cdef statx_t status
        cdef bint in_store = opened.fd < 0 and isinstance(opened.stored, StoredFile)
        cdef int why = self.why
        if size == 0 or offset > <uint64_t>OFFSET_MAX - size:
            return None
        if not (held or in_store or inode.serial.moving()):
            # A look is needed: otherwise none would say that the caller has lost the permission.
            self.why = OPEN
            if not node.caching and not node.inline:
                return None  # it would be a wait
            if not stat_of(opened.fd, &status) or not unchanged(inode, &status):
                return None
            self.why = why
        if not opened.unstable and len(inode.unstable) >= MOST_OF_ONE_FILE:
            self.why = BUSY
            return None
        transfer = writing(self.tables.executor, self.tables.unstable, opened, offset, source, size, caller)
        transfer.node, transfer.held = node, held
        if in_store:
            transfer.data.ctime, transfer.data.checked = &inode.ctime, not held  # a worker looks
            transfer.data.epoch, transfer.data.in_epoch = &inode.epoch, inode.epoch
        transfer.failures = inode.sync.failures
        transfer.verifier = node.write_back.verifier
        return transfer

    cdef bint was_written(self, Transfer transfer) noexcept:
        """Whether a write has been made, as far as it could be; False: the file has to be opened again first."""
        return not transfer.data.unwritten or no(self, OPEN)

    cdef int have_written(self, Transfer transfer) except -1:
        """As :meth:`write`, of what has been done; returns 0 or an errno."""
        cdef Node node = transfer.opened.node
        if transfer.data.error:
            return transfer.data.error
        if not transfer.data.follows:
            self.observe(node, &transfer.data.before, False)
        self.observe(node, &transfer.data.after, True)
        return 0

    cdef Sync to_sync_written(self, Transfer transfer):
        """Data that has just been written is to be on stable storage."""
        return sync_through(self.service, transfer.opened.node, transfer.opened, transfer.failures)

    cdef Sync to_flush(self, Credential credential, Node node, statx_t *before):
        """The whole file is to be on stable storage, for who may have it done. ``before``: how the file is now."""
        cdef Sync sync = sync_of(self.service, node, credential)
        sync.before = before[0]
        return sync

    cdef bint commit(self, Credential credential, Node node, statx_t *before, statx_t *after) except -1:
        """fsync of a file in memory, which a later failure of write-back cannot concern, for who has it open for
        writing."""
        cdef OpenFile opened
        if not node.inline:
            return no(self, MAY_WAIT)
        if node.inode.sync.running:
            return no(self, BUSY)
        if not self.look(node, before):
            return False
        opened = self.opened(node, credential, 2)
        if opened is None or fsync(opened.fd) != 0:
            return False
        return self.look(node, after)
