"""Names, data and locks in a mounted CephFS file system (contract: ``client.pyi``).

Owns its open files and directories. Every method waits for the cluster, as those of :mod:`nfsd.backends.cephfs.mounted`.
"""

import os

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcpy, memset

from nfsd.backends.cephfs.api cimport *
from nfsd.backends.cephfs.directories cimport Directories, make_name, remove_name
from nfsd.backends.cephfs.mounted cimport Caller, Mounted, check, fill, key_of, look_of, octets_of, see_as
from nfsd.vfs.attributes cimport statx_t, status_in
from nfsd.vfs.stored_files cimport StoredFile, iovec, key_t, stored_t

cdef extern from "sys/sysmacros.h" nogil:
    uint64_t c_makedev "makedev"(unsigned int major, unsigned int minor)

from nfsd.vfs.attributes import statx_buffer

cdef enum:
    S_ISUID = 0o4000
    S_ISGID = 0o2000
    S_IXGRP = 0o010
    F_UNLCK = 2
    PUNCH = 3                       # FALLOC_FL_PUNCH_HOLE, and FALLOC_FL_KEEP_SIZE, without which it is not allowed


# -- what workers do with an open file -----------------------------------------------------------------------------
ctypedef struct open_t:
    stored_t body               # stands first
    ceph_mount_info *mount
    UserPerm *server
    Fh *file
    inode_t *inode              # it has a count as long as the file is open


cdef ssize_t read_file(stored_t *file, uint64_t offset, void *octets, size_t size) noexcept nogil:
    """The library may stop between two of the objects that it has."""
    cdef open_t *opened = <open_t *>file
    cdef size_t done = 0
    cdef int result = 1
    while result > 0 and done < size:
        result = ceph_ll_read(opened.mount, opened.file, <int64_t>(offset + done), size - done, <char *>octets + done)
        if result > 0:
            done += result
    return result if result < 0 else <ssize_t>done


cdef ssize_t write_file(stored_t *file, uint64_t offset, const iovec *parts, int count) noexcept nogil:
    cdef open_t *opened = <open_t *>file
    return ceph_ll_writev(opened.mount, opened.file, parts, count, <int64_t>offset)


cdef int look_at_file(stored_t *file, statx_t *status) noexcept nogil:
    cdef open_t *opened = <open_t *>file
    cdef ceph_statx seen
    cdef int result = see_as(opened.mount, opened.inode, &seen, opened.server)
    if result == 0:
        fill(status, &seen)
    return -result


cdef int look_at_written(stored_t *file, statx_t *status) noexcept nogil:
    """Ceph 16 leaves set-user-id and set-group-id bits, as of whom a kernel has asked before."""
    cdef open_t *opened = <open_t *>file
    cdef ceph_statx wanted
    cdef int error = look_at_file(file, status)
    cdef unsigned int kept = status.mode & ~(S_ISUID | (S_ISGID if status.mode & S_IXGRP else 0))
    if error != 0 or kept == status.mode:
        return error
    memset(&wanted, 0, sizeof(wanted))
    wanted.stx_mode = kept & 0o7777
    error = -ceph_ll_setattr(opened.mount, opened.inode, &wanted, CEPH_SETATTR_MODE, opened.server)
    return error or look_at_file(file, status)


cdef class File(StoredFile):
    """A file that is open. It closes with the last reference to it, or by :meth:`close`."""

    cdef Client client
    cdef open_t opened
    cdef readonly object actor
    cdef readonly int access
    cdef int users
    """Calls that have it and that who closes it does not know of."""
    cdef bint is_closing

    def __cinit__(self):
        memset(&self.opened, 0, sizeof(self.opened))
        self.body = &self.opened.body
        self.body.read, self.body.write = read_file, write_file
        self.body.look, self.body.look_written = look_at_file, look_at_written

    def __del__(self):
        if self.opened.file != NULL and self.client.mount != NULL:
            self.close_now()

    cdef bint hold(self):
        """Have it stay open until :meth:`let_go`. False: it is closed."""
        if self.opened.file == NULL or self.is_closing or self.client.mount == NULL:
            return False
        self.users += 1
        (<Mounted>self.client).users += 1
        return True

    cdef int let_go(self) except -1:
        self.users -= 1
        if self.is_closing and not self.users:
            self.close_now()
        return (<Mounted>self.client).left()

    cdef int close_now(self) noexcept:
        cdef Fh *file = self.opened.file
        cdef int result
        self.opened.file = NULL
        with nogil:
            result = ceph_ll_close(self.client.mount, file)
            ceph_ll_put(self.client.mount, self.opened.inode)
        return result

    def close(self):
        if self.users:
            self.is_closing = True
        elif self.opened.file != NULL:
            check(self.close_now())


