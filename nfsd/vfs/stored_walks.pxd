"""C declarations of looks at names in stores."""

from nfsd.vfs.attributes cimport statx_t
from nfsd.vfs.name_changes cimport Walk
from nfsd.vfs.native_files cimport NAME_MAX
from nfsd.vfs.records cimport Node
from nfsd.vfs.stored_files cimport StoredDirectories, key_t, stored_names_t

ctypedef struct walk_in_store_t:
    stored_names_t *stored
    key_t directory
    char path[NAME_MAX + 2]
    int error                   # errno, or 0
    key_t file                  # what the name leads to
    statx_t status
    statx_t after               # of the directory; no mask: it is not known


cdef class StoredWalk(Walk):
    """A name is looked up in a store: what it leads to, and what the directory looks like."""

    cdef StoredDirectories stored
    cdef walk_in_store_t there


cdef int put_key(Node node, key_t *key) except -1
