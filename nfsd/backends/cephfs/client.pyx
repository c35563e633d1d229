"""Names, data and locks in a mounted CephFS file system (contract: ``client.pyi``).

Owns its open files and directories. Every method waits for the cluster, as those of :mod:`nfsd.backends.cephfs.mounted`.
"""

import os

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memset

from nfsd.backends.cephfs.api cimport *
from nfsd.backends.cephfs.mounted cimport Caller, Mounted, check, key_of, look_of, octets_of

cdef extern from "sys/sysmacros.h" nogil:
    uint64_t c_makedev "makedev"(unsigned int major, unsigned int minor)

cdef enum:
    IFMT = 0o170000
    DIRECTORY = 0o040000
    F_UNLCK = 2
    PUNCH = 3                       # FALLOC_FL_PUNCH_HOLE, and FALLOC_FL_KEEP_SIZE, without which it is not allowed


cdef int64_t read_into(ceph_mount_info *mount, Fh *file, int64_t offset, int64_t length, char *into) noexcept nogil:
    """The library may stop between two of the objects that it has. Octets, or the negative error."""
    cdef int64_t done = 0
    cdef int result = 1
    while result > 0 and done < length:
        result = ceph_ll_read(mount, file, offset + done, length - done, into + done)
        if result > 0:
            done += result
    return result if result < 0 else done


