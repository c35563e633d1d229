"""A load generator in native code: RPC calls, a fixed number outstanding on each connection, every reply checked.

Owns the traffic of connected blocking sockets while it runs; imports the clock. One core of load costs less
than any server does per call, so the server is what is measured.

:class:`Load` is one connection, and knows everything but how messages are framed; that is :class:`Generator` for TCP,
and another derived class for iWARP. :func:`drive` runs any number of them at once; one alone without asking the kernel
who is ready, and without the interpreter's lock.

Calls are templates: whole RPC messages, of which only the XID is filled in, and in NFSv4.1 and later the sequence id and
the slot: an outstanding call has a slot of the session to itself, from slot 1 on. Templates may form chains, calls that one
slot makes one after the other: what the first one's reply gives (a stateid, a handle) goes into the others. Each reply is matched by XID, and the words
after the reply's header (RPC acceptance, NFS status) must be zero; its length must be the expected one.
"""

from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, qsort, realloc
from libc.string cimport memcpy, memmove, memset

from rpcrdma.clock cimport nanoseconds
from rpcrdma.octets cimport load32, store32

import os

cdef extern from "sys/uio.h" nogil:
    struct iovec:
        void *iov_base
        size_t iov_len

cdef extern from "sys/socket.h" nogil:
    struct msghdr:
        iovec *msg_iov
        size_t msg_iovlen
    ssize_t sendmsg(int fd, const msghdr *message, int flags)
    ssize_t recv(int fd, void *data, size_t size, int flags)
    int MSG_NOSIGNAL

cdef extern from "sys/epoll.h" nogil:
    ctypedef union epoll_data_t:
        uint32_t u32
    struct epoll_event:
        uint32_t events
        epoll_data_t data
    int epoll_create1(int flags)
    int epoll_ctl(int epfd, int operation, int fd, epoll_event *event)
    int epoll_wait(int epfd, epoll_event *events, int most, int timeout)
    int EPOLL_CTL_ADD, EPOLLIN, EPOLL_CLOEXEC

cdef extern from "unistd.h" nogil:
    int close(int fd)

cdef enum:
    RECEIVE = 1 << 20               # as much as the loopback stream takes that figures are put beside
    REPLY_HEAD = 36                 # of a record: its mark, and all that is looked at
    CUTS = 1024                     # pieces on their way that are sent from where they are
    VECTORS = 128
    UNCUT = 16384                   # smaller ones are copied
    HEAD = 1024                     # of a call: all in it that differs from its template is in front
    READY = 64                      # connections that one look at the kernel reports
    PATIENCE = 60000                # milliseconds

cdef const char *FAILED = b"a call failed"
cdef const char *CLOSED = b"the server closed the connection"
cdef const char *SILENT = b"the server does not answer"


class CallFailed(RuntimeError):
    def __init__(self, status, refused):
        super().__init__(f"a call failed: {'RPC' if refused else 'NFS'} status {status}")
        self.status, self.refused = status, refused


cdef int ascending(const void *left, const void *right) noexcept nogil:
    cdef uint32_t a = (<uint32_t *>left)[0]
    cdef uint32_t b = (<uint32_t *>right)[0]
    return -1 if a < b else (1 if a > b else 0)


cdef class Latencies:
    """How long calls took, of one connection or of many."""

    def __dealloc__(self):
        free(self.nanoseconds)

    cdef void note(self, uint64_t elapsed) noexcept nogil:
        """Remember a latency in nanoseconds; without memory for it, it is forgotten."""
        cdef void *larger
        if self.samples == self.room:
            larger = realloc(self.nanoseconds, (2 * self.room + 65536) * sizeof(uint32_t))
            if larger == NULL:
                return
            self.nanoseconds = <uint32_t *>larger
            self.room = 2 * self.room + 65536
        self.nanoseconds[self.samples] = <uint32_t>min(elapsed, <uint64_t>0xFFFFFFFF)
        self.samples += 1

    cdef void sort(self) noexcept nogil:
        qsort(self.nanoseconds, self.samples, sizeof(uint32_t), ascending)

    def percentile(self, double part):
        """Latency in microseconds below which this part of the calls was answered."""
        if not self.samples:
            return 0.0
        return self.nanoseconds[min(<size_t>(part * self.samples), self.samples - 1)] / 1000


