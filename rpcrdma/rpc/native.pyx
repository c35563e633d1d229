# distutils: extra_compile_args = -O2
"""Native calls: the common procedures, answered natively in the stack in which they arrived (contract: ``native.pyi``).

Imports :mod:`rpcrdma.rpc` and knows neither transport nor program: a transport hands in messages and a
:class:`~rpcrdma.place.Place` for the reply, a program derives from :class:`~rpcrdma.rpc.native_program.NativeProgram`.

The rule: a native call gives the very answer that the general path (:mod:`rpcrdma.rpc.dispatch`) would give, or declines,
and the general path answers: from the beginning, or from where the native call has come to, with what it says that it has
begun (:meth:`~rpcrdma.place.Place.pass_on`). What raises, which nothing should, is answered SYSTEM_ERR: it may have changed
something.

What has to wait says for what, by a :class:`Work`, and is offered to the same function again when that is there. Each
function is thus written once, and never waits itself: it looks at what has been brought, and goes on from there.
No state is kept for native calls alone but memos whose truth is checked at each use.
"""

from libc.math cimport INFINITY
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from rpcrdma.clock cimport nanoseconds
from rpcrdma.declined cimport CALLER, GATE, NOBODY, PROCEDURE, REPLAY, SHAPE, SIZE, Declined
from rpcrdma.memory cimport Lease
from rpcrdma.place cimport ANSWERED, DECLINED, LONG_WHOLE, WAITS, Answerer, Held, Place, load32, store32
from rpcrdma.rpc.call_header cimport FLAWLESS, call_header_t, read_call
from rpcrdma.rpc.callers cimport Caller, Callers
from rpcrdma.rpc.calls cimport copy_of, key_of_call
from rpcrdma.rpc.ciphering cimport Ciphering, Opening, Sealing
from rpcrdma.rpc.native_program cimport AFTERWARDS, NativeProgram, NativeVersion, Waiting, waiting_call
from rpcrdma.rpc.replay cimport Entry, Peer, ReplayCache
from rpcrdma.rpc.signed cimport LONGEST_HEAD, NONE, UNSIGNED, Known, Signed, is_protected
from rpcrdma.rpc.work cimport Later, Unbegun, Work, kept_by
from rpcrdma.wire.rpc cimport SYSTEM_ERR

import asyncio

from rpcrdma.firewall import contain
from rpcrdma.rpc.calls import failed
from rpcrdma.rpc.program import RpcReply


cdef enum:
    PROCEDURES = 64         # of a program, that may be answered here
    BY_PROGRAM = -1         # why a call is declined: it knows


cdef class Gate:
    def __cinit__(self, *args, **kwargs):
        self.generation, self.lasts = 1, INFINITY

    def learn(self, transport):
        return None

    def admits(self, transport):
        raise NotImplementedError

    def turned_away(self, transport):
        pass


