"""GETATTR, SETATTR and ACCESS of NFSv3, natively (RFC 1813 sections 3.3.1, 3.3.2 and 3.3.4).

Owns :class:`Nfs3Attributes`, which also tells the failures of all procedures about one file: with the attributes of that
file, as far as they can be had (section 3.1). Imports the file service's native operations and :mod:`nfsd.v3.needs`.
"""

from libc.stdint cimport INT64_MIN, int64_t, uint8_t, uint32_t

from nfsd.v3.name_changes cimport Nfs3Changes, time_in
from nfsd.v3.names cimport status_in
from nfsd.v3.fattr cimport store_fattr, store_wcc
from nfsd.v3.needs cimport LOOK, OPENING, PERMISSIONS
from nfsd.v3.sattr cimport load_sattr
from nfsd.vfs.attribute_changes cimport AttributeChange
from nfsd.vfs.attributes cimport statx_t
from nfsd.vfs.native_files cimport NO_ID, Standing, changes_t
from nfsd.vfs.records cimport Node, OpenFile
from nfsd.vfs.transfers cimport errno_of
from nfsd.wire.nfs3 cimport (
    ACCESS3_DELETE, ACCESS3_EXTEND, ACCESS3_MODIFY, NFS3ERR_NOT_SYNC, NFS3ERR_ROFS, NFS3_OK, NFSPROC3_COMMIT,
    NFSPROC3_GETATTR, NFSPROC3_SETATTR, NFSPROC3_WRITE,
)
from rpcrdma.declined cimport MAY_WAIT, RARE, RECALL
from rpcrdma.octets cimport load32, store32
from rpcrdma.place cimport ANSWERED, Place
from rpcrdma.rpc.work cimport Errand, Work

from nfsd.protocol.nfs3 import PROCEDURES, nfsstat3
from nfsd.vfs.types import SetAttributes

cdef enum:
    MODIFYING = ACCESS3_MODIFY | ACCESS3_EXTEND | ACCESS3_DELETE
    CHANGING = 1 << NFSPROC3_SETATTR | 1 << NFSPROC3_WRITE | 1 << NFSPROC3_COMMIT

cdef int64_t NEVER = INT64_MIN


cdef bint load_guard(const uint8_t *at, const uint8_t *end, changes_t *changes) noexcept nogil:
    """A sattrguard3; False: it is none."""
    if end - at < 4:
        return False
    if load32(at) == 0:
        return True
    if end - at < 12 or load32(at) != 1:
        return False
    changes.guarded = True
    # What no file's ctime can be is unequal to all.
    changes.ctime = NEVER
    if load32(at + 8) <= 999999999:
        changes.ctime = <int64_t>load32(at + 4) * 1000000000 + load32(at + 8)
    return True


cdef bint load_setattr(
    const uint8_t *at, const uint8_t *end, changes_t *changes, int64_t *size, uint32_t *status
) noexcept nogil:
    """SETATTR3args behind the handle, as :func:`nfsd.v3.sattr.load_sattr`; False: they are none."""
    at = load_sattr(at, end, changes, size, status)
    return at != NULL and load_guard(at, end, changes)


cdef object wanted(changes_t *changes, int64_t size):
    """For the file service."""
    return SetAttributes(
        mode=None if changes.mode < 0 else changes.mode,
        uid=None if changes.uid == NO_ID else changes.uid,
        gid=None if changes.gid == NO_ID else changes.gid,
        size=None if size < 0 else size,
        atime=time_in(&changes.times[0]),
        mtime=time_in(&changes.times[1]),
    )


