"""COMPOUND and SEQUENCE in native code (RFC 8881 sections 16.2, 2.10.6 and 18.46; RFC 7530 section 15.2).

Owns :class:`DirectCompound`, from which :mod:`nfsd.v4.direct` derives, with the operations. Imports the direct parts of the
state engine and the file service, :mod:`rpcrdma.place` and :mod:`rpcrdma.rpc.direct`.

SEQUENCE comes first, and is carried out first: the COMPOUND holds its slot, so that a retransmission finds it in use (RFC
8881 section 2.10.6.2). One that is declined gives the slot back as it was. NFSv4.0 has no sessions: its COMPOUNDs begin
with their first operation, stateids tell the client, and one that may change something is under the RPC replay cache.

Handing over. Where the handler goes on in the same stack (a general call, :mod:`rpcrdma.rpc.offers`), what stands before an
operation that is declined is not done again: it goes along, with the slot (:mod:`nfsd.v4.halfway`).

Waiting. A COMPOUND of which an operation has to wait keeps its slot, and is offered again from its beginning: what stands
before that operation has changed nothing, and is done once more. A REMOVE or a SETATTR waits only behind nothing but SEQUENCE
and PUTFH, which find again what they found before.

Operation. Every operation may decline the whole COMPOUND, as long as none of them has changed anything. OPEN, CLOSE, LOCK
and LOCKU are prepared, and carried out at the end. What stands behind a WRITE, a REMOVE or a SETATTR is looked at before
it, so that it cannot be declined any more: only a GETATTR may stand there. What an operation has seen of its file serves
the GETATTR behind it.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from nfsd.state.direct cimport DirectState
from nfsd.state.records cimport Slot
from nfsd.state.sequence cimport SequenceRequest, Sequencer
from nfsd.v4.direct_attributes cimport DirectAttributes
from nfsd.v4.halfway cimport Halfway
from nfsd.vfs.direct cimport no
from nfsd.vfs.direct_names cimport DirectNames
from nfsd.wire.nfs4 cimport (
    OP_ACCESS, OP_COMMIT, OP_CREATE, OP_GETATTR, OP_GETFH, OP_LINK, OP_LOOKUP, OP_PUTFH, OP_READ, OP_REMOVE, OP_RENAME, OP_RENEW,
    OP_SEQUENCE, OP_SETATTR, READ4args_SIZE, SEQUENCE4args_SIZE, SEQUENCE4resok_SIZE,
)
from rpcrdma.declined cimport PROCEDURE, RARE, RECALL, REPLAY, SIZE, STATE, VERSION
from rpcrdma.place cimport ANSWERED, DECLINED, WAITS, Place, load32, store32
from rpcrdma.rpc.direct cimport Caller, DirectProgram
from rpcrdma.rpc.work cimport Work

from zlib import crc32

from nfsd.protocol import nfs4 as declared
from nfsd.v4.ops.sessions import FINGERPRINTED
from nfsd.versions import of_minor
from rpcrdma.log_limits import limited_logger

_log = limited_logger(__name__)

cdef extern from "Python.h":
    const int PyBUF_READ

cdef enum:
    COMPOUND = 1
    TAG_MAX = 64
    OPERATIONS = 8
    OFFERS = 8              # of a COMPOUND whose operations wait one after the other
    RPC_HEADER = 24         # of an accepted reply
    SEQUENCE_RESULT = 8 + SEQUENCE4resok_SIZE       # with its number and status


cdef bint changes_unguarded(const uint8_t *at, const uint8_t *end) noexcept nogil:
    """See the .pyi. One that does not decode here gets no further than to there."""
    cdef size_t operations, length
    if end - at < 4:
        return False
    length = load32(at)
    if <size_t>(end - at) < 12 + padded(length):
        return False
    at += 4 + padded(length)
    if load32(at):
        return False
    operations = load32(at + 4)
    at += 8
    while operations and end - at >= 4:
        operations -= 1
        length = 0 if end - at < 8 else load32(at + 4)
        if load32(at) == OP_PUTFH or load32(at) == OP_LOOKUP:
            length = 8 + padded(<size_t>length)
        elif load32(at) == OP_GETATTR:
            length = 8 + 4 * length
        elif load32(at) == OP_READ:
            length = 4 + READ4args_SIZE
        elif load32(at) == OP_ACCESS:
            length = 8
        elif load32(at) == OP_COMMIT:
            length = 16
        elif load32(at) == OP_RENEW:
            length = 12
        elif load32(at) == OP_GETFH:
            length = 4
        else:
            return True
        if <size_t>(end - at) < length:
            return False
        at += length
    return False


def unguarded(arguments):
    cdef Py_buffer octets
    PyObject_GetBuffer(arguments, &octets, PyBUF_SIMPLE)
    try:
        return changes_unguarded(<const uint8_t *>octets.buf, <const uint8_t *>octets.buf + octets.len)
    finally:
        PyBuffer_Release(&octets)


assert FINGERPRINTED <= 256

cdef size_t _fingerprinted = FINGERPRINTED
cdef uint32_t[3] OF_MINORS
OF_MINORS[0], OF_MINORS[1], OF_MINORS[2] = of_minor(0), of_minor(1), of_minor(2)


cdef class DirectCompound(DirectProgram):
    def __init__(self, server):
        self.server = server
        self.files = DirectNames(server.service)
        self.state = DirectState(server.engine)
        self.sequencer = <Sequencer?>server.engine.sessions.sequencer
        self.attributes = DirectAttributes(server, self.files)
        self.delegations = server.engine.delegations
        self.max_transfer = server.max_transfer
        self.max_reply = server.max_reply
        self.versions = server.versions
        self.counts = server.counts
        self.procedures = 1 << COMPOUND
        self.guarded = 0
        for number in declared.nfs_opnum4:
            if number.value < len(self.declined.names):
                self.declined.names[number.value] = number.name.removeprefix("OP_")
                self.waited.names[number.value] = number.name.removeprefix("OP_")

    cdef int pause(self) except -1:
        return self.files.pause()

    cdef bint guards(self, uint32_t procedure, const uint8_t *arguments, size_t size) except -1:
        return changes_unguarded(arguments, arguments + size)

    cdef int reason(self, uint32_t procedure, uint32_t *row) noexcept:
        """Counted by operation, or as COMPOUND where there is none yet."""
        row[0] = self.number
        return self.files.why

    cdef int answer(
        self, Caller caller, uint32_t procedure, const uint8_t *arguments, size_t size, Place place, Work brought
    ) except -1:
        cdef Arguments rest
        cdef int outcome
        rest.at, rest.end = arguments, arguments + size
        self.caller = caller
        self.changing = self.done = False
        self.part_at = NULL
        self.failure = 0
        self.number = COMPOUND
        self.files.why = RARE
        self.brought = brought
        self.begun = None if brought is None else brought.kept
        self.slot = None if brought is None else self.begun.slot
        self.turn = None if brought is None else self.begun.turn
        try:
            self.bulk_wanted = <const uint8_t *>NULL if place.bulk == NULL else place.bulk_at
            outcome = self.compound(&rest, caller.header + size + padded(place.bulk_size), place)
            if outcome == DECLINED and not self.hand_over(arguments, place):
                if self.done:
                    raise RuntimeError(f"operation {self.number} is declined behind a change")
                self.give_back()
            return outcome
        except Exception as error:
            if self.turn is not None:
                self.turn.abandon()
            if self.changing or self.begun is not None:
                if self.slot is not None:
                    self.slot.finish(None)
                raise  # the caller learns that something may have happened
            self.give_back()
            # Nothing but WRITEs, which may be repeated: the general path says which operation failed, and in the slot.
            _log.error("%s: a COMPOUND is not answered natively", caller.transport, exc_info=error)
            return DECLINED
        finally:
            self.forget()
            self.brought = None
            self.begun = None
            self.turn = None
            self.caller = None
            self.session = None
            self.slot = None
            self.client = None
            self.opened_by = None
            self.current = self.saved = None
            self.standing = self.saved_standing = None

    cdef int give_back(self) except -1:
        """The COMPOUND is declined: its request is to be begun by others."""
        if self.slot is not None:
            self.slot.withdraw()
        return 0

    cdef bint parts(self) noexcept:
        """Whether what has been done may be told from what is to be done: nothing is prepared, and no data stand beside
        the results. For those who derive from this, too."""
        cdef size_t index
        for index in range(self.index):
            if self.numbers[index] == OP_READ:
                return False
        return self.index > 0

    cdef bint hand_over(self, const uint8_t *arguments, Place place) except -1:
        """The present operation is declined: others go on from there, if they can. What stands before it is done."""
        cdef Halfway halfway
        if self.part_at == NULL or not self.parts() or RPC_HEADER + (self.result_at - self.start) > <ssize_t>self.limit:
            return False
        if place.bulk != NULL and (self.bulk_wanted == NULL or self.bulk_wanted < self.part_at):
            return False  # it has been used, or should have been
        halfway = Halfway.__new__(Halfway)
        halfway.index, halfway.offset = self.index, self.part_at - arguments
        halfway.current, halfway.saved = self.current, self.saved
        halfway.results = PyBytes_FromStringAndSize(<char *>self.start, self.result_at - self.start)
        halfway.session, halfway.room = self.session, self.limit
        if self.session is not None:
            halfway.sequence = (
                self.session.sessionid, self.slot.seqid, self.slotid, self.highest_slotid, self.cachethis
            )
        halfway.changed = self.changing or self.octets_written > 0
        if not place.pass_on(halfway):
            return False
        halfway.slot = self.slot
        self.count(self.index)
        halfway.shown, halfway.tally = self.shown, self.tally
        return True

    cdef bint sequence(self, Arguments *arguments, size_t octets, Place place) except -1:
        """Carry out the first operation, if it is a SEQUENCE that begins a new request, or that this COMPOUND has begun
        with; everything else is for the general path to say."""
        cdef SequenceRequest request
        cdef Sequencer sequencer = self.sequencer
        cdef uint8_t *at = place.at
        if left(arguments) < 4 + SEQUENCE4args_SIZE or load32(arguments.at) != OP_SEQUENCE:
            return no(self.files, PROCEDURE)
        self.number = OP_SEQUENCE
        if load32(arguments.at + 32) > 1:
            return False
        request.sessionid = arguments.at + 4
        request.sequenceid = load32(arguments.at + 20)
        self.slotid = request.slotid = load32(arguments.at + 24)
        self.highest_slotid = request.highest_slotid = load32(arguments.at + 28)
        self.cachethis = request.cachethis = load32(arguments.at + 32)
        request.operations = self.operations
        request.octets = octets
        arguments.at += 4 + SEQUENCE4args_SIZE
        if self.begun is not None:
            self.session, self.flags = self.begun.session, self.begun.flags
        else:
            if sequencer.run(self.caller.transport, &request, self.fingerprint(arguments, place)) != 0:
                return no(self.files, STATE)
            if sequencer.verdict != 0:
                return no(self.files, REPLAY)
            self.session, self.slot = sequencer.session, sequencer.slot
            sequencer.session, sequencer.slot = None, None
            if sequencer.bound:
                self.server.met(self.caller.transport, self.session.client)
            self.flags = self.session.status_flags()
        self.client = self.session.client
        # The bounds that the session put on replies (RFC 8881 section 2.10.6.4).
        self.limit = self.session.max_response
        if self.cachethis:
            self.limit = min(self.limit, self.session.max_cached + RPC_HEADER)
        at = store32(store32(at, OP_SEQUENCE), 0)
        memcpy(at, request.sessionid, 24)  # session, sequence id and slot
        at = store32(store32(at + 24, self.session.highest_slotid), self.session.target_highest_slotid)
        place.at = store32(at, self.flags)
        self.numbers[0] = OP_SEQUENCE
        return True

    cdef int compound(self, Arguments *arguments, size_t octets, Place place) except -1:
        """Answer a COMPOUND whose call has so many octets."""
        cdef const uint8_t *tag = arguments.at + 4
        cdef const uint8_t *whole = arguments.at
        cdef uint32_t length, number
        cdef size_t first = 0
        cdef int outcome
        if not self.begins(arguments, &length):
            return DECLINED
        if not room(place, 12 + padded(length) + SEQUENCE_RESULT):
            return no(self.files, SIZE)
        self.start = place.at
        self.beside = 0
        place.at = store_opaque(store32(place.at, 0), tag, length)
        place.at = store32(place.at, <uint32_t>self.operations)
        self.cachethis, self.limit = False, self.max_reply
        if not self.minor:
            # The replay cache keeps what stands in one piece: data that stand beside it would be missing there.
            self.cachethis = changes_unguarded(whole, arguments.end)
        else:
            if not self.sequence(arguments, octets, place):
                return DECLINED
            first = 1
        self.seen = False
        self.octets_read = self.octets_written = 0
        for self.index in range(first, self.operations):
            self.part_at, self.result_at = arguments.at, place.at
            if left(arguments) < 4:
                return DECLINED
            self.number = number = load32(arguments.at)
            self.files.why = RARE
            arguments.at += 4
            self.changing |= (
                number == OP_REMOVE or number == OP_SETATTR or number == OP_CREATE or number == OP_RENAME or number == OP_LINK
            )
            outcome = self.operation(number, arguments, place)
            if outcome == WAITS:
                return self.held_up()
            if outcome == DECLINED:
                return DECLINED
            self.numbers[self.index] = <uint8_t>number
            if self.failure:
                store32(store32(self.start, self.failure) + 4 + padded(length), <uint32_t>self.index + 1)
                return self.end(self.index + 1, place)
        self.part_at = NULL
        if left(arguments) or self.bulk_wanted != NULL:
            return DECLINED  # nothing belongs there, and the general path tells what to do about it
        return self.end(self.operations, place)

    cdef int end(self, size_t operations, Place place) except -1:
        """So many operations have been carried out, or are prepared."""
        self.part_at = NULL
        self.changing = True
        if self.size(place) > self.limit:
            return no(self.files, SIZE)
        if not self.carry_out():
            return DECLINED
        if self.slot is not None:
            self.slot.finish(self.kept(place))
        self.count(operations)
        if self.failure:
            self.count_failure()
        return ANSWERED

    cdef int fail(self, uint32_t status, Place place) except -1:
        """The present operation fails, and the COMPOUND ends with its result."""
        self.failure = status
        place.at = store32(store32(self.result_at, self.number), status)
        return ANSWERED

    cdef int count_failure(self) except -1:
        if self.tally is not None:
            self.tally.errors += 1
        name = declared.nfs_opnum4(self.number).name.removeprefix("OP_")
        self.server.exports.usage.failed(4, name, declared.nfsstat4(self.failure).name.removeprefix("NFS4ERR_"))
        return 0

    cdef bytes kept(self, Place place):
        """The reply as its slot keeps it: None unless the client has asked for that, or it is a lone SEQUENCE's."""
        if not self.cachethis and self.operations > 1:
            return None
        if self.size(place) - RPC_HEADER > self.session.max_cached:
            return None
        return PyBytes_FromStringAndSize(<char *>self.start, place.at - self.start)

    cdef int held_up(self) except -1:
        """An operation waits for :attr:`work`: the COMPOUND keeps its slot meanwhile."""
        cdef Begun begun = self.begun
        if self.standing is not None:
            self.tally = self.standing.tally
        if begun is None:
            begun = Begun.__new__(Begun)
            begun.session, begun.slot, begun.flags = self.session, self.slot, self.flags
        elif begun.offers >= OFFERS:
            self.work = None
            return DECLINED
        begun.offers += 1
        begun.index = self.index
        begun.current, begun.standing = self.current, self.standing
        begun.saved, begun.saved_standing = self.saved, self.saved_standing
        begun.turn = self.turn
        self.work.kept = begun
        return WAITS

    cdef int dismiss(self, Work work) except -1:
        # Else the slot would be in use for ever: DELAY to every further request on it.
        cdef Begun begun = work.kept
        if begun.slot is not None:
            begun.slot.withdraw()
        if begun.turn is not None:
            begun.turn.abandon()
        return 0

    cdef int give_up(self, Work work) except -1:
        cdef Begun begun = work.kept
        if begun.slot is not None:
            begun.slot.finish(None)
        if begun.turn is not None:
            begun.turn.abandon()
        return 0

    cdef Work brought_here(self):
        """What has been brought for the present operation; None: nothing. It is handed over once."""
        cdef Work brought = self.brought
        if brought is None or self.begun.index != self.index:
            return None
        self.brought = None
        return brought

    cdef void count(self, size_t operations) noexcept:
        """Count so many operations, which have succeeded."""
        cdef size_t index
        cdef uint8_t number, weight = 0
        for index in range(operations):
            number = self.numbers[index]
            self.counts.calls[number] += 1
            if self.counts.weights[number] >= weight:
                weight = self.counts.weights[number]
                self.shown = number
        if self.standing is not None:
            self.tally = self.standing.tally
            self.tally.read += self.octets_read
            self.tally.written += self.octets_written

    cdef bint begins(self, Arguments *arguments, uint32_t *tag) except -1:
        """Whether the COMPOUND begins as one does that is answered here. What is left of it are its operations; ``tag`` is
        the tag's length."""
        cdef uint32_t length
        if left(arguments) < 4:
            return False
        length = tag[0] = load32(arguments.at)
        if length > TAG_MAX or left(arguments) < 4 + padded(length) + 8:
            return False
        arguments.at += 4 + padded(length)
        self.minor = load32(arguments.at)
        self.operations = load32(arguments.at + 4)
        arguments.at += 8
        self.files.version = OF_MINORS[self.minor] & self.versions if self.minor < 3 else 0
        if self.files.version == 0:
            return no(self.files, VERSION)
        if self.operations < 1 or self.operations > OPERATIONS:
            return no(self.files, SIZE)
        return True

    cdef size_t size(self, Place place) noexcept:
        """Octets of the reply so far."""
        return RPC_HEADER + (place.at - self.start) + self.beside

    cdef uint32_t fingerprint(self, Arguments *arguments, Place place) except? 0xFFFFFFFF:
        """What tells a retransmission from another request (:func:`nfsd.v4.ops.sessions._digest`)."""
        cdef uint8_t head[256]
        cdef const uint8_t *octets = arguments.at
        cdef size_t behind = left(arguments) + padded(place.bulk_size)
        cdef size_t covered = min(behind, _fingerprinted), before, there
        if self.bulk_wanted != NULL:
            # As if what was fetched stood in its place.
            if self.bulk_wanted < octets:
                return 0  # it is nothing's; the COMPOUND is declined
            before = self.bulk_wanted - octets
            if before < covered:
                memset(head, 0, sizeof(head))
                memcpy(head, octets, before)
                there = min(place.bulk_size, covered - before)
                memcpy(head + before, place.bulk, there)
                there = before + padded(place.bulk_size)
                if there < covered:
                    memcpy(head + there, self.bulk_wanted, covered - there)
                octets = head
        return crc32(PyMemoryView_FromMemory(<char *>octets, covered, PyBUF_READ), <uint32_t>behind ^ self.caller.mark)

    cdef int operation(self, uint32_t number, Arguments *arguments, Place place) except -1:
        """Run the next operation, or decline, or wait: for those who derive from this."""
        return DECLINED

    cdef bint carry_out(self) except -1:
        """Do what operations have prepared, or decline: likewise."""
        return True

    cdef int forget(self) except -1:
        """The COMPOUND is over: likewise."""
        return 0

    cdef bint told_by_us(self) except -1:
        """Whether no other client may know the file's attributes better (RFC 8881 section 10.4.3)."""
        if self.current.inode.delegated != 2:
            return True
        client = self.client
        if client is None:
            client = self.server.speaker(self.caller.transport) or self.opened_by
        return self.delegations.other_writer(self.current.key, client) is None or no(self.files, RECALL)

    cdef bint look(self) except -1:
        """See that ``status`` is the current file's."""
        if not self.seen:
            self.seen = self.files.look(self.current, &self.status)
        return self.seen
