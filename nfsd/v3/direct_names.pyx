"""What NFSv3's native procedures share, and those of names: SETATTR, LOOKUP, CREATE and REMOVE (RFC 1813 sections 3.3.2,
3.3.3, 3.3.8 and 3.3.12).

Owns :class:`Nfs3Names`; imports the file service's direct operations, :mod:`rpcrdma.place` and
:mod:`rpcrdma.rpc.direct`. Answers are octet for octet those of :mod:`nfsd.v3.attributes`, :mod:`nfsd.v3.names` and
:mod:`nfsd.v3.creation`, which do whatever is declined here.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from nfsd.v3.fattr cimport fsid3, store_fattr, store_wcc
from nfsd.v3.sattr cimport load_sattr
from nfsd.vfs.attributes cimport statx_t
from nfsd.vfs.direct cimport NO_ID, UTIME_OMIT, Standing, changes_t, when_t
from nfsd.vfs.direct_names cimport DirectNames
from nfsd.vfs.name_changes cimport NameChange
from nfsd.vfs.records cimport Node
from nfsd.vfs.transfers cimport errno_of
from nfsd.wire.nfs3 cimport (
    EXCLUSIVE, GUARDED, NFS3ERR_NOENT, NFS3_FHSIZE, NFS3_OK, fattr3_SIZE, wcc_data_MAX,
)
from rpcrdma.octets cimport load32, padded, store32, store_opaque
from rpcrdma.place cimport ANSWERED, DECLINED, Place
from rpcrdma.rpc.direct cimport DirectProgram, Errand, Work

from os import strerror

from nfsd.v3.errors import status_of

cdef enum:
    DONE = 3                    # what is left is the reply


cdef inline NameChange begun(Work brought):
    """The change that a call has waited for, whatever it has waited for since; None: it has not begun."""
    if brought is None:
        return None
    return <NameChange?>(brought if brought.earlier is None else brought.earlier)


cdef class Nfs3Names(DirectProgram):
    def __cinit__(self, service, *args, **kwargs):
        self.files = DirectNames(service)

    cdef int waits(self, Work work, Work earlier, Node node, Standing standing) except -1:
        """WAITS, for ``work``: the call keeps its file and what the caller is there."""
        if work is None:
            return DECLINED
        work.kept = (node, standing)
        return self.wait_for(work, earlier)

    cdef uint64_t fsid(self, Node node) except? 0:
        """:func:`nfsd.v3.convert.fsid3` of the node's file system."""
        cdef tuple pair = node.mount.fsid
        return fsid3(<uint64_t>pair[0], <uint64_t>pair[1])

    cdef uint8_t *store_after(self, uint8_t *at, Node node) except NULL:
        """A post_op_attr."""
        cdef statx_t after
        if not self.files.look(node, &after):
            return store32(at, 0)
        return store_fattr(store32(at, 1), &after, self.fsid(node))

    cdef int failed_names(self, Node directory, int error, Place place) except -1:
        """The failure of a change of names: a wcc_data of which only the later part is known."""
        cdef uint32_t status = <uint32_t>int(status_of(OSError(error, strerror(error))))
        place.at = self.store_after(store32(store32(place.at, status), 0), directory)
        return ANSWERED

    cdef int carry(self, NameChange change, Work brought, Standing standing, Place place) except -1:
        """Carry a change of names through. DONE: it is done and, on a disk, on stable storage; else the outcome of the
        call for now. ``brought``: what the call has waited for, None at first."""
        cdef Node directory = change.directory
        if brought is None and not directory.inline:
            return self.waits(change, None, directory, standing)
        if brought is None or brought is change:
            if not self.files.settled(change):
                return DECLINED
            if directory.inline or directory.export.asynchronous:
                return DONE
            return self.waits(self.files.to_settle(change), change, directory, standing)
        if errno_of(<Errand?>brought):
            return self.failed_names(directory, errno_of(<Errand>brought), place)
        return DONE

    cdef bint lookup(
        self, Standing standing, Node directory, const uint8_t *arguments, size_t size, Place place
    ) except -1:
        cdef statx_t status, after
        cdef size_t length
        cdef bint absent
        cdef bytes handle
        cdef Node node
        if size < 4:
            return False
        length = load32(arguments)
        if length > 255 or size != 4 + padded(length) or place.end - place.at < 12 + NFS3_FHSIZE + 2 * fattr3_SIZE + 8:
            return False
        node = self.files.lookup(standing.credential, directory, arguments + 4, length, &status, &absent)
        if (node is None and not absent) or not self.files.look(directory, &after):
            return False
        if node is None:
            place.at = store_fattr(store32(store32(place.at, NFS3ERR_NOENT), 1), &after, self.fsid(directory))
            self.absent += 1
            self.tally.errors += 1
            return True
        handle = node.handle
        place.at = store_opaque(store32(place.at, NFS3_OK), handle, len(handle))
        place.at = store_fattr(store32(place.at, 1), &status, self.fsid(node))
        place.at = store_fattr(store32(place.at, 1), &after, self.fsid(directory))
        return True

    cdef bint setattr(self, Standing standing, Node node, const uint8_t *arguments, size_t size, Place place) except -1:
        cdef statx_t before, after
        cdef changes_t changes
        cdef int64_t length
        cdef const uint8_t *end = arguments + size
        cdef const uint8_t *at = load_sattr(arguments, end, &changes, &length)
        if at == NULL or length >= 0 or standing.read_only or end - at < 4 or place.end - place.at < 4 + wcc_data_MAX:
            return False
        if load32(at) == 1 and end - at == 12:
            changes.guarded = True
            changes.ctime = <int64_t>load32(at + 4) * 1000000000 + load32(at + 8)
            if load32(at + 8) > 999999999:
                return False
        elif load32(at) != 0 or end - at != 4:
            return False
        if not self.files.set_attributes(standing.credential, node, &changes, &before, &after):
            return False
        place.at = store_wcc(store32(place.at, 0), &before, &after, self.fsid(node))
        return True

    cdef int create(
        self, Standing standing, Node directory, const uint8_t *arguments, size_t size, Place place, Work brought
    ) except -1:
        """Of a name that is not taken."""
        cdef NameChange change
        cdef changes_t changes
        cdef when_t *times = NULL
        cdef int64_t length_wanted
        cdef size_t length, rest
        cdef uint32_t how, mode = 0
        cdef bytes handle
        cdef int outcome
        cdef Node node
        if size < 4 or standing.read_only or place.end - place.at < 4 + 8 + NFS3_FHSIZE + 4 + fattr3_SIZE + wcc_data_MAX:
            return DECLINED
        length = load32(arguments)
        rest = 8 + padded(length)
        if length > 255 or size < rest:
            return DECLINED
        how = load32(arguments + rest - 4)
        if how == EXCLUSIVE:
            if size != rest + 8:
                return DECLINED
            # The verifier (nfsd.vfs.creation).
            times = changes.times
            times[0].seconds = load32(arguments + rest) & 0x7FFFFFFF
            times[1].seconds = load32(arguments + rest + 4) & 0x7FFFFFFF
            times[0].nanoseconds = times[1].nanoseconds = 0
        else:
            if how > GUARDED or load_sattr(arguments + rest, arguments + size, &changes, &length_wanted) != arguments + size:
                return DECLINED
            if length_wanted > 0 or changes.uid != NO_ID or changes.gid != NO_ID:
                return DECLINED
            if changes.times[0].nanoseconds != UTIME_OMIT or changes.times[1].nanoseconds != UTIME_OMIT:
                return DECLINED
            # Set-user-id and set-group-id bits are set again after the creation.
            if changes.mode >= 0:
                mode = changes.mode
            if mode & 0o6000:
                return DECLINED
        change = begun(brought)
        if change is None:
            change = self.files.to_create(standing.credential, directory, arguments + 4, length, mode, times)
            if change is None:
                return DECLINED
        outcome = self.carry(change, brought, standing, place)
        if outcome != DONE:
            return outcome
        node = change.made
        handle = node.handle
        place.at = store_opaque(store32(store32(place.at, NFS3_OK), 1), handle, len(handle))
        place.at = store_fattr(store32(place.at, 1), &change.data.status, self.fsid(node))
        place.at = store_wcc(place.at, &change.data.before, &change.data.after, self.fsid(directory))
        return ANSWERED

    cdef int remove(
        self, Standing standing, Node directory, const uint8_t *arguments, size_t size, Place place, Work brought
    ) except -1:
        cdef NameChange change
        cdef size_t length
        cdef int outcome
        if size < 4 or standing.read_only or place.end - place.at < 4 + wcc_data_MAX:
            return DECLINED
        length = load32(arguments)
        if length > 255 or size != 4 + padded(length):
            return DECLINED
        change = begun(brought)
        if change is None:
            change = self.files.to_remove(standing.credential, directory, arguments + 4, length)
            if change is None:
                return DECLINED
        outcome = self.carry(change, brought, standing, place)
        if outcome != DONE:
            return outcome
        place.at = store_wcc(
            store32(place.at, 0), &change.data.before, &change.data.after, self.fsid(directory)
        )
        return ANSWERED
