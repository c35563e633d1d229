# distutils: extra_compile_args = -O2
"""RPC records over one connected, non-blocking stream socket (RFC 5531 section 11), in both directions.

Owns the octets between the socket and whole records; imports :mod:`rpcrdma.tcp.reading`, which takes them from the
socket, and what sends. Waiting is the caller's business. Under TLS (``secure``) they are deciphered and enciphered on
their way.

Receiving
    Small records are cut out of a shared read buffer: one system call takes as many as have arrived, and each holds
    one count of the buffer. A record that does not fit there, or comes in several fragments, gets a buffer of its own,
    and what is missing of it is received straight into that, together with the beginning of what follows. Between
    wake-ups a connection holds a buffer only if part of a record has arrived.

    Whole records that a connection has brought before it is reset are handed over like others; replies to them go nowhere
    (``severed``).

Bounds
    A record is bounded in octets and fragments before anything is allocated for it. A peer that has sent records before
    gets a buffer for the whole of a large one as soon as its mark has come, while memory is plenty. For others the buffer
    has four times what has arrived, and is replaced by a larger one as more comes: a promise costs nothing.

    Records have four octets and more, and each costs the heap a few hundred: no more than ``most_records`` are cut out in
    one call of :meth:`RecordStream.receive`. The others stay what they were, octets of the read buffer, until the next.

    When memory is short nothing is lost: ``starved`` says how much is wanted, and :meth:`RecordStream.receive` goes on
    from there, with what it has been given (:meth:`RecordStream.give`).

Rates
    While the host is over its rates no record is begun (``slowed``); one whose beginning has been taken is taken whole.

Native calls
    With an :class:`~rpcrdma.place.Answerer` set, a whole record is offered to it before it becomes an object
    (:mod:`rpcrdma.tcp.answers`).

Captures
    With a tap set, every whole record is shown to it, before it is answered or handed over and when it is queued.

Sending
    What leaves, and how, is :mod:`rpcrdma.tcp.outgoing`'s. A reply is released when its last octet has left.
"""

from cpython.buffer cimport PyBUF_READ
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport uint8_t, uint64_t

from rpcrdma.broken cimport broken
from rpcrdma.clock cimport nanoseconds
from rpcrdma.memory cimport Account, Lease
from rpcrdma.pace cimport Pace
from rpcrdma.place cimport Answerer
from rpcrdma.tcp.answers cimport RecordAnswers, record_answers
from rpcrdma.tcp.outgoing cimport Outgoing
from rpcrdma.tcp.reading cimport LAST_FRAGMENT, READ_SIZE, Reading
from rpcrdma.tcp.receiving cimport load_mark
from rpcrdma.tcp.sealed cimport sealed
from rpcrdma.turns cimport SLICE, one_is_gone, shared

from rpcrdma.tcp.parts import record_parts
from rpcrdma.tcp.reading import RecordError


cdef enum:
    READS_PER_WAKEUP = 16
    LARGEST_LEASE = 4 << 20
    SEND_EARLY = 262144       # octets of replies that are sent before the wake-up's last call is answered
    ANSWERED_CALLS = 256      # answered per wake-up; then other connections have their turn
    ANSWERED_TIME = 400000    # nanoseconds of answering, after which they have it, too
    SHARED_TIME = 45000       # the same while there are others
    ANSWERED_OCTETS = 4 << 20 # of their replies, likewise
    MOST_SENT = 4 << 20       # in one turn, while there are no others


