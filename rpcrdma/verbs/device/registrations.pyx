"""A device's registered memory: the pool's arenas, and what must be registered by itself.

Owns :class:`Registrations`, one per protection domain. Imports the pool and the libraries.

Access
    Arenas are registered once, for local access alone, so that no peer can reach them. Verbs let a Read's sink be
    such memory, but iWARP names the sink to the peer (RFC 5040 section 4.4), whose Read Response is then checked like
    an RDMA Write: there the sink needs remote write access. An arena must never have that, since every connection's
    payloads share it; a sink is registered for the one Read instead.

Addresses
    What a peer may access has random addresses for the device, and so for the peer, but for the place within the page,
    which some devices want to be the real one: where this process has its memory is nobody's business. Keys are the
    device's own choice, and mostly count up; so what a peer may access is that only for as long as it must.
"""

import os

from libc.errno cimport errno
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, realloc

from rpcrdma.memory cimport Pool
from rpcrdma.verbs.device.verbs_api cimport (
    IBV_ACCESS_LOCAL_WRITE,
    IBV_ACCESS_REMOTE_READ,
    IBV_ACCESS_REMOTE_WRITE,
    ibv_dereg_mr,
    ibv_mr,
    ibv_pd,
    ibv_reg_mr,
    ibv_reg_mr_iova,
)

from rpcrdma.verbs.device.errors import failure


cdef enum:
    ARENA = 4 << 20
    PAGE = 4096


cdef class Registration:
    """Memory registered by itself."""

    cdef int withdraw(self) except -1:
        """Deregister. Idempotent."""
        if self.mr != NULL:
            self.control.call(self.deregister)
        self.view = None
        return 0

    def deregister(self):
        """Withdraw, on the control thread."""
        cdef ibv_mr *mr = self.mr
        self.mr = NULL
        with nogil:
            ibv_dereg_mr(mr)


cdef class Registrations:
    """The registered memory of one protection domain."""

    def refresh(self):
        """Register the arenas that came since the last time. To be called by the control thread. Raises OSError."""
        cdef ibv_mr *mr
        cdef size_t base, place
        cdef void *grown
        cdef size_t wanted = self.pool.arenas.count
        grown = realloc(self.regions, (wanted + 1) * sizeof(ibv_mr *))
        if grown == NULL:
            raise MemoryError
        self.regions = <ibv_mr **>grown
        grown = realloc(self.bases, (wanted + 1) * sizeof(size_t))
        if grown == NULL:
            raise MemoryError
        self.bases = <size_t *>grown
        if not self.pinned:
            self.pinned = True
            self.pool.arenas.pin()
        while self.count < wanted:
            base = <size_t>self.pool.arenas.bases[self.count]
            with nogil:
                mr = ibv_reg_mr(self.pd, <void *>base, ARENA, IBV_ACCESS_LOCAL_WRITE)
            if mr == NULL:
                raise failure("ibv_reg_mr", self.device, errno)
            # Sorted by address; the pool's order is that of their making, and ``count`` follows that.
            place = self.count
            while place > 0 and self.bases[place - 1] > base:
                self.bases[place] = self.bases[place - 1]
                self.regions[place] = self.regions[place - 1]
                place -= 1
            self.bases[place] = base
            self.regions[place] = mr
            self.count += 1

    cdef int key_of(self, size_t address, size_t length, uint32_t *key) except -1:
        """1 and the local key of memory in an arena, or 0. Raises OSError when a new arena cannot be registered."""
        cdef size_t base = address & ~(<size_t>ARENA - 1)
        cdef size_t low, high, middle
        cdef bint again = self.count < self.pool.arenas.count
        if address + length > base + ARENA:
            return 0
        while True:
            if self.last < self.count and self.bases[self.last] == base:
                key[0] = self.regions[self.last].lkey
                return 1
            low, high = 0, self.count
            while low < high:
                middle = (low + high) // 2
                if self.bases[middle] < base:
                    low = middle + 1
                else:
                    high = middle
            if low < self.count and self.bases[low] == base:
                self.last = low
                key[0] = self.regions[low].lkey
                return 1
            if not again:
                return 0
            again = False
            self.control.call(self.refresh)

    cdef Registration register(self, size_t address, size_t length, int access, object view):
        """Register memory by itself; ``view`` keeps it alive. Raises OSError."""
        return self.control.call(self.register_now, address, length, access, view)

    def register_now(self, size_t address, size_t length, int access, object view):
        """Register, on the control thread."""
        cdef Registration registration = Registration.__new__(Registration)
        cdef ibv_mr *mr = NULL
        cdef uint64_t base = address
        if self.can_rename and access & (IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE):
            # Of 47 bits, as if it were an address of ours: no device has fewer.
            base = (int.from_bytes(os.urandom(8), "little") >> 17) & ~<uint64_t>(PAGE - 1) | address & (PAGE - 1)
            with nogil:
                mr = ibv_reg_mr_iova(self.pd, <void *>address, length, base, access)
            if mr == NULL:
                base = address
        if mr == NULL:
            with nogil:
                mr = ibv_reg_mr(self.pd, <void *>address, length, access)
        if mr == NULL:
            raise failure("ibv_reg_mr", self.device, errno)
        registration.mr = mr
        registration.view = view
        registration.control = self.control
        registration.lkey = mr.lkey
        registration.rkey = mr.rkey
        registration.base = base
        return registration

    def close(self):
        """Deregister all arenas. To be called by the control thread."""
        cdef ibv_mr *mr
        while self.count > 0:
            self.count -= 1
            mr = self.regions[self.count]
            with nogil:
                ibv_dereg_mr(mr)
        if self.pinned:
            self.pinned = False
            self.pool.arenas.unpin()

    def __dealloc__(self):
        free(self.regions)
        free(self.bases)
