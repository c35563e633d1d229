# distutils: extra_compile_args = -O2
"""Buffers: leased out of a bounded pool of registered memory, shared out among hosts, and counted.

Owns every octet that a message or a payload passes through. Layer 0: imports the arenas it is cut from.

Bounds
    What is leased is counted, in capacities, for the pool, for each host (a client's address, whatever connections it
    has) and for each account (a connection). Whoever meets a bound gets OutOfMemory, and may queue with
    :meth:`Account.when_available`.

    The pool may have a reserve. Only leases of at most 64 KiB get at it, of hosts that use little: 256 KiB, or a
    sixteenth of what is left, if that is more. So a small call of one host gets in while others hold all the rest.

    A pool with a reserve leaves room for larger ones too: a host that uses more than 4 MiB gets no more, but for small
    leases, when it would have more than twice of what is left. So however many want all they can get, half as much is
    left as each of them has. (Dynamic thresholds: Choudhury and Hahne, 1998.) One that is alone, with leases of whatever
    size, has two thirds of the pool but for its reserve, whatever its own bound: nobody knows when the next one comes.

Waiting
    Each account's waiters queue in order. Hosts with waiters that their own bounds let pass take turns, and so do the
    accounts of a host; one whose bound is met waits for a release of its own. In its turn a host has as many waiters
    called as its weight says, one by default. A release looks at a bounded number of them. A waiter that the pool has no room for is passed over, but not for ever: after some times, room is saved up
    for it, that is, ordinary leases and other waiters leave so much free.

Ownership
    A lease owns its block while its count is positive. It keeps its account alive, and the account the pool, so a
    lease survives ``Account.close()`` and arenas outlive every view of them. A lease that is garbage-collected
    with a positive count (a bug in its holder) gives its block back and is counted in ``Pool.leaked``.

Threads
    One thread (the event loop's) leases and releases. Other threads may use the memory behind a lease held for them.
"""

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from libc.stdint cimport uintptr_t

from rpcrdma.arenas cimport ARENA, SMALLEST, Arenas, size_class_of

import logging
from collections import deque


cdef enum:
    SMALL = 64 << 10        # octets of a lease that may come from the reserve
    LITTLE = 256 << 10      # octets a host may use and still get it
    LOOKS = 8               # hosts that a release looks at in vain
    MODEST = 4 << 20        # octets a host may use however little is left
    PATIENCE = 32           # times that a host is passed over before room is saved up for it


class OutOfMemory(Exception):
    """The bound of the pool, of the host or of the account is reached."""


