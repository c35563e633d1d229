"""An endpoint that shows what is posted to it before it passes it on to the real one (contract: ``tap.pyi``).

Owns :class:`TapEndpoint`; imports the native interface of endpoints. It stands in the real endpoint's place while a
capture runs, for what is posted natively too: that is seen where it is, and calls take the same way as ever. Between the
real endpoint and who posts natively stands a :class:`TapOwner`, which sees the data of their Reads.
"""

from cpython.buffer cimport PyBUF_READ
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport uint32_t

from rpcrdma.memory cimport Lease
from rpcrdma.verbs.native cimport Fetch, NativeEndpoint, NativeOwner, Target

from rpcrdma.capture.events import Kind


cdef class TapOwner(NativeOwner):
    cdef NativeOwner owner
    cdef object tap

    cdef int answered(self, long count, bint ok) except -1:
        return self.owner.answered(count, ok)

    cdef int fetched(self, Fetch fetch, bint ok) except -1:
        self.tap.completed(fetch, ok)
        return self.owner.fetched(fetch, ok)

    cdef int pause(self) except -1:
        return self.owner.pause()


cdef class TapEndpoint(NativeEndpoint):
    cdef readonly object endpoint
    cdef NativeEndpoint real    # the same, if it is one
    cdef object tap

    def __init__(self, endpoint, tap):
        cdef TapOwner between
        self.endpoint = endpoint
        self.tap = tap
        if isinstance(endpoint, NativeEndpoint):
            self.real = endpoint
            if self.real.native is not None:
                between = TapOwner.__new__(TapOwner)
                between.owner, between.tap = self.real.native, tap
                self.real.native = between

    def remove(self):
        if self.real is not None and type(self.real.native) is TapOwner:
            self.real.native = (<TapOwner>self.real.native).owner
        return self.endpoint

    @property
    def peer_address(self):
        return self.endpoint.peer_address

    @property
    def peer_port(self):
        return self.endpoint.peer_port

    @property
    def local_address(self):
        return self.endpoint.local_address

    @property
    def max_reads(self):
        return self.endpoint.max_reads

    def post_receives(self, leases):
        self.endpoint.post_receives(leases)

    def post(self, writes, send, token):
        self.tap.posted(writes, send)
        self.endpoint.post(writes, send, token)

    def post_reads(self, reads, token):
        self.tap.posted_reads(reads, token)
        self.endpoint.post_reads(reads, token)

    def register(self, view, *, remote_read=False, remote_write=False):
        return self.endpoint.register(view, remote_read=remote_read, remote_write=remote_write)

    def invalidate(self, handle):
        self.endpoint.invalidate(handle)

    def close(self, *, abort=False):
        self.endpoint.close(abort=abort)

    cdef int repost(self, Lease lease) except -1:
        return self.real.repost(lease)

    cdef int post_reply(
        self, const Target *targets, size_t count, Lease payload, Lease head, size_t length, bint invalidates,
        uint32_t handle
    ) except -1:
        cdef size_t index
        for index in range(count):
            part = PyMemoryView_FromMemory(<char *>targets[index].source, targets[index].length, PyBUF_READ)
            self.tap.show(
                Kind.WRITE_OUT, (part,), targets[index].length, targets[index].handle, targets[index].offset
            )
        part = PyMemoryView_FromMemory(<char *>head.address, length, PyBUF_READ)
        self.tap.show(Kind.SEND_OUT, (part,), length, handle if invalidates else None)
        return self.real.post_reply(targets, count, payload, head, length, invalidates, handle)

    cdef int post_fetch(self, const Target *sources, size_t count, Fetch fetch) except -1:
        cdef size_t index
        parts = views(fetch.sink, sources, count)
        # The views are looked at when the Reads are over, while the call still holds its sink.
        self.tap.posted_reads(
            [(sources[index].handle, sources[index].offset, parts[index]) for index in range(count)], fetch
        )
        return self.real.post_fetch(sources, count, fetch)


cdef list views(Lease lease, const Target *targets, size_t count):
    """The octets of a lease that belong to each of its targets, one behind the other."""
    cdef char *at = <char *>lease.address
    cdef list parts = []
    cdef size_t index
    for index in range(count):
        parts.append(PyMemoryView_FromMemory(at, targets[index].length, PyBUF_READ))
        at += targets[index].length
    return parts
