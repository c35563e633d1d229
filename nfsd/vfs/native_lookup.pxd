"""C declarations of the file service's native LOOKUP."""

from libc.stdint cimport uint8_t

from nfsd.vfs.attributes cimport statx_t
from nfsd.vfs.handles cimport HandleCodec
from nfsd.vfs.kernel cimport kernel_handle_t
from nfsd.vfs.native_files cimport NativeFiles
from nfsd.vfs.name_changes cimport Walk
from nfsd.vfs.records cimport Credential, Node
from nfsd.vfs.stored_files cimport key_t


cdef class NativeLookup(NativeFiles):
    """Native operations, LOOKUP included."""

    cdef HandleCodec codec
    cdef Walk needs             # what the operation that has just declined would have to wait for; None: nothing helps
    cdef Walk walked            # what the call at hand has waited for; None: nothing, or something else

    cdef Node lookup(
        self, Credential credential, Node directory, const uint8_t *name, size_t size, statx_t *status, int *error,
        bint looked=*
    )
    cdef Node lookup_stored(
        self, Credential credential, Node directory, const char *path, statx_t *status, int *error
    )
    cdef bint look_around(self, Node directory, statx_t *after) except -1
    cdef Node stored_node(self, Node directory, const key_t *key, const statx_t *status)
    cdef Walk to_walk(self, Credential credential, Node directory)
    cdef Node adopt(self, Node directory, int descriptor, kernel_handle_t *kernel, statx_t *status)
    cdef bytes handle_of(self, Node directory, kernel_handle_t *kernel)


cdef bint component(char *path, const uint8_t *name, size_t size) noexcept nogil
cdef bytes key_of(Node directory, kernel_handle_t *kernel)
