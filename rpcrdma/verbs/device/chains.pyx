"""Chains of work requests, made once where they are posted from.

Owns :class:`Chain`. Imports the Send queue's accounting, the device's memory and the libraries.

Memory
    What lies in an arena is posted where it is. What does not (``bytes``, buffers off the heap) is copied into one, or
    registered for this chain alone if it is large or no buffer is to be had. A chain keeps what it points to until it
    is released, which is when its completion has been taken, or its queue pair destroyed.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from rpcrdma.copying cimport copy_octets
from rpcrdma.memory cimport Lease
from rpcrdma.verbs.device.device cimport Device
from rpcrdma.verbs.device.queue cimport Job
from rpcrdma.verbs.device.registrations cimport Registration
from rpcrdma.verbs.device.verbs_api cimport (
    IBV_ACCESS_LOCAL_WRITE,
    IBV_ACCESS_REMOTE_WRITE,
    IBV_WR_RDMA_READ,
    IBV_WR_RDMA_WRITE,
    IBV_WR_SEND,
    IBV_WR_SEND_WITH_INV,
    ibv_send_wr,
    ibv_sge,
    ibv_wr_opcode,
)
from rpcrdma.verbs.native cimport Fetch, Target

from rpcrdma.memory import OutOfMemory
from rpcrdma.verbs.interface import RdmaRead
from rpcrdma.verbs.native import ANSWERED


cdef enum:
    # Copying this much costs less than registering it.
    COPIED = 128 << 10
    PAGE = 4096
    # Octets: what siw sends together with its header (MAX_HDR_INLINE in the kernel), and some.
    TINY = 32


cdef class Chain(Job):
    """Work requests, linked, with their segments; all but the last one of a piece unsignalled."""

    def __init__(self):
        raise TypeError("chains are made by an endpoint")

    def __dealloc__(self):
        free(self.block)

    cdef int allocate(self, size_t requests, size_t segments) except -1:
        cdef size_t head
        if requests <= FEW_REQUESTS and segments <= FEW_SEGMENTS:
            self.requests = self.few_requests
            self.segments = self.few_segments
            memset(self.requests, 0, sizeof(self.few_requests))
            return 0
        head = requests * sizeof(ibv_send_wr)
        self.block = calloc(1, head + segments * sizeof(ibv_sge))
        if self.block == NULL:
            raise MemoryError
        self.requests = <ibv_send_wr *>self.block
        self.segments = <ibv_sge *>(<char *>self.block + head)
        return 0

    cdef ibv_send_wr *request(self, int opcode, uint32_t key, uint64_t address) noexcept:
        """Begin the next work request."""
        cdef ibv_send_wr *request = self.requests + self.request_count
        self.request_count += 1
        self.count = self.request_count
        request.opcode = <ibv_wr_opcode>opcode
        request.sg_list = self.segments + self.segment_count
        request.wr.rdma.rkey = key
        request.wr.rdma.remote_addr = address
        return request

    cdef int place(self, ibv_send_wr *request, size_t address, size_t length, uint32_t key) except -1:
        """Add a segment to the work request begun last."""
        cdef ibv_sge *segment
        if length == 0:
            return 0
        if length >> 31:
            raise ValueError(f"a segment of {length} octets")
        segment = self.segments + self.segment_count
        self.segment_count += 1
        request.num_sge += 1
        segment.addr = address
        segment.length = <uint32_t>length
        segment.lkey = key
        return 0

    cdef int hold(self, object owner) except -1:
        if self.holds is None:
            self.holds = []
        self.holds.append(owner)
        return 0

    cdef int release(self) except -1:
        """Let go of what the chain points to. Idempotent."""
        cdef list holds = self.holds
        cdef Lease lease
        self.holds = None
        self.kept = None
        if self.head is not None:
            lease, self.head = self.head, None
            lease.release()
        if self.payload is not None:
            lease, self.payload = self.payload, None
            lease.release()
        if holds is not None:
            for held in holds:
                if type(held) is Lease:
                    (<Lease>held).release()
                else:
                    (<Registration>held).withdraw()
        return 0


cdef int extent(object view, int flags, size_t *address, size_t *length) except -1:
    """Where an object's memory is. It stays there for as long as the object lives."""
    cdef Py_buffer buffer
    PyObject_GetBuffer(view, &buffer, flags)
    address[0] = <uintptr_t>buffer.buf
    length[0] = buffer.len
    PyBuffer_Release(&buffer)
    return 0


