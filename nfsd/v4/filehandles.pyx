"""What the current file is: PUTFH, PUTPUBFH, PUTROOTFH, GETFH, LOOKUP, SAVEFH and RESTOREFH (RFC 8881 sections 18.19 to 18.21, 18.8,
18.13, 18.28, 18.27; RFC 7530 sections 16.20 to 16.22, 16.8, 16.13, 16.30, 16.29), and RENEW (16.28).

Owns :class:`FileHandles`; imports :mod:`nfsd.v4.directories`, and :mod:`nfsd.v4.arrivals`, which brings what a call has
to wait for: a file that is not at hand, what the caller is on its export, places of the pseudo file system.

The current file is a ``Node``, or a place of the pseudo file system, of which operations natively know no more than its handle,
or a file where the caller is barred (``Barred``), of which they know no more than that.
"""

from libc.errno cimport ENOENT, ESTALE
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from nfsd.v4.changes cimport status_in, wrong_name
from nfsd.v4.native_compound cimport left, padded, room, store_opaque
from nfsd.vfs.native_files cimport Standing, no
from nfsd.vfs.name_changes cimport Walk
from nfsd.vfs.records cimport Node
from nfsd.wire.nfs4 cimport (
    NFS4ERR_BADXDR, NFS4ERR_INVAL, NFS4ERR_MOVED, NFS4ERR_NOENT, NFS4ERR_NOFILEHANDLE, NFS4ERR_NOTDIR, NFS4ERR_RESTOREFH, NFS4ERR_ROFS,
    NFS4ERR_SYMLINK, NFS4_FHSIZE, NFS4_OK, OP_ACCESS, OP_COMMIT, OP_CREATE, OP_GETATTR, OP_GETFH, OP_GET_DIR_DELEGATION,
    OP_LINK, OP_LOOKUP, OP_OPEN, OP_PUTFH, OP_READ, OP_READDIR, OP_REMOVE, OP_RENAME, OP_RENEW, OP_RESTOREFH, OP_SAVEFH,
    OP_SETATTR, OP_WRITE,
    stateid4_SIZE,
)
from rpcrdma.declined cimport SIZE
from rpcrdma.octets cimport load_opaque, opaque_t
from rpcrdma.place cimport ANSWERED, DECLINED, WAITS, load32, load64, store32
from rpcrdma.rpc.work cimport Errand, Work

from nfsd.state import Nfs4Error
from nfsd.state.protection import at_files
from nfsd.v4.arrivals import Barred, arrive_as, enter_root_as, look_up_as, machine_of
from nfsd.vfs.types import FileType

cdef enum:
    LONGEST = 0xFFFFFFFF    # name: the file system tells which are too long


cdef inline bint skip(const uint8_t **at, const uint8_t *end, size_t size) noexcept nogil:
    """Go behind so many octets, if a word stands there."""
    if <size_t>(end - at[0]) < size + 4:
        return False
    at[0] += size
    return True


cdef object DIR = FileType.DIR
cdef object LNK = FileType.LNK


