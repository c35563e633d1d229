"""Looking names up in stores, by a worker (RFC 1813 section 3.3.3).

Owns :class:`StoredWalk`; imports :mod:`nfsd.vfs.name_changes`, with whose walks it goes, and what workers have of stores
(:mod:`nfsd.vfs.stored_files`).
"""

from libc.string cimport memcpy, memset

from nfsd.vfs.lanes cimport job_t
from nfsd.vfs.records cimport Node
from nfsd.vfs.stored_files cimport KEY_MAX, key_t


cdef int put_key(Node node, key_t *key) except -1:
    """What its store calls a file (as :func:`nfsd.vfs.store_mounts.key_of`)."""
    cdef bytes octets = node.key
    cdef Py_ssize_t skipped = len(node.mount.key_prefix) + 1
    key.size = len(octets) - skipped
    if key.size > KEY_MAX:
        raise ValueError("no store's file")
    memcpy(key.octets, <char *>octets + skipped, key.size)
    return 0


cdef void look_up_in_store(job_t *job) noexcept nogil:
    """What the thread does for a :class:`StoredWalk`."""
    cdef walk_in_store_t *walk = <walk_in_store_t *>job.data
    walk.error = walk.stored.lookup(
        walk.stored, &job.caller, &walk.directory, walk.path, &walk.file, &walk.status, &walk.after
    )


cdef class StoredWalk(Walk):
    def __cinit__(self):
        memset(&self.there, 0, sizeof(self.there))
        self.job.run = look_up_in_store
        self.job.data = &self.there

    cdef int start(self) except -1:
        self.stored.hold()
        try:
            return Walk.start(self)
        except Exception:
            self.stored.let_go()
            raise

    cdef int finished(self) except -1:
        if self.job.refused:
            self.there.error = self.job.refused
        self.stored.let_go()
        return self.over()
