"""The common COMPOUNDs of NFSv4, answered natively: their operations (RFC 8881 section 18, RFC 7530 section 16).

Owns :class:`Nfs4Direct`; imports :mod:`nfsd.v4.direct_locks`, the direct parts of the state engine, the file service and the
attributes. Replies are octet for octet those of :mod:`nfsd.v4.compound` and the operations in :mod:`nfsd.v4.ops`, which run
whatever is declined here: all that fails, waits or is rare.
"""

from libc.errno cimport EACCES, EAGAIN, EINTR, ENOENT, ESTALE
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from nfsd.v4.direct_attributes cimport LARGEST_FATTR
from nfsd.v4.direct_changes cimport status_in, wrong_name
from nfsd.v4.direct_compound cimport Arguments, left, padded, room, store_opaque
from nfsd.v4.direct_locks cimport DirectLocks
from nfsd.vfs.attributes cimport statx_t
from nfsd.vfs.direct cimport NAME_MAX, Standing, no
from nfsd.vfs.name_changes cimport Walk
from nfsd.vfs.records cimport Node, OpenFile
from nfsd.vfs.transfers cimport Sync, Transfer, errno_of
from nfsd.wire.nfs4 cimport (
    ACCESS4_DELETE, ACCESS4_EXECUTE, ACCESS4_EXTEND, ACCESS4_LOOKUP, ACCESS4_MODIFY, ACCESS4_READ, ACCESS4_XALIST, ACCESS4_XAREAD,
    ACCESS4_XAWRITE, FILE_SYNC4, NFS4ERR_ACCESS, NFS4ERR_BAD_STATEID, NFS4ERR_FBIG, NFS4ERR_INVAL, NFS4ERR_ISDIR, NFS4ERR_NOENT,
    NFS4ERR_NOFILEHANDLE, NFS4ERR_NOTDIR, NFS4ERR_ROFS, NFS4ERR_SYMLINK, NFS4ERR_WRONG_TYPE, NFS4_FHSIZE, NFS4_OK,
    OP_ACCESS, OP_CLOSE, OP_COMMIT, OP_CREATE, OP_GETATTR, OP_GETFH, OP_LINK, OP_LOCK, OP_LOCKU, OP_LOOKUP, OP_OPEN, OP_OPEN_CONFIRM, OP_PUTFH, OP_READ, OP_REMOVE, OP_RENAME, OP_RENEW, OP_RESTOREFH,
    OP_SAVEFH, OP_SETATTR, OP_WRITE, READ4args_SIZE, UNSTABLE4, stateid4_SIZE,
)
from rpcrdma.declined cimport ATTRIBUTES, CHUNKS, FAILED, PROCEDURE, SIZE, STANDING, STATE
from rpcrdma.octets cimport load_opaque, opaque_t
from rpcrdma.place cimport ANSWERED, DECLINED, Place, load32, load64, store32
from rpcrdma.rpc.direct cimport Caller
from rpcrdma.rpc.work cimport Errand, Work

from nfsd.state import Nfs4Error
from nfsd.state.types import Stateid
from nfsd.v4.arrivals import arrive_as
from nfsd.v4.errors import failure_of
from nfsd.v4.ops.data import RESULT_OVERHEAD
from nfsd.v4.operations import ROOM_FOR_RESULT
from nfsd.vfs.types import BadHandle, FileType

cdef enum:
    MODIFYING = ACCESS4_MODIFY | ACCESS4_EXTEND | ACCESS4_DELETE
    ACCESS_ALL = ACCESS4_READ | ACCESS4_LOOKUP | ACCESS4_EXECUTE | MODIFYING
    XATTRS = ACCESS4_XAREAD | ACCESS4_XAWRITE | ACCESS4_XALIST


cdef size_t _result_overhead = RESULT_OVERHEAD
cdef size_t _room_for_result = ROOM_FOR_RESULT
cdef object REG = FileType.REG
cdef object DIR = FileType.DIR
cdef object LNK = FileType.LNK
cdef uint64_t OFFSET_MAX = 0x7FFFFFFFFFFFFFFF