cdef Lease borrow(Device device, size_t length):
    """A buffer for a copy, or None."""
    if length > COPIED:
        return None
    try:
        return device.account.lease(length)
    except OutOfMemory:
        return None


cdef int place_octets(
    Chain chain, Device device, ibv_send_wr *request, size_t address, size_t length, uint32_t key
) except -1:
    """Add memory to the last work request.

    Linux's siw copies a request's only segment into its header when it is tiny, and when that segment crosses a page's end,
    takes too much or too little of it from the first page (siw_try_1seg): the peer gets other octets. Two segments are
    not copied so.
    """
    cdef size_t first = PAGE - address % PAGE
    if request.opcode == IBV_WR_RDMA_WRITE and first < length <= TINY and device.iwarp and device.software:
        chain.place(request, address, first, key)
        return chain.place(request, address + first, length - first, key)
    return chain.place(request, address, length, key)


cdef int place_source(Chain chain, Device device, ibv_send_wr *request, object source) except -1:
    """Add a source to the last work request: where it is, as a copy, or registered by itself."""
    cdef size_t address, length
    cdef uint32_t key = 0
    cdef Lease lease
    cdef Registration registration
    extent(source, PyBUF_SIMPLE, &address, &length)
    if length == 0 or device.memory.key_of(address, length, &key):
        return place_octets(chain, device, request, address, length, key)
    lease = borrow(device, length)
    if lease is not None:
        chain.hold(lease)
        copy_octets(<void *>lease.address, <void *>address, length)
        device.memory.key_of(lease.address, length, &key)
        chain.place(request, lease.address, length, key)
        return 0
    registration = device.memory.register(address, length, 0, source)
    chain.hold(registration)
    chain.place(request, address, length, registration.lkey)
    return 0


cdef object gathered(Device device, object segments, Chain chain):
    """The segments as they are, or, where the device cannot gather them in one request, as one copy."""
    cdef size_t address, length
    cdef size_t total = 0
    cdef size_t unregistered = 0
    cdef size_t end = 0
    cdef uint32_t key = 0
    cdef Lease lease
    for source in segments:
        extent(source, PyBUF_SIMPLE, &address, &length)
        total += length
        if length and not device.memory.key_of(address, length, &key):
            unregistered += 1
    if len(segments) <= device.max_segments and unregistered <= 1:
        return segments
    lease = borrow(device, total)
    if lease is None:
        if len(segments) <= device.max_segments:
            return segments
        return (b"".join(segments),)
    chain.hold(lease)
    for source in segments:
        extent(source, PyBUF_SIMPLE, &address, &length)
        copy_octets(<char *>lease.address + end, <void *>address, length)
        end += length
    return (lease.view[:total],)


cdef ibv_send_wr *send_request(Chain chain, Device device, bint invalidates, uint32_t handle) noexcept:
    """Begin the Send of a chain, with Invalidate of ``handle`` if it ``invalidates`` and the device can."""
    cdef ibv_send_wr *request
    if not invalidates or not device.can_invalidate:
        return chain.request(IBV_WR_SEND, 0, 0)
    # libsiw takes the handle from where RDMA operations have it.
    request = chain.request(IBV_WR_SEND_WITH_INV, handle, 0)
    request.invalidate_rkey = handle
    return request


cdef int place_lease(Chain chain, Device device, ibv_send_wr *request, size_t address, size_t length) except -1:
    """Add octets of a lease to the last work request. Raises OSError when they are not in registered memory."""
    cdef uint32_t key = 0
    if not device.memory.key_of(address, length, &key):
        raise OSError(f"{device.name}: a lease outside of the registered memory")
    return place_octets(chain, device, request, address, length, key)


cdef Chain chain_of_post(Device device, object writes, object send, object token):
    """RDMA Writes, then a Send. Raises ValueError or TypeError for what cannot be posted, OSError without memory."""
    cdef Chain chain = Chain.__new__(Chain)
    cdef ibv_send_wr *request
    cdef object segments = ()
    cdef object invalidate = None
    chain.token = token
    try:
        if send is not None:
            segments, invalidate = send
            segments = gathered(device, segments, chain)
        # A Write may have two segments: place_octets() says when.
        chain.allocate(len(writes) + 1, 2 * len(writes) + len(segments))
        chain.kept = (writes, segments)
        for handle, offset, source in writes:
            request = chain.request(IBV_WR_RDMA_WRITE, handle, offset)
            place_source(chain, device, request, source)
        if send is not None:
            request = send_request(chain, device, invalidate is not None, 0 if invalidate is None else invalidate)
            for source in segments:
                place_source(chain, device, request, source)
        if chain.count == 0:
            raise ValueError("neither a Write nor a Send")
    except BaseException:
        chain.release()
        raise
    return chain