cdef int send_all(int fd, iovec *vectors, size_t count) noexcept nogil:
    """Send all of the vectors, which it changes; -1 when the connection is broken."""
    cdef msghdr message
    cdef ssize_t sent
    memset(&message, 0, sizeof(message))
    message.msg_iov, message.msg_iovlen = vectors, count
    while message.msg_iovlen:
        sent = sendmsg(fd, &message, MSG_NOSIGNAL)
        if sent < 0:
            if errno == EINTR:
                continue
            return -1
        while message.msg_iovlen and <size_t>sent >= message.msg_iov.iov_len:
            sent -= message.msg_iov.iov_len
            message.msg_iov += 1
            message.msg_iovlen -= 1
        if message.msg_iovlen:
            message.msg_iov.iov_base = <uint8_t *>message.msg_iov.iov_base + sent
            message.msg_iov.iov_len -= sent
    return 0


cdef class Load:
    """Calls on one connection: templates, slots and octets on their way. Derived from for each transport."""

    def __cinit__(self, int fd, templates, uint32_t depth, *more, size_t sequence_at=0, bint lenient=False, pairs=(0, 0),
                  size_t chain=0, size_t given=16, counted_at=(), uint32_t counted_from=0, bint once=False, **others):
        """``templates``: whole calls, used in turn, in which XIDs are filled in. At most 4096 outstanding."""
        cdef size_t i
        cdef bytes template
        if not 1 <= depth <= 4096:
            raise ValueError(f"{depth} calls outstanding")
        self.fd = fd
        self.templates = [bytes(template) for template in templates]
        self.count = len(self.templates)
        self.depth = self.window = depth
        self.sequence_at = sequence_at
        self.lenient = lenient
        self.given_at, self.taken_at = pairs
        self.given_size = given
        self.chain = chain or (2 if self.taken_at else 1)
        self.counted_from = counted_from
        self.once = once
        self.chains = self.count // self.chain
        if self.chain > 1 and (self.count % self.chain or self.chains < depth):
            raise ValueError(f"{self.count} calls are not a chain of {self.chain} for each of {depth} slots")
        if counted_at and len(counted_at) != self.chain:
            raise ValueError(f"{len(counted_at)} places for {self.chain} calls")
        self.latencies = Latencies()
        self.calls = <uint8_t **>calloc(self.count, sizeof(uint8_t *))
        self.sizes = <size_t *>calloc(self.count, sizeof(size_t))
        self.started = <uint64_t *>calloc(depth, sizeof(uint64_t))
        self.round = <uint32_t *>calloc(depth, sizeof(uint32_t))
        self.given = <uint8_t *>calloc(depth, given)
        self.chain_of = <size_t *>calloc(depth, sizeof(size_t))
        self.counted_at = <size_t *>calloc(self.chain, sizeof(size_t))
        if (self.calls == NULL or self.sizes == NULL or self.started == NULL or self.round == NULL or self.given == NULL
                or self.chain_of == NULL or self.counted_at == NULL):
            raise MemoryError
        for i in range(len(counted_at)):
            self.counted_at[i] = counted_at[i]
        for i in range(self.count):
            template = self.templates[i]
            self.calls[i] = <uint8_t *><char *>template
            self.sizes[i] = len(template)

    def __dealloc__(self):
        free(self.calls)
        free(self.sizes)
        free(self.started)
        free(self.round)
        free(self.given)
        free(self.chain_of)
        free(self.counted_at)
        free(self.out)
        free(self.cuts)
        free(self.buffer)

    cdef size_t begin_call(self, uint8_t *at, uint32_t slot, const uint8_t *call, size_t size) noexcept nogil:
        """Put a call, framed. Returns octets."""
        return 0

    cdef size_t take(self, Run *run, const uint8_t *data, size_t size) noexcept nogil:
        """Handle the message that ``data`` begins with. Returns its octets; 0: it has not arrived as a whole."""
        return 0

    cdef int prepare(self) except -1:
        """Have room for what is on its way."""
        cdef size_t i, largest = 0
        if self.out != NULL:
            return 0
        for i in range(self.count):
            largest = max(largest, self.sizes[i] + 64)
        self.out = <uint8_t *>malloc((largest + self.response) * self.depth + self.response)
        self.cuts = <Cut *>malloc(CUTS * sizeof(Cut))
        self.buffer = <uint8_t *>malloc(RECEIVE)
        if self.out == NULL or self.cuts == NULL or self.buffer == NULL:
            raise MemoryError
        return 0

    cdef int transmit(self) noexcept nogil:
        """Send everything that is to go out; -1 when the connection is broken."""
        cdef iovec vectors[VECTORS]
        cdef size_t count, done = 0, next_cut = 0, end
        while done < self.outgoing or next_cut < self.cut_count:
            count = 0
            while count < VECTORS - 1 and (done < self.outgoing or next_cut < self.cut_count):
                end = self.cuts[next_cut].after if next_cut < self.cut_count else self.outgoing
                vectors[count].iov_base = self.out + done
                vectors[count].iov_len = end - done
                count += 1
                done = end
                if next_cut < self.cut_count:
                    vectors[count].iov_base = <void *>self.cuts[next_cut].data
                    vectors[count].iov_len = self.cuts[next_cut].size
                    count += 1
                    next_cut += 1
            if send_all(self.fd, vectors, count) != 0:
                return -1
        self.outgoing = self.cut_count = 0
        return 0

    cdef bint cut(self, const uint8_t *at, const uint8_t *data, size_t size) noexcept nogil:
        """Have octets sent between what is before ``at`` and what comes there; they must stay where they are. False:
        they are to be copied."""
        cdef Cut *one = self.cuts + self.cut_count
        if size < UNCUT or self.cut_count == CUTS:
            return False
        one.after, one.data, one.size = at - self.out, data, size
        self.cut_count += 1
        return True

    cdef void fill_in(self, uint8_t *call, uint32_t slot) noexcept nogil:
        """Make the next call of a slot of a template."""
        cdef size_t position = (self.round[slot] - 1) % self.chain
        store32(call, (self.round[slot] << 12) | slot)
        if self.sequence_at:
            store32(call + self.sequence_at, self.round[slot])
            store32(call + self.sequence_at + 4, slot + 1)
        if self.taken_at and position:
            memcpy(call + self.taken_at, self.given + self.given_size * slot, self.given_size)
        if self.counted_at[position]:
            store32(call + self.counted_at[position], self.counted_from + self.round[slot])

    cdef void issue(self, Run *run, uint32_t slot) noexcept nogil:
        """The slot's next call."""
        cdef size_t position = self.round[slot] % self.chain
        self.started[slot] = run.moment
        self.round[slot] += 1
        self.begun += position == 0
        if self.chain > 1:
            if position == 0:
                # As many chains as slots: each slot has one to itself, since the next one may still be under way.
                self.chain_of[slot] = slot if self.chains == self.depth else self.next_chain
                self.next_chain = (self.next_chain + 1) % self.chains
            self.next_call = self.chain * self.chain_of[slot] + position
        self.outgoing += self.begin_call(
            self.out + self.outgoing, slot, self.calls[self.next_call], self.sizes[self.next_call]
        )
        self.next_call = (self.next_call + 1) % self.count
        run.issued += 1

    cdef void begin(self, Run *run) noexcept nogil:
        """The first calls of a run."""
        self.have = self.outgoing = self.cut_count = 0
        self.active = self.begun = 0
        self.widen(run)
        if self.transmit() != 0:
            run.problem = b"cannot send"

    cdef void widen(self, Run *run) noexcept nogil:
        """Use as many slots as may be."""
        while self.active < self.window and self.may_issue(run, self.active):
            self.issue(run, self.active)
            self.active += 1

    cdef bint may_issue(self, Run *run, uint32_t slot) noexcept nogil:
        """Whether a slot may make another call. A run of so many calls makes whole chains, where slots share them."""
        if run.moment >= run.until or run.problem != NULL:
            return False
        if self.once:
            return self.round[slot] % self.chain != 0 or self.begun < self.chains
        if run.most == 0:
            return True
        if self.chain > 1 and self.chains > self.depth:
            return self.round[slot] % self.chain != 0 or self.begun * self.chain < run.most
        return run.issued < run.most

    cdef bint expects(self, uint32_t xid) noexcept nogil:
        """Whether a call with this XID is outstanding."""
        return xid & 0xFFF < self.depth and xid >> 12 == self.round[xid & 0xFFF] & 0xFFFFF

    cdef bint succeeded(self, Run *run, const uint8_t *result) noexcept nogil:
        """Whether a call is accepted and its NFS status is NFS_OK; ``result``: the five words behind the message type."""
        cdef size_t i
        for i in range(5):
            run.status = load32(result + 4 * i)
            if run.status:
                run.problem = FAILED
                run.refused = i < 4
                return False
        return True

    cdef void learn(self, uint32_t slot, const uint8_t *reply, size_t size) noexcept nogil:
        """Take from the reply to the first call of a chain what the others need; ``size``: of what is here of it."""
        if self.taken_at and (self.round[slot] - 1) % self.chain == 0 and size >= self.given_at + self.given_size:
            memcpy(self.given + self.given_size * slot, reply + self.given_at, self.given_size)

    cdef void answered(self, Run *run, uint32_t slot) noexcept nogil:
        """A call is over: another, unless it was the last."""
        run.answered += 1
        self.latencies.note(run.moment - self.started[slot])
        if self.may_issue(run, slot):
            self.issue(run, slot)

    cdef void turn(self, Run *run) noexcept nogil:
        """Receive once, handle what is there, send what follows from it."""
        cdef ssize_t got
        cdef size_t at = 0, length
        while True:
            got = recv(self.fd, self.buffer + self.have, RECEIVE - self.have, 0)
            if got >= 0 or errno != EINTR:
                break
        if got <= 0:
            run.problem = SILENT if got < 0 and errno == EAGAIN else CLOSED
            return
        self.have += got
        run.moment = nanoseconds()
        while run.problem == NULL:
            length = self.take(run, self.buffer + at, self.have - at)
            if length == 0:
                break
            at += length
        memmove(self.buffer, self.buffer + at, self.have - at)
        self.have -= at
        if self.outgoing and run.problem == NULL and self.transmit() != 0:
            run.problem = b"cannot send"

    def run(self, double seconds, size_t most=0):
        """Keep ``depth`` calls outstanding for so long (or ``most`` calls). Returns (calls answered, seconds)."""
        return drive([self], self.latencies, seconds, most)

    def percentile(self, double part):
        """Latency in microseconds below which this part of the calls of the last run was answered."""
        return self.latencies.percentile(part)


