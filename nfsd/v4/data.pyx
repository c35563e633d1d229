"""READ, WRITE and COMMIT of NFSv4, natively (RFC 8881 sections 18.3, 18.22, 18.32; RFC 7530 sections 16.3, 16.23, 16.36).

Owns :class:`Nfs4Data`; imports :mod:`nfsd.v4.direct_locks`, the file service's direct operations and its transfers. Data is
read to where it leaves from, and written from where it arrived, by the loop's thread or by a worker.
"""

from libc.errno cimport EAGAIN, EINTR, ESTALE
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from nfsd.v4.direct_changes cimport status_in
from nfsd.v4.direct_compound cimport Arguments, left, padded, room
from nfsd.v4.direct_locks cimport DirectLocks
from nfsd.vfs.attributes cimport statx_t
from nfsd.vfs.direct cimport no
from nfsd.vfs.records cimport Node, OpenFile
from nfsd.vfs.transfers cimport Sync, Transfer, errno_of
from nfsd.wire.nfs4 cimport (
    FILE_SYNC4, NFS4ERR_BAD_STATEID, NFS4ERR_FBIG, NFS4ERR_INVAL, NFS4ERR_ISDIR, NFS4ERR_ROFS, NFS4ERR_SYMLINK,
    NFS4ERR_WRONG_TYPE, NFS4_OK, OP_COMMIT, OP_READ, OP_WRITE, READ4args_SIZE, UNSTABLE4, stateid4_SIZE,
)
from rpcrdma.declined cimport CHUNKS, FAILED, SIZE, STATE
from rpcrdma.place cimport ANSWERED, DECLINED, Place, load32, load64, store32
from rpcrdma.rpc.work cimport Errand, Work

from nfsd.state import Nfs4Error
from nfsd.state.types import Stateid
from nfsd.v4.ops.data import RESULT_OVERHEAD
from nfsd.vfs.types import FileType

cdef size_t _result_overhead = RESULT_OVERHEAD
cdef object REG = FileType.REG
cdef object DIR = FileType.DIR
cdef object LNK = FileType.LNK
cdef uint64_t OFFSET_MAX = 0x7FFFFFFFFFFFFFFF


cdef class Nfs4Data(DirectLocks):
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
