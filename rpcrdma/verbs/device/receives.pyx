"""Posted Receives: a queue pair's own, or those that all connections of a device share.

Owns :class:`Receives` and :class:`SharedReceives`, a shared Receive queue. Imports the pool, the device's memory and
the libraries.

How many are shared
    ``capacity`` Receives are posted, however many connections there are and whatever they were granted together. A
    connection's Receives are taken until there are so many; the rest is given back at once. When all are in use, a
    sender is told "receiver not ready" and tries again, for as long as it takes (RNR, InfiniBand and RoCE). iWARP knows
    no such thing: there a message without a Receive ends the connection, so these are not used.

Whose they are
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
    ibv_post_recv,
    ibv_post_srq_recv,
    ibv_recv_wr,
    ibv_sge,
    ibv_srq_init_attr,
)

from rpcrdma.verbs.device.errors import failure


cdef enum:
    AT_ONCE = 32

cdef uint64_t RECEIVE = <uint64_t>1 << 63


cdef class Receives:
    """Receives of one queue, each in a slot that its work request names."""

    cdef int open(self, int capacity, Registrations memory, str device) except -1:
        """Make the slots."""
        self.memory = memory
        self.device = device
        self.slots = [None] * capacity
        self.free_slots = list(range(capacity))
        return 0

    cdef int put(self, list leases) except -1:
        """Post Receives from the end of ``leases``, as long as there are slots; what is posted is taken from the list.

        Raises OSError, and what could not be posted is in the list then.
        """
        cdef ibv_recv_wr requests[AT_ONCE]
        cdef ibv_sge segments[AT_ONCE]
        cdef Lease lease
        cdef uint32_t key = 0
        cdef int count, slot
        while leases and self.free_slots:
            count = 0
            while count < AT_ONCE and leases and self.free_slots:
                lease = <Lease>leases[len(leases) - 1]
                try:
                    if not self.memory.key_of(lease.address, lease.capacity, &key):
                        raise OSError(f"{self.device}: a Receive outside of the registered memory")
                except OSError:
                    self.hand_over(requests, count, leases)
                    raise
                leases.pop()
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
            self.hand_over(requests, count, leases)
        return 0

    cdef int hand_over(self, ibv_recv_wr *requests, int count, list leases) except -1:
        """Give linked requests to the device. Raises OSError; what it refused is in ``leases`` again then."""
        cdef ibv_recv_wr *refused = NULL
        cdef int error
        if count == 0:
            return 0
        if self.srq != NULL:
            error = ibv_post_srq_recv(self.srq, requests, &refused)
        else:
            error = ibv_post_recv(self.pair, requests, &refused)
        self.posted += count
        if error:
            while refused != NULL:
                leases.append(self.take(<int>(refused.wr_id & 0xFFFFFFFF)))
                refused = refused.next
            raise failure("ibv_post_recv" if self.srq == NULL else "ibv_post_srq_recv", self.device, error)
        return 0

    cdef Lease take(self, int slot):
        """A Receive was used."""
        cdef Lease lease = <Lease>self.slots[slot]
        self.slots[slot] = None
        self.free_slots.append(slot)
        self.posted -= 1
        return lease

    cdef list withdraw(self):
        """The queue is destroyed: what was posted to it and not used."""
        cdef list held = [lease for lease in self.slots if lease is not None]
        self.slots = []
        self.free_slots = []
        self.posted = 0
        return held


cdef class SharedReceives(Receives):
    """A shared Receive queue, for buffers of one size."""

    cdef int post(self, list leases, bint keep) except -1:
        """Take Receives as long as there is room; the rest is released. With ``keep`` the caller keeps its counts.

        Raises OSError, and nothing that was not posted is held then.
        """
        cdef Lease lease
        cdef list rest = list(leases)
        if keep:
            for lease in leases:
                lease.retain()
        try:
            self.put(rest)
        finally:
            for lease in rest:
                lease.release()
        return 0

    def close(self):
        """Destroy the queue, on the control thread, when no queue pair uses it."""
        if self.srq != NULL:
            with nogil:
                ibv_destroy_srq(self.srq)
            self.srq = NULL

    def release(self):
        """Release what was posted; the queue is destroyed."""
        cdef Lease lease
        for lease in self.withdraw():
            lease.release()


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
    shared.open(capacity, memory, device)
    return shared
