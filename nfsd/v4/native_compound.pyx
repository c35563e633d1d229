# distutils: extra_compile_args = -O2
"""COMPOUND (RFC 8881 section 16.2; RFC 7530 section 15.2).

Owns :class:`NativeCompound`, from which :mod:`nfsd.v4.sequence` derives, and at last :mod:`nfsd.v4.procedures`, with the
operations. Imports :mod:`nfsd.v4.under_way`, the native parts of the state engine and the file service, :mod:`rpcrdma.place` and
:mod:`rpcrdma.rpc.offers`.

This is the one frame for all COMPOUNDs: their tag and minor version, which operation may stand where, the slot and the reply
that it keeps, how much a reply may have, how failures are told, what is counted. SEQUENCE comes first, and is carried out first:
the COMPOUND holds its slot, so that a retransmission finds it in use (RFC 8881 section 2.10.6.2). NFSv4.0 has no sessions: its
COMPOUNDs begin with their first operation, stateids tell the client, and changes are under the RPC replay cache.

Operation. Each operation is carried out when its turn comes. It is answered, with success or a failure, which ends the
COMPOUND; or it waits, or is declined. Whatever an operation that is declined or waits has done is nothing that shows. One that
has no native body waits for an errand that carries it out in Python (:mod:`nfsd.v4.in_python`), once the COMPOUND is a general
call.

Where it waits or is declined, the COMPOUND is put down before it, and goes on from there (:mod:`nfsd.v4.under_way`). A general
call declines nothing but what does not decode, and what needs more room.

Stable storage. A COMPOUND that has changed something waits at its end until what its reply promises is on stable storage.
What an operation has seen of its file serves the GETATTR behind it.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from nfsd.state.lookups cimport StateLookups
from nfsd.state.sequence cimport Sequencer
from nfsd.v4.fattr cimport Fattr
from nfsd.v4.halfway cimport Halfway
from nfsd.v4.under_way cimport Learning, UnderWay
from nfsd.v4.unguarded cimport changes_unguarded
from nfsd.vfs.native_files cimport Standing, allows, no, standing_on
from nfsd.vfs.native_names cimport NativeNames
from nfsd.wire.nfs4 cimport (
    NFS4ERR_BADXDR, NFS4ERR_DELAY, NFS4ERR_MINOR_VERS_MISMATCH, NFS4ERR_NOTSUPP, NFS4ERR_NOT_ONLY_OP, NFS4ERR_OP_ILLEGAL,
    NFS4ERR_OP_NOT_IN_SESSION, NFS4ERR_REP_TOO_BIG, NFS4ERR_REP_TOO_BIG_TO_CACHE, NFS4ERR_RESOURCE, NFS4ERR_SEQUENCE_POS,
    NFS4ERR_SERVERFAULT, NFS4ERR_WRONGSEC, NFS4_OK, OP_ACCESS, OP_BIND_CONN_TO_SESSION, OP_CREATE, OP_GETATTR, OP_GETFH, OP_ILLEGAL, OP_READ,
    OP_SEQUENCE, OP_SETATTR, OP_WRITE,
)
from rpcrdma.declined cimport CHUNKS, PROCEDURE, RARE, RECALL, SIZE, STATE
from rpcrdma.place cimport ANSWERED, DECLINED, WAITS, Place, load32, store32
from rpcrdma.rpc.callers cimport Caller
from rpcrdma.rpc.offers cimport ReplyPlace
from rpcrdma.rpc.work cimport Errand, Work

from nfsd.protocol import nfs4 as declared
from nfsd.protocol.nfs4_ops import OPERATIONS
from nfsd.v4.operations import NATIVE, ROOM_FOR_RESULT, TABLE
from nfsd.versions import of_minor
from rpcrdma.log_limits import limited_logger
from rpcrdma.xdr import XdrError
from rpcrdma.xdr.payload import Payload

_log = limited_logger(__name__)

cdef enum:
    COMPOUND = 1
    TAG_MAX = 1024
    OPERATIONS_40 = 256     # of a COMPOUND without a session: NFSv4.0 negotiates none
    # Of an operation.
    OF_40 = 1               # a minor version has it; the others follow
    CARRIED_OUT = 8         # there is a body
    NATIVELY = 16           # which is native
    CHANGING = 32           # it may change something
    ALONE = 64              # it may stand in a COMPOUND without SEQUENCE, then as the only one (RFC 8881 section 2.10.3)


cdef inline bint stays(uint32_t number) noexcept nogil:
    """Whether an operation changes nothing, not even what is the current file."""
    return number == OP_GETATTR or number == OP_GETFH or number == OP_ACCESS or number == OP_READ


cdef size_t _room_for_result = ROOM_FOR_RESULT
cdef uint32_t[3] OF_MINORS
OF_MINORS[0], OF_MINORS[1], OF_MINORS[2] = of_minor(0), of_minor(1), of_minor(2)


cdef uint8_t kind_of(uint32_t number):
    """What is known of an operation."""
    cdef uint8_t kind = 0
    row = OPERATIONS.get(number)
    if row is None or number == OP_ILLEGAL:
        return 0
    for minor in row.minors:
        kind |= OF_40 << <int>minor
    row = TABLE.get(number)
    if row is not None:
        kind |= CARRIED_OUT | (CHANGING if row.changes else 0) | (ALONE if row.alone else 0)
        kind |= NATIVELY if row.handler is None else 0
    return kind


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
        for number in range(128):
            self.kinds[number] = kind_of(number)
        for number in declared.nfs_opnum4:
            if number.value < len(self.declined.names):
                self.declined.names[number.value] = number.name.removeprefix("OP_")
                self.waited.names[number.value] = number.name.removeprefix("OP_")

    cdef int pause(self) except -1:
        return self.files.pause()

    cdef int guards(self, uint32_t procedure, const uint8_t *arguments, size_t size) except -1:
        return changes_unguarded(arguments, arguments + size)

    cdef int reason(self, uint32_t procedure, uint32_t *row) noexcept:
        """Counted by operation, or as COMPOUND where there is none yet."""
        row[0] = self.number
        return self.files.why

    # -- from the call to the reply ----------------------------------------------------------------------------------
    cdef int answer(
        self, Caller caller, uint32_t procedure, const uint8_t *arguments, size_t size, Place place, Work brought
    ) except -1:
        cdef Arguments rest
        cdef int outcome
        rest.at, rest.end = arguments, arguments + size
        self.caller, self.octets = caller, caller.header + size
        self.general = <ReplyPlace>place if type(place) is ReplyPlace else None
        self.chunked = place.bulk != NULL
        self.bulk_wanted = place.bulk_at if self.chunked else NULL
        self.take_up(brought)
        try:
            try:
                outcome = self.compound(&rest, place)
                if outcome == DECLINED and self.done:
                    raise RuntimeError(f"operation {self.number} is declined behind its change")
            except Exception as error:
                outcome = self.fault(error, &rest, place)
            if outcome == WAITS:
                outcome = self.held_up(arguments, place)
            if outcome == DECLINED and not self.hand_over(arguments, place):
                self.give_back()
            return outcome
        except Exception:
            if self.slot is not None:
                self.slot.finish(None)  # a retransmission may try again
            self.tell()
            raise
        finally:
            self.put_away()

    cdef int fault(self, object error, Arguments *arguments, Place place) except -1:
        """The server itself has failed: so does the present operation. Raises the error if it is no operation's."""
        if self.turn is not None:
            self.turn.abandon()
            self.turn = None
        if self.part_at == NULL or self.ended:
            raise error
        _log.error("%s: operation %d of a COMPOUND failed", self.caller.transport, self.number, exc_info=error)
        self.forget_data(place)
        self.changed |= self.number < 128 and self.kinds[self.number] & CHANGING != 0
        self.fail(NFS4ERR_SERVERFAULT, place)
        self.over()
        return self.conclude(arguments, place)

    cdef int compound(self, Arguments *arguments, Place place) except -1:
        """Carry out a COMPOUND. DECLINED: its frame does not decode, or it goes on elsewhere."""
        cdef const uint8_t *whole = arguments.at
        if not self.begins(arguments):
            return DECLINED
        if self.begun is None:
            if not room(place, 12 + padded(self.tag)):
                return no(self.files, SIZE)
            self.anew(whole, arguments.end, place)
            if self.files.version == 0:
                store32(self.start, NFS4ERR_MINOR_VERS_MISMATCH)
                return ANSWERED
            if self.chunked and self.bulk_wanted < arguments.at:
                return no(self.files, CHUNKS)  # the tag is none that may be in a chunk
        elif not self.resume(whole, arguments, place):
            return DECLINED
        elif self.index < self.operations and self.failure == 0:
            if type(self.brought) is Learning:
                self.refusal = self.learned()
            elif self.brought is None and not self.same_standing():
                return self.learn()
        return self.run(arguments, place)

    cdef bint begins(self, Arguments *arguments) except -1:
        """Whether the COMPOUND begins as one does. What is left of it are its operations."""
        if left(arguments) < 4:
            return False
        self.tag = load32(arguments.at)
        if self.tag > TAG_MAX or left(arguments) < 4 + padded(self.tag) + 8:
            return False
        arguments.at += 4 + padded(self.tag)
        self.minor = load32(arguments.at)
        self.operations = load32(arguments.at + 4)
        arguments.at += 8
        self.files.version = OF_MINORS[self.minor] & self.versions if self.minor < 3 else 0
        return True

    cdef int anew(self, const uint8_t *whole, const uint8_t *end, Place place) except -1:
        """Begin the COMPOUND, with its status, its tag, and no results."""
        self.start = place.at
        place.at = store_opaque(store32(place.at, NFS4_OK), whole + 4, self.tag)
        place.at = store32(place.at, 0)
        self.limit = self.max_reply
        self.beside = 0
        self.counted = self.index = 0
        self.octets_read = self.octets_written = 0
        # The replay cache keeps what stands in one piece: data that stand beside it would be missing there.
        self.cachethis = self.minor == 0 and changes_unguarded(whole, end)
        return 0

    cdef int run(self, Arguments *arguments, Place place) except -1:
        """Carry out the operations from the present one on."""
        cdef size_t resumed = self.index
        cdef int outcome
        while self.index < self.operations and self.failure == 0:
            self.part_at, self.result_at = arguments.at, place.at
            if left(arguments) < 4:
                return no(self.files, RARE)
            if self.begun is not None and self.index == resumed + 1 and not self.same_standing():
                return self.learn()
            outcome = self.step(arguments, place)
            if outcome != ANSWERED or self.replayed:
                return outcome
            self.over()
        return self.conclude(arguments, place)

    cdef int over(self) except -1:
        """The present operation has been carried out, or has failed."""
        if self.index - self.counted == sizeof(self.numbers):
            self.count(self.index)
        self.numbers[self.index - self.counted] = <uint8_t>self.number if self.number < 128 else 0
        self.index += 1
        return 0

    cdef int conclude(self, Arguments *arguments, Place place) except -1:
        """All operations have been carried out, or the last one has failed."""
        cdef Work flushed = self.brought_here()
        self.ended = True
        self.result_at = place.at
        if self.failure == 0:
            self.part_at = arguments.at
            if self.chunked and (self.bulk_wanted != NULL or left(arguments)):
                return no(self.files, CHUNKS)  # nothing belongs there
        store32(store32(self.start, self.failure) + 4 + padded(self.tag), <uint32_t>self.index)
        if flushed is None and self.changed and not self.server.engine.stable:
            # Somebody else's write counts as well: what this COMPOUND was granted may rest on it. One that changed nothing
            # promises nothing, and waits for nobody.
            self.files.pause()
            self.files.why = STATE
            return self.wait_for(Errand(self.server.store.flush(self.server.engine)), None)
        if flushed is not None and (<Errand?>flushed).error is not None:
            return self.keep_back((<Errand>flushed).error, place)
        self.keep(place)
        self.count(self.index)
        if self.failure:
            self.count_failure()
        if self.general is not None:
            self.general.call.forget = not self.changed
        self.tell()
        return ANSWERED

    # -- one operation -----------------------------------------------------------------------------------------------
    cdef int step(self, Arguments *arguments, Place place) except -1:
        """Carry out the present operation."""
        cdef uint32_t number = load32(arguments.at), status
        cdef uint8_t kind = self.kinds[number] if number < 128 else 0
        cdef bint changing = kind & CHANGING != 0
        cdef int outcome
        self.number = number
        self.files.why = RARE
        self.done = False
        self.beside_before = self.beside
        if not room(place, FAILURE):
            return self.declined_here(no(self.files, SIZE), place)
        arguments.at += 4
        status = self.admit(kind, place)
        if status != NFS4_OK:
            return self.fail(status, place)
        if self.data_at != NULL and not stays(number):
            return no(self.files, PROCEDURE)  # it is begun with the READ once more, in the same file
        if isinstance(self.brought, Errand) and not (<Errand>self.brought).ended_already:
            return self.wait_for(self.brought_here(), None)  # the call has changed hands meanwhile
        if changing and self.bulk_wanted != NULL and self.brought is None and number != OP_WRITE and number != OP_CREATE:
            if self.general is None:
                return no(self.files, CHUNKS)
            if kind & NATIVELY and self.chunk_is_astray(arguments.at):
                return self.fail(NFS4ERR_BADXDR, place)
        if kind & NATIVELY:
            outcome = self.operation(number, arguments, place)
        else:
            outcome = self.in_python(arguments, place)
        if outcome == DECLINED:
            outcome = self.declined_here(outcome, place)
        if outcome != ANSWERED or self.replayed:
            return outcome
        self.changed |= changing
        self.done = False
        return self.carried_out(changing, arguments, place)

    cdef uint32_t admit(self, uint8_t kind, Place place) noexcept:
        """NFS4_OK, or why the present operation may not run here."""
        cdef uint32_t number = self.number
        cdef bint known = kind & (OF_40 << self.minor) != 0
        if not known and not kind & OF_40:
            self.number = OP_ILLEGAL
            return NFS4ERR_OP_ILLEGAL
        if self.refusal:
            return self.refusal
        if self.minor == 0:
            if self.operations > OPERATIONS_40:
                return NFS4ERR_RESOURCE
        elif self.index == 0:
            if number != OP_SEQUENCE:
                if not known or not kind & ALONE:
                    return NFS4ERR_OP_NOT_IN_SESSION
                if self.operations != 1:
                    return NFS4ERR_NOT_ONLY_OP
        elif number == OP_SEQUENCE:
            return NFS4ERR_SEQUENCE_POS
        elif number == OP_BIND_CONN_TO_SESSION:
            # RFC 8881 section 18.34.3; the others that go without SEQUENCE (18.35.3, 18.36.3…) may also follow one.
            return NFS4ERR_NOT_ONLY_OP
        if not known or not kind & CARRIED_OUT:
            return NFS4ERR_NOTSUPP  # what 4.0 alone has is no more illegal later than that (RFC 8881 section 8.8)
        if not allows(self.standing, number):
            return NFS4ERR_WRONGSEC
        if kind & CHANGING and self.brought is None and self.limit < self.size(place) + _room_for_result:
            return self.too_big()  # its reply could not be sent
        return NFS4_OK

    cdef int carried_out(self, bint changing, Arguments *arguments, Place place) except -1:
        """The present operation has a result: see whether that may stand, and what has become of the chunk."""
        if self.bulk_wanted != NULL and not changing and (self.failure or self.bulk_wanted < arguments.at):
            # The chunk has perhaps taken something out of these arguments (RFC 8166 section 4.5.2).
            if self.general is None:
                self.failure = 0
                return no(self.files, CHUNKS)
            if self.bulk_wanted < arguments.at or self.chunk_is_astray(self.part_at + 4):
                self.forget_data(place)
                return self.fail(NFS4ERR_BADXDR, place)
        if self.chunked and self.bulk_wanted == NULL and place.bulk != NULL and self.general is not None:
            self.general.go_to_chunk(self.general.used + 1)
            self.bulk_wanted = place.bulk_at
        if self.failure == 0 and self.size(place) > self.limit:
            return self.fail_too_big(place)
        return ANSWERED

    cdef int declined_here(self, int outcome, Place place) except -1:
        """The present operation is declined. A general call goes nowhere else: it is offered again with more room, or fails."""
        if self.general is None or self.done:
            return outcome
        if self.files.why != SIZE:
            raise RuntimeError(f"operation {self.number} is declined, which nobody else carries out")
        if self.general.asking or not (self.general.refused or self.general.full()):
            return outcome
        return self.fail(NFS4ERR_DELAY if self.general.refused else self.too_big(), place)

    cdef int fail(self, uint32_t status, Place place) except -1:
        """The present operation fails, and the COMPOUND ends with its result."""
        self.failure = status
        place.at = store32(store32(self.result_at, self.number), status)
        if self.number == OP_SETATTR:
            place.at = store32(place.at, 0)  # SETATTR4res has its bitmap in any case
        return ANSWERED

    cdef int not_brought(self, Errand errand, Place place) except -1:
        """The present operation fails, with what its errand has failed with."""
        return self.fail(self.failed_in(errand), place)

    cdef uint32_t too_big(self) noexcept:
        """What an operation fails with whose result is more than the reply may have (RFC 8881 section 2.10.6.4)."""
        if self.session is None:
            return NFS4ERR_RESOURCE
        return NFS4ERR_REP_TOO_BIG_TO_CACHE if self.cachethis else NFS4ERR_REP_TOO_BIG

    cdef int fail_too_big(self, Place place) except -1:
        """As :meth:`too_big` says, without the data that the operation has perhaps put beside the results."""
        if self.data_at != NULL and self.number == OP_READ and self.data_index != self.index:
            return no(self.files, SIZE)
        self.forget_data(place)
        return self.fail(self.too_big(), place)

    cdef int forget_data(self, Place place) except -1:
        """Let go of the data that the present operation has put beside the results."""
        if self.general is not None:
            self.general.forget_behind(self.result_at)
        elif self.data_at == NULL or self.data_index == self.index:
            place.forget_payload()
            self.data_at = NULL
        self.beside = self.beside_before
        return 0

    cdef bint chunk_is_astray(self, const uint8_t *at) except -1:
        """Whether the present chunk has been taken out of the arguments there, but is no item of theirs that may be (RFC
        8166 section 4.5.2)."""
        decoder = self.general.decoder(at)
        try:
            decoder.decode(OPERATIONS[self.number].arguments)
        except XdrError:
            return True
        return decoder.skipped_chunk

    # -- what operations have in common --------------------------------------------------------------------------------
    cdef size_t size(self, Place place) noexcept:
        """Octets of the reply so far."""
        return RPC_HEADER + (place.at - self.start) + self.beside

    cdef bint put(self, object octets, object payloads, Place place) except -1:
        """Put what has been encoded elsewhere into the reply. What is long leaves from where it is, if the call is a general
        one. False: there is no room."""
        cdef Py_buffer view
        PyObject_GetBuffer(octets, &view, PyBUF_SIMPLE)
        try:
            if self.general is None:
                if place.end - place.at < view.len or payloads:
                    return False
                memcpy(place.at, view.buf, view.len)
                place.at += view.len
                return True
            if place.end - place.at >= view.len:
                self.general.put(<const uint8_t *>view.buf, view.len, payloads)
            elif payloads:
                return False
            else:
                payloads = [(0, Payload(memoryview(octets), eligible=False))]
                self.general.put(NULL, 0, payloads)
        finally:
            PyBuffer_Release(&view)
        for _, payload in payloads:
            self.beside += padded(len(payload))
        return True

    # -- for those who derive from this --------------------------------------------------------------------------------
    cdef int operation(self, uint32_t number, Arguments *arguments, Place place) except -1:
        """Carry out an operation that has a native body."""
        raise NotImplementedError

    cdef int keep(self, Place place) except -1:
        """The reply may be given: the slot has it from now on."""
        raise NotImplementedError

    cdef int keep_back(self, object error, Place place) except -1:
        """The reply may not be given now, for this reason."""
        raise NotImplementedError

    cdef int in_python(self, Arguments *arguments, Place place) except -1:
        """Carry out an operation that has no native body."""
        raise NotImplementedError

    cdef int go(self, Node node) except -1:
        """Make a file the current one; the current stateid goes."""
        self.current = node
        self.pseudo, self.foreign = None, 0
        self.stateid = None
        self.seen = False
        return 0

    cdef int arrived(self, tuple found) except -1:
        """Go to what an errand has brought: a file, with what the caller is there (None: what it is already), or a place."""
        cdef Standing standing
        node, there = found
        if not isinstance(node, Node):
            self.leave()
            self.go(None)
            self.pseudo = node
            return 0
        if there is not None:
            standing = standing_on(node.export, there[0], there[1], there[2], there[3])
            self.charge(standing)
            self.standing = standing
        self.go(node)
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
