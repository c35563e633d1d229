"""What NFSv3's native procedures share, LOOKUP and SETATTR (RFC 1813 sections 3.3.2 and 3.3.3).

Owns :class:`Nfs3Names`; imports the file service's direct operations, :mod:`rpcrdma.place` and
:mod:`rpcrdma.rpc.direct`. Answers are octet for octet those of :mod:`nfsd.v3.attributes` and :mod:`nfsd.v3.names`,
which do whatever is declined here.
"""

from libc.errno cimport EINTR, EMFILE, ENFILE, ENOENT, ESTALE
from libc.stdint cimport INT64_MIN, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memchr

from nfsd.v3.fattr cimport fsid3, store_fattr, store_wcc
from nfsd.v3.needs cimport Progress, progress_of
from nfsd.v3.sattr cimport load_sattr
from nfsd.vfs.attribute_changes cimport AttributeChange
from nfsd.vfs.attributes cimport statx_t
from nfsd.vfs.direct cimport Standing, changes_t, no
from nfsd.vfs.direct_names cimport DirectNames
from nfsd.vfs.name_changes cimport Walk
from nfsd.vfs.records cimport Node
from nfsd.vfs.transfers cimport errno_of
from nfsd.wire.nfs3 cimport (
    NFS3ERR_ACCES, NFS3ERR_NOENT, NFS3ERR_NOTDIR, NFS3ERR_NOT_SYNC, NFS3ERR_ROFS, NFS3_FHSIZE, NFS3_OK,
    NFSPROC3_LINK, NFSPROC3_LOOKUP, NFSPROC3_RENAME, NFSPROC3_SETATTR, fattr3_SIZE, wcc_data_MAX,
)
from rpcrdma.declined cimport RARE, SIZE
from rpcrdma.octets cimport load32, load_opaque, opaque_t, store32, store_opaque
from rpcrdma.place cimport ANSWERED, DECLINED, Place
from rpcrdma.rpc.direct cimport DirectProgram
from rpcrdma.rpc.work cimport Errand, Work

from os import strerror

from nfsd.protocol.nfs3 import PROCEDURES, nfsstat3
from nfsd.v3.errors import status_of
from nfsd.versions import V3 as _V3
from nfsd.vfs.types import FileType

cdef object DIR = FileType.DIR
cdef unsigned int V3 = _V3
cdef int64_t NEVER = INT64_MIN
cdef dict statuses = {int(status): status.name.removeprefix("NFS3ERR_") for status in nfsstat3}


cdef bint is_component(opaque_t *name) noexcept nogil:
    """Whether it may go to the file service (:func:`nfsd.v3.convert.component`)."""
    return name.length != 0 and memchr(name.octets, c"/", name.length) == NULL and (
        memchr(name.octets, 0, name.length) == NULL
    )


cdef Walk walked(Work brought):
    """What has been brought, if it is a look at names."""
    return <Walk>brought if isinstance(brought, Walk) else None


cdef uint32_t status_in(int error) except 0:
    """The nfsstat3 of an errno."""
    return <uint32_t>int(status_of(OSError(error, strerror(error))))


cdef bint load_guard(const uint8_t *at, const uint8_t *end, changes_t *changes) noexcept nogil:
    """A sattrguard3; False: it is none."""
    if end - at == 4:
        return load32(at) == 0
    if end - at != 12 or load32(at) != 1:
        return False
    changes.guarded = True
    # What no file's ctime can be is unequal to all.
    changes.ctime = NEVER
    if load32(at + 8) <= 999999999:
        changes.ctime = <int64_t>load32(at + 4) * 1000000000 + load32(at + 8)
    return True


