"""READ, WRITE and COMMIT of NFSv4, natively (RFC 8881 sections 18.3, 18.22, 18.32; RFC 7530 sections 16.3, 16.23, 16.36).

Owns :class:`Nfs4Data`; imports :mod:`nfsd.v4.locks`, the file service's native operations and its transfers, and
:mod:`nfsd.v4.descriptors`. Data is read to where it leaves from, and written from where it arrived, by the loop's thread or
by a worker.

What is rare is an errand that changes nothing, after which the same function goes on: a descriptor opened as the caller (for
a special stateid, or because somebody else holds the stateid), a look at the file's size that may wait, the question
whether the caller may have a file synchronised.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from nfsd.v4.changes cimport status_in
from nfsd.v4.native_compound cimport Arguments, left, padded, room
from nfsd.v4.locks cimport Nfs4Locks
from nfsd.v4.owners cimport store_stateid
from nfsd.vfs.attributes cimport statx_t, status_in as looked_in
from nfsd.vfs.native_files cimport no, other_device
from nfsd.vfs.records cimport Node, OpenFile
from nfsd.vfs.transfers cimport Sync, Transfer, errno_of
from nfsd.wire.nfs4 cimport (
    FILE_SYNC4, NFS4ERR_ACCESS, NFS4ERR_BADXDR, NFS4ERR_BAD_STATEID, NFS4ERR_DELAY, NFS4ERR_FBIG, NFS4ERR_INVAL, NFS4ERR_IO,
    NFS4ERR_ROFS, NFS4_OK, OP_COMMIT, OP_READ, OP_WRITE, READ4args_SIZE,
    UNSTABLE4, stateid4_SIZE,
)
from rpcrdma.declined cimport BUSY, OPEN, SIZE, STATE
from rpcrdma.place cimport ANSWERED, Place, load32, load64, store32
from rpcrdma.rpc.work cimport Errand, Work

from nfsd.state import Nfs4Error
from nfsd.state.types import Stateid
from nfsd.v4.descriptors import may_commit, open_as

cdef enum:
    RESULT_OVERHEAD = 128       # octets of the reply that a READ leaves, for its own result and what stands behind it
    WRITE_HEAD = stateid4_SIZE + 16     # of its arguments: stateid, offset, stable, and the length of the data

cdef uint64_t OFFSET_MAX = 0x7FFFFFFFFFFFFFFF


cdef class Opening(Errand):
    """A file is opened for one READ or WRITE, and stays open until that is over."""

    cdef OpenFile opened

    def __del__(self):
        if self.coroutine is not None:
            self.coroutine.close()
        if self.opened is not None:
            self.opened.let_go()

    def ended(self, result, error):
        if error is None:
            self.opened = <OpenFile?>result
        Errand.ended(self, None, error)


cdef Opening opening_of(Work brought):
    """The descriptor that has been opened for the present operation; None: there is none."""
    while brought is not None:
        if isinstance(brought, Opening):
            return brought
        brought = brought.earlier
    return None


cdef class Nfs4Data(Nfs4Locks):
    # -- whose I/O it is -------------------------------------------------------------------------------------------
    cdef OpenFile opened(self, const uint8_t *stateid, bint write, bint *held):
        """A descriptor for I/O under a stateid. ``held``: it is the open's or the delegation's, which needs no permission any
        more. None: the stateid is good for nothing (``failure``), or a descriptor is to be opened as the caller."""
        cdef uint8_t octets[stateid4_SIZE]
        cdef OpenFile opened
        cdef Node node = self.current
        self.special = held[0] = False
        if self.is_current(stateid):
            stateid = octets
            store_stateid(octets, self.stateid)
        descriptors = self.state.opened_of(self.client, stateid, node.key, write)
        if descriptors is None:
            descriptors = self.checked(stateid, write)
            if self.failure:
                return None
        caller = self.caller.credential
        if descriptors is not None:
            if write:
                opened, opener = descriptors.write, descriptors.writer
            else:
                opened, opener = descriptors.read, descriptors.reader
            held[0] = opened is not None and (opener is caller or opener == caller)
            if held[0]:
                return opened
        if self.special and node.inode.delegated >= (1 if write else 2):
            return None
        if write and node.export.read_only:
            self.failure = NFS4ERR_ROFS
            return None
        # The look comes first: it may tell that permissions have changed.
        if not self.look():
            return None
        opened = self.files.opened(node, self.standing.credential, 2 if write else 1)
        if opened is not None and self.special and write:
            self.delegations.pause(node.key)
        return opened

    cdef object checked(self, const uint8_t *stateid, bint write):
        """As :meth:`StateidTable.check_io`: what the stateid's open or delegation has open, if it is none of the common ones.
        ``failure`` is set, or ``special``: nothing has been opened."""
        engine = self.server.engine
        issued = engine.writes_issued
        self.files.pause()
        try:
            state = engine.stateids.check_io(
                Stateid(load32(stateid), <bytes>stateid[4:stateid4_SIZE]), self.client, self.current.key, write=write
            )
        except Nfs4Error as error:
            self.failure = error.status
            return None
        finally:
            # A client was heard of that had not been: the reply waits until that is on stable storage.
            self.changed |= engine.writes_issued != issued
        self.special = state is None
        return None if state is None else state.opened

    cdef int not_opened(self, bint write, Place place) except -1:
        """What becomes of a READ or WRITE for which :meth:`opened` has found nothing."""
        if self.failure:
            return self.fail(self.failure, place)
        self.files.why = OPEN if not self.special else STATE
        client = self.client
        if client is None:
            client = self.server.speaker(self.caller.transport)
        return self.wait_for(
            Opening(open_as(self.server, client, self.standing.credential, self.current, self.special, write)), None
        )

    cdef uint32_t irregular(self, const uint8_t *stateid=NULL) noexcept:
        """NFS4_OK, or what a file that is no regular one deserves; before that, what a ``stateid`` does that stands for
        none."""
        if stateid != NULL and self.stateid is None and self.is_current(stateid):
            return NFS4ERR_BAD_STATEID
        return self.not_regular(self.current)

    cdef int saw(self, Node node) except -1:
        """``status`` is what was seen of a file: it serves a GETATTR, unless the file is another export's."""
        self.seen = False
        if node is self.current and self.index + 1 < self.operations:
            self.seen = self.files.take(self.current, &self.status)
        return 0

    # -- READ ------------------------------------------------------------------------------------------------------
    cdef int read(self, Arguments *arguments, Place place) except -1:
        cdef Work brought = self.brought_here()
        cdef Opening opening = opening_of(brought)
        cdef OpenFile opened
        cdef Transfer transfer
        cdef uint64_t offset
        cdef uint32_t status
        cdef size_t count, used
        cdef ssize_t got
        cdef bint eof = False, held = True
        if left(arguments) < READ4args_SIZE:
            return self.fail(NFS4ERR_BADXDR, place)
        if (self.general is None and (self.beside or self.cachethis)) or not room(place, 16):
            return no(self.files, SIZE)  # a kept reply stands in one piece
        if isinstance(brought, Transfer) and not (<Transfer>brought).unpoured():
            return self.have_read(arguments, <Transfer>brought, place)
        if isinstance(brought, Errand) and (<Errand>brought).error is not None:
            return self.not_brought(<Errand>brought, place)
        status = self.irregular(arguments.at)
        if status != NFS4_OK:
            return self.fail(status, place)
        # Past the kernel's last offset there is no file, so that is its end, not an error.
        offset = min(load64(arguments.at + stateid4_SIZE), OFFSET_MAX)
        count = load32(arguments.at + stateid4_SIZE + 8)
        used = self.size(place) + 4 + RESULT_OVERHEAD
        if count and used >= self.limit:
            return self.fail_too_big(place)
        count = min(count, self.max_transfer, self.standing.max_read, <size_t>(OFFSET_MAX - offset))
        opened = self.opened(arguments.at, False, &held) if opening is None else opening.opened
        if opened is None:
            return self.not_opened(False, place)
        if count == 0:
            return self.read_nothing(arguments, offset, brought, place)
        count = min(count, self.limit - used)
        place.at += 16
        got = self.files.read(opened, held, offset, place, count, &self.status, &eof)
        if got < 0:
            if self.files.why == OPEN and not held:
                return self.not_opened(False, place)
            if self.data_at != NULL:
                return no(self.files, SIZE)  # a READ of nothing has left a payload, and the wait would drop it
            transfer = self.files.to_read(self.current, opened, held, offset, place, count, isinstance(brought, Transfer))
            if transfer is None:
                return self.fail(NFS4ERR_DELAY, place) if place.refused else no(self.files, SIZE)
            return self.wait_for(transfer, brought)
        place.data_done(got)
        return self.store_read(arguments, opened.node, got, eof, place)

    cdef int have_read(self, Arguments *arguments, Transfer transfer, Place place) except -1:
        """What a READ has waited for is there."""
        cdef bint eof
        if transfer.data.error:
            return self.fail(status_in(transfer.data.error), place)
        place.at += 16
        if not self.files.have_read(transfer, place, &eof):
            if self.files.why != OPEN:
                return no(self.files, SIZE)
            self.special = False  # its delegations have been asked about
            return self.not_opened(False, place)
        self.status = transfer.data.after
        return self.store_read(arguments, transfer.opened.node, transfer.data.done, eof, place)

    cdef int read_nothing(self, Arguments *arguments, uint64_t offset, Work brought, Place place) except -1:
        """A READ of no octets, or behind where files can end."""
        cdef uint64_t size
        if isinstance(brought, Errand) and not isinstance(brought, Opening):
            size = looked_in((<Errand>brought).result).size
        elif self.look():
            size = self.status.size
        else:
            return self.wait_for(Errand(self.server.service.look(self.current)), brought)
        place.at += 16
        if place.data(0) == NULL:
            return no(self.files, SIZE)
        place.data_done(0)
        return self.store_read(arguments, None, 0, offset >= size, place)

    cdef int store_read(self, Arguments *arguments, Node node, size_t got, bint eof, Place place) except -1:
        """READ4resok, before its data. ``node``: ``status`` is its."""
        cdef uint8_t *head = self.result_at
        store32(store32(store32(store32(head, OP_READ), 0), eof), <uint32_t>got)
        if place.at == head + 16:
            self.beside += padded(got)
            if self.data_at == NULL and self.general is None:
                self.data_at, self.data_result_at, self.data_index = self.part_at, self.result_at, self.index
                self.data_octets = 0
            self.data_octets += got
        arguments.at += READ4args_SIZE
        self.octets_read += got
        if node is not None:
            self.saw(node)
        return ANSWERED

    # -- WRITE -----------------------------------------------------------------------------------------------------
    cdef int write(self, Arguments *arguments, Place place) except -1:
        cdef const uint8_t *source = arguments.at + WRITE_HEAD
        cdef const uint8_t *behind = source
        cdef size_t count
        cdef bint fetched = self.bulk_wanted != NULL and self.bulk_wanted == source
        cdef int outcome
        if left(arguments) < WRITE_HEAD or load32(arguments.at + stateid4_SIZE + 8) > FILE_SYNC4:
            return self.malformed(place)
        count = load32(arguments.at + WRITE_HEAD - 4)
        if fetched:
            # The chunk is the item, or the item with its padding (RFC 8166 section 3.4.5.2).
            if place.bulk_size != count and place.bulk_size != padded(count):
                return self.malformed(place)
            source = place.bulk
        else:
            behind += padded(count)
            if left(arguments) < WRITE_HEAD + padded(count) or (self.bulk_wanted != NULL and self.bulk_wanted < behind):
                return self.malformed(place)
        if not room(place, 24):
            return no(self.files, SIZE)
        outcome = self.written(arguments.at, source, count, fetched, place)
        if outcome == ANSWERED:
            arguments.at = behind
            if fetched or self.failure:
                self.bulk_wanted = NULL
        return outcome

    cdef int malformed(self, Place place) except -1:
        """A WRITE's arguments do not decode, or a chunk took something else out of them (RFC 8166 section 4.5.2)."""
        self.bulk_wanted = NULL
        return self.fail(NFS4ERR_BADXDR, place)

    cdef int written(
        self, const uint8_t *arguments, const uint8_t *source, size_t count, bint fetched, Place place
    ) except -1:
        """A WRITE with so many octets of data."""
        cdef OpenFile opened
        cdef Work brought = self.brought_here()
        cdef Opening opening = opening_of(brought)
        cdef Transfer transfer
        cdef uint32_t status
        cdef uint32_t stable = load32(arguments + stateid4_SIZE + 8)
        cdef uint64_t offset = load64(arguments + stateid4_SIZE)
        cdef ssize_t done
        cdef statx_t before
        cdef bytes verifier
        cdef bint held = True
        if brought is not None and (isinstance(brought, Transfer) or isinstance(brought.earlier, Transfer)):
            return self.have_written(brought, stable, place)
        if isinstance(brought, Errand) and (<Errand>brought).error is not None:
            return self.not_brought(<Errand>brought, place)
        status = self.unwritable(arguments, offset, count)
        if status != NFS4_OK:
            return self.fail(status, place)
        # Taken before the data is handed over: should its write-back fail meanwhile, the client's COMMIT finds another
        # one, and the client sends the data again (RFC 8881 section 18.32.3). The later one would vouch for data already lost.
        verifier = self.current.write_back.verifier
        opened = self.opened(arguments, True, &held) if opening is None else opening.opened
        if opened is None:
            return self.not_opened(True, place)
        if count == 0:
            return self.store_written(0, stable, verifier, place)
        count = min(count, self.max_transfer, self.standing.max_write)
        done = self.files.write(opened, held, offset, source, count, stable != UNSTABLE4, &before, &self.status, fetched)
        if done < 0:
            transfer = self.files.to_write(self.current, opened, held, offset, source, count, self.caller)
            if transfer is not None:
                return self.wait_for(transfer, brought)
            if self.files.why == BUSY:
                return self.wait_for(Errand(self.server.service.unstable.make_room(opened.node.inode)), opening)
            return self.fail(NFS4ERR_IO, place) if held else self.not_opened(True, place)
        self.saw_written(opened.node)
        return self.store_written(done, stable, verifier, place)

    cdef uint32_t unwritable(self, const uint8_t *stateid, uint64_t offset, size_t count) noexcept:
        """NFS4_OK, or why the current file takes no such WRITE."""
        if self.standing.read_only:
            return NFS4ERR_ROFS
        if offset > OFFSET_MAX - count:
            return NFS4ERR_FBIG if self.minor else NFS4ERR_INVAL
        return self.irregular(stateid)

    cdef int have_written(self, Work brought, uint32_t stable, Place place) except -1:
        """What a WRITE has waited for is there: its turn on a worker is over, or the synchronisation behind that."""
        cdef Transfer transfer = <Transfer?>(brought if isinstance(brought, Transfer) else brought.earlier)
        cdef int error
        if brought is transfer:
            if not self.files.was_written(transfer):
                self.special = False  # its delegations have been asked about
                return self.not_opened(True, place)
            error = self.files.have_written(transfer)
            if error == 0 and stable != UNSTABLE4 and not transfer.opened.node.export.late_data:
                return self.wait_for(self.files.to_sync_written(transfer), transfer)
        else:
            error = errno_of(<Errand?>brought)
        if error:
            return self.fail(status_in(error), place)
        self.status = transfer.data.after
        self.saw_written(transfer.opened.node)
        return self.store_written(transfer.data.done, stable, transfer.verifier, place)

    cdef int saw_written(self, Node node) except -1:
        """``status`` is what a WRITE has left of a file. The file service has observed it."""
        self.seen = node is self.current and (self.files.tells_devices or not other_device(node, &self.status))
        return 0

    cdef int store_written(self, size_t done, uint32_t stable, bytes verifier, Place place) except -1:
        """WRITE4resok."""
        place.at = store32(store32(place.at, OP_WRITE), 0)
        place.at = store32(store32(place.at, <uint32_t>done), stable)
        memcpy(place.at, <const uint8_t *>verifier, 8)
        place.at += 8
        self.octets_written += done
        return ANSWERED

    # -- COMMIT ----------------------------------------------------------------------------------------------------
    cdef int commit(self, Arguments *arguments, Place place) except -1:
        cdef Work brought = self.brought_here()
        cdef Node node = self.current
        cdef uint32_t status
        cdef bint allowed = False
        cdef statx_t before
        cdef bytes verifier
        if left(arguments) < 12:
            return self.fail(NFS4ERR_BADXDR, place)
        if not room(place, 16):
            return no(self.files, SIZE)
        if isinstance(brought, Errand) and (<Errand>brought).error is not None:
            return self.not_brought(<Errand>brought, place)
        if not isinstance(brought, Sync):
            status = self.uncommittable(arguments)
            if status != NFS4_OK:
                return self.fail(status, place)
            # The look comes first: it may tell that permissions have changed.
            if brought is not None:
                allowed = (<Errand>brought).result
                if not allowed:
                    return self.fail(NFS4ERR_ACCESS, place)
            elif self.files.look(node, &before):
                allowed = not self.standing.only and self.files.opened(node, self.standing.credential, 2) is not None
            if not allowed:
                return self.wait_for(Errand(may_commit(
                    self.server, self.client, self.caller.credential, self.standing.credential, node,
                    as_machine=bool(self.standing.only),
                )), None)
            if node.export.late_data:
                self.seen = False
            elif self.files.commit(self.standing.credential, node, &before, &self.status):
                self.seen = True
            else:
                return self.wait_for(self.files.to_flush(self.standing.credential, node, &self.status), None)
        else:
            self.seen = self.files.look(node, &self.status)
        # Read after the flush: if another caller's found data lost meanwhile, this client must hear of it, too.
        verifier = self.current.write_back.verifier
        arguments.at += 12
        place.at = store32(store32(place.at, OP_COMMIT), 0)
        memcpy(place.at, <const uint8_t *>verifier, 8)
        place.at += 8
        return ANSWERED

    cdef uint32_t uncommittable(self, Arguments *arguments) noexcept:
        """NFS4_OK, or why nothing of the current file is to be synchronised for this client."""
        cdef uint32_t status
        if self.standing.read_only:
            return NFS4ERR_ROFS
        status = self.irregular()
        if status != NFS4_OK:
            return status
        if load64(arguments.at) > <uint64_t>0xFFFFFFFFFFFFFFFF - load32(arguments.at + 8):
            return NFS4ERR_INVAL
        return NFS4ERR_ROFS if self.current.export.read_only else NFS4_OK
