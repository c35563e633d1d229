# distutils: extra_compile_args = -O2
"""READLINK, READ, WRITE and COMMIT of NFSv3, natively (RFC 1813 sections 3.3.5 to 3.3.7 and 3.3.21).

Owns :class:`Nfs3Data`; imports the file service's native operations, its transfers and :mod:`nfsd.v3.needs`. Data is
read to where it leaves from, and written from where it arrived, by the loop's thread or by a worker.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from nfsd.v3.attributes cimport Nfs3Attributes
from nfsd.v3.fattr cimport store_fattr, store_wcc
from nfsd.v3.needs cimport COMMITTING, LOOK, OPENING, ROOM, TEXT
from nfsd.vfs.attributes cimport statx_t
from nfsd.vfs.native_files cimport Standing, no
from nfsd.vfs.records cimport Node, OpenFile
from nfsd.vfs.transfers cimport Sync, Transfer, errno_of
from nfsd.wire.nfs3 cimport (
    FILE_SYNC, NFS3ERR_ACCES, NFS3ERR_FBIG, NFS3ERR_INVAL, NFS3ERR_IO, NFS3ERR_JUKEBOX, NFS3ERR_ROFS, READ3resok_MAX,
    UNSTABLE, fattr3_SIZE,
)
from rpcrdma.declined cimport BUSY, OPEN, RECALL, SIZE
from rpcrdma.octets cimport load32, load64, store32
from rpcrdma.place cimport ANSWERED, DECLINED, Place
from rpcrdma.rpc.work cimport Errand, Work

from os import strerror

from nfsd.v3.errors import DATA_EXCEPTIONS, status_of
from nfsd.vfs.types import FileType

cdef enum:
    READ_HEAD = 4 + READ3resok_MAX
    READLINK_HEAD = 4 + 4 + fattr3_SIZE + 4
    TEXT_MAX = 4096         # octets of a symbolic link (PATH_MAX)

cdef uint64_t OFFSET_MAX = 0x7FFFFFFFFFFFFFFF
cdef object REG = FileType.REG
cdef object LNK = FileType.LNK


cdef inline uint8_t *store_verifier(uint8_t *at, bytes verifier):
    """A writeverf3."""
    cdef const uint8_t *octets = verifier
    memcpy(at, octets, 8)
    return at + 8


cdef class Nfs3Data(Nfs3Attributes):
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
        if brought is not None and not (<Transfer?>brought).unpoured():
            return self.have_read(standing, node, <Transfer>brought, place)
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
            transfer = self.files.to_read(node, opened, held, offset, place, count, brought is not None)
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
        verifier = node.write_back.verifier
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
            transfer = self.files.to_write(node, opened, held, offset, source, count, self.caller)
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
            if not self.files.was_written(transfer):
                return self.need(OPENING, node, standing)
            error = self.files.have_written(transfer)
            if error == 0 and stable != UNSTABLE and not node.export.late_data:
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
        if node.export.late_data:
            return self.store_committed(node, &before, &before, place)
        if self.files.commit(standing.credential, node, &before, &after):
            return self.store_committed(node, &before, &after, place)
        return self.waits(self.files.to_flush(standing.credential, node, &before), None, node, standing)

    cdef int store_committed(self, Node node, statx_t *before, statx_t *after, Place place) except -1:
        """COMMIT3resok."""
        place.at = store_wcc(store32(place.at, 0), before, after, self.fsid_in(node, after))
        # Read after the flush: if another caller's found data lost meanwhile, this client must hear of it too.
        place.at = store_verifier(place.at, node.write_back.verifier)
        return ANSWERED

    # -- failures ------------------------------------------------------------------------------------------------
    cdef int tell_data(self, int error, Node node, Place place) except -1:
        """The failure of READ, WRITE or COMMIT with an errno."""
        return self.tell(<uint32_t>int(status_of(OSError(error, strerror(error)), DATA_EXCEPTIONS)), node, place)
