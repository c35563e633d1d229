"""The duplicate request cache: a retransmitted call of a non-idempotent procedure is answered, not executed again.

Owns :class:`ReplayCache`; imports :mod:`rpcrdma.rpc.kept_replies`, the vocabulary of :mod:`rpcrdma.rpc.program`, payloads, digests and
what a host is. Used by the dispatcher for procedures marked ``replay`` (NFSv3's; NFSv4.1 has sessions for this).

What a retransmission is
    The same XID, procedure, caller and arguments, all of them, from the same peer. XIDs and the beginning of the
    arguments are not enough: there are clients that count XIDs from 1 each time they start, and whose calls differ late
    (WRITEs) or in the caller only. On TCP and UDP the port belongs to the peer: several clients may be behind one
    address, and a client that reconnects in order to retransmit keeps its port (Linux does). An RDMA connection's port
    is a new one each time and means nothing (RFC 8267 section 6.3). Where the port tells clients apart, of arguments
    longer than 128 KiB the first and the last 64 KiB have to do: the digest of a WRITE of 1 MiB takes a tenth of its
    time.

    WRITE is kept as well, though it may be repeated: the first copy may lie unread in the old connection's buffer, and
    be read when newer data has been written to the same place.

Lives
    A client retransmits after it has lost its connection, so entries outlive connections. Entries hold RPC replies, not
    what a transport made of them. A call that is still being executed is never forgotten: its retransmission on the same
    connection is dropped (the reply is on its way), one on another connection waits for the result, since the reply on
    the first may be lost.

Shares
    Finished entries are on the account of the peer's host. When there is no more room, that host loses its oldest entry
    which holds the most, to within a factor of two: who holds less than half of an equal share loses nothing to others.
    All of it takes a bounded number of steps, and no more memory than there are entries.
"""

from collections import OrderedDict, deque

from cython cimport freelist
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from rpcrdma.clock cimport nanoseconds
from rpcrdma.digest cimport Digest, digest_add, digest_begin, digest_end
from rpcrdma.place cimport load32, store32, store64
from rpcrdma.rpc.call_header cimport BODY, FLAWLESS, call_header_t, read_call
from rpcrdma.rpc.kept_replies cimport KeptReplies, cuts_of, kept_t, reply_of
from rpcrdma.wire.rpc cimport AUTH_SYS

from rpcrdma.firewall import contain
from rpcrdma.hosts import host_of
from rpcrdma.rpc.program import RpcReply
from rpcrdma.xdr.payload import Payload

Key = bytes
ENTRY_COST, HOST_COST, CUT_COST = 176, 800, 200
cdef size_t entry_cost = ENTRY_COST, host_cost = HOST_COST, cut_cost = CUT_COST

cdef enum:
    KEY_HEAD = 40
    STAMP = 4
    LEVELS = 64
    END = 64 << 10          # octets of a long call's arguments that are looked at, at each end, where the port counts
    SWEPT_EACH = 8          # entries that are added between two looks for expired ones
    SWEPT = 16              # hosts looked at then
    SWEPT_OF_ONE = 8
    LEAST_OF_ALL = 264      # octets of max_bytes for each entry that there may be, with its part of the table


cdef class Peer:
    def __init__(self, transport):
        address = transport.peer_address
        self.port_counts = not transport.netid.startswith("rdma")
        if self.port_counts:
            self.name = f"{transport.netid} {address} {transport.peer_port}".encode()
        else:
            self.name = f"rdma {address}".encode()
        self.host = host_of(address)


cdef uint64_t caller_digest(uint32_t flavor, const uint8_t *body, size_t size) noexcept nogil:
    """Of a credential. AUTH_SYS begins with an arbitrary stamp, which may be another one each time (RFC 5531 appendix
    A)."""
    cdef Digest digest
    digest_begin(&digest)
    digest_add(&digest, &flavor, sizeof(flavor))
    if flavor == AUTH_SYS and size >= STAMP:
        body += STAMP
        size -= STAMP
    digest_add(&digest, body, size)
    return digest_end(&digest)


