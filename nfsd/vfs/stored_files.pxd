"""C declarations of files and names of stores that workers have at hand themselves, without an interpreter."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from nfsd.vfs.attributes cimport statx_t
from nfsd.vfs.identity cimport identity_t

cdef extern from "sys/uio.h" nogil:
    struct iovec:
        void *iov_base
        size_t iov_len

ctypedef struct stored_t:
    # All of these may wait for the store, and are called by any worker, by several at the same time. Octets, or a negative
    # errno; of a look 0, or an errno.
    ssize_t (*read)(stored_t *file, uint64_t offset, void *octets, size_t size) noexcept nogil
    ssize_t (*write)(stored_t *file, uint64_t offset, const iovec *parts, int count) noexcept nogil
    int (*look)(stored_t *file, statx_t *status) noexcept nogil
    # After the writes of somebody who is not root: a look at a file that has lost its set-user-id and set-group-id bits.
    int (*look_written)(stored_t *file, statx_t *status) noexcept nogil


cdef enum:
    KEY_MAX = 40                # as of nfsd.backends.interface

ctypedef struct key_t:          # what a store calls a file
    size_t size
    uint8_t octets[KEY_MAX]

ctypedef struct stored_names_t:
    # These wait, too, and return 0 or an errno; then nothing has been done. ``name``: an entry's, perhaps too long.
    int (*lookup)(
        stored_names_t *names, identity_t *caller, const key_t *directory, const char *name, key_t *key, statx_t *status,
        statx_t *after
    ) noexcept nogil
    # A regular file.
    int (*make)(
        stored_names_t *names, identity_t *caller, const key_t *directory, const char *name, uint32_t mode, key_t *key,
        statx_t *status, statx_t *before, statx_t *after
    ) noexcept nogil
    # ``status``: of what has lost the name.
    int (*remove)(
        stored_names_t *names, identity_t *caller, const key_t *directory, const char *name, bint a_directory, key_t *key,
        statx_t *status, statx_t *before, statx_t *after
    ) noexcept nogil


cdef class StoredDirectories:
    """The names of such a store, if it has them so (:attr:`nfsd.backends.interface.NameStore.native`)."""

    cdef stored_names_t *body

    # Between these it stays mounted; on the loop's thread.
    cdef int hold(self) except -1
    cdef int let_go(self) except -1


cdef class StoredFile:
    """What :meth:`nfsd.backends.interface.DataStore.open` returns of such a store."""

    cdef stored_t *body         # set by whoever opens it, and there as long as the object is

    # Between these it is not closed. Whether it can be used; on the loop's thread.
    cdef bint hold(self)
    cdef int let_go(self) except -1
