"""Receives that all connections of a device share: a shared Receive queue.

Owns :class:`SharedReceives`. Imports the pool, the device's memory and the libraries.

How many
    ``capacity`` Receives are posted, however many connections there are and whatever they were granted together. A
    connection's Receives are taken until there are so many; the rest is given back at once. When all are in use, a
    sender is told "receiver not ready" and tries again, for as long as it takes (RNR, InfiniBand and RoCE). iWARP knows
    no such thing: there a message without a Receive ends the connection, so these are not used.

Whose
    A Receive that one connection posted may take another's message. Its lease goes up with the message, and back to
    the account it came from when it is released. What a connection posted stays when it ends.
"""

from libc.errno cimport errno
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memset

from rpcrdma.memory cimport Lease
from rpcrdma.verbs.device.registrations cimport Registrations
from rpcrdma.verbs.device.verbs_api cimport (
    ibv_create_srq,
    ibv_destroy_srq,
    ibv_pd,
    ibv_post_srq_recv,
    ibv_recv_wr,
    ibv_sge,
    ibv_srq_init_attr,
)

from rpcrdma.verbs.device.errors import failure


cdef enum:
    AT_ONCE = 32

cdef uint64_t RECEIVE = <uint64_t>1 << 63


cdef class SharedReceives:
    """A shared Receive queue, for buffers of one size."""

    cdef int post(self, list leases, bint keep) except -1:
        """Take Receives as long as there is room; the rest is released. With ``keep`` the caller keeps its counts.

        Raises OSError, and nothing that was not posted is held then.
        """
        cdef ibv_recv_wr requests[AT_ONCE]
        cdef ibv_sge segments[AT_ONCE]
        cdef ibv_recv_wr *bad
        cdef Lease lease
        cdef uint32_t key = 0
        cdef int error, slot
        cdef int count = 0
        cdef size_t index
        cdef size_t last = len(leases)
        for index in range(last):
            lease = <Lease>leases[index]
            if self.free_slots and self.memory.key_of(lease.address, lease.capacity, &key):
                if keep:
                    lease.retain()
                slot = self.free_slots.pop()
                self.slots[slot] = lease
                segments[count].addr = lease.address
                segments[count].length = <uint32_t>lease.capacity
                segments[count].lkey = key
                requests[count].wr_id = RECEIVE | <uint64_t>slot
                requests[count].sg_list = segments + count
                requests[count].num_sge = 1
                requests[count].next = NULL
                if count:
                    requests[count - 1].next = requests + count
                count += 1
            elif not keep:
                lease.release()
            if count and (count == AT_ONCE or index == last - 1):
                bad = NULL
                error = ibv_post_srq_recv(self.srq, requests, &bad)
                self.posted += count
                count = 0
                if error:
                    while bad != NULL:
                        self.take(<int>(bad.wr_id & 0xFFFFFFFF)).release()
                        bad = bad.next
                    self.error = failure("ibv_post_srq_recv", self.device, error)
        return 0

    cdef Lease take(self, int slot):
        """A Receive was used."""
        cdef Lease lease = <Lease>self.slots[slot]
        self.slots[slot] = None
        self.free_slots.append(slot)
        self.posted -= 1
        return lease

    def close(self):
        """Destroy the queue, on the control thread, when no queue pair uses it."""
        cdef int result = 0
        if self.srq != NULL:
            with nogil:
                result = ibv_destroy_srq(self.srq)
            self.srq = NULL

    def release(self):
        """Release what was posted; the queue is destroyed."""
        for held in self.slots:
            if held is not None:
                (<Lease>held).release()
        self.slots = []
        self.free_slots = []
        self.posted = 0


cdef SharedReceives make_shared_receives(ibv_pd *pd, Registrations memory, int capacity, str device):
    """Create a queue, on the control thread. Raises OSError."""
    cdef SharedReceives shared = SharedReceives.__new__(SharedReceives)
    cdef ibv_srq_init_attr attributes
    memset(&attributes, 0, sizeof(attributes))
    attributes.attr.max_wr = capacity
    attributes.attr.max_sge = 1
    with nogil:
        shared.srq = ibv_create_srq(pd, &attributes)
    if shared.srq == NULL:
        raise failure("ibv_create_srq", device, errno)
    shared.capacity = capacity
    shared.device = device
    shared.memory = memory
    shared.slots = [None] * capacity
    shared.free_slots = list(range(capacity))
    return shared