cdef class NativeCalls(Answerer):
    def __init__(
        self, transport, replay, read_credential, list versions not None, Gate gate=None, Declined unknown=None, flights=None,
        Known secured=None
    ):
        self.transport, self.peer, self.callers = transport, Peer(transport), Callers(transport, read_credential, secured)
        self.replay, self.flights = replay, flights
        self.held = None if flights is None else flights.held
        self.versions = [NativeVersion(program, number, version, rows) for number, version, program, rows in versions]
        self.gate, self.admitted_in = gate, 0
        self.unknown = unknown or Declined()

    cdef NativeVersion version_of(self, uint32_t number, uint32_t version):
        cdef NativeVersion known = self.latest
        if known is not None and known.number == number and known.version == version:
            return known
        for known in self.versions:
            if known.number == number and known.version == version:
                if self.latest is not None:
                    self.latest.program.pause()
                self.latest = known
                return known
        return None

    cdef int answer(self, const uint8_t *message, size_t size, Place place) except -1:
        """Answer the call, or not: then nothing has happened, and what was written to ``place`` is void. A program
        that fails is answered for: it costs no other call anything, and no connection."""
        cdef uint8_t *start = place.at
        cdef int outcome
        try:
            outcome = self.attempt(message, size, place)
            if outcome == DECLINED:
                self.decline(message, size, self.why)
            return outcome
        except Exception as error:
            if self.why == SHAPE or place.end - start < LONGEST_HEAD:
                raise
            place.forget_payload()
            place.at = start
            return self.failed(message, size, place, error)

    cdef void decline(self, const uint8_t *message, size_t size, int reason) noexcept:
        cdef call_header_t header
        cdef uint32_t row
        cdef NativeVersion known
        if message == NULL:
            self.unknown.add(NOBODY, reason)
            return
        if read_call(message, size, &header) != FLAWLESS:
            return
        row = header.procedure
        for known in self.versions:
            if known.number == header.program and known.version == header.version:
                if reason == BY_PROGRAM:
                    reason = known.program.reason(header.procedure, &row)
                known.program.declined.add(row, reason)

    cdef int hold(self, Held held) except -1:
        cdef bint entered = self.waiting is None
        cdef Waiting waiting = held.state if entered else self.waiting
        held.state, self.waiting = waiting, None
        waiting.work.held, waiting.work.host = held, self.peer.host
        try:
            if not entered:
                self.enter(held, waiting)
            return waiting.work.start()
        except Exception as error:
            return self.cannot_begin(waiting, error)

    cdef int enter(self, Held held, Waiting waiting) except -1:
        """The call waits from now on, and is known to others."""
        self.held.add(waiting)
        if waiting.key is not None:
            waiting.entry = self.replay.begin(waiting.key, self.transport)
        # The calls before it may have left the thread a caller's, and an errand's first steps are taken at once.
        waiting.version.program.pause()
        return 0

    cdef int cannot_begin(self, Waiting waiting, object error) except -1:
        """What the call was to wait for does not come: it is answered in the loop's next turn."""
        cdef Unbegun unbegun = Unbegun.__new__(Unbegun)
        unbegun.error, unbegun.held, waiting.work.held = error, waiting.work.held, None
        try:
            if isinstance(waiting.work, Ciphering):
                (<Ciphering>waiting.work).abandon()
            else:
                waiting.version.program.give_up(waiting.work)
        finally:
            waiting.work = unbegun
            asyncio.get_running_loop().call_soon(contain, None, unbegun.tell)
        return 0

    cdef int dismiss(self) except -1:
        cdef Waiting waiting = self.waiting
        self.waiting = None
        if waiting is not None:
            self.taken = waiting.signed
            if type(waiting.work) is Later:
                self.left_off(waiting.work.kept, waiting.key)
            elif not isinstance(waiting.work, Ciphering):
                self.left_off(waiting.version.program.dismiss(waiting.work), waiting.key)
        return 0  # whoever could not keep it says why

    cdef int left_off(self, object begun, bytes key) except -1:
        """A call is declined, of which so much has been done. ``key``: its own in the replay cache; it is entered there, so
        that a retransmission does not begin anew meanwhile."""
        self.begun = begun
        if begun is not None and key is not None:
            self.entry = self.replay.begin(key, self.transport)
        return 0

    cdef int answer_again(self, Held held, Place place) except -1:
        cdef Waiting waiting = held.state
        cdef NativeProgram program = waiting.version.program
        cdef uint8_t *start = place.at
        cdef int outcome
        cdef Sealing sealing
        self.signed = waiting.signed
        if type(waiting.work) is Sealing:
            return self.sealed(held, waiting, place)
        self.signed.head(place, waiting.xid)
        place.begun = None
        program.shown = waiting.procedure
        program.tally = None
        self.why = BY_PROGRAM
        try:
            outcome = self.go_on(held, waiting, place)
        except Exception as error:
            place.forget_payload()
            place.at = start
            outcome = self.failed(held.message, held.size, place, error)
        program.pause()
        if outcome == WAITS:
            waiting.told()
            return WAITS
        if outcome == DECLINED:
            if self.why == BY_PROGRAM:
                self.why = program.reason(waiting.procedure, &waiting.row)
            program.declined.add(waiting.row, self.why)
            self.begun, place.begun = place.begun, None
        elif waiting.entry is None:  # else the reply is kept as it is now
            sealing = self.signed.to_seal(place)
            if sealing is not None:
                sealing.shown, sealing.tally = program.shown, program.tally
                waiting.work = sealing
                return WAITS
        self.over(held, waiting, outcome, place, start)
        if outcome == ANSWERED:
            self.signed.seal(place)
        return outcome

    cdef int go_on(self, Held held, Waiting waiting, Place place) except -1:
        """Offer a call that waited to its program, again or for the first time."""
        cdef Work brought = waiting.work
        if type(brought) is Unbegun:
            raise (<Unbegun>brought).error
        if type(brought) is Later:
            brought = None if brought.kept is None else kept_by(brought.kept)
        elif type(brought) is Opening:
            if not self.signed.opened(held.message, &(<Opening>brought).own.cipher):
                self.why = SHAPE
                return DECLINED
            brought = None
            waiting.offset, waiting.end = self.signed.begin, self.signed.end
            if not self.is_new(held, waiting, place):
                self.why = REPLAY
                return DECLINED
        if not self.signed.protect(place):
            raise BufferError("there is less room for a reply than there was")
        return waiting.version.program.answer(
            waiting.caller, waiting.procedure, held.message + waiting.offset, waiting.end - waiting.offset, place, brought
        )

    cdef bint is_new(self, Held held, Waiting waiting, Place place) except -1:
        """Enter a call, whose arguments are known by now, in the replay cache, if it is under it. False: it is there."""
        cdef NativeVersion version = waiting.version
        cdef size_t offset = waiting.offset, end = waiting.end
        if not version.program.guards(waiting.procedure, held.message + offset, end - offset):
            return True
        key = key_of_call(
            version.number, version.version, waiting.procedure, waiting.caller.digest, held.message, offset, end, place,
            self.peer,
        )
        if not self.replay.is_new(key):
            return False
        waiting.entry = self.replay.begin(key, self.transport)
        return True

    cdef int sealed(self, Held held, Waiting waiting, Place place) except -1:
        """The reply of a call has been protected where it was written."""
        cdef Sealing sealing = waiting.work
        cdef NativeProgram program = waiting.version.program
        cdef uint8_t *start = place.at
        payload, sealing.payload = sealing.payload, None
        place.bring_back(payload, &sealing.aside)
        program.shown, program.tally = sealing.shown, sealing.tally
        try:
            self.signed.sealed(&sealing.own.cipher)
        except Exception as error:
            place.forget_payload()
            place.at = start
            self.failed(held.message, held.size, place, error)
        self.over(held, waiting, ANSWERED, place, start)
        return ANSWERED

    cdef int over(self, Held held, Waiting waiting, int outcome, Place place, const uint8_t *start) except -1:
        """A call that waited is over; its reply's head stands there. One that is now declined goes on elsewhere, and
        whoever has joined it waits for that."""
        cdef Entry entry = waiting.entry
        cdef bytes reply
        cdef double taken
        self.held.discard(waiting)
        if not self.held:
            self.flights.ended()
        waiting.work = None
        if outcome == DECLINED:
            self.taken = waiting.signed
            changed = self.begun is not None and self.begun.changed
            if self.transport.closed and (changed or entry is not None and entry.waiters):
                self.carry_on(held, place, self.passed_on(held, None))
        elif entry is not None:
            reply = waiting.signed.plain(start, place)
            if waiting.signed.succeeded(start):
                self.replay.conclude(entry, self.peer.host, reply, ())
            else:
                self.replay.abandon(entry, RpcReply(waiting.xid, reply, []))
        if outcome == ANSWERED and waiting.signed.succeeded(start):
            taken = nanoseconds() * 1e-9 - waiting.since
            waiting.version.answered(waiting.procedure, taken)
            waiting.version.program.note(taken)
        return 0

    cdef int carry_on(self, Held held, Place place, object holder) except -1:
        """Have others execute a call whose connection has gone: for one who waits for it on another, or because part of it
        has been done."""
        message, chunks = copy_of(held, place)
        self.flights.carry_on(self.transport, message, chunks, holder)
        return 0

    cdef object passed_on(self, Held held, Lease message):
        cdef Entry entry = self.entry
        cdef tuple taken = None if self.taken is None else self.taken.number()
        begun, self.begun, self.entry, self.taken = self.begun, None, None, None
        if held is not None:
            entry, (<Waiting>held.state).entry = (<Waiting>held.state).entry, None
        if entry is None and begun is None and taken is None:
            return message
        return self.replay.pass_on(entry, message, begun, taken)

    cdef int failed(self, const uint8_t *message, size_t size, Place place, object error) except -1:
        """Answer a call in which a program has failed, as the general path does. Returns ANSWERED."""
        cdef call_header_t header
        cdef NativeVersion version
        read_call(message, size, &header)
        version = self.version_of(header.program, header.version)
        self.signed.head(place, header.xid)
        store32(place.at - 4, SYSTEM_ERR)
        if version is not None:
            # Whoever it was on behalf of: nothing is done for anybody else in that one's name.
            version.program.pause()
        row = version.rows[header.procedure] if version is not None and header.procedure < PROCEDURES else None
        what = f"program {header.program} version {header.version}, procedure {header.procedure}"
        failed(self.transport, header.xid, row, what, error)
        return ANSWERED

    cdef int attempt(self, const uint8_t *message, size_t size, Place place) except -1:
        cdef call_header_t header
        cdef size_t offset
        cdef uint32_t procedure
        cdef NativeVersion version
        cdef Caller caller
        self.why = SHAPE
        self.signed, self.taken = UNSIGNED, None
        if read_call(message, size, &header) != FLAWLESS or header.arguments > size:
            return DECLINED
        offset, procedure = header.arguments, header.procedure
        self.why = PROCEDURE
        version = self.version_of(header.program, header.version)
        if version is None or procedure >= PROCEDURES or not (version.program.procedures >> procedure) & 1:
            return DECLINED
        self.why = SIZE
        if place.end - place.at < LONGEST_HEAD:
            return DECLINED
        if not self.calling:
            self.calling = True
            self.clock = nanoseconds() * 1e-9
        if place.bulk != NULL and is_protected(message, &header):
            return DECLINED
        self.why = CALLER
        caller = self.callers.find(message, &header, self.clock)
        if caller is None:
            return DECLINED
        self.signed = self.callers.signed
        self.why = GATE
        if self.gate is not None and not (
            self.admitted_in == self.gate.generation and self.clock < self.admitted_until
        ) and not self.admitted():
            return DECLINED
        if not self.signed.take():
            return DECLINED  # the general path drops it
        self.why = SHAPE
        if self.signed.service > NONE:
            if size - offset > LONG_WHOLE:
                return self.open_later(version, caller, message, procedure, offset, size)
            if not self.signed.open(message, offset, size):
                self.taken = self.signed
                return DECLINED
            offset, size = self.signed.begin, self.signed.end
        return self.execute(version, caller, message, procedure, offset, size, place)

    cdef int execute(
        self, NativeVersion version, Caller caller, const uint8_t *message, uint32_t procedure, size_t offset, size_t size,
        Place place
    ) except -1:
        """Execute a call whose caller is known. Its arguments stand there in the message, up to ``size``."""
        cdef NativeProgram program
        cdef int outcome
        cdef bytes key = None
        cdef uint8_t *start = place.at
        cdef double then
        cdef int guarded
        self.signed.head(place, load32(message))
        self.why = SIZE
        if not self.signed.protect(place):
            self.taken = self.signed
            return DECLINED
        self.why = BY_PROGRAM
        program = version.program
        program.shown, program.tally, place.begun = procedure, None, None
        guarded = program.guards(procedure, message + offset, size - offset)
        if guarded == AFTERWARDS or (guarded and (self.replay.running or place.bulk != NULL)):
            key = key_of_call(
                version.number, version.version, procedure, caller.digest, message, offset, size, place, self.peer
            )
            if not self.replay.is_new(key):
                self.why = REPLAY  # what is known already is the general path's to answer
                self.taken = self.signed
                return DECLINED
        outcome = program.answer(caller, procedure, message + offset, size - offset, place, None)
        if outcome == ANSWERED:
            if guarded == AFTERWARDS:
                self.replay.remember(key, self.peer.host, self.signed.plain(start, place))
            self.signed.seal(place)
        elif guarded and key is None:
            # It is not over: until it is, a retransmission must find it.
            key = key_of_call(
                version.number, version.version, procedure, caller.digest, message, offset, size, place, self.peer
            )
        then, self.clock = self.clock, nanoseconds() * 1e-9
        if outcome == ANSWERED:
            then = self.clock - then
            version.answered(procedure, then)
            program.note(then)
        elif outcome == DECLINED and place.wants:
            outcome = WAITS
            program.work = Later.__new__(Later)
            program.work.kept, place.begun = place.begun, None
        if outcome == DECLINED:
            begun, place.begun = place.begun, None
            self.taken = self.signed
            self.left_off(begun, key)
        elif outcome == WAITS:
            try:
                self.waiting = waiting_call(
                    version, caller, message, procedure, offset, size, key, then, self.signed
                )
                self.waiting.told()
            except BaseException:
                program.dismiss(program.work)
                raise
            program.waited.add(self.waiting.row, self.waiting.reason)
        return outcome

    cdef int open_later(
        self, NativeVersion version, Caller caller, const uint8_t *message, uint32_t procedure, size_t offset, size_t size
    ) except -1:
        """Have a thread take the arguments out of their protection, and the call wait for that."""
        cdef Opening opening = self.signed.to_open(message, offset, size)
        cdef Waiting waiting
        if opening is None:
            self.taken = self.signed
            return DECLINED
        waiting = waiting_call(version, caller, message, procedure, offset, size, None, self.clock, self.signed)
        waiting.row, waiting.reason, waiting.work = procedure, SIZE, opening
        version.program.waited.add(procedure, SIZE)
        self.waiting = waiting
        return WAITS

    cdef bint admitted(self) except -1:
        """Ask the gate about the peer; False: it is for the general path to refuse, to wait for an answer, or to see."""
        cdef unsigned long generation = self.gate.generation
        if self.intercepted is not None and self.intercepted():
            return False
        if self.gate.learn(self.transport) is not None or not self.gate.admits(self.transport):
            return False
        self.admitted_in, self.admitted_until = generation, self.clock + self.gate.lasts
        return True

    cdef int pause(self) except -1:
        """No native call is made for a while: programs let go of what they held."""
        if not self.calling:
            return 0
        self.calling = False
        if self.latest is not None:
            self.latest.program.pause()
        return 0