class Loads:
    """Connections that have their calls outstanding at the same time."""

    def __init__(self, loads):
        self.loads = list(loads)
        self.latencies = Latencies()
        for load in self.loads:
            (<Load?>load).latencies = self.latencies

    def run(self, seconds, most=0):
        """Keep the calls of every connection outstanding for so long (or ``most`` calls of all)."""
        return drive(self.loads, self.latencies, seconds, most)

    def percentile(self, part):
        """Latency in microseconds below which this part of all calls of the last run was answered."""
        return self.latencies.percentile(part)


cdef drive(list loads, Latencies latencies, double seconds, size_t most):
    """Run connections until the time is over and all replies are there. Returns (calls answered, seconds)."""
    cdef Run run
    cdef Load load
    cdef uint64_t begun
    run.most, run.issued, run.answered, run.problem, run.seen_size = most, 0, 0, NULL, 0
    for load in loads:
        load.prepare()
    latencies.samples = 0
    begun = run.moment = nanoseconds()
    run.until = begun + <uint64_t>(seconds * 1e9)
    for load in loads:
        with nogil:
            load.begin(&run)
    if len(loads) == 1:
        load = loads[0]
        with nogil:
            while run.answered < run.issued and run.problem == NULL:
                load.turn(&run)
    else:
        wait_for(loads, &run)
    run.moment = nanoseconds()
    with nogil:
        latencies.sort()
    if run.problem == FAILED:
        raise CallFailed(run.status, run.refused)
    if run.problem != NULL:
        problem = run.problem.decode()
        if run.seen_size:
            problem += f", which begins with {run.seen[:run.seen_size].hex(' ', -4)}"
        raise RuntimeError(problem)
    return run.answered, (run.moment - begun) / 1e9


