"""What NFSv3's native procedures share, and LOOKUP (RFC 1813 section 3.3.3).

Owns :class:`Nfs3Names`; imports the file service's native operations, :mod:`rpcrdma.place` and
:mod:`rpcrdma.rpc.native`. LOOKUP declines nothing that is well formed: what it cannot find out itself is an errand's
(:mod:`nfsd.v3.errands`), with whose result it comes again.
"""

from libc.errno cimport EINTR, ENOENT, ESTALE
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memchr

from cpython.bytes cimport PyBytes_FromStringAndSize

from nfsd.v3.fattr cimport fsid3, store_fattr, store_wcc
from nfsd.v3.name_arguments cimport name_arguments_t
from nfsd.v3.needs cimport Kind, Need, Progress, progress_of
from nfsd.vfs.attributes cimport set_status, statx_t
from nfsd.vfs.native_files cimport Standing
from nfsd.vfs.native_names cimport NativeNames
from nfsd.vfs.name_changes cimport Walk
from nfsd.vfs.records cimport Node
from nfsd.wire.nfs3 cimport (
    NFS3ERR_ACCES, NFS3ERR_NOENT, NFS3ERR_NOTDIR, NFS3ERR_STALE, NFS3_OK, NFSPROC3_GETATTR, NFSPROC3_LINK, NFSPROC3_LOOKUP, NFSPROC3_READ,
    NFSPROC3_RENAME,
)
from rpcrdma.octets cimport opaque_t, store32, store_opaque
from rpcrdma.place cimport ANSWERED, DECLINED, Place
from rpcrdma.rpc.callers cimport Caller
from rpcrdma.rpc.native_program cimport NativeProgram
from rpcrdma.rpc.work cimport Errand, Work

from os import strerror

from nfsd.protocol.nfs3 import PROCEDURES, nfsstat3
from nfsd.v3.errands import Errands, Failure
from nfsd.v3.errors import EXPECTED, status_of
from nfsd.versions import V3 as _V3
from nfsd.vfs.types import FileType

cdef enum:
    TRIES = 4           # of a change whose names lead elsewhere each time it has its turn

cdef object DIR = FileType.DIR
cdef unsigned int V3 = _V3
cdef dict statuses = {int(status): status.name.removeprefix("NFS3ERR_") for status in nfsstat3}


cdef bint is_component(opaque_t *name) noexcept nogil:
    """Whether it may go to the file service: any octets but NUL and ``/``, and at least one (section 3.2, items 1 and 5).
    Its length is the file system's to judge."""
    return name.length != 0 and memchr(name.octets, c"/", name.length) == NULL and (
        memchr(name.octets, 0, name.length) == NULL
    )


cdef Walk walked(Work brought):
    """What has been brought, if it is a look at names."""
    return <Walk>brought if isinstance(brought, Walk) else None


cdef bytes octets_of(opaque_t *name):
    return PyBytes_FromStringAndSize(<char *>name.octets, name.length)


cdef uint32_t status_in(int error) except 0:
    """The nfsstat3 of an errno."""
    return <uint32_t>int(status_of(OSError(error, strerror(error))))


cdef inline bint slow(Node node) noexcept:
    """Whether a look at the file may wait."""
    return node is not None and not node.inline and not node.caching


cdef class Carried(Errand):
    pass