cdef class Stream:
    """A directory that is being listed."""

    cdef Client client
    cdef ceph_dir_result *directory

    def __del__(self):
        if self.directory != NULL and self.client.mount != NULL:
            ceph_ll_releasedir(self.client.mount, self.directory)


cdef class Client(Mounted):
    """See the module."""

    cdef readonly Directories directories

    def begin(self, bytes root not None):
        Mounted.begin(self, root)
        self.directories = Directories(self)
        self.directories.names.mount, self.directories.names.server = self.mount, self.server

    # -- names ---------------------------------------------------------------------------------------------------
    def make(self, credential, bytes directory not None, bytes name not None, unsigned int mode, bytes text, rdev):
        cdef Caller caller = Caller(credential)
        cdef key_t where, made
        cdef const char *c_name = name
        cdef const char *c_text = NULL
        cdef uint64_t device = c_makedev(rdev[0], rdev[1])
        cdef int error
        looks = [statx_buffer() for _ in range(3)]
        cdef statx_t *status = status_in(looks[0])
        cdef statx_t *before = status_in(looks[1])
        cdef statx_t *after = status_in(looks[2])
        if text is not None:
            c_text = text
        where.size = 16
        memcpy(where.octets, octets_of(directory), 16)
        with nogil:
            error = make_name(
                &self.directories.names, caller.who, &where, c_name, mode, device, c_text, &made, status, before, after
            )
        check(-error)
        return looks[1], looks[2], (<char *>made.octets)[:16], looks[0]

    def remove(self, credential, bytes directory not None, bytes name not None, bint a_directory):
        cdef Caller caller = Caller(credential)
        cdef key_t where, gone
        cdef const char *text = name
        cdef int error
        looks = [statx_buffer() for _ in range(3)]
        cdef statx_t *status = status_in(looks[0])
        cdef statx_t *before = status_in(looks[1])
        cdef statx_t *after = status_in(looks[2])
        where.size = 16
        memcpy(where.octets, octets_of(directory), 16)
        with nogil:
            error = remove_name(
                &self.directories.names, caller.who, &where, text, a_directory, &gone, status, before, after
            )
        check(-error)
        return looks[1], looks[2], (<char *>gone.octets)[:16], looks[0]

    def rename(self, credential, bytes source not None, bytes name not None, bytes target not None, bytes new_name not None):
        cdef Caller caller = Caller(credential)
        cdef inode_t *here = self.inode(source)
        cdef inode_t *there = NULL
        cdef ceph_statx seen[4]
        cdef const char *old = name
        cdef const char *new = new_name
        cdef int result
        try:
            there = self.inode(target)
            self.look_at(here, &seen[0])
            self.look_at(there, &seen[1])
            with nogil:
                result = ceph_ll_rename(self.mount, here, old, there, new, caller.who)
            check(result)
            self.look_at(here, &seen[2])
            self.look_at(there, &seen[3])
        finally:
            ceph_ll_put(self.mount, here)
            if there != NULL:
                ceph_ll_put(self.mount, there)
        return look_of(&seen[0]), look_of(&seen[2]), look_of(&seen[1]), look_of(&seen[3])

    def link(self, credential, bytes key not None, bytes directory not None, bytes name not None):
        cdef Caller caller = Caller(credential)
        cdef inode_t *inode = self.inode(key)
        cdef inode_t *there = NULL
        cdef ceph_statx before, after, seen
        cdef const char *text = name
        cdef int result
        try:
            there = self.inode(directory)
            self.look_at(there, &before)
            with nogil:
                result = ceph_ll_link(self.mount, inode, there, text, caller.who)
            check(result)
            self.look_at(there, &after)
            self.look_at(inode, &seen)
        finally:
            ceph_ll_put(self.mount, inode)
            if there != NULL:
                ceph_ll_put(self.mount, there)
        return look_of(&before), look_of(&after), look_of(&seen)

    def open_directory(self, credential, bytes key not None):
        cdef Caller caller = Caller(credential)
        cdef inode_t *inode = self.inode(key)
        cdef Stream stream = Stream.__new__(Stream)
        cdef int result
        stream.client = self
        with nogil:
            result = ceph_ll_opendir(self.mount, inode, &stream.directory, caller.who)
            ceph_ll_put(self.mount, inode)
        check(result)
        return stream

    def seek(self, Stream stream not None, int64_t cookie):
        with nogil:
            ceph_seekdir(self.mount, stream.directory, cookie)

    def entries(self, Stream stream not None, int most):
        """Up to so many: name, where it goes on behind it, key, look."""
        cdef dirent_t entry
        cdef ceph_statx seen
        cdef inode_t *inode
        cdef int result
        found = []
        while len(found) < most:
            inode = NULL
            with nogil:
                result = ceph_readdirplus_r(
                    self.mount, stream.directory, &entry, &seen, CEPH_STATX_ALL_STATS, 0, &inode
                )
                if inode != NULL:
                    ceph_ll_put(self.mount, inode)
            check(result)
            if result == 0:
                break
            name = <bytes>entry.d_name
            if name not in (b".", b".."):
                found.append((name, entry.d_off, key_of(&seen), look_of(&seen)))
        return found

    # -- data ----------------------------------------------------------------------------------------------------
    def open(self, credential, bytes key not None, int access):
        cdef Caller caller = Caller(credential)
        cdef inode_t *inode = self.inode(key)
        cdef File file = File.__new__(File)
        cdef open_t *opened = &file.opened
        cdef int flags = {1: os.O_RDONLY, 2: os.O_WRONLY, 3: os.O_RDWR}[access]
        cdef int result
        file.client, file.actor, file.access = self, credential, access
        with nogil:
            result = ceph_ll_open(self.mount, inode, flags, &opened.file, caller.who)
            if result < 0:
                opened.file = NULL
                ceph_ll_put(self.mount, inode)
        check(result)
        opened.mount, opened.server, opened.inode = self.mount, self.server, inode
        return file

    def read(self, File opened not None, int64_t offset, sink):
        cdef Py_buffer view
        cdef ssize_t done = 0
        cdef int error = 0
        look = statx_buffer()
        cdef statx_t *status = status_in(look)
        PyObject_GetBuffer(sink, &view, PyBUF_WRITABLE)
        try:
            with nogil:
                done = read_file(opened.body, offset, view.buf, view.len)
                if done >= 0:
                    error = look_at_file(opened.body, status)
        finally:
            PyBuffer_Release(&view)
        check(done if done < 0 else -error)
        return done, look

    def write(self, File opened not None, int64_t offset, data, bint as_root=True):
        cdef Py_buffer view
        cdef iovec part
        cdef ssize_t done = 0
        cdef int error = 0
        before, after = statx_buffer(), statx_buffer()
        cdef statx_t *seen_before = status_in(before)
        cdef statx_t *seen_after = status_in(after)
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        part.iov_base, part.iov_len = view.buf, view.len
        try:
            with nogil:
                error = look_at_file(opened.body, seen_before)
                if error == 0:
                    done = write_file(opened.body, offset, &part, 1)
                    if done >= 0 and as_root:
                        error = look_at_file(opened.body, seen_after)
                    elif done >= 0:
                        error = look_at_written(opened.body, seen_after)
        finally:
            PyBuffer_Release(&view)
        check(done if done < 0 else -error)
        return before, after, done

    def punch(self, File opened not None, bytes key not None, int64_t offset, int64_t length):
        cdef inode_t *inode = self.inode(key)
        cdef ceph_statx before, after
        cdef int result
        try:
            self.look_at(inode, &before)
            with nogil:
                result = ceph_ll_fallocate(self.mount, opened.opened.file, PUNCH, offset, length)
            check(result)
            self.look_at(inode, &after)
        finally:
            ceph_ll_put(self.mount, inode)
        return look_of(&before), look_of(&after)

    def sync(self, bytes key not None, list opened not None):
        """What is in memory of the inode; then each open file says whether something was lost before."""
        cdef const char *octets = octets_of(key)
        cdef inode_t *inode = NULL
        cdef File file
        cdef int result, other
        # Others close theirs while this waits, in which something may have been lost.
        held = [file for file in opened if file.hold()]
        with nogil:
            result = self.find(octets, &inode)
            if result == 0:
                result = ceph_ll_sync_inode(self.mount, inode, 0)
                ceph_ll_put(self.mount, inode)
        for file in held:
            with nogil:
                other = ceph_ll_fsync(self.mount, file.opened.file, 0)
            if result == 0:
                result = other
        for file in held:
            file.let_go()
        check(result)

    def lock(self, File opened not None, int kind, int64_t start, int64_t length, uint64_t owner):
        cdef flock_t lock
        cdef int result
        memset(&lock, 0, sizeof(lock))
        lock.l_type, lock.l_start, lock.l_len, lock.l_pid = kind, start, length, <int>os.getpid()
        with nogil:
            result = ceph_ll_setlk(self.mount, opened.opened.file, &lock, owner, 0)
        check(result)

    def locked(self, File opened not None, int kind, int64_t start, int64_t length, uint64_t owner):
        cdef flock_t lock
        cdef int result
        memset(&lock, 0, sizeof(lock))
        lock.l_type, lock.l_start, lock.l_len, lock.l_pid = kind, start, length, <int>os.getpid()
        with nogil:
            result = ceph_ll_getlk(self.mount, opened.opened.file, &lock, owner)
        check(result)
        return None if lock.l_type == F_UNLCK else (lock.l_type, lock.l_start, lock.l_len, lock.l_pid)
