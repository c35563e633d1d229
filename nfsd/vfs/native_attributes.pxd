"""C declarations of the file service's native changes of attributes."""

from libc.stdint cimport int64_t

from nfsd.vfs.attribute_changes cimport AttributeChange
from nfsd.vfs.native_files cimport changes_t
from nfsd.vfs.native_lookup cimport NativeLookup
from nfsd.vfs.records cimport Credential, Node, OpenFile
from rpcrdma.rpc.work cimport Errand


cdef class NativeAttributes(NativeLookup):
    """Native operations, changes of attributes included."""

    cdef object asker           # the client whose change is being prepared, as far as that is known

    cdef AttributeChange to_set(self, Credential credential, Node node, changes_t *changes, int64_t size, OpenFile through=*)
    cdef AttributeChange setting_of(
        self, Credential credential, Node node, changes_t *changes, int64_t size, OpenFile opened
    )
    cdef bint have_set(self, AttributeChange change) except -1
    cdef Errand to_settle_attributes(self, AttributeChange change)