cdef void digest_arguments(Digest *digest, const uint8_t *octets, size_t size, Peer peer) noexcept:
    """Begin a digest, and add the arguments, or those of them that came inline."""
    digest_begin(digest)
    if size <= 2 * END or not peer.port_counts:
        digest_add(digest, octets, size)
    else:
        digest_add(digest, octets, END)
        digest_add(digest, octets + size - END, END)
        digest.total = size


cdef bytes key_of(
    uint32_t xid, uint32_t program, uint32_t version, uint32_t procedure, uint64_t caller, Digest *arguments, Peer peer
):
    """The key of a call with these arguments. ``caller`` is a :func:`caller_digest`."""
    cdef bytes name = peer.name
    cdef bytes key = PyBytes_FromStringAndSize(NULL, KEY_HEAD + PyBytes_GET_SIZE(name))
    cdef uint8_t *at = <uint8_t *>PyBytes_AS_STRING(key)
    at = store32(store32(store32(store32(at, xid), program), version), procedure)
    at = store64(store64(store64(at, caller), arguments.total), digest_end(arguments))
    memcpy(at, PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name))
    return key


cdef int add_object(Digest *digest, object octets) except -1:
    cdef Py_buffer buffer
    PyObject_GetBuffer(octets, &buffer, PyBUF_SIMPLE)
    digest_add(digest, buffer.buf, buffer.len)
    PyBuffer_Release(&buffer)
    return 0


cdef uint64_t caller_in(object data) except? 0:
    """The :func:`caller_digest` of a call's header."""
    cdef Py_buffer buffer
    cdef const uint8_t *octets
    cdef call_header_t header
    PyObject_GetBuffer(data, &buffer, PyBUF_SIMPLE)
    try:
        octets = <const uint8_t *>buffer.buf
        if read_call(octets, buffer.len, &header) != FLAWLESS:
            raise ValueError("not the header of a call")
        return caller_digest(header.flavor, octets + BODY, header.length)
    finally:
        PyBuffer_Release(&buffer)


def make_key(Peer peer not None, uint32_t xid, tuple procedure, data, size_t offset, chunks, who=None):
    cdef Digest digest
    cdef Py_buffer buffer
    cdef size_t done = offset, before = 0, until
    cdef uint64_t caller = caller_in(data) if who is None else who
    if not chunks:
        PyObject_GetBuffer(data, &buffer, PyBUF_SIMPLE)
        digest_arguments(&digest, <const uint8_t *>buffer.buf + offset, max(<size_t>buffer.len, offset) - offset, peer)
        PyBuffer_Release(&buffer)
        return key_of(xid, procedure[0], procedure[1], procedure[2], caller, &digest, peer)
    digest_begin(&digest)
    for position, view in chunks:
        padding = -len(view) & 3
        until = max(position - before, done)
        for piece in (data[done:until], view, bytes(padding)):
            add_object(&digest, piece)
        done = until
        before += len(view) + padding
    add_object(&digest, data[done:])
    return key_of(xid, procedure[0], procedure[1], procedure[2], caller, &digest, peer)


@freelist(64)
cdef class Entry:
    def recall(self):
        cdef uint32_t xid = load32(<const uint8_t *>PyBytes_AS_STRING(self.key))
        if not self.cuts:
            return RpcReply(xid, self.reply, [])
        whole, done = memoryview(self.reply), 0
        head = bytearray()
        payloads = []
        for start, length in self.cuts:
            head += whole[done:start]
            payloads.append((len(head), Payload(whole[start : start + length])))
            done = start + length + (-length & 3)
        head += whole[done:]
        return RpcReply(xid, head, payloads)


cdef class Passed:
    @property
    def view(self):
        return self.lease.view

    @property
    def wanted(self):
        begun, entry = self.begun, self.entry
        return begun is not None and bool(begun.changed) or entry is not None and bool(entry.waiters)

    def take_begun(self):
        begun, self.begun = self.begun, None
        return begun

    def release(self):
        cdef Entry entry = self.entry
        begun = self.begun
        self.entry = self.begun = None
        try:
            if begun is not None:
                begun.give_back()
            if entry is not None and entry.passed_on:
                self.cache.abandon(entry, None)  # nobody has, and nobody will
        finally:
            if self.lease is not None:
                self.lease.release()


cdef Entry make_entry(bytes key, object transport):
    cdef Entry entry = Entry.__new__(Entry)
    entry.key = key
    entry.transport = transport
    entry.reply = b""
    entry.cuts = ()
    return entry


