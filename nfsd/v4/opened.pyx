"""What all OPENs have in common whose file is found, whether they wait or not (contract: ``opened.pyi``).

Owns the descriptor that is open already, what an open that has been granted keeps, its flags, and when no delegation comes with it.
Imports the state engine's records and the file service's.
"""

from libc.stdint cimport uint32_t, uint64_t

from nfsd.state.delegating cimport Delegating
from nfsd.state.files cimport FileState
from nfsd.state.owners cimport OpenOwner
from nfsd.state.records cimport ClientRecord, Delegation, OpenState
from nfsd.v4.keeping cimport Descriptors
from nfsd.vfs.open_accounts cimport Places
from nfsd.vfs.open_files cimport OpenFiles
from nfsd.vfs.records cimport Credential, Node, OpenFile
from nfsd.vfs.tables cimport Tables
from nfsd.wire.nfs4 cimport (
    OPEN4_RESULT_CONFIRM, OPEN4_RESULT_LOCKTYPE_POSIX, OPEN4_RESULT_MAY_NOTIFY_LOCK, OPEN4_SHARE_ACCESS_BOTH,
    OPEN4_SHARE_ACCESS_WANT_CANCEL, OPEN4_SHARE_ACCESS_WANT_NO_DELEG, OPEN4_SHARE_ACCESS_WANT_READ_DELEG,
    OPEN4_SHARE_ACCESS_WANT_WRITE_DELEG, OPEN4_SHARE_ACCESS_WRITE,
)

from nfsd.protocol import nfs4 as declared

cdef object WHY = declared.why_no_delegation4
cdef object NOT_WANTED = WHY.WND4_NOT_WANTED
cdef object CANCELLED = WHY.WND4_CANCELLED
cdef object RESOURCE = WHY.WND4_RESOURCE
cdef object NO_UPGRADE = WHY.WND4_NOT_SUPP_UPGRADE
cdef object NO_DOWNGRADE = WHY.WND4_NOT_SUPP_DOWNGRADE


cpdef OpenFile open_already(Tables tables, bint exactly, Credential credential, Node node, int access):
    cdef OpenFiles files = tables.open_files
    cdef Places shares = tables.shares
    cdef int wanted = OPEN4_SHARE_ACCESS_BOTH if exactly and access == OPEN4_SHARE_ACCESS_WRITE else access
    cdef OpenFile opened = files.cached(node.inode, (credential, wanted, False))
    if opened is not None and shares.take(opened, credential.host):
        return opened
    if exactly or wanted == OPEN4_SHARE_ACCESS_BOTH:
        return None
    opened = files.cached(node.inode, (credential, OPEN4_SHARE_ACCESS_BOTH, False))
    return opened if opened is not None and shares.take(opened, credential.host) else None


cpdef int take_over(OpenState state, OpenFile opened, Node node, int access, caller, str host) except -1:
    cdef Descriptors held = state.opened
    if held is None:
        held = state.opened = Descriptors(host)
    held.add(opened, access, caller)
    (<FileState>state.file).node = node
    return 0


cpdef uint32_t rflags(OpenState state, bint callable_) except? 0xFFFFFFFF:
    cdef OpenOwner owner = state.owner
    cdef uint32_t flags = OPEN4_RESULT_LOCKTYPE_POSIX
    if not owner.confirmed:
        flags |= OPEN4_RESULT_CONFIRM
    if callable_ and owner.client.minor:
        flags |= OPEN4_RESULT_MAY_NOTIFY_LOCK
    return flags


cpdef bint names_unchanged(Node directory, uint64_t change):
    return directory.inode.change.value == change


cpdef object undelegated(
    Delegating table, ClientRecord client, Node node, bint write, uint32_t want, bint callable_, bint reclaim=False
):
    cdef Delegation held
    if want == OPEN4_SHARE_ACCESS_WANT_NO_DELEG:
        return NOT_WANTED
    if want == OPEN4_SHARE_ACCESS_WANT_CANCEL:
        return CANCELLED
    if not callable_ and not reclaim:
        return RESOURCE
    held = table.held_by(client, node.key)
    if held is None:
        return table.refusal(client, node.key, write, reclaim)
    if want == OPEN4_SHARE_ACCESS_WANT_WRITE_DELEG and not held.write:
        return NO_UPGRADE
    if want == OPEN4_SHARE_ACCESS_WANT_READ_DELEG and held.write:
        return NO_DOWNGRADE
    return RESOURCE