cdef class Nfs4Direct(DirectLocks):
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
        if number == OP_OPEN:
            return self.open(arguments, place)
        if number == OP_OPEN_CONFIRM:
            return self.open_confirm(arguments, place)
        if number == OP_CLOSE:
            return self.close(arguments, place)
        if number == OP_LOCK:
            return self.lock(arguments, place)
        if number == OP_LOCKU:
            return self.unlock(arguments, place)
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

    # -- attributes ----------------------------------------------------------------------------------------------
    cdef bint getattr(self, Arguments *arguments, Place place) except -1:
        cdef size_t used
        cdef uint64_t mask
        if not self.attributes.known(arguments.at, left(arguments), &used, &mask):
            return no(self.files, ATTRIBUTES)
        if not room(place, 8 + LARGEST_FATTR):
            return no(self.files, SIZE)
        if not self.told_by_us():
            return False
        arguments.at += used
        if not self.look():
            return False
        place.at = store32(store32(place.at, OP_GETATTR), 0)
        place.at = self.attributes.store(place.at, mask, self.current, &self.status)
        return True

    cdef bint access(self, Arguments *arguments, Place place) except -1:
        cdef uint32_t asked
        cdef int allowed
        cdef bint is_directory = self.current.type is DIR
        if left(arguments) < 4 or not room(place, 16):
            return False
        asked = load32(arguments.at) & (ACCESS_ALL if self.minor < 2 else ACCESS_ALL | XATTRS)
        asked &= ~ACCESS4_EXECUTE if is_directory else ~(ACCESS4_LOOKUP | ACCESS4_DELETE)
        if not self.look():
            return False
        allowed = self.files.access(self.standing.credential, self.current)
        if allowed < 0:
            return False
        if asked & XATTRS:
            kept = self.current.mount.xattrs
            if kept is None:
                return False
            if not kept:
                asked &= ~XATTRS
            elif is_directory or self.current.type is REG:
                if is_directory and not allowed & ACCESS4_MODIFY and not self.current.export.read_only:
                    return False  # whether its attributes may be written is another matter than its entries
                if allowed & ACCESS4_READ:
                    allowed |= ACCESS4_XAREAD | ACCESS4_XALIST
                if allowed & ACCESS4_MODIFY:
                    allowed |= ACCESS4_XAWRITE
        if self.standing.read_only:
            allowed &= ~(MODIFYING | ACCESS4_XAWRITE)
        arguments.at += 4
        place.at = store32(store32(place.at, OP_ACCESS), 0)
        place.at = store32(store32(place.at, asked), asked & <uint32_t>allowed)
        return True

    # -- data ----------------------------------------------------------------------------------------------------
    cdef OpenFile opened(self, const uint8_t *stateid, bint write, bint *held):
        """What :func:`nfsd.v4.ops.data.opened_for` gives; ``held``: the stateid's own, which needs no permission."""
        cdef OpenFile opened
        descriptors = self.state.opened_of(self.client, stateid, self.current.key, write)
        if descriptors is None:
            self.why_not(stateid, write)
            return None
        caller = self.caller.credential
        if write:
            opened, opener = descriptors.write, descriptors.writer
        else:
            opened, opener = descriptors.read, descriptors.reader
        held[0] = opened is not None and (opener is caller or opener == caller)
        if held[0]:
            return opened
        # The look comes first: it may tell that permissions have changed.
        if write and (self.current.export.read_only or not self.look()):
            return None
        return self.files.opened(self.current, self.standing.credential, 2 if write else 1)

    cdef int why_not(self, const uint8_t *stateid, bint write) except -1:
        """See what is wrong with a stateid of a READ or WRITE: ``failure`` is set, or it is for the general path."""
        self.files.why = STATE
        if self.is_current(stateid):
            return 0
        engine = self.server.engine
        issued = engine.writes_issued
        self.files.pause()
        try:
            engine.stateids.check_io(
                Stateid(load32(stateid), <bytes>stateid[4:stateid4_SIZE]), self.client, self.current.key, write=write
            )
        except Nfs4Error as error:
            self.failure = error.status
        finally:
            # A client was heard of that had not been: the reply waits until that is on stable storage.
            self.changed |= engine.writes_issued != issued
        return 0

    cdef int not_opened(self, Place place) except -1:
        """What becomes of a READ or WRITE for which :meth:`opened` has found nothing."""
        return self.fail(self.failure, place) if self.failure else DECLINED

    cdef bint is_current(self, const uint8_t *stateid) noexcept:
        """Whether a stateid stands for the current one (RFC 8881 section 8.2.3)."""
        return self.minor > 0 and load32(stateid) == 1 and load64(stateid + 4) == 0 and load32(stateid + 12) == 0

    cdef uint32_t irregular(self, const uint8_t *stateid=NULL) noexcept:
        """NFS4_OK, or what a file that is no regular one deserves (:func:`nfsd.v4.ops.data.regular`); before that, what a
        ``stateid`` does that stands for none."""
        if stateid != NULL and self.stateid is None and self.is_current(stateid):
            return NFS4ERR_BAD_STATEID
        if self.current.type is REG:
            return NFS4_OK
        if self.current.type is DIR:
            return NFS4ERR_ISDIR
        if self.minor == 0:
            return NFS4ERR_INVAL
        return NFS4ERR_SYMLINK if self.current.type is LNK else NFS4ERR_WRONG_TYPE

    cdef int read(self, Arguments *arguments, Place place) except -1:
        cdef OpenFile opened
        cdef Transfer transfer = self.brought_here()
        cdef uint64_t offset
        cdef uint32_t status
        cdef size_t count, size, limit = self.limit
        cdef uint8_t *head = place.at
        cdef uint8_t *behind
        cdef ssize_t got
        cdef bint eof = False, held = False
        if left(arguments) < READ4args_SIZE or self.beside or self.cachethis or not room(place, 16):
            return DECLINED
        status = self.irregular(arguments.at)
        if status != NFS4_OK:
            return self.fail(status, place)
        offset = load64(arguments.at + stateid4_SIZE)
        size = self.size(place) + 4 + _result_overhead
        if size >= limit:
            return no(self.files, SIZE)
        count = min(
            <size_t>load32(arguments.at + stateid4_SIZE + 8), self.max_transfer, self.standing.max_read, limit - size
        )
        if count == 0 or offset > OFFSET_MAX - count:
            return DECLINED
        place.at += 16
        behind = place.at
        if transfer is None:
            opened = self.opened(arguments.at, False, &held)
            if opened is None:
                return self.not_opened(place)
            got = self.files.read(opened, held, offset, place, count, &self.status, &eof)
            if got < 0:
                transfer = self.files.to_read(self.current, opened, held, offset, place, count)
                return DECLINED if transfer is None else self.wait_for(transfer, None)
            place.data_done(got)
        else:
            if transfer.data.error or transfer.data.where.size != count or not self.files.have_read(transfer, place, &eof):
                return DECLINED
            opened, got = transfer.opened, transfer.data.done
            self.status = transfer.data.after
        store32(store32(store32(store32(head, OP_READ), 0), eof), <uint32_t>got)
        if place.at == behind:
            self.beside = padded(got)
            if self.data_at == NULL:
                self.data_at, self.data_result_at, self.data_index = self.part_at, self.result_at, self.index
                self.data_octets = 0
            self.data_octets += got
        arguments.at += READ4args_SIZE
        self.octets_read += got
        self.saw(opened)
        return ANSWERED

    cdef int saw(self, OpenFile opened) except -1:
        """``status`` was got through an open file: it serves a GETATTR, unless it is another export's."""
        self.seen = False
        if opened.node is self.current and self.index + 1 < self.operations:
            self.seen = self.files.take(self.current, &self.status)
        return 0

    cdef const uint8_t *to_be_written(
        self, Arguments *arguments, Place place, size_t count, const uint8_t **behind
    ) noexcept:
        """The data of a WRITE, in its message or fetched, and the end of its arguments; NULL declines."""
        cdef const uint8_t *here = arguments.at + stateid4_SIZE + 16
        behind[0] = here
        if self.bulk_wanted != NULL:
            if self.bulk_wanted != here or place.bulk_size != count or count & 3:
                self.files.why = CHUNKS
                return NULL
            return place.bulk
        behind[0] = here + padded(count)
        return here if arguments.end >= behind[0] else NULL

    cdef int write(self, Arguments *arguments, Place place) except -1:
        cdef OpenFile opened
        cdef Work brought = self.brought_here()
        cdef Transfer transfer
        cdef int error
        cdef uint64_t offset
        cdef uint32_t stable, status
        cdef size_t count
        cdef ssize_t done
        cdef statx_t before
        cdef bytes verifier
        cdef bint held = False
        cdef Node node = self.current
        cdef const uint8_t *source
        cdef const uint8_t *behind
        if left(arguments) < stateid4_SIZE + 16:
            return DECLINED
        offset = load64(arguments.at + stateid4_SIZE)
        stable = load32(arguments.at + stateid4_SIZE + 8)
        count = load32(arguments.at + stateid4_SIZE + 12)
        if count > self.max_transfer or count > self.standing.max_write or stable > FILE_SYNC4:
            return DECLINED
        source = self.to_be_written(arguments, place, count, &behind)
        if source == NULL:
            return DECLINED
        if not room(place, 24):
            return no(self.files, SIZE)
        if brought is None:
            status = self.unwritable(arguments.at, offset, count)
            if status != NFS4_OK:
                return self.fail(status, place)
            opened = self.opened(arguments.at, True, &held)
            if opened is None:
                return self.not_opened(place)
            if opened.node is not node:
                return DECLINED
            verifier = self.files.service.write_verifier
            done = self.files.write(
                opened, held, offset, source, count, stable != UNSTABLE4, &before, &self.status, place.bulk != NULL
            )
            if done < 0:
                transfer = self.files.to_write(node, opened, held, offset, source, count)
                return DECLINED if transfer is None else self.wait_for(transfer, None)
        else:
            transfer = <Transfer?>(brought if brought.earlier is None else brought.earlier)
            if brought is transfer:
                error = self.files.have_written(transfer)
                if error == 0 and stable != UNSTABLE4 and not node.export.asynchronous:
                    return self.wait_for(self.files.to_sync_written(transfer), transfer)
            else:
                error = errno_of(<Errand?>brought)
            if error == ESTALE or error == EINTR or error == EAGAIN:
                return no(self.files, FAILED)  # it may be done through another descriptor
            if error:
                return self.fail(status_in(error), place)
            verifier, done = transfer.verifier, transfer.data.done
            self.status = transfer.data.after
        arguments.at = behind
        self.bulk_wanted = NULL
        place.at = store32(store32(place.at, OP_WRITE), 0)
        place.at = store32(store32(place.at, <uint32_t>done), stable)
        memcpy(place.at, <const uint8_t *>verifier, 8)
        place.at += 8
        self.octets_written += done
        self.seen = True
        return ANSWERED

    cdef uint32_t unwritable(self, const uint8_t *stateid, uint64_t offset, size_t count) noexcept:
        """NFS4_OK, or why the current file takes no such WRITE."""
        if self.standing.read_only:
            return NFS4ERR_ROFS
        if offset > OFFSET_MAX - count:
            return NFS4ERR_FBIG if self.minor else NFS4ERR_INVAL
        return self.irregular(stateid)

    cdef int commit(self, Arguments *arguments, Place place) except -1:
        cdef statx_t before
        cdef bytes verifier
        cdef Work brought = self.brought_here()
        cdef Sync sync
        if left(arguments) < 12 or not room(place, 16):
            return DECLINED
        if self.standing.read_only:
            return self.fail(NFS4ERR_ROFS, place)
        if self.current.type is not REG:
            return self.fail(self.irregular(), place)
        if load64(arguments.at) > <uint64_t>0xFFFFFFFFFFFFFFFF - load32(arguments.at + 8):
            return self.fail(NFS4ERR_INVAL, place)
        if self.current.export.read_only:
            return DECLINED
        if brought is not None:
            if errno_of(<Errand?>brought):
                return self.fail(status_in(errno_of(<Errand>brought)), place)
            if not self.files.look(self.current, &self.status):
                return DECLINED
        elif self.current.export.asynchronous:
            return DECLINED
        elif not self.files.commit(self.standing.credential, self.current, &before, &self.status):
            sync = self.files.to_commit(self.standing.credential, self.current)
            return DECLINED if sync is None else self.wait_for(sync, None)
        verifier = self.files.service.write_verifier
        self.seen = True
        arguments.at += 12
        place.at = store32(store32(place.at, OP_COMMIT), 0)
        memcpy(place.at, <const uint8_t *>verifier, 8)
        place.at += 8
        return ANSWERED