@cython.no_gc_clear
cdef class Pool:
    """The process-wide bound on buffer memory, in octets."""

    # no_gc_clear: leases that become garbage together with their pool give their blocks back.

    def __cinit__(self, size_t limit, size_t reserve=0):
        if reserve > limit // 2:
            raise ValueError("the reserve must not be more than half of the pool")
        self.limit = limit
        self.reserve = reserve
        self.ceiling = limit - reserve
        self.arenas = Arenas(limit)
        self.ring = deque()

    @property
    def mapped(self):
        return self.arenas.mapped

    @property
    def resident(self):
        return self.arenas.resident

    @property
    def pressed(self):
        return self.in_use > self.limit - self.limit // 4

    def host(self, size_t limit):
        """A client's share, with its own bound."""
        cdef Host host = Host.__new__(Host)
        host.pool = self
        host.most_turns = 1
        host.limit = min(limit, 2 * (self.limit - self.reserve) // 3) if self.reserve else limit
        return host

    def account(self, size_t limit):
        """An account of its own host, which has no further bound."""
        return self.host(self.limit).account(limit)

    def arena_list(self):
        """The (address, length) of every arena, oldest first: what a device registers."""
        return self.arenas.addresses()

    def tidy(self):
        """Give back the pages of memory that was not wanted for a while, and look after those who wait. To be called
        about every second."""
        self.arenas.tidy(self.in_use)
        if self.waiting:
            self.pump()

    cdef bint has_room(self, Host host, size_t capacity, size_t ceiling) noexcept:
        """Whether the pool's bound lets so many more octets pass."""
        cdef size_t total = self.in_use + capacity
        if total <= ceiling:
            return True
        if capacity > SMALL or total > self.limit:
            return False
        return host.in_use + capacity <= max(<size_t>LITTLE, (self.limit - self.in_use) // 16)

    cdef bint too_much(self, Host host, size_t capacity) noexcept:
        """Whether the host would have more than its part, what is left being as little as it is."""
        cdef size_t total = host.in_use + capacity
        if total <= MODEST or capacity <= SMALL or not self.reserve:
            return False
        return total + 2 * self.in_use > 2 * (self.limit - self.reserve)

    cdef int freed(self, Account account) except -1:
        """Something of this account was released, or it has a waiter."""
        cdef Host host = account.host
        if account.waiters and not account.listed and account.in_use + <size_t>account.waiters[0][0] <= account.limit:
            account.listed = True
            host.ready.append(account)
        if not host.listed and host.ready:
            host.listed = True
            host.turns = host.most_turns
            self.ring.append(host)
        if self.ring:
            self.pump()
        return 0

    cdef int pump(self) except -1:
        """Call waiters as long as one may succeed; look at a few of those that may not."""
        cdef int looks, passed
        cdef Py_ssize_t hosts
        cdef bint served = False
        if self.pumping:
            self.again = True
            return 0
        self.pumping = True
        try:
            self.again = True
            while self.again:
                self.again = False
                if self.saver is not None:
                    self.serve(self.saver)
                looks = passed = 0
                hosts = len(self.ring)
                while passed < hosts and looks < LOOKS:
                    if self.serve(<Host>self.ring[0]):
                        looks = passed = 0
                        served = True
                    else:
                        looks += 1
                        passed += hosts == len(self.ring)  # or it is in the ring no more
                    hosts = len(self.ring)
                if served:
                    # Whose turn it is does not depend on how many were looked at in vain. Where that were all, the
                    # next release looks at others.
                    self.ring.rotate(passed)
        finally:
            self.pumping = False
        return 0

    cdef bint serve(self, Host host):
        """Call the first waiter of the host that is due, if it may succeed."""
        cdef Account account = host.first()
        cdef size_t capacity
        cdef bint saved = host is self.saver
        if account is None:
            self.unlist(host)
            return False
        capacity = account.waiters[0][0]
        if host.in_use + capacity > host.limit:
            self.unlist(host)  # until something of its own is released
            return False
        if self.too_much(host, capacity):
            self.forgive(host)
            if self.ring[0] is host:
                self.ring.rotate(-1)
            return False
        if (
            not self.has_room(host, capacity, self.limit - self.reserve if saved else self.ceiling)
            or not self.arenas.obtainable(size_class_of(capacity))
        ):
            host.passed_over += 1
            if host.passed_over >= PATIENCE and self.saver is None:
                self.saver = host
                self.ceiling = self.limit - self.reserve - min(capacity, self.limit - self.reserve)
            if self.ring[0] is host:
                self.ring.rotate(-1)
            return False
        self.forgive(host)
        if self.ring[0] is host:
            host.turns -= 1
            if host.turns <= 0:
                host.turns = host.most_turns
                self.ring.rotate(-1)
        callback = account.waiters.popleft()[1]
        self.waiting -= 1
        host.ready.rotate(-1)
        try:
            callback()
        except Exception as problem:
            # Whoever released the buffer did nothing wrong, so there is nobody to tell.
            logging.getLogger("rpcrdma.memory").error("waiter %r failed", callback, exc_info=problem)
        return True

    cdef int unlist(self, Host host) except -1:
        """Take the host out of the ring."""
        self.forgive(host)
        if host.listed:
            host.listed = False
            if self.ring[0] is host:
                self.ring.popleft()
            else:
                self.ring.remove(host)
        return 0

    cdef int forgive(self, Host host) except -1:
        """Nothing need be saved up for the host any more."""
        host.passed_over = 0
        if self.saver is host:
            self.saver = None
            self.ceiling = self.limit - self.reserve
        return 0


@cython.no_gc_clear
cdef class Host:
    """One client's share of the pool, of all its connections. Made by :meth:`Pool.host`."""

    def __cinit__(self):
        self.ready = deque()

    def account(self, size_t limit):
        """A share with its own bound (one per connection)."""
        cdef Account account = Account.__new__(Account)
        account.pool = self.pool
        account.host = self
        account.limit = limit
        return account

    @property
    def pressed(self):
        return self.in_use > self.limit - self.limit // 4

    @property
    def weight(self):
        return self.most_turns

    @weight.setter
    def weight(self, int weight):
        if weight < 1:
            raise ValueError("a host has one turn, at least")
        self.most_turns = weight

    cdef Account first(self):
        """The first of its accounts with a waiter that the account's bound lets pass, or None."""
        cdef Account account
        while self.ready:
            account = <Account>self.ready[0]
            if account.waiters and account.in_use + <size_t>account.waiters[0][0] <= account.limit:
                return account
            account.listed = False
            self.ready.popleft()
        return None


@cython.no_gc_clear
cdef class Account:
    """One connection's share of its host's. Made by :meth:`Host.account` or :meth:`Pool.account`."""

    # no_gc_clear: leases that become garbage together with their account give their blocks back through it. A cycle
    # through the waiters is broken by clearing their queue.

    def __cinit__(self):
        self.waiters = deque()

    cpdef Lease lease(self, Py_ssize_t size):
        """A buffer of at least ``size`` octets. Raises OutOfMemory at a bound, ValueError for size < 0 or > 4 MiB."""
        cdef int size_class
        if size < 0 or size > ARENA:
            raise ValueError(f"a lease of {size} octets")
        size_class = size_class_of(size)
        return self.grant(<size_t>SMALLEST << size_class, size_class)

    cdef Lease grant(self, size_t capacity, int size_class):
        cdef Pool pool = self.pool
        cdef Host host = self.host
        cdef char *block
        cdef Lease lease
        if self.in_use + capacity > self.limit:
            pool.short_of_account += 1
            raise OutOfMemory(f"{capacity} octets over the connection's bound of {self.limit}")
        if host.in_use + capacity > host.limit:
            pool.short_of_host += 1
            raise OutOfMemory(f"{capacity} octets over the host's bound of {host.limit}")
        if pool.in_use + capacity > pool.ceiling and not pool.has_room(
            host, capacity, pool.limit - pool.reserve if host is pool.saver else pool.ceiling
        ):
            pool.short_of_pool += 1
            raise OutOfMemory(f"{capacity} octets over the pool's bound of {pool.limit}")
        if pool.too_much(host, capacity):
            pool.short_of_pool += 1
            raise OutOfMemory(f"{capacity} octets over the host's part of the pool, of which little is left")
        block = pool.arenas.take(size_class)
        if block == NULL:
            pool.short_of_pool += 1
            raise OutOfMemory(f"no free block of {capacity} octets")
        lease = Lease.__new__(Lease)
        lease.account = self
        lease.address = <uintptr_t>block
        lease.capacity = capacity
        lease.size_class = size_class
        lease.count = 1
        self.in_use += capacity
        host.in_use += capacity
        pool.in_use += capacity
        return lease

    @property
    def pressed(self):
        return self.host.pressed or self.pool.pressed

    def when_available(self, Py_ssize_t size, callback):
        """Call ``callback`` once, as soon as a buffer of ``size`` may be had: first come, first served.

        It is called from inside the release that makes room (or from inside this call when there already is room),
        and should take its lease there and then. Raises OutOfMemory when a bound is smaller than ``size``, so that
        the wait would be for ever, and ValueError as :meth:`lease` does.
        """
        cdef size_t capacity
        cdef Pool pool = self.pool
        if size < 0 or size > ARENA:
            raise ValueError(f"a lease of {size} octets")
        capacity = <size_t>SMALLEST << size_class_of(size)
        if capacity > min(self.limit, self.host.limit, pool.limit - pool.reserve):
            raise OutOfMemory(f"{capacity} octets can never be had")
        self.waiters.append((capacity, callback))
        pool.waiting += 1
        pool.freed(self)

    def wait_no_more(self, callback):
        """Forget a callback given to :meth:`when_available`, if it has not been called."""
        cdef Py_ssize_t index
        for index in range(len(self.waiters)):
            if self.waiters[index][1] is callback:
                del self.waiters[index]
                self.pool.waiting -= 1
                self.pool.freed(self)  # it may have been what others were queueing behind
                return

    def close(self):
        """Forget the waiters. Leases still out are returned to the pool as they are released."""
        self.pool.waiting -= len(self.waiters)
        self.waiters.clear()
        # One of them may have been what the others were queueing behind.
        self.pool.freed(self)


@cython.no_gc_clear
@cython.freelist(256)
cdef class Lease:
    """A counted hold of one buffer. A new lease has one count; at zero the buffer returns to its pool."""

    # no_gc_clear: __dealloc__ needs the account. The cycle with ``cached_view`` is broken by the view's own clear.

    def __init__(self):
        raise TypeError("leases are made by Account.lease()")

    def __dealloc__(self):
        if self.count > 0:
            self.account.pool.leaked += 1
            self.hand_back()

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        if self.count <= 0:
            raise BufferError("this lease has been released")
        PyBuffer_FillInfo(buffer, self, <void *>self.address, self.capacity, 0, flags)

    def __repr__(self):
        return f"<Lease {self.capacity} octets, count {self.count}>"

    @property
    def view(self):
        """The whole buffer, writable, ``capacity`` octets long."""
        if self.cached_view is None:
            self.cached_view = memoryview(self)
        return self.cached_view

    cpdef Lease retain(self):
        """Add a count; returns itself."""
        if self.count <= 0:
            raise RuntimeError("retain of a released lease")
        self.count += 1
        return self

    cpdef int release(self) except -1:
        """Drop a count. Releasing below zero raises RuntimeError (a double free is a bug worth a crash report)."""
        if self.count <= 0:
            raise RuntimeError("release of a released lease")
        self.count -= 1
        if self.count == 0:
            self.cached_view = None
            self.hand_back()
            if self.account.pool.waiting:
                self.account.pool.freed(self.account)
        return 0

    cdef void hand_back(self) noexcept:
        cdef Account account = self.account
        cdef Pool pool = account.pool
        account.in_use -= self.capacity
        account.returned += self.capacity
        account.host.in_use -= self.capacity
        pool.in_use -= self.capacity
        pool.arenas.give(self.size_class, <char *>self.address)