cdef class File:
    """A file that is open. It closes with the last reference to it, or by :meth:`close`."""

    cdef Client client
    cdef Fh *file
    cdef readonly object actor
    cdef readonly int access
    cdef int users
    """Calls that have it and that who closes it does not know of."""
    cdef bint is_closing

    def __del__(self):
        if self.file != NULL and self.client.mount != NULL:
            ceph_ll_close(self.client.mount, self.file)

    cdef bint hold(self):
        """Have it stay open until :meth:`let_go`. False: it is closed."""
        if self.file == NULL or self.is_closing:
            return False
        self.users += 1
        return True

    cdef int let_go(self) noexcept:
        self.users -= 1
        return self.close_now() if self.is_closing and not self.users else 0

    cdef int close_now(self) noexcept:
        cdef Fh *file = self.file
        cdef int result
        self.file = NULL
        with nogil:
            result = ceph_ll_close(self.client.mount, file)
        return result

    def close(self):
        if self.users:
            self.is_closing = True
        elif self.file != NULL:
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

    # -- names ---------------------------------------------------------------------------------------------------
    def make(self, credential, bytes directory not None, bytes name not None, unsigned int mode, bytes text, rdev):
        """A file, or what else ``mode`` tells; a symbolic link, if it has a text."""
        cdef Caller caller = Caller(credential)
        cdef const char *octets = octets_of(directory)
        cdef inode_t *inode = NULL
        cdef inode_t *made = NULL
        cdef ceph_statx before, seen, after
        cdef const char *c_name = name
        cdef const char *c_text = NULL
        cdef uint64_t device = c_makedev(rdev[0], rdev[1])
        cdef unsigned int want = CEPH_STATX_ALL_STATS
        cdef int result
        if text is not None:
            c_text = text
        with nogil:
            result = self.find(octets, &inode)
            if result == 0:
                result = self.see(inode, &before)
                if result < 0:
                    pass
                elif c_text != NULL:
                    result = ceph_ll_symlink(self.mount, inode, c_name, c_text, &made, &seen, want, 0, caller.who)
                elif (mode & IFMT) == DIRECTORY:
                    result = ceph_ll_mkdir(self.mount, inode, c_name, mode & 0o7777, &made, &seen, want, 0, caller.who)
                else:
                    result = ceph_ll_mknod(self.mount, inode, c_name, mode, device, &made, &seen, want, 0, caller.who)
                if result == 0:
                    ceph_ll_put(self.mount, made)
                    result = self.see(inode, &after)
                ceph_ll_put(self.mount, inode)
        check(result)
        return look_of(&before), look_of(&after), key_of(&seen), look_of(&seen)

    def remove(self, credential, bytes directory not None, bytes name not None, bint a_directory):
        cdef Caller caller = Caller(credential)
        cdef const char *octets = octets_of(directory)
        cdef inode_t *inode = NULL
        cdef ceph_statx before, after
        cdef const char *text = name
        cdef int result
        with nogil:
            result = self.find(octets, &inode)
            if result == 0:
                result = self.see(inode, &before)
                if result == 0:
                    if a_directory:
                        result = ceph_ll_rmdir(self.mount, inode, text, caller.who)
                    else:
                        result = ceph_ll_unlink(self.mount, inode, text, caller.who)
                if result == 0:
                    result = self.see(inode, &after)
                ceph_ll_put(self.mount, inode)
        check(result)
        return look_of(&before), look_of(&after)

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
        cdef File opened = File.__new__(File)
        cdef int flags = {1: os.O_RDONLY, 2: os.O_WRONLY, 3: os.O_RDWR}[access]
        cdef int result
        opened.client = self
        opened.actor = credential
        opened.access = access
        with nogil:
            result = ceph_ll_open(self.mount, inode, flags, &opened.file, caller.who)
            ceph_ll_put(self.mount, inode)
        if result < 0:
            opened.file = NULL
        check(result)
        return opened

    def read(self, File opened not None, bytes key not None, int64_t offset, sink):
        cdef const char *octets = octets_of(key)
        cdef inode_t *inode = NULL
        cdef ceph_statx seen
        cdef Py_buffer view
        cdef int64_t done = 0
        cdef int result
        PyObject_GetBuffer(sink, &view, PyBUF_WRITABLE)
        try:
            with nogil:
                result = self.find(octets, &inode)
                if result == 0:
                    done = read_into(self.mount, opened.file, offset, view.len, <char *>view.buf)
                    result = <int>done if done < 0 else self.see(inode, &seen)
                    ceph_ll_put(self.mount, inode)
        finally:
            PyBuffer_Release(&view)
        check(result)
        return done, look_of(&seen)

    def write(self, File opened not None, bytes key not None, int64_t offset, data):
        cdef const char *octets = octets_of(key)
        cdef inode_t *inode = NULL
        cdef ceph_statx before, after
        cdef Py_buffer view
        cdef int done = 0
        cdef int result
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            with nogil:
                result = self.find(octets, &inode)
                if result == 0:
                    result = self.see(inode, &before)
                    if result == 0:
                        done = ceph_ll_write(self.mount, opened.file, offset, view.len, <char *>view.buf)
                        result = done if done < 0 else self.see(inode, &after)
                    ceph_ll_put(self.mount, inode)
        finally:
            PyBuffer_Release(&view)
        check(result)
        return look_of(&before), look_of(&after), done

    def punch(self, File opened not None, bytes key not None, int64_t offset, int64_t length):
        cdef inode_t *inode = self.inode(key)
        cdef ceph_statx before, after
        cdef int result
        try:
            self.look_at(inode, &before)
            with nogil:
                result = ceph_ll_fallocate(self.mount, opened.file, PUNCH, offset, length)
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
                other = ceph_ll_fsync(self.mount, file.file, 0)
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
            result = ceph_ll_setlk(self.mount, opened.file, &lock, owner, 0)
        check(result)

    def locked(self, File opened not None, int kind, int64_t start, int64_t length, uint64_t owner):
        cdef flock_t lock
        cdef int result
        memset(&lock, 0, sizeof(lock))
        lock.l_type, lock.l_start, lock.l_len, lock.l_pid = kind, start, length, <int>os.getpid()
        with nogil:
            result = ceph_ll_getlk(self.mount, opened.file, &lock, owner)
        check(result)
        return None if lock.l_type == F_UNLCK else (lock.l_type, lock.l_start, lock.l_len, lock.l_pid)
