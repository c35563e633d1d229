"""The common procedures of NFSv3 that concern one file, answered natively (RFC 1813 sections 3.3.1, 3.3.4 to 3.3.7 and
3.3.21).

Owns :class:`Nfs3Direct`; imports the file service's direct operations, :mod:`rpcrdma.place` and
:mod:`rpcrdma.rpc.direct`. Whatever such a call waits for is a need (:mod:`nfsd.v3.needs`) or a transfer: it is offered
again with what has been brought. So all that is declined are calls for whose replies a transport has no room, which come
again as general calls, and malformed ones.

A procedure that fails says so with the attributes of its file, as far as they can be had (section 3.1).
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from nfsd.v3.direct_changes cimport Nfs3Changes
from nfsd.v3.direct_names cimport Carried
from nfsd.v3.fattr cimport store_fattr, store_wcc
from nfsd.v3.name_arguments cimport load_name_arguments, name_arguments_t
from nfsd.v3.needs cimport ARRIVAL, COMMITTING, LOOK, OPENING, PERMISSIONS, ROOM, TEXT, Kind, Need, Progress
from nfsd.vfs.attributes cimport statx_t
from nfsd.vfs.direct cimport Standing, no
from nfsd.vfs.records cimport Node, OpenFile
from nfsd.vfs.transfers cimport Sync, Transfer, errno_of
from nfsd.wire.nfs3 cimport (
    ACCESS3_DELETE, ACCESS3_EXTEND, ACCESS3_MODIFY, FILE_SYNC, NFS3ERR_ACCES, NFS3ERR_FBIG, NFS3ERR_INVAL, NFS3ERR_IO,
    NFS3ERR_JUKEBOX, NFS3ERR_ROFS, NFSPROC3_ACCESS, NFSPROC3_COMMIT, NFSPROC3_CREATE, NFSPROC3_GETATTR,
    NFSPROC3_LINK, NFSPROC3_LOOKUP, NFSPROC3_MKDIR, NFSPROC3_MKNOD, NFSPROC3_READ, NFSPROC3_READLINK, NFSPROC3_REMOVE,
    NFSPROC3_RENAME, NFSPROC3_RMDIR, NFSPROC3_SETATTR, NFSPROC3_SYMLINK, NFSPROC3_WRITE, READ3resok_MAX, UNSTABLE,
    fattr3_SIZE, load_nfs_fh3, nfs_fh3_t,
)
from rpcrdma.declined cimport BUSY, CHUNKS, MAY_WAIT, OPEN, RARE, RECALL, SHAPE, SIZE
from rpcrdma.octets cimport load32, load64, padded, store32
from rpcrdma.place cimport ANSWERED, DECLINED, Place
from rpcrdma.rpc.direct cimport Caller
from rpcrdma.rpc.work cimport Errand, Work

from os import strerror

from nfsd.protocol.nfs3 import PROCEDURES, nfsstat3
from nfsd.v3.errors import DATA_EXCEPTIONS, EXPECTED, NO_EXCEPTIONS, status_of
from nfsd.v3.request import Limits
from nfsd.vfs.types import FileType

cdef enum:
    READ_HEAD = 4 + READ3resok_MAX
    READLINK_HEAD = 4 + 4 + fattr3_SIZE + 4
    TEXT_MAX = 4096         # octets of a symbolic link (PATH_MAX)
    LEAST_ROOM = 256        # octets: more than the head of any reply in here
    MODIFYING = ACCESS3_MODIFY | ACCESS3_EXTEND | ACCESS3_DELETE
    # The procedures in here, which are never declined for what they concern.
    OWN = (
        1 << NFSPROC3_GETATTR | 1 << NFSPROC3_ACCESS | 1 << NFSPROC3_READLINK | 1 << NFSPROC3_READ | 1 << NFSPROC3_WRITE
        | 1 << NFSPROC3_COMMIT
    )
    OF_DATA = 1 << NFSPROC3_READ | 1 << NFSPROC3_WRITE | 1 << NFSPROC3_COMMIT
    NAMES = (
        1 << NFSPROC3_LOOKUP | 1 << NFSPROC3_CREATE | 1 << NFSPROC3_MKDIR | 1 << NFSPROC3_SYMLINK | 1 << NFSPROC3_MKNOD
        | 1 << NFSPROC3_REMOVE | 1 << NFSPROC3_RMDIR | 1 << NFSPROC3_RENAME | 1 << NFSPROC3_LINK
    )
    CHANGING = 1 << NFSPROC3_WRITE | 1 << NFSPROC3_COMMIT

cdef uint64_t OFFSET_MAX = 0x7FFFFFFFFFFFFFFF
cdef object REG = FileType.REG
cdef object LNK = FileType.LNK


cdef inline uint8_t *store_verifier(uint8_t *at, bytes verifier):
    """A writeverf3."""
    cdef const uint8_t *octets = verifier
    memcpy(at, octets, 8)
    return at + 8


cdef bint well_formed(uint32_t procedure, const uint8_t *arguments, size_t size, Place place) noexcept:
    """Whether these are arguments of a procedure in here, behind the handle. More octets than that do no harm."""
    cdef size_t length
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
    return True


cdef class Nfs3Direct(Nfs3Changes):
    cdef size_t read_max
    cdef size_t write_max

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
        if not (OWN >> procedure) & 1:
            return no(self.files, RARE)
        if self.have.failure:
            self.have.blind = True
            return self.tell(self.have.failure, self.have.node, place)
        if not isinstance(error, EXPECTED):
            raise error
        exceptions = DATA_EXCEPTIONS if (OF_DATA >> procedure) & 1 else NO_EXCEPTIONS
        return self.tell(<uint32_t>int(status_of(error, exceptions)), self.have.node, place)

    cdef bint seen(self, Node node, statx_t *status) except -1:
        """How the file is now; False: that needs a look."""
        if self.have is not None and self.have.looked:
            status[0] = self.have.status
            self.files.observe(node, status, False)
            return True
        return self.files.look(node, status)

    cdef OpenFile to_use(self, Node node, Standing standing, int access):
        """A descriptor to read (1) or to write (2) through; None: it has to be opened, or nothing is to be written here."""
        if self.have is not None and self.have.opened is not None:
            return self.have.opened
        if node.inode.delegated >= (2 if access == 1 else 1):
            self.files.why = RECALL
            return None
        if access == 2 and node.export.read_only:
            return None
        return self.files.opened(node, standing.credential, access)

    cdef bint holds(self, OpenFile opened) noexcept:
        """Whether it has been opened for this call, or may have lost its permission since."""
        return self.have is not None and self.have.opened is opened

    # -- procedures ----------------------------------------------------------------------------------------------
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

    cdef int readlink(self, Standing standing, Node node, Place place) except -1:
        cdef uint8_t octets[TEXT_MAX]
        cdef const uint8_t *text = octets
        cdef uint8_t *head = place.at
        cdef uint8_t *sink
        cdef statx_t after
        cdef ssize_t length
        if node.type is not LNK:
            return self.tell(NFS3ERR_INVAL, node, place)
        if self.have is not None and self.have.text is not None:
            text, length = self.have.text, len(self.have.text)
        else:
            length = self.files.readlink(standing.credential, node, octets, TEXT_MAX)
            if length < 0:
                return self.need(TEXT, node, standing)
        if not self.seen(node, &after):
            return self.need(LOOK, node, standing)
        place.at += READLINK_HEAD
        sink = place.data(length)
        if sink == NULL:
            place.at = head
            return self.tell(NFS3ERR_JUKEBOX, node, place) if place.refused else no(self.files, SIZE)
        memcpy(sink, text, length)
        place.data_done(length)
        head = store_fattr(store32(store32(head, 0), 1), &after, self.fsid_in(node, &after))
        store32(head, <uint32_t>length)
        return ANSWERED

    cdef int read(
        self, Standing standing, Node node, const uint8_t *arguments, Place place, Work brought
    ) except -1:
        cdef statx_t after
        cdef OpenFile opened
        cdef Transfer transfer = None
        cdef bint held, eof
        # Past the kernel's last offset there is no file, so that is its end (section 3.3.6, offset), not an error.
        cdef uint64_t offset = min(load64(arguments), OFFSET_MAX)
        cdef size_t count = min(
            <size_t>load32(arguments + 8), self.read_max, standing.max_read, <size_t>(OFFSET_MAX - offset)
        )
        cdef uint8_t *head = place.at
        cdef ssize_t got
        if brought is not None:
            return self.have_read(standing, node, <Transfer?>brought, place)
        if count == 0 and not self.seen(node, &after):
            return self.need(LOOK, node, standing)
        opened = self.to_use(node, standing, 1)
        if opened is None:
            return self.need(OPENING, node, standing)
        held = self.holds(opened)
        place.at += READ_HEAD
        if count == 0:
            got, eof = 0, offset >= after.size
            if place.data(0) == NULL:
                return no(self.files, SIZE)
        else:
            got = self.files.read(opened, held, offset, place, count, &after, &eof)
        if got < 0:
            place.at = head
            if self.files.why == OPEN and not held:
                return self.need(OPENING, node, standing)
            transfer = self.files.to_read(node, opened, held, offset, place, count)
            if transfer is None and place.refused:
                return self.tell(NFS3ERR_JUKEBOX, node, place)
            if transfer is None:
                return no(self.files, SIZE)
            return self.waits(transfer, None, node, standing)
        place.data_done(got)
        if held:
            self.files.observe(node, &after, False)
        return self.store_read(node, head, &after, got, eof)

    cdef int have_read(self, Standing standing, Node node, Transfer transfer, Place place) except -1:
        """What a READ has waited for is there."""
        cdef uint8_t *head = place.at
        cdef bint eof
        if transfer.data.error:
            return self.tell_data(transfer.data.error, node, place)
        place.at += READ_HEAD
        if not self.files.have_read(transfer, place, &eof):
            if self.files.why == OPEN:
                return self.need(OPENING, node, standing)
            return DECLINED
        if transfer.held:
            self.files.observe(node, &transfer.data.after, False)
        return self.store_read(node, head, &transfer.data.after, transfer.data.done, eof)

    cdef int store_read(self, Node node, uint8_t *head, statx_t *after, size_t got, bint eof) except -1:
        """READ3resok, before its data."""
        head = store_fattr(store32(store32(head, 0), 1), after, self.fsid_in(node, after))
        store32(store32(store32(head, <uint32_t>got), eof), <uint32_t>got)
        self.tally.read += got
        return ANSWERED

    cdef int write(
        self, Standing standing, Node node, const uint8_t *arguments, Place place, Work brought
    ) except -1:
        cdef statx_t before, after
        cdef OpenFile opened
        cdef Transfer transfer
        cdef bint held
        cdef uint64_t offset = load64(arguments)
        cdef uint32_t stable = load32(arguments + 12)
        cdef size_t count = min(<size_t>load32(arguments + 8), self.write_max, standing.max_write)
        cdef const uint8_t *source = arguments + 20 if place.bulk == NULL else place.bulk
        cdef ssize_t done
        cdef bytes verifier
        if brought is not None:
            return self.have_written(standing, node, stable, brought, place)
        if standing.read_only:
            return self.tell(NFS3ERR_ROFS, node, place)
        if load32(arguments + 8) != load32(arguments + 16):
            # The RFC leaves open what disagreeing counts mean; writing either number of octets could destroy data.
            return self.tell(NFS3ERR_INVAL, node, place)
        if offset > OFFSET_MAX - count:
            return self.tell(NFS3ERR_FBIG, node, place)
        # Taken before the data is handed over: should its write-back fail meanwhile, the client's COMMIT finds another
        # verifier, and the client sends the data again. The later verifier would vouch for data already lost.
        verifier = self.files.service.write_verifier
        if count == 0 and not self.seen(node, &before):
            return self.need(LOOK, node, standing)
        opened = self.to_use(node, standing, 2)
        if opened is None:
            return self.need(OPENING, node, standing)
        if count == 0:
            # Succeeds if the caller may write, and leaves mtime alone (section 3.3.7, count and IMPLEMENTATION).
            return self.store_written(node, &before, &before, 0, FILE_SYNC, verifier, place)
        held = self.holds(opened)
        done = self.files.write(
            opened, held, offset, source, count, stable != UNSTABLE, &before, &after, place.bulk != NULL
        )
        if done < 0:
            transfer = self.files.to_write(node, opened, held, offset, source, count)
            if transfer is None:
                return self.cannot_write(standing, node, held, place)
            return self.waits(transfer, None, node, standing)
        return self.store_written(node, &before, &after, done, stable, verifier, place)

    cdef int cannot_write(self, Standing standing, Node node, bint held, Place place) except -1:
        """A descriptor is not good for writing, or not yet."""
        if self.files.why == BUSY:
            return self.need(ROOM, node, standing)
        if not held:
            return self.need(OPENING, node, standing)
        return self.tell(NFS3ERR_IO, node, place)

    cdef int have_written(
        self, Standing standing, Node node, uint32_t stable, Work brought, Place place
    ) except -1:
        """What a WRITE has waited for is there: its turn on a worker is over, or the synchronisation behind that."""
        cdef Transfer transfer = <Transfer?>(brought if brought.earlier is None else brought.earlier)
        cdef int error
        if brought is transfer:
            error = self.files.have_written(transfer)
            if error == 0 and stable != UNSTABLE and not node.export.asynchronous:
                return self.waits(self.files.to_sync_written(transfer), transfer, node, standing)
        else:
            error = errno_of(<Errand?>brought)
        if error:
            return self.tell_data(error, node, place)
        return self.store_written(
            node, &transfer.data.before, &transfer.data.after, transfer.data.done, stable, transfer.verifier, place
        )

    cdef int store_written(
        self, Node node, statx_t *before, statx_t *after, size_t done, uint32_t stable, bytes verifier, Place place
    ) except -1:
        """WRITE3resok."""
        place.at = store_wcc(store32(place.at, 0), before, after, self.fsid_in(node, after))
        place.at = store32(store32(place.at, <uint32_t>done), stable)
        place.at = store_verifier(place.at, verifier)
        self.tally.written += done
        return ANSWERED

    cdef int commit(self, Standing standing, Node node, Place place, Work brought) except -1:
        cdef statx_t before, after
        cdef bint allowed
        cdef int error
        if brought is not None:
            error = errno_of(<Errand?>brought)
            if error:
                return self.tell_data(error, node, place)
            before = (<Sync>brought).before
            if not self.seen(node, &after):
                return self.need(LOOK, node, standing, brought)
            return self.store_committed(node, &before, &after, place)
        if standing.read_only:
            return self.tell(NFS3ERR_ROFS, node, place)
        if node.type is not REG:
            return self.tell(NFS3ERR_INVAL, node, place)
        if node.export.read_only:
            return self.tell(NFS3ERR_ROFS, node, place)
        if not self.seen(node, &before):
            return self.need(LOOK, node, standing)
        allowed = self.have is not None and self.have.may_commit
        if not allowed and self.files.opened(node, standing.credential, 2) is None:
            if self.have is not None and self.have.asked:
                return self.tell(NFS3ERR_ACCES, node, place)
            return self.need(COMMITTING, node, standing)
        if node.export.asynchronous:
            return self.store_committed(node, &before, &before, place)
        if self.files.commit(standing.credential, node, &before, &after):
            return self.store_committed(node, &before, &after, place)
        return self.waits(self.files.to_flush(standing.credential, node, &before), None, node, standing)

    cdef int store_committed(self, Node node, statx_t *before, statx_t *after, Place place) except -1:
        """COMMIT3resok."""
        place.at = store_wcc(store32(place.at, 0), before, after, self.fsid_in(node, after))
        # Read after the flush: if another caller's found data lost meanwhile, this client must hear of it too.
        place.at = store_verifier(place.at, self.files.service.write_verifier)
        return ANSWERED

    # -- failures ------------------------------------------------------------------------------------------------
    cdef int tell_data(self, int error, Node node, Place place) except -1:
        """The failure of READ, WRITE or COMMIT with an errno."""
        return self.tell(<uint32_t>int(status_of(OSError(error, strerror(error)), DATA_EXCEPTIONS)), node, place)

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
