"""COMPOUND and SEQUENCE in native code (RFC 8881 sections 16.2, 2.10.6 and 18.46; RFC 7530 section 15.2).

Owns :class:`NativeCompound`, from which :mod:`nfsd.v4.procedures` derives, with the operations. Imports :mod:`nfsd.v4.under_way`,
the native parts of the state engine and the file service, :mod:`rpcrdma.place` and :mod:`rpcrdma.rpc.native`.

SEQUENCE comes first, and is carried out first: the COMPOUND holds its slot, so that a retransmission finds it in use (RFC
8881 section 2.10.6.2). NFSv4.0 has no sessions: its COMPOUNDs begin with their first operation, stateids tell the client, and
one that may change something is under the RPC replay cache.

Operation. Each operation is carried out when its turn comes. It is answered, with success or a failure, which ends the
COMPOUND; or it waits, or is declined. Whatever an operation that is declined or waits has done is nothing that shows.

Where it waits or is declined, the COMPOUND is put down before it, and others go on from there (:mod:`nfsd.v4.under_way`).

Stable storage. A COMPOUND that has changed something is handed over at its end, too, where what its reply promises is not yet
on stable storage. What an operation has seen of its file serves the GETATTR behind it.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from nfsd.state.lookups cimport StateLookups
from nfsd.state.sequence cimport SequenceRequest, Sequencer
from nfsd.v4.fattr cimport Fattr
from nfsd.v4.halfway cimport OPERATIONS, Halfway
from nfsd.v4.under_way cimport Learning, UnderWay
from nfsd.v4.unguarded cimport changes_unguarded
from nfsd.vfs.native_files cimport Standing, no, standing_on
from nfsd.vfs.native_names cimport NativeNames
from nfsd.wire.nfs4 cimport (
    NFS4ERR_REP_TOO_BIG, NFS4ERR_REP_TOO_BIG_TO_CACHE, NFS4ERR_RESOURCE, NFS4ERR_SERVERFAULT, OP_ACCESS, OP_CREATE,
    OP_GETATTR, OP_GETFH, OP_READ, OP_SEQUENCE, OP_SETATTR, OP_WRITE, SEQUENCE4args_SIZE, SEQUENCE4resok_SIZE,
)
from rpcrdma.declined cimport CHUNKS, PROCEDURE, RARE, RECALL, REPLAY, SIZE, STATE, VERSION
from rpcrdma.place cimport ANSWERED, DECLINED, WAITS, Place, load32, store32
from rpcrdma.rpc.native cimport Caller
from rpcrdma.rpc.work cimport Errand, Work

from zlib import crc32

from nfsd.protocol import nfs4 as declared
from nfsd.v4.operations import NATIVE, ROOM_FOR_RESULT, TABLE
from nfsd.v4.ops.sessions import FINGERPRINTED
from nfsd.versions import of_minor
from rpcrdma.log_limits import limited_logger

_log = limited_logger(__name__)

cdef extern from "Python.h":
    const int PyBUF_READ

cdef enum:
    COMPOUND = 1
    TAG_MAX = 1024
    OPERATIONS_40 = 256     # of a COMPOUND without a session
    RPC_HEADER = 24         # of an accepted reply
    SEQUENCE_RESULT = 8 + SEQUENCE4resok_SIZE       # with its number and status


cdef inline bint stays(uint32_t number) noexcept nogil:
    """Whether an operation changes nothing, not even what is the current file."""
    return number == OP_GETATTR or number == OP_GETFH or number == OP_ACCESS or number == OP_READ


assert FINGERPRINTED <= 256

cdef size_t _fingerprinted = FINGERPRINTED
cdef size_t _room_for_result = ROOM_FOR_RESULT
cdef uint32_t[3] OF_MINORS
OF_MINORS[0], OF_MINORS[1], OF_MINORS[2] = of_minor(0), of_minor(1), of_minor(2)


cdef class NativeCompound(UnderWay):
    def __init__(self, server):
        self.server = server
        self.files = NativeNames(server.service)
        self.state = StateLookups(server.engine)
        self.sequencer = <Sequencer?>server.engine.sessions.sequencer
        self.attributes = Fattr(server, self.files)
        self.delegations = server.engine.delegations
        self.max_transfer = server.max_transfer
        self.max_reply = server.max_reply
        self.versions = server.versions
        self.counts = server.counts
        self.procedures = 1 << COMPOUND
        self.guarded = 0
        self.elsewhere = RPC_HEADER
        for number in range(128):
            self.changing[number] = number in TABLE and TABLE[number].changes
            self.native[number] = number in NATIVE
        for number in declared.nfs_opnum4:
            if number.value < len(self.declined.names):
                self.declined.names[number.value] = number.name.removeprefix("OP_")
                self.waited.names[number.value] = number.name.removeprefix("OP_")

    @property
    def short(self):
        return self.files.why == SIZE

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
        self.changed = self.done = False
        self.part_at = self.data_at = NULL
        self.failure = 0
        self.number = COMPOUND
        self.files.why = RARE
        if brought is not None:
            self.begun = <Halfway?>brought.kept
            self.slot = self.begun.take_slot()
            self.turn, self.begun.turn = self.begun.turn, None
            self.brought = None if type(brought) is Work else brought
            if self.begun.errand is not None:
                self.brought, self.begun.errand = self.begun.errand, None
            self.driven = self.begun.driven
        try:
            self.bulk_wanted = <const uint8_t *>NULL if place.bulk == NULL else place.bulk_at
            outcome = self.compound(&rest, caller.header + size + padded(place.bulk_size), place)
            if outcome == WAITS:
                outcome = self.held_up(arguments, place)
            if outcome == DECLINED and self.done:
                raise RuntimeError(f"operation {self.number} is declined behind its change")
            if self.driven:
                if outcome == DECLINED:
                    self.failure = 0
                return WAITS if outcome == WAITS else self.lay_down(arguments, place)
            if outcome == DECLINED and not self.hand_over(arguments, place):
                self.give_back()
            return outcome
        except Exception as error:
            if self.turn is not None:
                self.turn.abandon()
                self.turn = None
            if self.driven and self.part_at != NULL:
                _log.error("%s: operation %d of a COMPOUND failed", caller.transport, self.number, exc_info=error)
                self.refuse(NFS4ERR_SERVERFAULT, place)
                self.over()
                self.result_at = place.at
                return self.lay_down(arguments, place)
            if self.changed or self.begun is not None or self.changing[self.number & 127]:
                if self.slot is not None:
                    self.slot.finish(None)
                raise  # the caller learns that something may have happened
            self.give_back()
            # The general path says which operation failed, and in the slot.
            _log.error("%s: a COMPOUND is not answered natively", caller.transport, exc_info=error)
            return DECLINED
        finally:
            self.brought = None
            self.begun = None
            self.caller = None
            self.session = None
            self.slot = None
            self.client = None
            self.opened_by = None
            self.turn = None
            self.current = self.saved = None
            self.pseudo = self.saved_pseudo = None
            self.standing = self.saved_standing = None
            self.stateid = self.saved_stateid = None
            self.foreign = self.saved_foreign = 0
            self.driven = False
            self.base, self.elsewhere = 0, RPC_HEADER

    cdef int compound(self, Arguments *arguments, size_t octets, Place place) except -1:
        """Answer a COMPOUND whose call has so many octets."""
        cdef const uint8_t *whole = arguments.at
        cdef uint32_t tag
        if not self.begins(arguments, &tag):
            return DECLINED
        self.beside = 0
        self.seen = False
        if self.begun is not None:
            if not self.resume(whole, arguments, place):
                return DECLINED
            if type(self.brought) is Learning:
                self.failure = self.learned()
            elif self.brought is None and not self.same_standing():
                return self.learn()
        elif not self.anew(whole, arguments, tag, octets, place):
            return DECLINED
        elif self.bulk_wanted != NULL and self.bulk_wanted < arguments.at:
            return no(self.files, CHUNKS)
        return self.run(arguments, tag, place)

    cdef bint anew(
        self, const uint8_t *whole, Arguments *arguments, uint32_t tag, size_t octets, Place place
    ) except -1:
        """Begin the COMPOUND, with its tag of so many octets and its SEQUENCE."""
        if not room(place, 12 + padded(tag) + SEQUENCE_RESULT):
            return no(self.files, SIZE)
        self.start = place.at
        place.at = store_opaque(store32(place.at, 0), whole + 4, tag)
        place.at = store32(place.at, <uint32_t>self.operations)
        self.limit = self.max_reply
        self.counted = self.index = 0
        self.octets_read = self.octets_written = 0
        if self.minor:
            self.index = 1
            return self.sequence(arguments, octets, place)
        # The replay cache keeps what stands in one piece: data that stand beside it would be missing there.
        self.cachethis = changes_unguarded(whole, arguments.end)
        return True

    cdef int run(self, Arguments *arguments, uint32_t tag, Place place) except -1:
        """Carry out the operations from the present one on."""
        cdef size_t resumed = self.index
        cdef size_t most = self.base + (1 if self.driven and self.begun.alone else OPERATIONS)
        cdef int outcome
        while self.index < self.operations:
            self.part_at, self.result_at = arguments.at, place.at
            if self.index == most:
                return no(self.files, SIZE)
            if left(arguments) < 4:
                return DECLINED
            if self.begun is not None and self.index == resumed + 1 and not self.same_standing():
                return self.learn()
            outcome = self.step(arguments, place)
            if outcome != ANSWERED:
                return outcome
            self.over()
            if self.failure:
                break
        self.part_at, self.result_at = arguments.at, place.at
        if self.driven:
            return ANSWERED
        if self.failure:
            store32(store32(self.start, self.failure) + 4 + padded(tag), <uint32_t>self.index)
        if self.failure == 0 and place.bulk != NULL and (self.bulk_wanted != NULL or left(arguments)):
            return no(self.files, CHUNKS)  # nothing belongs there, and the general path tells what to do about it
        return self.end(place)

    cdef void over(self) noexcept:
        """The present operation has been carried out, or has failed."""
        self.numbers[self.index - self.base] = <uint8_t>self.number
        self.index += 1

    cdef int step(self, Arguments *arguments, Place place) except -1:
        """Carry out the present operation."""
        cdef uint32_t number = load32(arguments.at)
        cdef bint changing = number < 128 and self.changing[number]
        cdef int outcome
        self.number = number
        self.files.why = RARE
        self.done = False
        arguments.at += 4
        if self.failure:
            return self.refuse(self.failure, place)  # for what the caller has become
        if self.data_at != NULL and not stays(number):
            return no(self.files, PROCEDURE)  # it is begun with the READ once more, in the same file
        if changing:
            if self.bulk_wanted != NULL and not self.driven and number != OP_WRITE and number != OP_CREATE:
                return no(self.files, CHUNKS)
            if self.brought is None and self.limit < self.size(place) + _room_for_result:
                return no(self.files, SIZE)
        if isinstance(self.brought, Errand) and not (<Errand>self.brought).ended_already:
            return self.wait_for(self.brought_here(), None)  # the call has changed hands meanwhile
        outcome = self.operation(number, arguments, place)
        if outcome != ANSWERED:
            return outcome
        if self.failure and self.bulk_wanted != NULL and not self.done and not self.driven:
            # The chunk may have taken something out of these arguments, which is another failure.
            self.failure = 0
            return no(self.files, CHUNKS)
        self.changed |= changing
        self.done = False
        if self.bulk_wanted != NULL and self.bulk_wanted < arguments.at:
            return no(self.files, CHUNKS)  # something is missing that the operation has not missed
        if self.failure == 0 and self.size(place) > self.limit:
            return self.fail_too_big(place)
        return ANSWERED

    cdef int end(self, Place place) except -1:
        """All operations have been carried out, or the last one has failed."""
        if self.changed and not self.server.engine.stable:
            return no(self.files, STATE)  # who goes on waits for that, and has nothing else to do
        if self.slot is not None:
            self.slot.finish(self.kept(place))
            self.slot = None
        self.count(self.index)
        if self.failure:
            self.count_failure()
        return ANSWERED

    cdef int fail(self, uint32_t status, Place place) except -1:
        """The present operation fails, and the COMPOUND ends with its result."""
        self.failure = status
        place.at = store32(store32(self.result_at, self.number), status)
        return ANSWERED

    cdef int refuse(self, uint32_t status, Place place) except -1:
        """As :meth:`fail`, whatever the operation is."""
        self.fail(status, place)
        if self.number == OP_SETATTR:
            place.at = store32(place.at, 0)  # SETATTR4res has its bitmap in any case
        return ANSWERED

    cdef int not_brought(self, Errand errand, Place place) except -1:
        """The present operation fails, with what its errand has failed with."""
        return self.refuse(self.failed_in(errand), place)

    cdef int fail_too_big(self, Place place) except -1:
        """The present operation's result is more than the reply may have (RFC 8881 section 2.10.6.4)."""
        if self.data_at != NULL and self.number == OP_READ:
            if self.data_index != self.index:
                return no(self.files, SIZE)
            place.forget_payload()
            self.data_at = NULL
            self.beside = 0
        if self.session is None:
            return self.fail(NFS4ERR_RESOURCE, place)
        return self.fail(NFS4ERR_REP_TOO_BIG_TO_CACHE if self.cachethis else NFS4ERR_REP_TOO_BIG, place)

    cdef bint sequence(self, Arguments *arguments, size_t octets, Place place) except -1:
        """Carry out the first operation, if it is a SEQUENCE that begins a new request; everything else is for the general
        path to say."""
        cdef SequenceRequest request
        cdef Sequencer sequencer = self.sequencer
        cdef uint8_t *at = place.at
        if left(arguments) < 4 + SEQUENCE4args_SIZE or load32(arguments.at) != OP_SEQUENCE:
            return no(self.files, PROCEDURE)
        self.number = OP_SEQUENCE
        if load32(arguments.at + 32) > 1:
            return False
        request.sessionid = arguments.at + 4
        self.sequenceid = request.sequenceid = load32(arguments.at + 20)
        self.slotid = request.slotid = load32(arguments.at + 24)
        self.highest_slotid = request.highest_slotid = load32(arguments.at + 28)
        self.cachethis = request.cachethis = load32(arguments.at + 32)
        request.operations = self.operations
        request.octets = octets
        arguments.at += 4 + SEQUENCE4args_SIZE
        if sequencer.run(self.caller.transport, &request, self.fingerprint(arguments, place)) != 0:
            return no(self.files, STATE)
        if sequencer.verdict != 0:
            return no(self.files, REPLAY)
        self.session, self.slot = sequencer.session, sequencer.slot
        sequencer.session, sequencer.slot = None, None
        if sequencer.bound:
            self.server.met(self.caller.transport, self.session.client)
        self.client = self.session.client
        # The bounds that the session put on replies (RFC 8881 section 2.10.6.4).
        self.limit = self.session.max_response
        if self.cachethis:
            self.limit = min(self.limit, self.session.max_cached + RPC_HEADER)
        at = store32(store32(at, OP_SEQUENCE), 0)
        memcpy(at, request.sessionid, 24)  # session, sequence id and slot
        at = store32(store32(at + 24, self.session.highest_slotid), self.session.target_highest_slotid)
        place.at = store32(at, self.session.status_flags())
        self.numbers[0] = OP_SEQUENCE
        return self.size(place) <= self.limit or no(self.files, SIZE)

    cdef bytes kept(self, Place place):
        """The reply as its slot keeps it: None unless the client has asked for that, or it is a lone SEQUENCE's."""
        if not self.cachethis and self.operations > 1:
            return None
        if self.size(place) - RPC_HEADER > self.session.max_cached:
            return None
        return PyBytes_FromStringAndSize(<char *>self.start, place.at - self.start)

    cdef int go(self, Node node) except -1:
        """Make a file the current one; the current stateid goes."""
        self.current = node
        self.pseudo = None
        self.foreign = 0
        self.stateid = None
        self.seen = False
        return 0

    cdef int arrived(self, tuple found) except -1:
        """Go to a file that an errand has brought, with what the caller is there; None: what it is already. Or to a place in
        the pseudo file system."""
        cdef Standing standing
        node, there = found
        if not isinstance(node, Node):
            self.leave()
            self.go(None)
            self.pseudo = node
            return 0
        if there is not None:
            standing = standing_on(node.export, there[0], there[1], there[2])
            self.charge(standing)
            self.standing = standing
        self.go(node)
        return 0

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
        if self.operations < 1 or (self.minor == 0 and self.operations > OPERATIONS_40):
            return no(self.files, SIZE)
        return True

    cdef size_t size(self, Place place) noexcept:
        """Octets of the reply so far."""
        return self.elsewhere + (place.at - self.start) + self.beside

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
        """Carry out the next operation, or decline, or wait: for those who derive from this."""
        return DECLINED

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