cdef class FileHandles(Nfs4Directories):
    cdef int putfh(self, Arguments *arguments, Place place) except -1:
        cdef opaque_t handle
        cdef Node node = None
        cdef Standing standing = None
        cdef Work brought = self.brought_here()
        cdef const uint8_t *behind = load_opaque(arguments.at, arguments.end, NFS4_FHSIZE, &handle)
        if behind == NULL:
            return self.fail(NFS4ERR_BADXDR, place)
        if not room(place, 8):
            return no(self.files, SIZE)
        if brought is None:
            if handle.length:
                node = self.files.find(handle.octets, handle.length)
            if node is not None:
                standing = self.files.standing(self.caller, node)
            if standing is None:
                return self.to_arrive(handle.octets[:handle.length], self.for_machine(behind, arguments.end))
            self.charge(standing)
            self.go(node)
            self.standing = standing
        elif (<Errand?>brought).error is None:
            self.arrived((<Errand>brought).result)
            if self.is_barred(behind, arguments.end):
                return self.fail(self.pseudo.refused(), place)
        elif self.is_foreign(behind, arguments.end):
            # The source of a copy from another server stands so in its COMPOUND (RFC 7862 section 15.2.3). COPY answers it so
            # that clients copy by themselves; BADHANDLE here would reach their users.
            self.leave()
            self.go(None)
            self.foreign = self.failed_in(<Errand>brought)
        else:
            return self.not_brought(<Errand>brought, place)
        arguments.at = behind
        place.at = store32(store32(place.at, OP_PUTFH), NFS4_OK)
        return ANSWERED

    cdef int putrootfh(self, uint32_t number, Arguments *arguments, Place place) except -1:
        """Go to the root of the server's name space, which is the public filehandle, too (RFC 8881 section 18.20.3)."""
        cdef Errand errand = self.brought_here()
        if not room(place, 8):
            return no(self.files, SIZE)
        if errand is None:
            if not self.may_wait():
                return DECLINED
            caller = self.caller
            errand = Errand(enter_root_as(self.server, caller.transport, self.minor, caller.credential))
            if self.begin(errand, False) == WAITS:
                return WAITS
        if errand.error is not None:
            return self.not_brought(errand, place)
        self.arrived(errand.result)
        if self.is_barred(arguments.at, arguments.end):
            return self.fail(self.pseudo.refused(), place)
        place.at = store32(store32(place.at, number), NFS4_OK)
        return ANSWERED

    cdef int to_arrive(self, bytes handle, uint64_t only) except -1:
        """WAITS, for the file of a handle, and for what the caller is there. ``only``: see :func:`arrive_as`."""
        self.files.pause()
        return self.wait_for(
            Errand(arrive_as(self.server, self.caller.transport, self.minor, handle, self.caller.credential, only)), None
        )

    cdef uint64_t for_machine(self, const uint8_t *at, const uint8_t *end) except? 0:
        """The operations for which the client's machine is let to any file, if the next one is among them (RFC 8881 section
        18.35.3); 0: there are none. Clients put a GETATTR beside them, and a SETATTR of delegated times before DELEGRETURN
        (RFC 9754 section 5), which alone open no way. ``at``: where the operations behind PUTFH stand."""
        cdef size_t before = 2
        cdef uint64_t only
        if self.client is None or end - at < 4:
            return 0
        only = at_files(self.client, machine_of(self.caller.credential))
        if load32(at) == OP_SETATTR:
            before += 1
            if not (skip(&at, end, 4 + stateid4_SIZE) and skip(&at, end, 4 + 4 * <size_t>load32(at))):
                return 0
            if not skip(&at, end, 4 + padded(<size_t>load32(at))):
                return 0
        if load32(at) == OP_GETATTR:
            before += 1
            if not (skip(&at, end, 4) and skip(&at, end, 4 + 4 * <size_t>load32(at))):
                return 0
        if self.index + before > self.operations or load32(at) >= 64 or not (only >> load32(at)) & 1:
            return 0
        return only | <uint64_t>1 << OP_GETATTR | <uint64_t>1 << OP_SETATTR | <uint64_t>1 << OP_PUTFH

    cdef bint is_foreign(self, const uint8_t *behind, const uint8_t *end) noexcept:
        """Whether a PUTFH is perhaps the source of a copy: SAVEFH stands behind it."""
        return self.minor == 2 and self.index + 1 < self.operations and end - behind >= 4 and load32(behind) == OP_SAVEFH

    cdef int getfh(self, Place place) except -1:
        cdef bytes handle = self.current.handle if self.current is not None else self.pseudo.handle
        if not room(place, 12 + NFS4_FHSIZE):
            return no(self.files, SIZE)
        place.at = store_opaque(store32(store32(place.at, OP_GETFH), NFS4_OK), handle, len(handle))
        return ANSWERED

    cdef int lookup(self, Arguments *arguments, Place place) except -1:
        cdef int error
        cdef opaque_t name
        cdef uint32_t status
        cdef Node node
        cdef Work brought = self.brought_here()
        cdef const uint8_t *behind = load_opaque(arguments.at, arguments.end, LONGEST, &name)
        if behind == NULL:
            return self.fail(NFS4ERR_BADXDR, place)
        if not room(place, 8):
            return no(self.files, SIZE)
        if brought is not None and not isinstance(brought, Walk):
            if (<Errand?>brought).error is not None:
                return self.not_brought(<Errand>brought, place)
            self.arrived((<Errand>brought).result)
        else:
            status = wrong_name(&name)
            if status == NFS4_OK and self.current is not None and self.current.type is not DIR:
                # RFC 7530 section 16.13.4
                status = NFS4ERR_SYMLINK if self.current.type is LNK else NFS4ERR_NOTDIR
            if status != NFS4_OK:
                return self.fail(status, place)
            if self.current is None or self.is_shadowed():
                return self.to_look_up(&name)
            self.files.walked = <Walk>brought
            node = self.files.lookup(
                self.standing.credential, self.current, name.octets, name.length, &self.status, &error
            )
            self.files.walked = None
            if node is None:
                if error == 0 and brought is None and self.files.needs is not None:
                    return self.wait_for(self.files.needs, None)
                if error == 0 or error == ESTALE or (error == ENOENT and self.files.is_gone(self.current)):
                    return self.to_look_up(&name)
                return self.fail(status_in(error), place)
            self.go(node)  # on the same mount: in the same export
            self.seen = True
        arguments.at = behind
        place.at = store32(store32(place.at, OP_LOOKUP), NFS4_OK)
        return ANSWERED

    cdef bint is_shadowed(self) except -1:
        """Whether names of further exports are perhaps found in the current directory, before its own."""
        return self.files.service.is_root(self.current) and bool(self.server.pseudo.of_export(self.current.export).children)

    cdef int to_look_up(self, opaque_t *name) except -1:
        """WAITS, for a name that is not found at once: in the pseudo file system, behind a mount, where looking may wait."""
        cdef bytes octets = name.octets[:name.length]
        here = self.current if self.current is not None else self.pseudo
        self.files.pause()
        return self.wait_for(
            Errand(look_up_as(self.server, self.caller.transport, self.minor, here, octets, self.caller.credential)), None
        )

    cdef int savefh(self, Place place) except -1:
        if not room(place, 8):
            return no(self.files, SIZE)
        self.saved, self.saved_standing, self.saved_stateid = self.current, self.standing, self.stateid
        self.saved_pseudo, self.saved_foreign = self.pseudo, self.foreign
        place.at = store32(store32(place.at, OP_SAVEFH), NFS4_OK)
        return ANSWERED

    cdef int restorefh(self, Arguments *arguments, Place place) except -1:
        if self.saved is None and self.saved_pseudo is None:
            return self.fail(
                self.saved_foreign or (NFS4ERR_NOFILEHANDLE if self.minor else NFS4ERR_RESTOREFH), place
            )
        if not room(place, 8):
            return no(self.files, SIZE)
        if self.saved is None:
            self.leave()
        else:
            self.charge(self.saved_standing)
        self.seen = self.seen and self.saved is self.current
        self.current, self.standing, self.stateid = self.saved, self.saved_standing, self.saved_stateid
        self.pseudo, self.foreign = self.saved_pseudo, 0
        if self.is_barred(arguments.at, arguments.end):
            return self.fail(self.pseudo.refused(), place)
        place.at = store32(store32(place.at, OP_RESTOREFH), NFS4_OK)
        return ANSWERED

    cdef int renew(self, Arguments *arguments, Place place) except -1:
        if left(arguments) < 8:
            return self.fail(NFS4ERR_BADXDR, place)
        if not room(place, 8):
            return no(self.files, SIZE)
        engine = self.server.engine
        issued = engine.writes_issued
        self.files.pause()
        try:
            self.server.renew(self.caller.transport, load64(arguments.at))
        except Nfs4Error as error:
            return self.fail(error.status, place)
        finally:
            # A client was heard of that had not been: the reply waits until that is on stable storage.
            self.changed |= engine.writes_issued != issued
        arguments.at += 8
        place.at = store32(store32(place.at, OP_RENEW), NFS4_OK)
        return ANSWERED

    # -- where there is no file ----------------------------------------------------------------------------------
    cdef int nowhere(self, uint32_t number, Arguments *arguments, Place place) except -1:
        """An operation while there is no current file on a real file system."""
        if self.pseudo is None:
            if number == OP_SAVEFH and self.foreign:
                return self.savefh(place)
            return self.fail(self.foreign or NFS4ERR_NOFILEHANDLE, place)
        if type(self.pseudo) is Barred:
            if number == OP_SAVEFH:
                return self.savefh(place)
            return self.owned(number, arguments, place) if number == OP_OPEN else self.fail(self.pseudo.refused(), place)
        if number == OP_GETATTR:
            return self.getattr(arguments, place)  # there are some in an absent file system, too (RFC 8881 section 11.3)
        if self.pseudo.referral is not None:
            return self.fail(NFS4ERR_MOVED, place)
        if number == OP_LOOKUP:
            return self.lookup(arguments, place)
        if number == OP_GETFH:
            return self.getfh(place)
        if number == OP_SAVEFH:
            return self.savefh(place)
        if number == OP_OPEN:
            return self.owned(number, arguments, place)
        if number == OP_ACCESS:
            return self.access(arguments, place)
        if number == OP_GET_DIR_DELEGATION:
            return self.owned(number, arguments, place)
        if number == OP_READDIR:
            return self.readdir(arguments, place)
        if (
            number == OP_WRITE or number == OP_COMMIT or number == OP_SETATTR or number == OP_CREATE or number == OP_REMOVE
            or number == OP_RENAME or number == OP_LINK
        ):
            return self.fail(NFS4ERR_ROFS, place)
        return self.fail(NFS4ERR_INVAL, place)