cdef class Nfs3Names(NativeProgram):
    def __cinit__(self, service, limits=None, delegations=None):
        self.files = NativeNames(service)
        self.files.version = V3
        self.delegations = delegations
        self.errands = Errands(service, delegations)

    # -- waiting ---------------------------------------------------------------------------------------------------
    cdef int need(self, Kind kind, Node node, Standing standing, Work done=None, bytes handle=None) except -1:
        """WAITS, for something that the call cannot be carried out without. ``done``: what has been done for it
        already. ``handle``: of an arrival."""
        cdef bint looked = self.have is not None and self.have.looked
        cdef Need need = Need.__new__(Need)
        need.kind, need.service, need.delegations = kind, self.files.service, self.delegations
        need.caller, need.handle, need.write = self.caller, handle, self.shown != NFSPROC3_READ
        need.looking = self.shown == NFSPROC3_GETATTR
        need.files = self.files.delegated
        need.progress = need.kept = self.progress(node, standing)
        need.progress.looked = looked  # nothing has been done since
        return self.wait_for(need, done)

    cdef int hand_over(self, object coroutine, Node node, Node other, Standing standing) except -1:
        """WAITS, for an errand that does the rest of it. ``other``: the call's second file, if it has two."""
        cdef Progress progress = self.progress(node, standing)
        progress.other, progress.tally = other, self.tally
        return self.waits(Carried(coroutine), None, node, standing)

    cdef int waits(self, Work work, Work earlier, Node node, Standing standing) except -1:
        """WAITS, for ``work``: the call keeps its file and what the caller is there."""
        if work is None:
            return DECLINED
        work.kept = self.progress(node, standing)
        return self.wait_for(work, earlier)

    cdef Progress progress(self, Node node, Standing standing):
        """What is kept for the present call."""
        if self.have is None:
            self.have = progress_of(node, standing)
        self.have.looked = False  # who waits for anything looks again
        return self.have

    cdef uint64_t fsid_in(self, Node node, statx_t *status) except? 0:
        """:func:`nfsd.v3.convert.fsid3` of the node's file system; of a file in a btrfs subvolume, which numbers its files
        anew, that of the subvolume."""
        if status.dev_major == node.device_major and status.dev_minor == node.device_minor:
            return fsid3(node.fsid[0], node.fsid[1])
        return fsid3(node.fsid[0], <uint64_t>status.dev_major << 32 | status.dev_minor)

    # -- failures --------------------------------------------------------------------------------------------------
    cdef uint8_t *store_seen(self, uint8_t *at, Node node, statx_t *seen) except NULL:
        """A post_op_attr; NULL: there are no attributes."""
        return store32(at, 0) if seen == NULL else store_fattr(store32(at, 1), seen, self.fsid_in(node, seen))

    cdef int fail(self, uint32_t procedure, uint32_t status, Node node, Node other, Place place) except -1:
        """A failure, with what the files look like now: of the directories of RENAME, the file and the directory of LINK,
        or the one file of other procedures."""
        cdef statx_t seen, other_seen
        if slow(node) or slow(other):
            return self.hand_over(self.errands.failure(status, node, other), node, other, None)
        return self.failed(
            procedure, status, node, &seen if node is not None and self.files.look(node, &seen) else NULL,
            other, &other_seen if other is not None and self.files.look(other, &other_seen) else NULL, place,
        )

    cdef int failed(
        self, uint32_t procedure, uint32_t status, Node node, statx_t *seen, Node other, statx_t *other_seen, Place place
    ) except -1:
        """The reply to a call that has failed. Nothing vouches for a moment before (section 2.6)."""
        place.at = store32(place.at, status)
        if procedure != NFSPROC3_LOOKUP and procedure != NFSPROC3_LINK:
            place.at = store32(place.at, 0)
        place.at = self.store_seen(place.at, node, seen)
        if procedure == NFSPROC3_LINK or procedure == NFSPROC3_RENAME:
            place.at = self.store_seen(store32(place.at, 0), other, other_seen)
        if self.tally is not None:
            self.tally.errors += 1
        self.files.exports.usage.failed(3, PROCEDURES[procedure].name, statuses[status])
        return ANSWERED

    cdef int not_named(self, uint32_t procedure, object error, Place place) except -1:
        """What the call needs cannot be had: so much is its answer."""
        if not isinstance(error, EXPECTED):
            raise error
        return self.fail(procedure, <uint32_t>int(status_of(error)), self.have.node, self.have.other, place)

    cdef int refused(self, uint32_t procedure, int error, Node node, Node other, Place place) except -1:
        """The failure that an errno stands for, after nothing has been done. AGAIN where a name leads elsewhere by now;
        GENERAL where it does so each time."""
        if error == ESTALE and self.have is not None and self.have.tries < TRIES:
            self.have.tries += 1
            return AGAIN
        if error == ESTALE or error == EINTR:
            return GENERAL
        if error == ENOENT:  # or is it a directory that is gone?
            if procedure != NFSPROC3_LINK and self.files.is_gone(node):
                error = ESTALE
            elif other is not None and self.files.is_gone(other):
                error = ESTALE
        return self.fail(procedure, status_in(error), node, other, place)

    # -- replies ---------------------------------------------------------------------------------------------------
    cdef uint8_t *store_around(self, uint8_t *at, Node directory, statx_t *before, statx_t *after) except NULL:
        """The wcc_data of a directory."""
        return store_wcc(at, before, after, self.fsid_in(directory, after))

    cdef int store_made(
        self, Node node, statx_t *status, Node directory, statx_t *before, statx_t *after, Place place
    ) except -1:
        """CREATE3resok, MKDIR3resok, SYMLINK3resok and MKNOD3resok, which are alike."""
        cdef bytes handle = node.handle
        place.at = store_opaque(store32(store32(place.at, NFS3_OK), 1), handle, len(handle))
        place.at = store_fattr(store32(place.at, 1), status, self.fsid_in(node, status))
        place.at = self.store_around(place.at, directory, before, after)
        return ANSWERED

    # -- errands ---------------------------------------------------------------------------------------------------
    cdef int carried(self, uint32_t procedure, Carried errand, Place place) except -1:
        """What the call has handed over has been done, or has failed."""
        cdef Node node = self.have.node
        cdef Node other = self.have.other
        cdef statx_t seen, other_seen
        if errand.error is not None:
            raise errand.error
        outcome = errand.result
        if not isinstance(outcome, Failure):
            return self.done(procedure, outcome, node, other, place)
        status, (after, other_after) = outcome
        if after is not None:
            set_status(&seen, after, node.mount)
        if other_after is not None:
            set_status(&other_seen, other_after, other.mount)
        return self.failed(
            procedure, <uint32_t>int(status), node, NULL if after is None else &seen,
            other, NULL if other_after is None else &other_seen, place,
        )

    cdef int done(self, uint32_t procedure, object outcome, Node node, Node other, Place place) except -1:
        """The reply to a call whose errand has succeeded."""
        cdef statx_t status, before, after
        cdef Node found = outcome.node
        if outcome.attributes is not None:
            set_status(&status, outcome.attributes, (node if found is None else found).mount)
        if procedure == NFSPROC3_LOOKUP:
            if outcome.after is not None:
                set_status(&after, outcome.after, node.mount)
            return self.store_found(found, &status, node, NULL if outcome.after is None else &after, place)
        if found is not None:
            set_status(&before, outcome.changes[0].before, node.mount)
            set_status(&after, outcome.changes[0].after, node.mount)
            return self.store_made(found, &status, node, &before, &after, place)
        place.at = store32(place.at, NFS3_OK)
        if procedure == NFSPROC3_LINK:
            place.at = store_fattr(store32(place.at, 1), &status, self.fsid_in(node, &status))
            place.at = self.store_change(place.at, other, outcome.changes[0])
            return ANSWERED
        place.at = self.store_change(place.at, node, outcome.changes[0])
        if procedure == NFSPROC3_RENAME:
            place.at = self.store_change(place.at, other, outcome.changes[1])
        return ANSWERED

    cdef uint8_t *store_change(self, uint8_t *at, Node directory, object change) except NULL:
        """The wcc_data of a directory, as the file service tells it."""
        cdef statx_t before, after
        set_status(&before, change.before, directory.mount)
        set_status(&after, change.after, directory.mount)
        return self.store_around(at, directory, &before, &after)

    # -- procedures ------------------------------------------------------------------------------------------------
    cdef int lookup(
        self, Standing standing, Node directory, name_arguments_t *arguments, Place place, Work brought
    ) except -1:
        cdef opaque_t *name = &arguments.name
        cdef statx_t status, after
        cdef int error
        cdef Node node
        if not is_component(name):
            return self.fail(NFSPROC3_LOOKUP, NFS3ERR_ACCES, directory, None, place)
        if directory.type is not DIR:
            return self.fail(NFSPROC3_LOOKUP, NFS3ERR_NOTDIR, directory, None, place)
        node = self.files.lookup(standing.credential, directory, name.octets, name.length, &status, &error)
        if node is None and error == 0:
            if self.files.needs is not None:
                return self.waits(self.files.needs, None, directory, standing)
            return self.hand_over(
                self.errands.lookup(standing.credential, directory, None, octets_of(name)), directory, None, standing
            )
        if error == ENOENT:
            self.absent += 1
            error = 0 if self.files.look_around(directory, &after) else ESTALE
            return self.failed(
                NFSPROC3_LOOKUP, NFS3ERR_STALE if error else NFS3ERR_NOENT, directory, NULL if error else &after,
                None, NULL, place,
            )
        if node is None:
            return self.fail(NFSPROC3_LOOKUP, status_in(error), directory, None, place)
        return self.store_found(
            node, &status, directory, &after if self.files.look_around(directory, &after) else NULL, place
        )

    cdef int store_found(self, Node node, statx_t *status, Node directory, statx_t *after, Place place) except -1:
        """LOOKUP3resok."""
        cdef bytes handle = node.handle
        place.at = store_opaque(store32(place.at, NFS3_OK), handle, len(handle))
        place.at = self.store_seen(place.at, node, status)
        place.at = self.store_seen(place.at, directory, after)
        return ANSWERED
