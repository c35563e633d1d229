"""C declarations of what all OPENs have in common whose file is found."""

from libc.stdint cimport uint32_t, uint64_t

from nfsd.state.delegating cimport Delegating
from nfsd.state.records cimport ClientRecord, OpenState
from nfsd.vfs.records cimport Credential, Node, OpenFile
from nfsd.vfs.tables cimport Tables

cpdef OpenFile open_already(Tables tables, bint exactly, Credential credential, Node node, int access)
cpdef int take_over(OpenState state, OpenFile opened, Node node, int access, caller, str host) except -1
cpdef uint32_t rflags(OpenState state, bint callable_) except? 0xFFFFFFFF
cpdef bint names_unchanged(Node directory, uint64_t change)
cpdef object undelegated(
    Delegating table, ClientRecord client, Node node, bint write, uint32_t want, bint callable_, bint reclaim=*
)
