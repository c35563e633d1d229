"""Direct calls: the common procedures, answered natively in the stack in which they arrived (contract: ``direct.pyi``).

Owns the RPC header of such calls (RFC 5531 section 9) and their callers. Imports :mod:`rpcrdma.rpc` and knows neither
transport nor program: a transport hands in messages and a :class:`~rpcrdma.place.Place` for the reply, a program
derives from :class:`DirectProgram`.

The rule: a direct call gives the very answer that the general path (:mod:`rpcrdma.rpc.dispatch`) would give, or
declines before it has changed anything, and the general path answers. Whatever is rare, waits, or fails, declines.
What raises, which nothing should, is answered SYSTEM_ERR: it may have changed something.
No state is kept for direct calls alone but memos whose truth is checked at each use.

Calls are counted here and added to the dispatcher's rows when the transport pauses (at the end of a wake-up).
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.math cimport INFINITY
from libc.string cimport memcmp, memset

from rpcrdma.clock cimport nanoseconds
from rpcrdma.declined cimport CALLER, GATE, NOBODY, PROCEDURE, RARE, REPLAY, SHAPE, SIZE, Declined
from rpcrdma.digest cimport Digest, digest_add
from rpcrdma.place cimport Answerer, Place, load32, load64, store32
from rpcrdma.rpc.replay cimport Peer, ReplayCache, caller_digest, digest_arguments, key_of

from rpcrdma.log_limits import limited_logger
from rpcrdma.rpc.program import RpcCredential

_log = limited_logger(__name__)


cdef enum:
    CALL_HEADER = 40        # with empty credential and verifier
    MAX_AUTH = 400
    SYSTEM_ERR = 5          # RFC 5531 section 9
    CALLERS = 256           # per connection; beyond it all are forgotten and learnt again


cdef class Caller:
    def __init__(self):
        raise TypeError("callers are made by DirectCalls")


cdef enum:
    BY_PROGRAM = -1         # it knows why


cdef class DirectProgram:
    def __cinit__(self, *args, **kwargs):
        self.latencies = Latencies()
        self.declined = Declined()

    cdef int reason(self, uint32_t procedure, uint32_t *row) noexcept:
        """Why the present call is declined (:mod:`rpcrdma.declined`); ``row``: to be counted there."""
        return RARE

    cdef bint answer(
        self, Caller caller, uint32_t procedure, const uint8_t *arguments, size_t size, Place place
    ) except -1:
        return False

    cdef int pause(self) except -1:
        return 0


cdef class DirectVersion:
    def __init__(self, DirectProgram program not None, uint32_t number, uint32_t version, list rows not None):
        self.program = program
        self.number = number
        self.version = version
        self.rows = rows
        memset(self.counts, 0, sizeof(self.counts))


cdef class Gate:
    def __cinit__(self, *args, **kwargs):
        self.generation = 1
        self.lasts = INFINITY

    def learn(self, peer_address):
        return None

    def admits(self, peer_address):
        raise NotImplementedError

    def turned_away(self, peer_address):
        pass


cdef class DirectCalls(Answerer):
    def __init__(self, transport, replay, read_credential, list versions not None, Gate gate=None, Declined unknown=None):
        self.transport = transport
        self.peer_address = transport.peer_address
        self.peer = Peer(transport)
        self.replay = replay
        self.read_credential = read_credential
        self.versions = [DirectVersion(program, number, version, rows) for number, version, program, rows in versions]
        self.callers = {}
        self.gate = gate
        self.admitted_in = 0
        self.unknown = unknown or Declined()

    cdef DirectVersion version_of(self, uint32_t number, uint32_t version):
        cdef DirectVersion known = self.latest
        if known is not None and known.number == number and known.version == version:
            return known
        for known in self.versions:
            if known.number == number and known.version == version:
                if self.latest is not None:
                    self.latest.program.pause()
                self.latest = known
                return known
        return None

    cdef bint answer(self, const uint8_t *message, size_t size, Place place) except -1:
        """Answer the call, or decline: then nothing has happened, and what was written to ``place`` is void. A program
        that fails is answered for: it costs no other call anything, and no connection."""
        cdef uint8_t *start = place.at
        try:
            if self.attempt(message, size, place):
                return True
            self.decline(message, size, self.why)
            return False
        except Exception as error:
            if size < CALL_HEADER or place.end - start < 24:
                raise
            place.forget_payload()
            place.at = start
            return self.failed(message, place, error)

    cdef void decline(self, const uint8_t *message, size_t size, int reason) noexcept:
        cdef uint32_t procedure, row
        cdef DirectVersion known
        if message == NULL:
            self.unknown.add(NOBODY, reason)
            return
        if size < 24 or load32(message + 4) != 0:
            return  # no call
        row = procedure = load32(message + 20)
        for known in self.versions:
            if known.number == load32(message + 12) and known.version == load32(message + 16):
                if reason == BY_PROGRAM:
                    reason = known.program.reason(procedure, &row)
                known.program.declined.add(row, reason)

    cdef bint failed(self, const uint8_t *message, Place place, object error) except -1:
        """Answer a call in which a program has failed, as the general path does. Returns True."""
        cdef uint32_t procedure = load32(message + 20)
        cdef DirectVersion version = self.version_of(load32(message + 12), load32(message + 16))
        place.at = store32(store32(place.at, load32(message)), 1)
        memset(place.at, 0, 12)
        place.at = store32(place.at + 12, SYSTEM_ERR)
        what = f"program {load32(message + 12)} version {load32(message + 16)}, procedure {procedure}"
        if version is not None:
            # Whoever it was on behalf of: nothing is done for anybody else in that one's name.
            version.program.pause()
            if procedure < 64 and version.rows[procedure] is not None:
                row = version.rows[procedure]
                row.calls += 1
                row.direct += 1
                row.errors += 1
                what = f"{row.label[0]}v{row.label[1]} {row.label[2]}"
        _log.error("%s xid %#010x %s failed", self.transport, load32(message), what, exc_info=error)
        return True

    cdef bint attempt(self, const uint8_t *message, size_t size, Place place) except -1:
        cdef size_t offset
        cdef uint32_t length, procedure
        cdef DirectVersion version
        cdef Caller caller
        cdef DirectProgram program
        cdef bint answered
        cdef double then
        self.why = SHAPE
        if size < CALL_HEADER or load32(message + 4) != 0 or load32(message + 8) != 2:
            return False
        length = load32(message + 28)
        if length > MAX_AUTH:
            return False
        offset = 32 + ((length + 3) & ~<uint32_t>3)
        procedure = load32(message + 20)
        if procedure >= 64 or offset + 8 > size or load64(message + offset) != 0:
            return False
        offset += 8
        self.why = PROCEDURE
        version = self.version_of(load32(message + 12), load32(message + 16))
        if version is None or not (version.program.procedures >> procedure) & 1:
            return False
        self.why = SIZE
        if place.end - place.at < 24:
            return False
        self.why = CALLER
        caller = self.caller_of(load32(message + 24), message + 32, length)
        if caller is None:
            return False
        if not self.counting:
            self.counting = True
            self.clock = nanoseconds() * 1e-9
        self.why = GATE
        if self.gate is not None and not (
            self.admitted_in == self.gate.generation and self.clock < self.admitted_until
        ) and not self.admitted():
            return False
        # An accepted reply with an empty verifier, and SUCCESS (RFC 5531 section 9).
        place.at = store32(place.at, load32(message))
        place.at = store32(place.at, 1)
        memset(place.at, 0, 16)
        place.at += 16
        self.why = BY_PROGRAM
        program = version.program
        program.shown = procedure
        program.tally = None
        if (program.guarded >> procedure) & 1:
            answered = self.answer_guarded(version, caller, procedure, message, offset, size, place)
        else:
            answered = program.answer(caller, procedure, message + offset, size - offset, place)
        then = self.clock
        self.clock = nanoseconds() * 1e-9
        if answered:
            then = self.clock - then
            version.counts[procedure].calls += 1
            version.counts[procedure].seconds += then
            program.latencies.note(program.shown, then)
            if program.tally is not None:
                program.tally.calls += 1
                program.tally.seconds += then
        return answered

    cdef bint admitted(self) except -1:
        """Ask the gate about the peer; False: it is for the general path to refuse, or to wait for an answer."""
        cdef unsigned long generation = self.gate.generation
        if self.gate.learn(self.peer_address) is not None or not self.gate.admits(self.peer_address):
            return False
        self.admitted_in = generation
        self.admitted_until = self.clock + self.gate.lasts
        return True

    cdef bint answer_guarded(
        self, DirectVersion version, Caller caller, uint32_t procedure, const uint8_t *message, size_t offset,
        size_t size, Place place
    ) except -1:
        """As :meth:`answer`, under the replay cache; what it knows already is the general path's to answer."""
        cdef size_t length = size - offset
        cdef size_t padding = -place.bulk_size & 3
        cdef uint8_t *start = place.at - 24
        cdef Digest digest
        cdef bytes key
        digest_arguments(&digest, message + offset, length, self.peer)
        if place.bulk != NULL:
            # As if it were in the message, padding included (see rpcrdma.rpc.replay.make_key).
            digest_add(&digest, place.bulk, place.bulk_size)
            digest_add(&digest, <const uint8_t *>b"\0\0\0", padding)
        key = key_of(
            load32(message), version.number, version.version, procedure, caller.digest, &digest, self.peer
        )
        if not self.replay.is_new(key):
            self.why = REPLAY
            return False
        if not version.program.answer(caller, procedure, message + offset, length, place):
            return False
        self.replay.remember(key, self.peer.host, PyBytes_FromStringAndSize(<char *>start, place.at - start))
        return True

    cdef Caller caller_of(self, uint32_t flavor, const uint8_t *body, size_t size):
        """Who calls; None: for the general path to say."""
        cdef bytes key = self.latest_key
        cdef Caller caller
        if flavor != 1 or size < 20:
            return None
        # The stamp in front is arbitrary (RFC 5531 appendix A): without it equal callers have equal octets.
        body += 4
        size -= 4
        if key is not None and <size_t>PyBytes_GET_SIZE(key) == size and memcmp(PyBytes_AS_STRING(key), body, size) == 0:
            return self.latest_caller
        key = PyBytes_FromStringAndSize(<char *>body, size)
        caller = self.callers.get(key)
        if caller is None:
            credential = self.read_credential(flavor, memoryview(bytes(4) + key))
            if not isinstance(credential, RpcCredential):
                return None
            caller = Caller.__new__(Caller)
            caller.credential = credential
            caller.peer_address = self.peer_address
            caller.transport = self.transport
            caller.digest = caller_digest(flavor, body - 4, size + 4)
            caller.header = CALL_HEADER + ((size + 4 + 3) & ~<size_t>3)
            if len(self.callers) >= CALLERS:
                self.callers.clear()
            self.callers[key] = caller
        self.latest_key = key
        self.latest_caller = caller
        return caller

    cdef int pause(self) except -1:
        """No direct call is made for a while: programs let go of what they held, and the counts are told."""
        cdef DirectVersion version
        cdef int procedure
        if not self.counting:
            return 0
        self.counting = False
        if self.latest is not None:
            self.latest.program.pause()
        for version in self.versions:
            for procedure in range(64):
                if version.counts[procedure].calls:
                    row = version.rows[procedure]
                    row.calls += version.counts[procedure].calls
                    row.direct += version.counts[procedure].calls
                    row.seconds += version.counts[procedure].seconds
                    version.counts[procedure].calls = 0
                    version.counts[procedure].seconds = 0
        return 0