cdef int wait_for(list loads, Run *run) except -1:
    """Give each connection its turn when something has arrived."""
    cdef epoll_event[READY] ready
    cdef epoll_event wanted
    cdef Load load
    cdef int poll = epoll_create1(EPOLL_CLOEXEC), number, i
    if poll < 0:
        raise OSError(errno, os.strerror(errno))
    try:
        wanted.events = EPOLLIN
        for i, load in enumerate(loads):
            wanted.data.u32 = i
            if epoll_ctl(poll, EPOLL_CTL_ADD, load.fd, &wanted) < 0:
                raise OSError(errno, os.strerror(errno))
        while run.answered < run.issued and run.problem == NULL:
            with nogil:
                number = epoll_wait(poll, ready, READY, PATIENCE)
            if number == 0:
                run.problem = SILENT
            for i in range(number):
                load = loads[ready[i].data.u32]
                load.turn(run)
    finally:
        close(poll)
    return 0


cdef class Generator(Load):
    """RPC calls over TCP with record marks."""

    cdef size_t reply_size          # of a whole record without its mark; 0: any
    cdef size_t rest                # of the reply that is being received
    cdef uint32_t current           # its slot

    def __cinit__(self, int fd, templates, uint32_t depth, size_t reply_size=0, **others):
        self.reply_size = reply_size

    cdef size_t begin_call(self, uint8_t *at, uint32_t slot, const uint8_t *call, size_t size) noexcept nogil:
        """Put a call with its record mark. Returns octets."""
        cdef size_t head = size
        store32(at, <uint32_t>0x80000000 | <uint32_t>size)
        if size > HEAD and self.cut(at + 4 + HEAD, call + HEAD, size - HEAD):
            head = HEAD
        memcpy(at + 4, call, head)
        self.fill_in(at + 4, slot)
        return 4 + head

    cdef size_t take(self, Run *run, const uint8_t *data, size_t size) noexcept nogil:
        """Check the head of one record, a reply; what else it consists of is received, but not kept."""
        cdef size_t length
        cdef uint32_t xid
        if self.rest:
            length = min(self.rest, size)
            self.rest -= length
            if self.rest == 0:
                self.answered(run, self.current)
            return length
        if size < 4:
            return 0
        length = load32(data) & 0x7FFFFFFF
        if size < min(4 + length, max(<size_t>REPLY_HEAD, 4 + self.given_at + self.given_size)):
            return 0
        xid = load32(data + 4)
        if length < 28 or not self.expects(xid):
            run.problem = b"a reply to no call"
            return 0
        if not self.lenient:
            if self.succeeded(run, data + 12) and self.reply_size and length != self.reply_size:
                run.problem = b"a reply of an unexpected length"
        self.learn(xid & 0xFFF, data + 4, min(length, size - 4))
        if 4 + length > size:
            self.rest, self.current = 4 + length - size, xid & 0xFFF
            return size
        self.answered(run, xid & 0xFFF)
        return 4 + length
