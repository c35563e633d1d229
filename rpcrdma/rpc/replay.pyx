"""The duplicate request cache: a retransmitted call of a non-idempotent procedure is answered, not executed again.

Owns :class:`ReplayCache`; imports the vocabulary of :mod:`rpcrdma.rpc.program` and payloads only. Used by the
dispatcher for procedures marked ``replay`` (NFSv3's; NFSv4.1 has sessions for this).

A client retransmits after it has lost its connection, so entries outlive connections and the port is no part of the
key. Entries hold RPC replies, not what a transport made of them. A call that is still being executed is never
forgotten: its retransmission on the same connection is dropped (the reply is on its way), one on another connection
waits for the result, since the reply on the first may be lost.
"""

import os
import time
from collections import deque

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from rpcrdma.place cimport load32, store32, store64

from rpcrdma.firewall import contain
from rpcrdma.rpc.program import RpcReply
from rpcrdma.xdr.payload import Payload

Key = bytes
ENTRY_COST = 400
cdef size_t entry_cost = ENTRY_COST

cdef enum:
    KEY_HEAD = 32
    ODD = 0x9E3779B97F4A7C15

cdef uint64_t seed = int.from_bytes(os.urandom(8), "little")
"""So that no peer can choose arguments of the same digest."""


cdef void add(Beginning *beginning, const uint8_t *octets, size_t size) noexcept nogil:
    """Add the next octets of the arguments, as far as they are digested."""
    size = min(size, DIGESTED - beginning.count)
    memcpy(beginning.octets + beginning.count, octets, size)
    beginning.count += size


cdef uint64_t digest(Beginning *beginning) noexcept nogil:
    cdef uint64_t mixed = seed ^ beginning.count
    cdef uint64_t word
    cdef size_t at = 0
    memset(beginning.octets + beginning.count, 0, DIGESTED - beginning.count)
    while at < beginning.count:
        memcpy(&word, beginning.octets + at, 8)
        mixed = (mixed ^ word) * <uint64_t>ODD
        mixed ^= mixed >> 32
        at += 8
    return mixed


cdef bytes key_of(
    uint32_t xid, uint32_t program, uint32_t version, uint32_t procedure, uint64_t length, Beginning *beginning,
    bytes peer
):
    """The key of a call with ``length`` octets of arguments."""
    cdef bytes key = PyBytes_FromStringAndSize(NULL, KEY_HEAD + PyBytes_GET_SIZE(peer))
    cdef uint8_t *at = <uint8_t *>PyBytes_AS_STRING(key)
    at = store32(store32(store32(store32(at, xid), program), version), procedure)
    at = store64(store64(at, length), digest(beginning))
    memcpy(at, PyBytes_AS_STRING(peer), PyBytes_GET_SIZE(peer))
    return key


cdef int add_object(Beginning *beginning, object octets) except -1:
    cdef Py_buffer buffer
    PyObject_GetBuffer(octets, &buffer, PyBUF_SIMPLE)
    add(beginning, <const uint8_t *>buffer.buf, buffer.len)
    PyBuffer_Release(&buffer)
    return 0


def make_key(str peer_address, uint32_t xid, tuple procedure, data, size_t offset, chunks):
    cdef Beginning beginning
    cdef size_t length = len(data) - offset
    cdef size_t done = offset, before = 0, until
    beginning.count = 0
    for position, view in chunks:
        padding = -len(view) & 3
        length += len(view) + padding
        until = max(position - before, done)
        for piece in (data[done:until], view, bytes(padding)):
            add_object(&beginning, piece)
        done = until
        before += len(view) + padding
    add_object(&beginning, data[done : done + DIGESTED])
    return key_of(xid, procedure[0], procedure[1], procedure[2], length, &beginning, peer_address.encode())


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


cdef Entry make_entry(bytes key, object transport):
    cdef Entry entry = Entry.__new__(Entry)
    entry.key = key
    entry.transport = transport
    entry.reply = b""
    entry.cuts = ()
    return entry


cdef class ReplayCache:
    def __init__(self, max_bytes=8 << 20, max_entries=16384, *, ttl=120.0, clock=time.monotonic):
        self.max_bytes, self.max_entries = max_bytes, max_entries
        self.ttl, self.clock = ttl, clock
        self.running = {}
        self.finished = {}
        # A plain dict finds its oldest entry ever more slowly as the ones before it go.
        self.order = deque()

    def __len__(self):
        return len(self.running) + len(self.finished)

    def look_up(self, bytes key):
        cdef Entry entry = self.finished.get(key)
        cdef double now
        if entry is None:
            return None
        now = self.clock()
        if entry.expires <= now:
            self.trim(now)  # everything finished before it has expired as well
            return None
        self.hits += 1
        return entry

    cdef bint is_new(self, bytes key) except -1:
        """Whether nothing is known of this call."""
        return key not in self.finished and key not in self.running

    cdef int remember(self, bytes key, bytes reply) except -1:
        """Keep the reply of a call that was executed without waiting (:meth:`begin` and :meth:`finish` in one)."""
        return self.keep(make_entry(key, None), reply)

    def begin(self, bytes key, transport):
        if key in self.running:
            self.hits += 1
            return None
        entry = self.running[key] = make_entry(key, transport)
        return entry

    def join(self, bytes key, transport, done):
        cdef Entry entry = self.running[key]
        if entry.waiters is None:
            entry.waiters = []
        if entry.transport is transport or any([waiting is transport for waiting, _ in entry.waiters]):
            return False
        entry.waiters.append((transport, done))
        return True

    def finish(self, Entry entry not None, reply):
        del self.running[entry.key]
        entry.transport = None
        self.keep(entry, join_reply(reply))
        if reply.payloads:
            entry.cuts = cuts(reply)
        waiters, entry.waiters = entry.waiters, None
        for waiting, done in waiters or ():
            contain(waiting.close, done, entry.recall())

    cdef int keep(self, Entry entry, bytes reply) except -1:
        cdef double now = self.clock()
        entry.reply = reply
        entry.expires = now + self.ttl
        self.finished[entry.key] = entry
        self.order.append(entry)
        self.size += PyBytes_GET_SIZE(reply) + entry_cost
        return self.trim(now)

    def abandon(self, Entry entry not None, reply):
        del self.running[entry.key]
        waiters, entry.waiters = entry.waiters, None
        if waiters and reply is not None:
            entry.reply = join_reply(reply)
            entry.cuts = cuts(reply)
        for waiting, done in waiters or ():
            contain(waiting.close, done, None if reply is None else entry.recall())

    cdef int trim(self, double now) except -1:
        cdef Entry oldest
        while self.order:
            oldest = self.order[0]
            if self.size <= self.max_bytes and len(self.finished) <= <Py_ssize_t>self.max_entries and oldest.expires > now:
                break
            self.order.popleft()
            del self.finished[oldest.key]
            self.size -= PyBytes_GET_SIZE(oldest.reply) + entry_cost
        return 0


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
    """Where the payloads stand in the reply that :func:`join_reply` makes."""
    before, found = 0, []
    for offset, payload in reply.payloads:
        found.append((offset + before, len(payload)))
        before += (len(payload) + 3) & ~3
    return tuple(found)