cdef class Nfs3Names(DirectProgram):
    def __cinit__(self, service, *args, **kwargs):
        self.files = DirectNames(service)
        self.files.version = V3

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

    cdef uint64_t fsid(self, Node node) except? 0:
        """:func:`nfsd.v3.convert.fsid3` of the node's file system."""
        cdef tuple pair = node.mount.fsid
        return fsid3(<uint64_t>pair[0], <uint64_t>pair[1])

    cdef uint64_t fsid_in(self, Node node, statx_t *status) except? 0:
        """As :meth:`fsid`, of a file that may be in a btrfs subvolume, which numbers its files anew."""
        if status.dev_major == node.device_major and status.dev_minor == node.device_minor:
            return self.fsid(node)
        return fsid3(<uint64_t>node.mount.fsid[0], <uint64_t>status.dev_major << 32 | status.dev_minor)

    cdef uint8_t *store_after(self, uint8_t *at, Node node) except NULL:
        """A post_op_attr."""
        cdef statx_t after
        if node is None or not self.files.look(node, &after):
            return store32(at, 0)
        return store_fattr(store32(at, 1), &after, self.fsid(node))

    cdef int fail(self, uint32_t procedure, uint32_t status, Node node, Node other, Place place) except -1:
        """A failure, with what the files look like now: of the directories of RENAME, the file and the directory of LINK,
        or the one file of other procedures. Nothing vouches for a moment before (section 2.6)."""
        place.at = store32(place.at, status)
        if procedure != NFSPROC3_LOOKUP and procedure != NFSPROC3_LINK:
            place.at = store32(place.at, 0)
        place.at = self.store_after(place.at, node)
        if procedure == NFSPROC3_LINK or procedure == NFSPROC3_RENAME:
            place.at = self.store_after(store32(place.at, 0), other)
        self.tally.errors += 1
        self.files.exports.usage.failed(3, PROCEDURES[procedure].name, statuses[status])
        return ANSWERED

    cdef int refused(self, uint32_t procedure, int error, Node node, Node other, Place place) except -1:
        """The failure that an errno stands for, after nothing has been done; or that is for the general path to say: where
        the directory is gone itself, where descriptors are short, where a name leads elsewhere by now."""
        cdef statx_t status
        if error == EMFILE or error == ENFILE or error == ESTALE or error == EINTR:
            return DECLINED
        if error == ENOENT and not (self.files.look(node, &status) and (other is None or self.files.look(other, &status))):
            return DECLINED
        return self.fail(procedure, status_in(error), node, other, place)

    cdef int lookup(
        self, Standing standing, Node directory, const uint8_t *arguments, size_t size, Place place, Work brought
    ) except -1:
        cdef opaque_t name
        cdef statx_t status, after
        cdef bytes handle
        cdef int error
        cdef Node node
        if load_opaque(arguments, arguments + size, NAME3_MAX, &name) != arguments + size:
            return DECLINED
        if place.end - place.at < 12 + NFS3_FHSIZE + 2 * fattr3_SIZE + 8:
            return no(self.files, SIZE)
        if not is_component(&name):
            return self.fail(NFSPROC3_LOOKUP, NFS3ERR_ACCES, directory, None, place)
        if directory.type is not DIR:
            return self.fail(NFSPROC3_LOOKUP, NFS3ERR_NOTDIR, directory, None, place)
        self.files.walked = walked(brought)
        node = self.files.lookup(standing.credential, directory, name.octets, name.length, &status, &error)
        if node is None and error == 0:
            if self.files.needs is not None and brought is None:
                return self.waits(self.files.needs, None, directory, standing)
            return DECLINED
        if not self.files.look(directory, &after):
            return DECLINED
        if error == ENOENT:
            place.at = store_fattr(store32(store32(place.at, NFS3ERR_NOENT), 1), &after, self.fsid(directory))
            self.absent += 1
            self.tally.errors += 1
            return ANSWERED
        if node is None:
            return self.refused(NFSPROC3_LOOKUP, error, directory, None, place)
        handle = node.handle
        place.at = store_opaque(store32(place.at, NFS3_OK), handle, len(handle))
        place.at = store_fattr(store32(place.at, 1), &status, self.fsid(node))
        place.at = store_fattr(store32(place.at, 1), &after, self.fsid(directory))
        return ANSWERED

    cdef int setattr(
        self, Standing standing, Node node, const uint8_t *arguments, size_t size, Place place, Work brought
    ) except -1:
        cdef changes_t changes
        cdef uint32_t status
        cdef int64_t length
        cdef AttributeChange change = None
        cdef Errand settling
        cdef const uint8_t *end = arguments + size
        cdef const uint8_t *at = load_sattr(arguments, end, &changes, &length, &status)
        if at == NULL or not load_guard(at, end, &changes):
            return DECLINED
        if place.end - place.at < 4 + wcc_data_MAX:
            return no(self.files, SIZE)
        if brought is None:
            status = NFS3ERR_ROFS if standing.read_only else status
            if status != NFS3_OK:
                return self.fail(NFSPROC3_SETATTR, status, node, None, place)
            change = self.files.to_set(standing.credential, node, &changes, length)
            if change is None:
                return DECLINED
            if not node.inline:
                return self.waits(change, None, node, standing)
        else:
            change = <AttributeChange?>(brought if brought.earlier is None else brought.earlier)
        if brought is None or brought is change:
            if not self.files.have_set(change):
                if change.data.unequal:
                    return self.fail(NFSPROC3_SETATTR, NFS3ERR_NOT_SYNC, node, None, place)
                if self.files.why == RARE:
                    return DECLINED
                return self.refused(NFSPROC3_SETATTR, change.data.error, node, None, place)
            settling = None if node.inline or node.export.asynchronous else self.files.to_settle_attributes(change)
            if settling is not None:
                return self.waits(settling, change, node, standing)
        elif errno_of(<Errand?>brought):
            return self.fail(NFSPROC3_SETATTR, status_in(errno_of(<Errand>brought)), node, None, place)
        place.at = store_wcc(
            store32(place.at, NFS3_OK), &change.data.before, &change.data.after,
            self.fsid_in(node, &change.data.after),
        )
        return ANSWERED
