"""The common COMPOUNDs of NFSv4, answered natively: their operations (RFC 8881 section 18, RFC 7530 section 16).

Owns :class:`Nfs4Direct`; imports :mod:`nfsd.v4.file_attributes`, the direct parts of the state engine, the file service and the
attributes. Replies are octet for octet those of :mod:`nfsd.v4.compound` and the operations in :mod:`nfsd.v4.ops`, which run
whatever is declined here: all that fails, waits or is rare.
"""

from libc.errno cimport EACCES, ENOENT
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from nfsd.v4.direct_changes cimport wrong_name
from nfsd.v4.direct_compound cimport Arguments, left, padded, room, store_opaque
from nfsd.v4.file_attributes cimport Nfs4Attributes
from nfsd.vfs.direct cimport NAME_MAX, Standing, no
from nfsd.vfs.name_changes cimport Walk
from nfsd.vfs.records cimport Node
from nfsd.wire.nfs4 cimport (
    NFS4ERR_ACCESS, NFS4ERR_NOENT, NFS4ERR_NOFILEHANDLE, NFS4ERR_NOTDIR, NFS4ERR_SYMLINK, NFS4_FHSIZE, NFS4_OK,
    OP_ACCESS, OP_CLOSE, OP_COMMIT, OP_CREATE, OP_GETATTR, OP_GETFH, OP_LINK, OP_LOCK, OP_LOCKU, OP_LOOKUP, OP_OPEN, OP_OPEN_CONFIRM, OP_PUTFH, OP_READ, OP_REMOVE, OP_RENAME, OP_RENEW, OP_RESTOREFH,
    OP_SAVEFH, OP_SETATTR, OP_WRITE,
)
from rpcrdma.declined cimport FAILED, PROCEDURE, STANDING
from rpcrdma.octets cimport load_opaque, opaque_t
from rpcrdma.place cimport ANSWERED, DECLINED, Place, load32, store32
from rpcrdma.rpc.direct cimport Caller
from rpcrdma.rpc.work cimport Errand, Work

from nfsd.state import Nfs4Error
from nfsd.v4.arrivals import arrive_as
from nfsd.v4.errors import failure_of
from nfsd.vfs.types import BadHandle, FileType

cdef object DIR = FileType.DIR
cdef object LNK = FileType.LNK


