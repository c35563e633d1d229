"""Buffers: a bounded, registered arena cut into size classes, leased out and counted.

Owns every octet that a message or a payload passes through. Layer 0: imports nothing of the project.

Operation
    Memory is mmap()ed in arenas of 4 MiB, aligned to their size, and cut by halves into thirteen size classes
    (1 KiB to 4 MiB). Each class keeps a stack of free blocks, so the usual lease is a pop and its end a push. A
    class that runs dry takes half of the next larger free block; when there is none, another arena is mapped, up
    to twice the bound (room for fragmentation: untouched pages cost nothing); after that, free neighbours are
    joined again. Arenas are never unmapped before the pool dies, so a device need register each only once.

Bounds
    ``limit`` counts what is leased, in capacities, for the pool and for each account. Whoever meets a bound gets
    OutOfMemory and may queue with :meth:`Account.when_available`.

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
from libc.stdlib cimport free, qsort, realloc
from libc.string cimport memset


cdef extern from "<sys/mman.h>" nogil:
    void *mmap(void *address, size_t length, int protection, int flags, int fd, long offset)
    int munmap(void *address, size_t length)
    int PROT_READ, PROT_WRITE, MAP_PRIVATE, MAP_ANONYMOUS
    void *MAP_FAILED


cdef enum:
    CLASSES = 13
    SMALLEST = 1024
    ARENA = 4 << 20


class OutOfMemory(Exception):
    """The bound of the pool or of the account is reached."""


cdef int size_class_of(size_t size) noexcept:
    cdef int size_class = 0
    cdef size_t capacity = SMALLEST
    while capacity < size:
        capacity <<= 1
        size_class += 1
    return size_class


cdef bint push(FreeStack *stack, char *block) noexcept:
    cdef size_t capacity
    cdef void *items
    if stack.length == stack.capacity:
        capacity = stack.capacity * 2 if stack.capacity else 16
        items = realloc(stack.items, capacity * sizeof(char *))
        if items == NULL:
            return False
        stack.items = <char **>items
        stack.capacity = capacity
    stack.items[stack.length] = block
    stack.length += 1
    return True


cdef int by_address(const void *left, const void *right) noexcept nogil:
    cdef uintptr_t a = (<uintptr_t *>left)[0]
    cdef uintptr_t b = (<uintptr_t *>right)[0]
    return -1 if a < b else (1 if a > b else 0)


cdef class Pool:
    """The process-wide bound on buffer memory, in octets."""

    def __cinit__(self, size_t limit):
        memset(self.classes, 0, sizeof(self.classes))
        self.limit = limit
        self.arena_limit = 2 * ((limit + ARENA - 1) // ARENA)
        self.waiters = []

    def __dealloc__(self):
        cdef size_t i
        for i in range(CLASSES):
            free(self.classes[i].items)
        for i in range(self.arena_count):
            munmap(self.arenas[i], ARENA)
        free(self.arenas)

    def account(self, size_t limit):
        """A share with its own bound (one per connection)."""
        cdef Account account = Account.__new__(Account)
        account.pool = self
        account.limit = limit
        return account

    def arena_list(self):
        """The (address, length) of every arena, oldest first: what a device registers."""
        return [(<uintptr_t>self.arenas[i], ARENA) for i in range(self.arena_count)]

    cdef bint add_arena(self) noexcept:
        cdef char *base
        cdef char *aligned
        cdef void *arenas
        cdef size_t head
        if self.arena_count >= self.arena_limit:
            return False
        arenas = realloc(self.arenas, (self.arena_count + 1) * sizeof(char *))
        if arenas == NULL:
            return False
        self.arenas = <char **>arenas
        base = <char *>mmap(NULL, 2 * ARENA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
        if <void *>base == MAP_FAILED:
            return False
        # Aligned to its size, so that a block's other half is found by flipping one bit of its address.
        aligned = <char *>((<uintptr_t>base + ARENA - 1) & ~(<uintptr_t>ARENA - 1))
        head = aligned - base
        if head:
            munmap(base, head)
        if ARENA - head:
            munmap(aligned + ARENA, ARENA - head)
        if not push(&self.classes[CLASSES - 1], aligned):
            munmap(aligned, ARENA)
            return False
        self.arenas[self.arena_count] = aligned
        self.arena_count += 1
        self.mapped += ARENA
        return True

    cdef char *take(self, int size_class) noexcept:
        """A free block of the class, or NULL."""
        cdef FreeStack *stack = &self.classes[size_class]
        cdef int larger
        cdef char *block
        cdef int attempt
        if stack.length:
            stack.length -= 1
            return stack.items[stack.length]
        for attempt in range(3):
            larger = size_class
            while larger < CLASSES and self.classes[larger].length == 0:
                larger += 1
            if larger < CLASSES:
                stack = &self.classes[larger]
                stack.length -= 1
                block = stack.items[stack.length]
                while larger > size_class:
                    larger -= 1
                    # A failed push (no memory for the stack itself) loses the half until the pool dies; no crash.
                    push(&self.classes[larger], block + (<size_t>SMALLEST << larger))
                return block
            if attempt == 0:
                if not self.add_arena():
                    self.coalesce()
            elif attempt == 1:
                self.coalesce()
        return NULL

    cdef int give(self, int size_class, char *block) noexcept:
        push(&self.classes[size_class], block)
        return 0

    cdef void coalesce(self) noexcept:
        """Join free halves, smallest class first. Rare: only when no arena may be added."""
        cdef int size_class
        cdef size_t i, kept, size
        cdef FreeStack *stack
        for size_class in range(CLASSES - 1):
            stack = &self.classes[size_class]
            if stack.length < 2:
                continue
            size = <size_t>SMALLEST << size_class
            qsort(stack.items, stack.length, sizeof(char *), by_address)
            i = kept = 0
            while i < stack.length:
                if (
                    i + 1 < stack.length
                    and not (<uintptr_t>stack.items[i] & size)
                    and stack.items[i + 1] == stack.items[i] + size
                    and push(&self.classes[size_class + 1], stack.items[i])
                ):
                    i += 2
                    continue
                stack.items[kept] = stack.items[i]
                kept += 1
                i += 1
            stack.length = kept

    cdef void pump(self):
        """Call those waiters that may now succeed, in order.

        A waiter held up by its own account's bound holds up only that account's later waiters; one held up by the
        pool's bound holds up everybody behind it, or a large request would starve.
        """
        cdef size_t capacity
        cdef Account account
        cdef list held
        if self.pumping:
            self.pump_again = True
            return
        self.pumping = True
        try:
            self.pump_again = True
            while self.pump_again:
                self.pump_again = False
                held = []
                for index, (waiting, size, callback) in enumerate(self.waiters):
                    account = <Account>waiting
                    capacity = size
                    if any([account is other for other in held]):
                        continue
                    if self.in_use + capacity > self.limit:
                        break
                    if account.in_use + capacity > account.limit:
                        held.append(account)
                        continue
                    del self.waiters[index]
                    self.pump_again = True
                    try:
                        callback()
                    except Exception as problem:
                        unraisable(problem, callback)
                    break
        finally:
            self.pumping = False


def unraisable(problem, callback):
    """Report an exception that has no caller to go to: whoever released the buffer did nothing wrong."""
    import logging

    logging.getLogger("rpcrdma.memory").error("waiter %r failed", callback, exc_info=problem)


@cython.no_gc_clear
cdef class Account:
    """One connection's share of the pool. Made by :meth:`Pool.account`."""

    # no_gc_clear: leases that become garbage together with their account give their blocks back through it. A cycle
    # through the pool's waiters is broken by clearing the pool.

    cpdef Lease lease(self, Py_ssize_t size):
        """A buffer of at least ``size`` octets. Raises OutOfMemory at either bound, ValueError for size < 0 or > 4 MiB."""
        cdef Pool pool = self.pool
        cdef int size_class
        cdef size_t capacity
        cdef char *block
        cdef Lease lease
        if size < 0 or size > ARENA:
            raise ValueError(f"a lease of {size} octets")
        size_class = size_class_of(size)
        capacity = <size_t>SMALLEST << size_class
        if self.in_use + capacity > self.limit:
            raise OutOfMemory(f"{capacity} octets over the connection's bound of {self.limit}")
        if pool.in_use + capacity > pool.limit:
            raise OutOfMemory(f"{capacity} octets over the pool's bound of {pool.limit}")
        block = pool.take(size_class)
        if block == NULL:
            raise OutOfMemory(f"no free block of {capacity} octets")
        lease = Lease.__new__(Lease)
        lease.account = self
        lease.address = <uintptr_t>block
        lease.capacity = capacity
        lease.size_class = size_class
        lease.count = 1
        self.in_use += capacity
        pool.in_use += capacity
        return lease

    def when_available(self, Py_ssize_t size, callback):
        """Call ``callback`` once, as soon as a buffer of ``size`` may be had: first come, first served.

        It is called from inside the release that makes room (or from inside this call when there already is room),
        and should take its lease there and then. Raises OutOfMemory when a bound is smaller than ``size``, so that
        the wait would be for ever, and ValueError as :meth:`lease` does.
        """
        cdef size_t capacity
        if size < 0 or size > ARENA:
            raise ValueError(f"a lease of {size} octets")
        capacity = <size_t>SMALLEST << size_class_of(size)
        if capacity > self.limit or capacity > self.pool.limit:
            raise OutOfMemory(f"{capacity} octets can never be had")
        self.pool.waiters.append((self, capacity, callback))
        self.pool.pump()

    def close(self):
        """Forget the waiters. Leases still out are returned to the pool as they are released."""
        cdef Pool pool = self.pool
        pool.waiters[:] = [waiter for waiter in pool.waiters if waiter[0] is not self]
        # One of them may have been what the others were queueing behind.
        pool.pump()


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
            if self.account.pool.waiters:
                self.account.pool.pump()
        return 0

    cdef void hand_back(self) noexcept:
        cdef Account account = self.account
        account.in_use -= self.capacity
        account.pool.in_use -= self.capacity
        account.pool.give(self.size_class, <char *>self.address)
