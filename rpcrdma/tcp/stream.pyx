"""RPC records over one connected, non-blocking stream socket (RFC 5531 section 11), in both directions.

Owns the octets between the socket and whole records; imports :mod:`rpcrdma.memory`. Waiting is the caller's business.

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
from libc.errno cimport EAGAIN, errno
from libc.stdint cimport uint8_t, uint64_t

from rpcrdma.clock cimport nanoseconds
from rpcrdma.copying cimport copy_octets, move_octets
from rpcrdma.memory cimport Account, Lease
from rpcrdma.pace cimport Pace
from rpcrdma.place cimport Answerer
from rpcrdma.tcp.answers cimport RecordAnswers, record_answers
from rpcrdma.tcp.outgoing cimport Outgoing
from rpcrdma.tcp.receiving cimport iovec, load_mark, plenty, receive_into
from rpcrdma.turns cimport SLICE, one_is_gone, shared

import os

from rpcrdma.memory import OutOfMemory
from rpcrdma.tcp.parts import record_parts


cdef enum:
    READ_SIZE = 65536
    READS_PER_WAKEUP = 16
    NEXT_HEAD = 4096
    LAST_FRAGMENT = 0x80000000
    LARGEST_LEASE = 4 << 20
    SEND_EARLY = 262144     # octets of replies that are sent before the wake-up's last call is answered
    DIRECT_CALLS = 256      # answered per wake-up; then other connections have their turn
    DIRECT_TIME = 100000    # nanoseconds of answering, after which they have it, too
    SHARED_TIME = 30000     # the same while there are others
    DIRECT_OCTETS = 4 << 20 # of their replies, likewise
    MOST_SENT = 4 << 20     # in one turn, while there are no others


class RecordError(Exception):
    """The peer broke the record format or its bounds; the connection is of no use any more."""


cdef class RecordStream:
    """Receives and sends records on a descriptor that it does not own."""

    cdef public int fd                  # another one once TLS lies between it and the peer
    cdef Account account
    cdef size_t max_record
    cdef size_t max_fragments
    cdef size_t most_records
    cdef readonly bint eof
    cdef readonly bint severed          # nothing can be sent any more
    cdef readonly size_t starved
    cdef readonly unsigned long long received_octets
    # The shared read buffer: what is between start and end has been received and not been looked at.
    cdef Lease buffer
    cdef size_t start
    cdef size_t end
    # The record that has a buffer of its own.
    cdef Lease record
    cdef Lease given                    # for it, or for the read buffer
    cdef bint proven                    # a whole record has come before
    cdef size_t record_length
    cdef size_t fragment_left
    cdef size_t fragments
    cdef bint last
    cdef Outgoing outgoing
    # Calls that are answered here.
    cdef RecordAnswers answers
    cdef readonly size_t answered
    cdef uint64_t until
    cdef readonly bint unfinished
    # What its host may do; None: anything.
    cdef Pace pace
    cdef readonly bint slowed           # what is unfinished is so for that reason
    # The present turn: whether there are others, and how much has been and may be moved.
    cdef bint begun
    cdef bint shared
    cdef size_t received_now
    cdef size_t may_send
    # Who sees every record, if anybody does.
    cdef object tap

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

    def answer_directly(self, Answerer direct not None, size_t most_unsent, owner=None):
        """Offer calls to ``direct`` first, as long as no more than ``most_unsent`` octets of replies wait."""
        self.answers = record_answers(direct, self.outgoing, self.account, most_unsent, owner)

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
        return self.outgoing.queued

    @property
    def sent_octets(self):
        return self.outgoing.sent

    def give(self, Lease lease not None):
        """Memory of the size that ``starved`` said; the next :meth:`receive` takes it, or releases it."""
        if self.given is not None:
            self.given.release()
        self.given = lease

    @property
    def missing(self):
        """Octets of the present record that have not been received, as far as is known."""
        cdef size_t have = self.end - self.start, wanted
        if self.record is not None:
            return self.fragment_left - min(self.fragment_left, have)
        if have < 4:
            return 4 - have if have else 0
        wanted = 4 + (load_mark(<char *>self.buffer.address + self.start) & ~<size_t>LAST_FRAGMENT)
        return wanted - min(wanted, have)

    @property
    def partial(self):
        """Whether part of a record, or of its header, has arrived."""
        return self.record is not None or self.end > self.start

    # -- receiving -----------------------------------------------------------------------------------------------

    def receive(self, bint readable=True):
        """Take what has arrived: a list of (record, hold)."""
        cdef list records = []
        cdef int reads
        cdef bint more
        self.answered = 0
        if self.answers is not None:
            self.answers.octets = 0
        self.begin_turn()
        self.unfinished = self.slowed = False
        try:
            try:
                self.starved = 0
                self.parse(records)
                if readable:
                    for reads in range(READS_PER_WAKEUP):
                        if self.starved or self.eof or self.unfinished or self.answered >= DIRECT_CALLS:
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
        return records

    cdef int begin_turn(self) except -1:
        """Find out how much may be done until others have their turn."""
        cdef uint64_t now = nanoseconds()
        self.begun = True
        self.shared = shared(<void *>self, now)
        self.until = now + (SHARED_TIME if self.shared else DIRECT_TIME)
        self.received_now = 0
        self.may_send = SLICE if self.shared else MOST_SENT
        return 0

    cdef bint must_wait(self) noexcept:
        """Whether the next call is for another turn: this one has answered for long, or enough waits to be sent."""
        if self.answers is not None and self.answers.octets >= DIRECT_OCTETS:
            return True
        if self.start == self.end and (self.record is None or self.fragment_left):
            return False  # there is no next call yet
        if self.over():
            return True
        if self.answered and nanoseconds() >= self.until:
            return True
        return self.shared and self.answers is not None and self.outgoing.queued >= SLICE

    cdef int drop_buffer(self) except -1:
        cdef Lease buffer = self.buffer
        self.buffer = None
        self.start = self.end = 0
        buffer.release()
        return 0

    cdef int drop_given(self) except -1:
        given, self.given = self.given, None
        given.release()
        return 0

    cdef Lease take(self, size_t size):
        """A buffer, or None with ``starved`` set."""
        cdef Lease given = self.given
        if given is not None and given.capacity >= size:
            self.given = None
            return given
        try:
            return self.account.lease(<Py_ssize_t>size)
        except OutOfMemory:
            self.starved = size
            return None

    cdef bint prepare_buffer(self) except -1:
        """Make room behind ``end`` for the rest of a record that fits the read buffer. False: no memory."""
        cdef Lease fresh
        cdef size_t have = self.end - self.start
        if self.buffer is not None:
            if self.buffer.count == 1 and self.start:
                move_octets(<char *>self.buffer.address, <char *>self.buffer.address + self.start, have)
                self.start, self.end = 0, have
            # Records cut out earlier may leave little room: a new buffer, unless there is enough for a good read.
            if self.buffer.capacity - self.start >= READ_SIZE // 2 and self.wanted() <= self.buffer.capacity - self.start:
                return True
        fresh = self.take(READ_SIZE)
        if fresh is None:
            return False
        if self.buffer is not None:
            copy_octets(<char *>fresh.address, <char *>self.buffer.address + self.start, have)
            self.drop_buffer()
        self.buffer = fresh
        self.start, self.end = 0, have
        return True

    cdef size_t wanted(self) noexcept:
        """Octets that the record at ``start`` takes in the read buffer, as far as is known; no more than are looked at
        before it gets a buffer of its own."""
        if self.end - self.start < 4:
            return 4
        return min(
            4 + (load_mark(<char *>self.buffer.address + self.start) & ~<size_t>LAST_FRAGMENT), <size_t>READ_SIZE // 2
        )

    cdef bint read(self) except -1:
        """Receive once. Returns whether there may be more."""
        cdef iovec vectors[2]
        cdef size_t room = 0, count = 0, direct
        cdef ssize_t got
        if self.record is not None and self.fragment_left:
            if self.record_length == self.record.capacity and not self.enlarge():
                return False
            vectors[0].iov_base = <char *>self.record.address + self.record_length
            room = min(self.fragment_left, self.record.capacity - self.record_length)
            if self.shared:
                room = min(room, SLICE - self.received_now)
            vectors[0].iov_len = room
            count = 1
        if count and room < self.fragment_left:
            pass
        elif self.prepare_buffer():
            vectors[count].iov_base = <char *>self.buffer.address + self.end
            vectors[count].iov_len = self.buffer.capacity - self.end
            if room >= READ_SIZE and vectors[count].iov_len > NEXT_HEAD:
                # What follows on much data is likely the head of as much again, which should not come by way of here.
                vectors[count].iov_len = NEXT_HEAD
            room += vectors[count].iov_len
            count += 1
        elif count:
            self.starved = 0
        else:
            return False
        got = receive_into(self.fd, vectors, count)
        if got < 0:
            if errno == EAGAIN:
                return False
            raise OSError(errno, os.strerror(errno))
        if got == 0:
            self.eof = True
            return False
        self.received_octets += got
        self.received_now += got
        if self.record is not None and self.fragment_left:
            direct = min(<size_t>got, self.fragment_left)
            self.record_length += direct
            self.fragment_left -= direct
            self.end += got - direct
        else:
            self.end += got
        return <size_t>got == room

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

    cdef bint trusted(self) noexcept:
        """Whether a promise will do to get much memory."""
        return self.proven and plenty(self.account)

    cdef bint begin_fragment(self, size_t length, size_t have) except -1:
        """Begin a fragment, the record's first in a buffer of its own. False: no memory, nothing is changed."""
        if self.record is None:
            self.record = self.take(length if self.trusted() else min(length, 4 * have))
            if self.record is None:
                return False
            self.record_length = 0
            self.fragments = 0
        self.fragments += 1
        if self.fragments > self.max_fragments:
            raise RecordError(f"a record of more than {self.max_fragments} fragments")
        self.fragment_left = length
        return True

    cdef bint enlarge(self) except -1:
        """Have room for more of the present record than fills its buffer. False: no memory, nothing is changed."""
        cdef size_t whole = self.record_length + self.fragment_left
        cdef Lease larger = self.take(whole if self.trusted() else min(whole, 4 * self.record_length))
        if larger is None:
            return False
        copy_octets(<char *>larger.address, <char *>self.record.address, self.record_length)
        self.record.release()
        self.record = larger
        return True

    cdef int copy_fragment(self) except -1:
        cdef size_t part = min(self.end - self.start, self.fragment_left, self.record.capacity - self.record_length)
        copy_octets(
            <char *>self.record.address + self.record_length, <char *>self.buffer.address + self.start, part
        )
        self.record_length += part
        self.fragment_left -= part
        self.start += part
        return 0

    # -- calls that are answered here ----------------------------------------------------------------------------

    cdef bint answer(self, const uint8_t *message, size_t length, Lease lease) except -1:
        """Answer the call, or see that it is answered later; or leave it to the dispatcher."""
        if not self.answers.answer(message, length, lease):
            return False
        self.answered += 1
        if self.outgoing.queued >= SEND_EARLY:
            # The peer can go on with these while we answer the rest.
            self.answers.direct.pause()
            self.send()
        return True

    cdef object holder_of(self, Lease hold):
        """What holds a record that is the dispatcher's."""
        return hold if self.answers is None else self.answers.direct.passed_on(None, hold)

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
        return all_sent

    def flush(self, bint everything=False):
        """Send as much as the socket takes and a turn allows. Returns whether all has left."""
        if not self.begun:
            self.begin_turn()
        self.begun = False
        if self.severed:
            return self.outgoing.close() == 0
        if everything:
            self.may_send = self.outgoing.queued
        return self.send()

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
        self.outgoing.close()
        if self.buffer is not None:
            self.drop_buffer()
        if self.record is not None:
            record, self.record = self.record, None
            record.release()
        if self.given is not None:
            self.drop_given()