cdef class Nfs4Direct(Nfs4Attributes):
    cdef int operation(self, uint32_t number, Arguments *arguments, Place place) except -1:
        if number == OP_PUTFH:
            return self.putfh(arguments, place)
        if number == OP_RENEW:
            return self.renew(arguments, place)
        if self.current is None:
            if number == OP_GETFH or number == OP_SAVEFH:
                return self.fail(NFS4ERR_NOFILEHANDLE, place)
            return no(self.files, PROCEDURE)
        if number == OP_GETATTR:
            return self.getattr(arguments, place)
        if number == OP_READ:
            return self.read(arguments, place)
        if number == OP_WRITE:
            return self.write(arguments, place)
        if number == OP_LOOKUP:
            return self.lookup(arguments, place)
        if number == OP_ACCESS:
            return self.access(arguments, place)
        if number == OP_GETFH:
            return self.getfh(place)
        if number == OP_COMMIT:
            return self.commit(arguments, place)
        if (
            number == OP_OPEN or number == OP_CLOSE or number == OP_LOCK or number == OP_LOCKU or number == OP_OPEN_CONFIRM
        ):
            return self.owned(number, arguments, place)
        if number == OP_REMOVE:
            return self.remove(arguments, place)
        if number == OP_SETATTR:
            return self.setattr(arguments, place)
        if number == OP_CREATE:
            return self.create(arguments, place)
        if number == OP_RENAME:
            return self.rename(arguments, place)
        if number == OP_LINK:
            return self.link(arguments, place)
        if number == OP_SAVEFH:
            return self.savefh(place)
        if number == OP_RESTOREFH:
            return self.restorefh(place)
        return no(self.files, PROCEDURE)

    # -- handles and names ---------------------------------------------------------------------------------------
    cdef int putfh(self, Arguments *arguments, Place place) except -1:
        cdef const uint8_t *handle = arguments.at + 4
        cdef size_t length
        cdef Node node
        cdef Standing standing = None
        cdef Work had = self.brought_here()
        cdef Errand brought = <Errand?>had if had is not None else None
        if left(arguments) < 4 or not room(place, 8):
            return DECLINED
        length = load32(arguments.at)
        if length == 0 or length > NFS4_FHSIZE or left(arguments) < 4 + padded(length):
            return DECLINED
        if brought is not None and brought.error is not None:
            return self.not_arrived(brought, arguments.at + 4 + padded(length), arguments.end, place)
        node = self.files.find(handle, length) if brought is None else brought.result
        if node is not None:
            standing = self.files.standing(self.caller, node)
        if standing is None:
            return self.to_arrive(handle[:length]) if brought is None else DECLINED
        if self.charged_elsewhere(standing):
            return no(self.files, STANDING)
        self.go(node)
        self.standing = standing
        arguments.at += 4 + padded(length)
        place.at = store32(store32(place.at, OP_PUTFH), 0)
        return ANSWERED

    cdef int to_arrive(self, bytes handle) except -1:
        """WAITS, for the file of a handle, and for what the caller is there; the pseudo file system's are declined."""
        cdef Caller caller = self.caller
        if self.server.pseudo.owns(handle):
            return no(self.files, PROCEDURE)
        self.files.pause()
        return self.wait_for(
            Errand(arrive_as(self.server, caller.transport, self.minor, handle, caller.credential)), None
        )

    cdef int not_arrived(self, Errand brought, const uint8_t *behind, const uint8_t *end, Place place) except -1:
        """PUTFH fails; unless it is the source of a copy from another server (RFC 7862 section 15.2.3), or the server
        has failed."""
        if self.minor == 2 and self.index + 1 < self.operations and end - behind >= 4 and load32(behind) == OP_SAVEFH:
            return no(self.files, FAILED)
        if not isinstance(brought.error, (OSError, BadHandle, Nfs4Error)):
            return no(self.files, FAILED)
        error, brought.error = brought.error, None  # its traceback leads back to the errand
        return self.fail(failure_of(error), place)

    cdef bint getfh(self, Place place) except -1:
        cdef bytes handle = self.current.handle
        if not room(place, 12 + NFS4_FHSIZE):
            return False
        place.at = store_opaque(store32(store32(place.at, OP_GETFH), 0), handle, len(handle))
        return True

    cdef int lookup(self, Arguments *arguments, Place place) except -1:
        cdef int error
        cdef opaque_t name
        cdef uint32_t status
        cdef Node node
        cdef Work brought = self.brought_here()
        cdef const uint8_t *behind = load_opaque(arguments.at, arguments.end, NAME_MAX, &name)
        if behind == NULL or not room(place, 8):
            return DECLINED
        status = wrong_name(&name)
        if status == NFS4_OK and self.current.type is not DIR:
            # RFC 7530 section 16.13.4
            status = NFS4ERR_SYMLINK if self.current.type is LNK else NFS4ERR_NOTDIR
        if status != NFS4_OK:
            return self.fail(status, place)
        if self.files.service.is_root(self.current) and self.server.pseudo.of_export(self.current.export).children:
            return False  # names of further exports shadow real ones
        self.files.walked = <Walk?>brought if brought is not None else None
        node = self.files.lookup(
            self.standing.credential, self.current, name.octets, name.length, &self.status, &error
        )
        self.files.walked = None
        if node is None:
            if error == 0 and brought is None and self.files.needs is not None:
                return self.wait_for(self.files.needs, None)
            if error == ENOENT and self.files.look(self.current, &self.status):
                return self.fail(NFS4ERR_NOENT, place)
            return self.fail(NFS4ERR_ACCESS, place) if error == EACCES else DECLINED
        self.go(node)  # on the same mount: in the same export
        self.seen = True
        arguments.at = behind
        place.at = store32(store32(place.at, OP_LOOKUP), 0)
        return True