cdef Chain chain_of_reads(Device device, object reads, object token):
    """RDMA Reads. Raises as chain_of_post does, and BufferError when a sink is not writable."""
    cdef Chain chain = Chain.__new__(Chain)
    cdef ibv_send_wr *request
    cdef Registration registration
    cdef size_t address, length
    cdef uint32_t key = 0
    cdef int access = IBV_ACCESS_LOCAL_WRITE
    if device.iwarp and not device.software:
        # See registrations.pyx. Withdrawn before anybody looks at what was read.
        access |= IBV_ACCESS_REMOTE_WRITE
    chain.token = token
    chain.reads = True
    chain.kept = reads
    try:
        chain.allocate(len(reads), len(reads))
        for handle, offset, sink in reads:
            extent(sink, PyBUF_WRITABLE, &address, &length)
            request = chain.request(IBV_WR_RDMA_READ, handle, offset)
            if device.register_sinks or not device.memory.key_of(address, length, &key):
                registration = device.memory.register(address, length, access, sink)
                chain.hold(registration)
                key, address = registration.lkey, registration.base
            chain.place(request, address, length, key)
        if chain.count == 0:
            raise ValueError("no Read")
    except BaseException:
        chain.release()
        raise
    return chain


cdef Chain chain_of_nothing(Device device, object token):
    """A Read of no octets: what it names at the peer's is not looked at (RFC 5040 section 5.2.1), and it is answered.

    Raises OSError or OutOfMemory.
    """
    cdef Chain chain = Chain.__new__(Chain)
    cdef Lease lease = device.account.lease(1)
    cdef ibv_send_wr *request
    cdef uint32_t key = 0
    chain.token = token
    chain.reads = True
    chain.hold(lease)
    try:
        device.memory.key_of(lease.address, 1, &key)
        chain.allocate(1, 1)
        request = chain.request(IBV_WR_RDMA_READ, 1, 0)
        # Place() leaves empty segments out, but a Read has one.
        request.num_sge = 1
        request.sg_list.addr = lease.address
        request.sg_list.length = 0
        request.sg_list.lkey = key
    except BaseException:
        chain.release()
        raise
    return chain


cdef Chain chain_of_reply(
    Device device, const Target *targets, size_t count, Lease payload, Lease head, size_t length, bint invalidates,
    uint32_t handle
):
    """RDMA Writes of a reply's parts, then a Send. Takes one count of each lease. Raises OSError."""
    cdef Chain chain = Chain.__new__(Chain)
    cdef ibv_send_wr *request
    cdef size_t i
    chain.token = ANSWERED
    chain.head, chain.payload = head, payload
    try:
        chain.allocate(count + 1, 2 * count + 1)
        for i in range(count):
            request = chain.request(IBV_WR_RDMA_WRITE, targets[i].handle, targets[i].offset)
            place_lease(chain, device, request, <size_t>targets[i].source, targets[i].length)
        request = send_request(chain, device, invalidates, handle)
        place_lease(chain, device, request, head.address, length)
    except BaseException:
        chain.release()
        raise
    return chain


cdef Chain chain_of_fetch(Device device, const Target *sources, size_t count, Fetch fetch):
    """RDMA Reads into the sink of ``fetch``, one behind the other; it is the token. Raises OSError."""
    cdef Chain chain
    cdef ibv_send_wr *request
    cdef size_t i, done = 0
    cdef list reads = []
    if device.register_sinks:
        for i in range(count):
            sink = fetch.sink.view[done : done + sources[i].length]
            reads.append(RdmaRead(sources[i].handle, sources[i].offset, sink))
            done += sources[i].length
        return chain_of_reads(device, reads, fetch)
    chain = Chain.__new__(Chain)
    chain.token = fetch
    chain.reads = True
    chain.allocate(count, count)
    for i in range(count):
        request = chain.request(IBV_WR_RDMA_READ, sources[i].handle, sources[i].offset)
        place_lease(chain, device, request, fetch.sink.address + done, sources[i].length)
        done += sources[i].length
    return chain