cdef class Share:
    """One host's part of the finished entries."""

    def __cinit__(self, host):
        self.host = host


cdef int level_of(size_t size) noexcept:
    """The number of its highest bit."""
    cdef int level = 0
    while size > 1:
        size >>= 1
        level += 1
    return level


cdef inline double now_of(ReplayCache cache) except? -1:
    """Seconds, by the machine's clock or a test's."""
    return nanoseconds() * 1e-9 if cache.clock is None else cache.clock()


cdef class ReplayCache:
    def __init__(self, max_bytes=16 << 20, *, ttl=120.0, clock=None):
        self.max_bytes = max_bytes
        self.ttl, self.clock = ttl, clock
        self.running = {}
        self.finished = KeptReplies(self.max_bytes // LEAST_OF_ALL)
        self.room = self.max_bytes - self.finished.table_octets()
        self.shares = {}
        self.order = deque()
        # A plain dict finds its oldest item ever more slowly as the ones before it go.
        self.levels = [OrderedDict() for _ in range(LEVELS)]

    def __len__(self):
        return len(self.running) + self.finished.count

    @property
    def hosts(self):
        return len(self.shares)

    def look_up(self, bytes key):
        cdef kept_t *kept = self.finished.find(key)
        cdef Entry entry
        if kept == NULL:
            return None
        if kept.expires <= now_of(self):
            return None  # the same call as long ago; its reply takes this one's place
        self.hits += 1
        entry = make_entry(key, None)
        entry.reply, entry.cuts = reply_of(kept), cuts_of(kept)
        return entry

    cdef bint is_new(self, bytes key) except -1:
        """Whether nothing is known of this call."""
        return self.finished.find(key) == NULL and key not in self.running

    cdef int remember(self, bytes key, object host, bytes reply) except -1:
        """Keep the reply of a call that was executed without waiting (:meth:`begin` and :meth:`finish` in one)."""
        return self.keep(key, host, reply, ())

    cpdef Entry begin(self, bytes key, object transport, Passed passed=None):
        cdef Entry entry = self.running.get(key)
        if entry is not None and entry.passed_on and passed is not None and passed.entry is entry:
            entry.passed_on = False
            return entry
        if entry is not None:
            self.hits += 1
            return None
        entry = self.running[key] = make_entry(key, transport)
        return entry

    cdef Passed pass_on(self, Entry entry, object lease, object begun, tuple taken):
        """The call is to be executed by whoever begins with it as ``passed``, which is returned. It holds the call
        until then, with the ``lease`` of its message, what has been ``begun``, and the sequence number that was ``taken``
        for it. ``entry`` is None for a call that is not under the cache."""
        cdef Passed passed = Passed.__new__(Passed)
        if entry is not None:
            entry.passed_on = True
        passed.cache, passed.entry, passed.lease, passed.begun, passed.taken = self, entry, lease, begun, taken
        return passed

    def join(self, bytes key, transport, done):
        cdef Entry entry = self.running[key]
        if entry.waiters is None:
            entry.waiters = []
        if entry.transport is transport or any([waiting is transport for waiting, _ in entry.waiters]):
            return False
        entry.waiters.append((transport, done))
        return True

    def finish(self, Entry entry not None, reply):
        host = host_of(entry.transport.peer_address)
        self.conclude(entry, host, join_reply(reply), cuts(reply) if reply.payloads else ())

    cdef int conclude(self, Entry entry, object host, bytes reply, tuple cuts) except -1:
        """As :meth:`finish`, of a reply in one piece, and where payloads stand in it."""
        entry.transport = None
        waiters, entry.waiters = entry.waiters, None
        del self.running[entry.key]
        try:
            entry.reply, entry.cuts = reply, cuts
            self.keep(entry.key, host, reply, cuts)
        finally:
            for waiting, done in waiters or ():
                contain(waiting.close, done, entry.recall() if entry.reply else None)

    cdef int keep(self, bytes key, object host, bytes reply, tuple cuts) except -1:
        cdef double now = now_of(self)
        cdef size_t own = entry_cost + PyBytes_GET_SIZE(reply) + cut_cost * len(cuts)
        cdef Share share = self.shares.get(host)
        cdef kept_t *kept
        if share is None:
            share = Share(host)
            self.shares[host] = share
            self.order.append(share)
        # First the room for it: in a full cache, sizes would else go up and down with each entry, over a power of two
        # that is the bound, and shares from level to level.
        while self.size and self.size + own + (host_cost if share.oldest == NULL else 0) > self.room:
            # Most often the host itself is one of those that hold the most.
            self.drop_oldest(share if share.size and share.level == self.top else self.largest())
        kept = self.finished.add(key, reply, cuts)
        if kept == NULL:
            self.drop_expired(share, now, self.finished.count)
            kept = self.finished.add(key, reply, cuts)
            if kept == NULL:
                # It has not expired, and the call was executed again: what has been done tells a retransmission by itself
                # (UNDER_WAY), so the reply is the same.
                return 0
        kept.expires = now + self.ttl
        if share.oldest == NULL:
            own += host_cost
            share.oldest = kept
        else:
            share.newest.newer = kept
        share.newest = kept
        self.account(share, own, True)
        self.added += 1
        if self.added % SWEPT_EACH == 0:
            self.sweep(now)
        elif share.oldest.expires <= now:
            self.drop_oldest(share)
        while self.size > self.room:
            self.drop_oldest(self.largest())
        return 0

    cdef int account(self, Share share, size_t octets, bint more) except -1:
        """A share has grown, or is smaller."""
        cdef int level
        if share.size:
            level = share.level
        else:
            level = -1
        share.size = share.size + octets if more else share.size - octets
        self.size = self.size + octets if more else self.size - octets
        if level >= 0 and share.size >> level == 1:
            return 0
        share.level = level_of(share.size)
        if level >= 0:
            del self.levels[level][share]
        if share.size:
            self.levels[share.level][share] = None
            self.top = max(self.top, share.level)
        return 0

    cdef Share largest(self):
        """One that holds more than half of what anybody holds. There is one."""
        while not self.levels[self.top]:
            self.top -= 1
        return next(iter(self.levels[self.top]))

    cdef int drop_oldest(self, Share share) except -1:
        cdef kept_t *oldest = share.oldest
        cdef size_t cost = entry_cost + oldest.reply_size + cut_cost * len(cuts_of(oldest))
        share.oldest = oldest.newer
        if share.oldest == NULL:
            cost += host_cost
        self.finished.drop(oldest)
        return self.account(share, cost, False)

    cdef int drop_expired(self, Share share, double now, size_t most) except -1:
        """A host loses what has expired, but no more than so many."""
        while most and share.oldest != NULL and share.oldest.expires <= now:
            self.drop_oldest(share)
            most -= 1
        return 0

    cdef int sweep(self, double now) except -1:
        """Look at the next hosts: what has expired goes, and hosts of which nothing is left."""
        cdef Share share
        cdef int hosts
        for hosts in range(min(SWEPT, len(self.order))):
            share = self.order.popleft()
            self.drop_expired(share, now, SWEPT_OF_ONE)
            if share.oldest != NULL:
                self.order.append(share)
            else:
                del self.shares[share.host]
        return 0

    def abandon(self, Entry entry not None, reply):
        del self.running[entry.key]
        waiters, entry.waiters = entry.waiters, None
        if waiters and reply is not None:
            entry.reply = join_reply(reply)
            entry.cuts = cuts(reply)
        for waiting, done in waiters or ():
            contain(waiting.close, done, None if reply is None else entry.recall())


def join_reply(reply):
    """The whole reply in one piece, payloads and their padding in place; the reply itself stays as it is."""
    if not reply.payloads:
        return bytes(reply.head)
    pieces = []
    head, done = memoryview(reply.head), 0
    for offset, payload in reply.payloads:
        pieces += (head[done:offset], payload.view, bytes(-len(payload) & 3))
        done = offset
    pieces.append(head[done:])
    return b"".join(pieces)


def cuts(reply):
    """Where the DDP-eligible payloads stand in the reply that :func:`join_reply` makes; the others are part of it."""
    before, found = 0, []
    for offset, payload in reply.payloads:
        if payload.eligible:
            found.append((offset + before, len(payload)))
        before += (len(payload) + 3) & ~3
    return tuple(found)
