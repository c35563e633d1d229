"""NFSv3's native procedures as one program (RFC 1813 section 3.3): which they are, and the way of a call to its procedure.

Owns :class:`Nfs3Procedures`; imports the families of procedures, :mod:`rpcrdma.place` and :mod:`rpcrdma.rpc.native`.
Whatever a call waits for is a need (:mod:`nfsd.v3.needs`), a worker's or an errand: it is offered again with what has
been brought. So all that is declined are calls for whose replies a transport has no room, which come again as general
calls, and malformed ones.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t

from nfsd.v3.attributes cimport load_setattr
from nfsd.v3.data cimport Nfs3Data
from nfsd.v3.names cimport Carried
from nfsd.v3.name_arguments cimport load_name_arguments, name_arguments_t
from nfsd.v3.needs cimport ARRIVAL, Need, Progress
from nfsd.vfs.native_files cimport Standing, changes_t, no
from nfsd.vfs.records cimport Node
from nfsd.wire.nfs3 cimport (
    FILE_SYNC, NFSPROC3_ACCESS, NFSPROC3_COMMIT, NFSPROC3_CREATE, NFSPROC3_GETATTR, NFSPROC3_LINK, NFSPROC3_LOOKUP,
    NFSPROC3_MKDIR, NFSPROC3_MKNOD, NFSPROC3_READ, NFSPROC3_READLINK, NFSPROC3_REMOVE, NFSPROC3_RENAME, NFSPROC3_RMDIR,
    NFSPROC3_SETATTR, NFSPROC3_SYMLINK, NFSPROC3_WRITE, load_nfs_fh3, nfs_fh3_t,
)
from rpcrdma.declined cimport CHUNKS, RARE, SHAPE, SIZE
from rpcrdma.octets cimport load32, padded
from rpcrdma.place cimport Place
from rpcrdma.rpc.callers cimport Caller
from rpcrdma.rpc.work cimport Work

from nfsd.v3.errors import DATA_EXCEPTIONS, EXPECTED, NO_EXCEPTIONS, status_of
from nfsd.v3.request import Limits

cdef enum:
    LEAST_ROOM = 256        # octets: more than the head of any reply about one file
    OF_DATA = 1 << NFSPROC3_READ | 1 << NFSPROC3_WRITE | 1 << NFSPROC3_COMMIT
    NAMES = (
        1 << NFSPROC3_LOOKUP | 1 << NFSPROC3_CREATE | 1 << NFSPROC3_MKDIR | 1 << NFSPROC3_SYMLINK | 1 << NFSPROC3_MKNOD
        | 1 << NFSPROC3_REMOVE | 1 << NFSPROC3_RMDIR | 1 << NFSPROC3_RENAME | 1 << NFSPROC3_LINK
    )


cdef bint well_formed(uint32_t procedure, const uint8_t *arguments, size_t size, Place place) noexcept:
    """Whether these are arguments of a procedure about one file, behind the handle. More octets than that do no harm."""
    cdef size_t length
    cdef changes_t changes
    cdef int64_t new_size
    cdef uint32_t status
    if procedure == NFSPROC3_ACCESS:
        return size >= 4
    if procedure == NFSPROC3_READ or procedure == NFSPROC3_COMMIT:
        return size >= 12
    if procedure == NFSPROC3_WRITE:
        if size < 20 or load32(arguments + 12) > FILE_SYNC:
            return False
        length = load32(arguments + 16)
        if place.bulk == NULL:
            return size >= 20 + padded(length)
        # The chunk is the item, or the item with its padding (RFC 8166 section 3.4.5.2).
        return place.bulk_at == arguments + 20 and (place.bulk_size == length or place.bulk_size == padded(length))
    if procedure == NFSPROC3_SETATTR:
        return load_setattr(arguments, arguments + size, &changes, &new_size, &status)
    return True


cdef class Nfs3Procedures(Nfs3Data):
    def __init__(self, service, limits=None, delegations=None):
        limits = limits or Limits()
        self.read_max = limits.read_max
        self.write_max = limits.write_max
        self.guarded = (1 << NFSPROC3_SETATTR) | (1 << NFSPROC3_WRITE)
        self.guarded |= (1 << NFSPROC3_CREATE) | (1 << NFSPROC3_MKDIR) | (1 << NFSPROC3_SYMLINK) | (1 << NFSPROC3_MKNOD)
        self.guarded |= (1 << NFSPROC3_REMOVE) | (1 << NFSPROC3_RMDIR) | (1 << NFSPROC3_RENAME) | (1 << NFSPROC3_LINK)
        self.procedures = self.guarded | (1 << NFSPROC3_GETATTR) | (1 << NFSPROC3_LOOKUP) | (1 << NFSPROC3_ACCESS)
        self.procedures |= (1 << NFSPROC3_READ) | (1 << NFSPROC3_COMMIT) | (1 << NFSPROC3_READLINK)

    cdef int pause(self) except -1:
        self.files.pause()
        self.have = self.caller = None
        return 0

    cdef int reason(self, uint32_t procedure, uint32_t *row) noexcept:
        return self.files.why

    cdef int answer(
        self, Caller caller, uint32_t procedure, const uint8_t *arguments, size_t size, Place place, Work brought
    ) except -1:
        cdef nfs_fh3_t handle
        cdef const uint8_t *rest = load_nfs_fh3(arguments, arguments + size, &handle)
        cdef Node node
        cdef Standing standing = None
        cdef name_arguments_t named
        self.have = None
        self.caller = caller
        if rest == NULL:
            return no(self.files, SHAPE)
        if place.bulk != NULL and procedure != NFSPROC3_WRITE and procedure != NFSPROC3_SYMLINK:
            return no(self.files, CHUNKS)
        size -= rest - arguments
        if not well_formed(procedure, rest, size, place):
            return no(self.files, SHAPE)
        if place.end - place.at < LEAST_ROOM:
            return no(self.files, SIZE)
        if brought is not None:
            self.have = <Progress?>brought.kept
            self.tally = self.have.tally
            if isinstance(brought, Need):
                if (<Need>brought).error is not None:
                    return self.not_brought(procedure, <Need>brought, place)
                # What has been done before it is there as well.
                brought = brought.earlier
            elif isinstance(brought, Carried):
                return self.carried(procedure, <Carried>brought, place)
            node, standing = self.have.node, self.have.standing
        else:
            node = self.files.find(handle.data.octets, handle.data.length)
            if node is not None:
                standing = self.files.standing(caller, node)
            if standing is None:
                if (NAMES >> procedure) & 1 and not load_name_arguments(procedure, rest, rest + size, place, &named):
                    return no(self.files, SHAPE)
                return self.need(ARRIVAL, None, None, None, (<char *>handle.data.octets)[:handle.data.length])
        self.files.why = RARE
        self.files.tells_devices = True
        if self.have is not None and self.have.failure:
            return self.tell(self.have.failure, node, place)
        self.tally = standing.tally
        return self.run(procedure, standing, node, rest, size, place, brought)

    cdef int run(
        self, uint32_t procedure, Standing standing, Node node, const uint8_t *arguments, size_t size, Place place,
        Work brought,
    ) except -1:
        """Carry the call out, as far as it goes with what has been brought."""
        if procedure == NFSPROC3_READ:
            return self.read(standing, node, arguments, place, brought)
        if procedure == NFSPROC3_WRITE:
            return self.write(standing, node, arguments, place, brought)
        if procedure == NFSPROC3_GETATTR:
            return self.getattr(standing, node, place)
        if procedure == NFSPROC3_ACCESS:
            return self.access(standing, node, arguments, place)
        if procedure == NFSPROC3_READLINK:
            return self.readlink(standing, node, place)
        if procedure == NFSPROC3_SETATTR:
            return self.setattr(standing, node, arguments, size, place, brought)
        if (NAMES >> procedure) & 1:
            return self.run_named(procedure, standing, node, arguments, size, place, brought)
        return self.commit(standing, node, place, brought)

    # -- needs ---------------------------------------------------------------------------------------------------
    cdef int not_brought(self, uint32_t procedure, Need need, Place place) except -1:
        """What the call needs cannot be had: so much is its answer, or the attributes are left out of it."""
        error, need.error = need.error, None  # its traceback leads back to the need
        if (NAMES >> procedure) & 1:
            return self.not_named(procedure, error, place)
        if self.have.failure:
            self.have.blind = True
            return self.tell(self.have.failure, self.have.node, place)
        if not isinstance(error, EXPECTED):
            raise error
        exceptions = DATA_EXCEPTIONS if (OF_DATA >> procedure) & 1 else NO_EXCEPTIONS
        return self.tell(<uint32_t>int(status_of(error, exceptions)), self.have.node, place)
