"""C declarations of the hot records: what native operations read without an interpreter in between."""

from libc.stdint cimport uint64_t

from nfsd.vfs.attributes cimport statx_t
from nfsd.vfs.change cimport ChangeRecord
from nfsd.vfs.identity cimport identity_t
from nfsd.vfs.serial cimport Serial
from nfsd.vfs.syncing cimport GroupSync
from nfsd.vfs.write_back cimport WriteBack


cdef class Credential:
    cdef readonly object gids
    cdef readonly str host
    cdef readonly unsigned int umask
    cdef identity_t identity
    cdef Py_hash_t hash


cdef class Inode:
    cdef object __weakref__
    cdef dict table                 # of the NodeTable: where the inode is found
    cdef readonly bytes key
    cdef readonly Serial serial
    cdef readonly ChangeRecord change
    cdef readonly unsigned long long epoch
    cdef public long long ctime
    cdef void *first                # of its nodes, each of which leads to the next one; none of them is held
    cdef readonly dict opens
    cdef readonly list unstable
    cdef public long used_count
    cdef readonly GroupSync sync
    cdef readonly dict accesses
    cdef dict searchers             # of a directory: by caller, as of when the kernel has let it look names up; None: nobody
    cdef public object lease
    cdef public int delegated
    cdef public object holder       # of its only delegation: the client, whose own changes of names recall nothing
    cdef public int changing        # it is about to change: it is not to be delegated
    cdef readonly object lock_serial
    cdef public object locks
    cdef bint slight                # it has just been removed, and so little is freed that a close waits for nothing

    cpdef void saw_ctime(self, long long ctime) noexcept
    cpdef void wrote(self, long long before, long long after) noexcept
    cdef list in_exports(self)
    cdef void changed_between(self, statx_t *before, statx_t *after) noexcept
    cdef long long permissions(self, bint fine) noexcept
    cdef bint lets_search(self, Credential who, bint fine) except -1
    cdef int has_let_search(self, Credential who, bint fine) except -1


cdef class Node:
    cdef object __weakref__
    cdef dict table                 # of the NodeTable: where the node is found
    cdef void *next                 # of its inode's
    cdef object _close
    cdef readonly int fd
    cdef readonly bytes handle
    cdef readonly object mount
    cdef public object export
    cdef readonly Inode inode
    cdef readonly bytes key
    cdef readonly object type
    cdef public long used
    # Facts of its mount, which do not change.
    cdef bint inline
    cdef bint caching
    cdef bint fine
    cdef bint by_place
    cdef object lane
    cdef object stored_names
    cdef bytes key_prefix
    cdef readonly WriteBack write_back
    cdef int mnt_id
    cdef unsigned int device_major
    cdef unsigned int device_minor
    cdef uint64_t fsid[2]

    cdef void part(self) noexcept


cdef class OpenFile:
    cdef object __weakref__
    cdef object _close
    cdef readonly int fd
    cdef readonly Node node
    cdef readonly object share
    cdef readonly bint readable
    cdef readonly bint writable
    cdef readonly object credential
    cdef readonly object stored
    cdef readonly long count
    cdef public long long epoch
    cdef public long used
    cdef public tuple cached
    cdef public bint unstable
    cdef public bint leaving
    cdef public dict holders
    cdef dict registry              # of all open files: where its address is

    cdef void keep(self) noexcept
    cdef void let_go(self) noexcept


cpdef bint closed_at_once(int fd) noexcept
cdef bint frees_little(statx_t *status) noexcept nogil


cdef inline bint given_to_others(Inode inode, object asker) noexcept:
    """Whether a file is delegated to anybody but the client that asks; None: it is not known which one that is."""
    return inode.delegated and (asker is None or inode.holder is not asker)