cdef class RecordStream(Reading):
    """Receives and sends records on a descriptor that it does not own."""

    def __cinit__(self, int fd, Account account not None, size_t max_record=(1 << 20) + (128 << 10),
                  size_t max_fragments=2048, size_t most_records=1 << 62):
        if max_record > LARGEST_LEASE:
            raise ValueError(f"records of {max_record} octets: at most {LARGEST_LEASE} are possible")
        self.fd = fd
        self.account = account
        self.outgoing = Outgoing.__new__(Outgoing)
        self.max_record = max_record
        self.max_fragments = max_fragments
        self.most_records = most_records

    def answer_natively(self, Answerer native, size_t most_unsent=0, owner=None):
        """Offer calls to ``native`` first, as long as no more than ``most_unsent`` octets of replies wait; None: to nobody."""
        self.answers = native and record_answers(native, self.outgoing, self.account, most_unsent, owner)

    def secure(self, directions, crew=None, wake=None, kernel=None):
        """Have everything enciphered from now on (:func:`rpcrdma.tls.records.directions`), in both directions."""
        self.opening, sealing = directions
        self.outgoing.cipher = sealed(sealing, self.account, crew, wake, kernel)

    def set_pace(self, Pace pace not None):
        """Begin no record while the host is over its rates."""
        self.pace = pace
        if self.answers is not None:
            self.answers.pace = pace

    cdef bint over(self) noexcept:
        """Whether nothing may be begun now."""
        self.slowed = self.pace is not None and self.pace.limited and self.pace.over()
        return self.slowed

    def set_tap(self, tap):
        """Show every record to ``tap``; None: to nobody."""
        self.tap = tap
        if self.answers is not None:
            self.answers.tap = tap

    cdef int show(self, const uint8_t *record, size_t length) except -1:
        self.tap.record_in(PyMemoryView_FromMemory(<char *>record, length, PyBUF_READ))
        return 0

    @property
    def queued(self):
        return self.outgoing.queued + (0 if self.outgoing.cipher is None else self.outgoing.cipher.waiting)

    @property
    def busy(self):
        return self.outgoing.cipher is not None and self.outgoing.cipher.busy

    @property
    def sent_octets(self):
        return self.outgoing.sent + self.outgoing.queued - self.queued

    # -- receiving -----------------------------------------------------------------------------------------------

    cpdef list receive(self, bint readable=True):
        """Take what has arrived: a list of (record, hold)."""
        cdef list records = []
        cdef int reads
        cdef bint more
        self.answered = 0
        if self.answers is not None:
            self.answers.octets = 0
        self.begin_turn()
        self.unfinished = self.slowed = False
        readable = self.unsure = readable or self.unsure
        try:
            try:
                self.starved = 0
                self.parse(records)
                if readable or self.more():
                    for reads in range(READS_PER_WAKEUP):
                        if self.starved or self.eof or self.unfinished or self.answered >= ANSWERED_CALLS:
                            break
                        if self.record is None and self.over():
                            break
                        if self.shared and (self.received_now >= SLICE or self.answered and nanoseconds() >= self.until):
                            break
                        more = self.read()
                        self.parse(records)
                        if not more:
                            break
            finally:
                if self.answers is not None:
                    self.answers.pause()
        except OSError:
            if not records:
                raise
            # They have come whole: that the peer takes no answer any more does not undo them.
            self.sever()
        except BaseException:
            for _, hold in records:
                hold.release()
            raise
        if self.given is not None:
            self.drop_given()
        if self.buffer is not None and self.start == self.end:
            self.drop_buffer()
        if self.opening is not None and not self.opening.holds():
            self.opening.drop()
        self.unfinished = self.unfinished or self.more()
        return records

    cdef int begin_turn(self) except -1:
        """Find out how much may be done until others have their turn."""
        cdef uint64_t now = nanoseconds()
        self.begun = True
        self.shared = shared(<void *>self, now)
        self.until = now + (SHARED_TIME if self.shared else ANSWERED_TIME)
        self.received_now = 0
        self.may_send = SLICE if self.shared else MOST_SENT
        return 0

    cdef bint must_wait(self) noexcept:
        """Whether the next call is for another turn: this one has answered for long, or enough waits to be sent."""
        if self.answers is not None and self.answers.octets >= ANSWERED_OCTETS:
            return True
        if self.start == self.end and (self.record is None or self.fragment_left):
            return False  # there is no next call yet
        if self.over():
            return True
        if self.answered and nanoseconds() >= self.until:
            return True
        return self.shared and self.answers is not None and self.outgoing.queued >= SLICE

    cdef int parse(self, list records) except -1:
        """Cut what has been received into records, as far as memory allows."""
        cdef size_t mark, length, have
        cdef char *at
        cdef Lease hold
        while not self.starved:
            if self.must_wait() or (<size_t>len(records) >= self.most_records and self.start != self.end):
                self.unfinished = True
                return 0
            if self.record is not None:
                if self.fragment_left:
                    if self.start == self.end:
                        return 0
                    if self.record_length == self.record.capacity and not self.enlarge():
                        return 0
                    self.copy_fragment()
                    continue
                if self.last:
                    if self.shared and self.answers is not None and self.received_now and self.record_length >= SLICE:
                        self.unfinished = True  # what is done with so much takes a turn of its own
                        return 0
                    self.proven = True
                    hold, self.record = self.record, None
                    if self.take_whole(hold):
                        hold.release()
                        continue
                    records.append((hold.view[: self.record_length], self.holder_of(hold)))
                    continue
            have = self.end - self.start
            if have < 4:
                return 0
            at = <char *>self.buffer.address + self.start
            mark = load_mark(at)
            length = mark & ~<size_t>LAST_FRAGMENT
            if length > self.max_record or (self.record is not None and self.record_length + length > self.max_record):
                raise RecordError(f"a record of more than {self.max_record} octets")
            if self.record is None and mark & LAST_FRAGMENT:
                if have >= 4 + length:
                    # Whatever becomes of it, it is not looked at again.
                    self.start += 4 + length
                    self.proven = True
                    if self.tap is not None:
                        self.show(<uint8_t *>at + 4, length)
                    if self.answers is not None and self.answer(<uint8_t *>at + 4, length, self.buffer):
                        continue
                    hold = self.buffer.retain()
                    records.append((hold.view[self.start - length : self.start], self.holder_of(hold)))
                    continue
                if 4 + length <= READ_SIZE // 2:
                    return 0
            if self.record is None and have < READ_SIZE // 2 and have < 4 + length and not self.trusted():
                return 0
            if not self.begin_fragment(length, have):
                return 0
            self.last = mark & LAST_FRAGMENT
            self.start += 4
        return 0

    cdef bint take_whole(self, Lease hold) except -1:
        """Answer the record in a buffer of its own, or leave it to the dispatcher."""
        try:
            if self.tap is not None:
                self.show(<uint8_t *>hold.address, self.record_length)
            return self.answers is not None and self.answer(<uint8_t *>hold.address, self.record_length, hold)
        except BaseException:
            hold.release()
            raise

    # -- calls that are answered here ----------------------------------------------------------------------------

    cdef bint answer(self, const uint8_t *message, size_t length, Lease lease) except -1:
        """Answer the call, or see that it is answered later; or leave it to the dispatcher."""
        if not self.answers.answer(message, length, lease):
            return False
        self.answered += 1
        if self.outgoing.queued >= SEND_EARLY:
            # The peer can go on with these while we answer the rest.
            self.answers.native.pause()
            self.send()
        return True

    cdef object holder_of(self, Lease hold):
        """What holds a record that is the dispatcher's."""
        return hold if self.answers is None else self.answers.native.passed_on(None, hold)

    # -- sending -------------------------------------------------------------------------------------------------

    def queue(self, reply):
        """Add a reply (its whole record) to what is to be sent."""
        self.outgoing.add_reply(reply)
        if self.tap is not None:
            self.tap.record_out(record_parts(reply))

    cdef bint send(self) except -1:
        """Send as much as the socket takes and this turn allows. Returns whether all has left."""
        cdef unsigned long long before = self.outgoing.sent
        cdef bint all_sent = self.outgoing.flush(self.fd, self.may_send)
        self.may_send -= min(self.may_send, <size_t>(self.outgoing.sent - before))
        if self.outgoing.sent != before and self.outgoing.cipher is None:
            self.unsure = False  # it would have failed
        return all_sent

    cdef int make_sure(self) except -1:
        """At the end of a turn in which nothing was sent: see whether there is an end that nobody will tell of."""
        if self.unsure and not (self.eof or self.starved or self.slowed or self.unfinished):
            self.unsure = self.unfinished = broken(self.fd)
        return 0

    cpdef bint settle(self) except -1:
        """Send, if nothing else can have to be looked at."""
        if self.eof or self.severed or self.slowed or self.starved:
            return False
        if not self.begun:
            self.begin_turn()
        if not self.send():
            return False  # the turn is not over: :meth:`flush` goes on with what it may send
        self.begun = False
        self.make_sure()
        return True

    def flush(self, bint everything=False):
        """Send as much as the socket takes and a turn allows. Returns whether all has left."""
        if not self.begun:
            self.begin_turn()
        self.begun = False
        if self.severed:
            return self.outgoing.close() == 0
        if everything:
            self.may_send = self.outgoing.queued
            if self.outgoing.cipher is not None:
                self.outgoing.cipher.alone()
        if not self.send():
            return False
        self.make_sure()
        return True

    def sever(self):
        """The connection is broken: nothing comes any more, and what is to be sent is released."""
        self.eof = self.severed = True
        self.unfinished = self.slowed = False
        self.starved = 0
        self.outgoing.close()

    def close(self):
        """Release every buffer and every reply."""
        one_is_gone()
        self.eof = True
        if self.answers is not None:
            self.answers.close()
        if self.opening is not None:
            self.outgoing.cipher.part(self.fd)
            self.opening.drop()
        self.outgoing.close()
        if self.buffer is not None:
            self.drop_buffer()
        if self.record is not None:
            record, self.record = self.record, None
            record.release()
        if self.given is not None:
            self.drop_given()