cdef class Nfs3Attributes(Nfs3Changes):
    cdef bint seen(self, Node node, statx_t *status) except -1:
        """How the file is now; False: that needs a look."""
        if self.have is not None and self.have.looked:
            status[0] = self.have.status
            self.files.observe(node, status, False)
            return True
        return self.files.look(node, status)

    cdef int getattr(self, Standing standing, Node node, Place place) except -1:
        cdef statx_t status
        if not self.seen(node, &status):
            return self.need(LOOK, node, standing)
        place.at = store_fattr(store32(place.at, 0), &status, self.fsid_in(node, &status))
        return ANSWERED

    cdef int access(self, Standing standing, Node node, const uint8_t *arguments, Place place) except -1:
        cdef statx_t status
        cdef int granted
        if not self.seen(node, &status):
            return self.need(LOOK, node, standing)
        granted = self.have.granted if self.have is not None else -1
        if granted < 0:
            granted = self.files.access(standing.credential, node)
        if granted < 0:
            return self.need(PERMISSIONS, node, standing)
        if standing.read_only:
            granted &= ~MODIFYING
        place.at = store_fattr(store32(store32(place.at, 0), 1), &status, self.fsid_in(node, &status))
        place.at = store32(place.at, granted & load32(arguments))
        return ANSWERED

    cdef int setattr(
        self, Standing standing, Node node, const uint8_t *arguments, size_t size, Place place, Work brought
    ) except -1:
        cdef changes_t changes
        cdef uint32_t status
        cdef int64_t length
        cdef AttributeChange change
        cdef Errand settling
        load_setattr(arguments, arguments + size, &changes, &length, &status)
        if brought is None:
            if standing.read_only or (status == NFS3_OK and node.export.read_only):
                status = NFS3ERR_ROFS
            if status != NFS3_OK:
                return self.tell(status, node, place)
            change = self.files.to_set(
                standing.credential, node, &changes, length, self.have.opened if self.have is not None else None
            )
            if change is None:
                return self.set_later(standing, node, &changes, length)
            if not node.inline:
                return self.waits(change, None, node, standing)
        else:
            change = <AttributeChange?>(brought if brought.earlier is None else brought.earlier)
        if brought is None or brought is change:
            if not self.files.have_set(change):
                return self.not_set(standing, node, change, place)
            settling = None if node.inline or node.export.late_names else self.files.to_settle_attributes(change)
            if settling is not None:
                return self.waits(settling, change, node, standing)
        elif errno_of(<Errand?>brought):
            return self.tell(status_in(errno_of(<Errand>brought)), node, place)
        place.at = store_wcc(
            store32(place.at, NFS3_OK), &change.data.before, &change.data.after,
            self.fsid_in(node, &change.data.after),
        )
        return ANSWERED

    cdef int set_later(self, Standing standing, Node node, changes_t *changes, int64_t size) except -1:
        """WAITS, for what cannot be done here, or for what it takes: that a delegation comes back, a descriptor to set the
        size through, the turn on the file, its disk."""
        cdef OpenFile opened = self.have.opened if self.have is not None else None
        if opened is None and (node.inode.delegated or node.fd < 0):
            self.files.why = RECALL if node.inode.delegated else RARE
            guard = divmod(changes.ctime, 1000000000) if changes.guarded else None
            return self.hand_over(
                self.errands.setattr(standing.credential, node, None, wanted(changes, size), guard), node, None, standing
            )
        if size >= 0 and opened is None:
            return self.need(OPENING, node, standing)
        return self.waits(
            self.files.setting_of(standing.credential, node, changes, size, opened), None, node, standing
        )

    cdef int not_set(self, Standing standing, Node node, AttributeChange change, Place place) except -1:
        """A change has failed, or part of it."""
        cdef changes_t times
        if change.data.unequal:
            return self.tell(NFS3ERR_NOT_SYNC, node, place)
        if self.files.why != RARE:
            return self.tell(status_in(change.data.error), node, place)
        # All but the times has been set, and these may be set by who may write.
        times = change.data.changes
        times.mode, times.uid, times.gid = -1, NO_ID, NO_ID
        return self.hand_over(
            self.errands.setattr(standing.credential, node, None, wanted(&times, -1), None), node, None, standing
        )

    # -- failures ------------------------------------------------------------------------------------------------
    cdef int tell(self, uint32_t status, Node node, Place place) except -1:
        """The results of a procedure in here that has failed: with the attributes of its file, if that is known."""
        cdef statx_t after
        cdef bint seen = False
        cdef uint8_t *at
        if node is not None and self.shown != NFSPROC3_GETATTR and not (self.have is not None and self.have.blind):
            seen = self.seen(node, &after)
            if not seen and self.files.why == MAY_WAIT:
                self.progress(node, None).failure = status
                self.have.tally = self.tally
                return self.need(LOOK, node, None)
        at = store32(place.at, status)
        if (CHANGING >> self.shown) & 1:
            at = store32(at, 0)  # of a wcc_data: nothing vouches for a moment before
        if seen:
            at = store_fattr(store32(at, 1), &after, self.fsid_in(node, &after))
        elif self.shown != NFSPROC3_GETATTR:
            at = store32(at, 0)
        place.at = at
        if self.tally is not None:
            self.tally.errors += 1
        name = nfsstat3(status).name.removeprefix("NFS3ERR_")
        self.files.exports.usage.failed(3, PROCEDURES[self.shown].name, name)
        return ANSWERED
