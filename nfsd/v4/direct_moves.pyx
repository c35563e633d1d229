"""RENAME and LINK in native COMPOUNDs, with SAVEFH and RESTOREFH (RFC 8881 sections 18.9, 18.26 to 18.28; RFC 7530 sections
16.9, 16.27, 16.29, 16.30).

Owns the decoding and encoding; what they do is in :mod:`nfsd.vfs.direct_names`. Imports :mod:`nfsd.v4.direct_creates`.
"""

from libc.stdint cimport uint8_t, uint32_t

from nfsd.v4.direct_changes cimport DONE, begun, store_change_info, wrong_name
from nfsd.v4.direct_compound cimport room
from nfsd.vfs.direct cimport NAME_MAX, no
from nfsd.vfs.name_changes cimport NameChange, Walk
from nfsd.vfs.records cimport Node
from nfsd.wire.nfs4 cimport (
    NFS4ERR_EXIST, NFS4ERR_ISDIR, NFS4ERR_NOTDIR, NFS4ERR_ROFS, NFS4ERR_XDEV, NFS4_OK, OP_LINK, OP_RENAME, OP_RESTOREFH,
    OP_SAVEFH, change_info4_SIZE,
)
from rpcrdma.declined cimport PROCEDURE, SIZE, STANDING
from rpcrdma.octets cimport load_opaque, opaque_t
from rpcrdma.place cimport ANSWERED, DECLINED, store32
from rpcrdma.rpc.work cimport Work

from nfsd.vfs.types import FileType

cdef object DIR = FileType.DIR


cdef class DirectMoves(DirectCreates):
    cdef bint savefh(self, Place place) except -1:
        if not room(place, 8):
            return no(self.files, SIZE)
        self.saved, self.saved_standing, self.saved_stateid = self.current, self.standing, self.stateid
        place.at = store32(store32(place.at, OP_SAVEFH), NFS4_OK)
        return True

    cdef bint restorefh(self, Place place) except -1:
        if self.saved is None:
            return no(self.files, PROCEDURE)
        if not room(place, 8):
            return no(self.files, SIZE)
        if self.charged_elsewhere(self.saved_standing):
            return no(self.files, STANDING)
        self.seen = self.seen and self.saved is self.current
        self.current, self.standing, self.stateid = self.saved, self.saved_standing, self.saved_stateid
        place.at = store32(store32(place.at, OP_RESTOREFH), NFS4_OK)
        return True

    cdef int rename(self, Arguments *arguments, Place place) except -1:
        cdef opaque_t old, new
        cdef uint32_t status
        cdef int outcome
        cdef Node source = self.saved
        cdef Work brought = self.brought_here()
        cdef NameChange change = begun(brought)
        cdef const uint8_t *behind = load_opaque(arguments.at, arguments.end, NAME_MAX, &old)
        if behind != NULL:
            behind = load_opaque(behind, arguments.end, NAME_MAX, &new)
        if behind == NULL or source is None:
            return DECLINED
        if change is None:
            if not room(place, 8 + 2 * change_info4_SIZE):
                return no(self.files, SIZE)
            status = wrong_name(&old) or wrong_name(&new)
            if status == NFS4_OK and self.saved_standing.read_only:
                status = NFS4ERR_ROFS
            if status == NFS4_OK and source.type is not DIR and not self.standing.read_only:
                status = NFS4ERR_NOTDIR
            status = status or self.changeable()
            if status == NFS4_OK and (
                source.export.id != self.current.export.id or source.mount is not self.current.mount
            ):
                status = NFS4ERR_XDEV
            if status != NFS4_OK:
                return self.fail(status, place)
            self.files.walked = brought if isinstance(brought, Walk) else None
            change = self.files.to_rename(
                self.standing.credential, source, old.octets, old.length, self.current, new.octets, new.length
            )
            if change is None:
                return self.unprepared(brought)
        outcome = self.carry(change, brought, place)
        if outcome == ANSWERED and self.failure == NFS4ERR_ISDIR:
            # RFC 8881 section 18.26.3: a directory and a file do not fit.
            return self.fail(NFS4ERR_EXIST, place)
        if outcome != DONE:
            return outcome
        arguments.at = behind
        place.at = store32(store32(place.at, OP_RENAME), NFS4_OK)
        if change.data.across:
            place.at = store_change_info(place.at, change.old_change_before, change.old_change_after)
        else:
            place.at = store_change_info(place.at, change.change_before, change.change_after)
        place.at = store_change_info(place.at, change.change_before, change.change_after)
        self.saw_change(self.current, &change.data.after)
        return ANSWERED

    cdef int link(self, Arguments *arguments, Place place) except -1:
        cdef opaque_t name
        cdef uint32_t status
        cdef int outcome
        cdef Node node = self.saved
        cdef Work brought = self.brought_here()
        cdef NameChange change = begun(brought)
        cdef const uint8_t *behind = load_opaque(arguments.at, arguments.end, NAME_MAX, &name)
        if behind == NULL or node is None:
            return DECLINED
        if change is None:
            if not room(place, 8 + change_info4_SIZE):
                return no(self.files, SIZE)
            status = wrong_name(&name)
            if status == NFS4_OK and self.saved_standing.read_only:
                status = NFS4ERR_ROFS
            status = status or self.changeable()
            if status == NFS4_OK and node.type is DIR:
                status = NFS4ERR_ISDIR
            if status == NFS4_OK and (
                node.export.id != self.current.export.id or node.mount is not self.current.mount
            ):
                status = NFS4ERR_XDEV
            if status != NFS4_OK:
                return self.fail(status, place)
            change = self.files.to_link(self.standing.credential, node, self.current, name.octets, name.length)
            if change is None:
                return self.unprepared(brought)
        outcome = self.carry(change, brought, place)
        if outcome != DONE:
            return outcome
        arguments.at = behind
        place.at = store_change_info(
            store32(store32(place.at, OP_LINK), NFS4_OK), change.change_before, change.change_after
        )
        self.saw_change(self.current, &change.data.after)
        return ANSWERED
