"""Arenas: mmap()ed memory, cut by halves into blocks of thirteen sizes, and its pages given back.

Owns what :mod:`rpcrdma.memory` leases out; imports the clock only. The loop's thread alone takes and gives.

Operation
    An arena has 4 MiB and is aligned to its size; blocks have 1 KiB to 4 MiB. Each size has two stacks of free blocks:
    ``used`` ones, whose pages have been written to, and ``fresh`` ones, which have no pages. The usual take is a pop of
    a used block, and its end a push. A size that runs dry takes half of the next larger used block, then of a fresh one;
    when there is none, another arena is mapped; when there are as many as the limit needs, free neighbours are joined
    again first. Address space may be twice the limit (room for fragmentation): it costs nothing.

Pages
    Large blocks (256 KiB and more) are cut from 2 MiB at a time, which the kernel is asked to back with one huge page: whoever
    copies a MiB meets one entry of the page tables there, and not 256. All of that counts as used at once. What smaller
    blocks are cut from is not asked for that, or one of them could take 2 MiB.

    ``resident`` counts what has pages: blocks that are out, and used ones. It stays below the limit and its sixteenth
    (8 MiB at least): before a fresh block would exceed that, used ones lose their pages (MADV_DONTNEED). :meth:`Arenas.tidy`
    takes pages from blocks that nobody has wanted for a while.

Pins
    While a device has the arenas registered it writes to the very pages it was told of, so none is given back then.
"""

from libc.stdint cimport uintptr_t
from libc.stdlib cimport free, qsort, realloc
from libc.string cimport memset

from rpcrdma.clock cimport nanoseconds


cdef extern from "<sys/mman.h>" nogil:
    void *mmap(void *address, size_t length, int protection, int flags, int fd, long offset)
    int munmap(void *address, size_t length)
    int madvise(void *address, size_t length, int advice)
    int PROT_READ, PROT_WRITE, MAP_PRIVATE, MAP_ANONYMOUS, MADV_DONTNEED, MADV_HUGEPAGE, MADV_NOHUGEPAGE
    void *MAP_FAILED


cdef enum:
    PAGE_CLASS = 2              # the smallest blocks that have pages of their own
    LARGE_CLASS = 8             # the smallest that are cut from huge pages,
    HUGE_CLASS = 11             # as large as these
    FUTILE = 10000000           # nanoseconds
    SLACK = 16 << 20            # octets left resident beyond what is in use
    AT_ONCE = 32 << 20          # octets that lose their pages in one go
    FADING = 16                 # in so many calls of ``tidy`` what is no longer used is forgotten, about


cdef int size_class_of(size_t size) noexcept:
    cdef int size_class = 0
    cdef size_t capacity = SMALLEST
    while capacity < size:
        capacity <<= 1
        size_class += 1
    return size_class


cdef int backed_class(int size_class, int larger) noexcept:
    """The class of what gets its pages at once, with a block of this one that is cut out of a fresh one of class ``larger``:
    the rest of a huge page may have pages already."""
    return min(max(size_class, <int>(PAGE_CLASS if size_class < LARGE_CLASS else HUGE_CLASS)), larger)


cdef int by_address(const void *left, const void *right) noexcept nogil:
    cdef uintptr_t a = (<uintptr_t *>left)[0]
    cdef uintptr_t b = (<uintptr_t *>right)[0]
    return -1 if a < b else (1 if a > b else 0)


cdef class Arenas:
    """The memory of one pool."""

    def __cinit__(self, size_t limit):
        memset(self.used, 0, sizeof(self.used))
        memset(self.fresh, 0, sizeof(self.fresh))
        self.comfortable = (limit + ARENA - 1) // ARENA
        self.most = 2 * self.comfortable
        self.resident_limit = limit + max(limit // 16, <size_t>(8 << 20))

    def __dealloc__(self):
        cdef size_t i
        for i in range(CLASSES):
            free(self.used[i].items)
            free(self.fresh[i].items)
        for i in range(self.count):
            munmap(self.bases[i], ARENA)
        free(self.bases)

    def addresses(self):
        """The (address, length) of every arena, oldest first."""
        return [(<uintptr_t>self.bases[i], ARENA) for i in range(self.count)]

    def pin(self):
        """From now on pages stay where they are: a device was told of them."""
        self.pins += 1

    def unpin(self):
        """A device has forgotten them."""
        self.pins -= 1

    cdef bint push(self, FreeStack *stack, char *block) noexcept:
        """False, with the block lost until the pool dies: no memory for the stack itself."""
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

    cdef int find(self, FreeStack *stacks, int size_class) noexcept:
        """The class of the smallest free block that is large enough; CLASSES if there is none."""
        while size_class < CLASSES and stacks[size_class].length == 0:
            size_class += 1
        return size_class

    cdef char *cut_used(self, int larger, int size_class) noexcept:
        """A used block of the class, out of a larger one."""
        cdef FreeStack *stack = &self.used[larger]
        cdef char *block
        stack.length -= 1
        block = stack.items[stack.length]
        while larger > size_class:
            larger -= 1
            self.push(&self.used[larger], block + (<size_t>SMALLEST << larger))
        return block

    cdef char *cut_fresh(self, int larger, int size_class) noexcept:
        """A block of the class out of a fresh one. Of a page all becomes used at once. NULL: too much has pages."""
        cdef FreeStack *stack = &self.fresh[larger]
        cdef char *block
        cdef int backed = backed_class(size_class, larger)
        cdef size_t pages = <size_t>SMALLEST << backed
        if not self.affordable(pages):
            return NULL
        stack.length -= 1
        block = stack.items[stack.length]
        if larger >= HUGE_CLASS:
            madvise(block, max(pages, <size_t>SMALLEST << HUGE_CLASS), MADV_HUGEPAGE if backed >= HUGE_CLASS else MADV_NOHUGEPAGE)
        while larger > size_class:
            larger -= 1
            stack = &self.fresh[larger] if larger >= backed else &self.used[larger]
            self.push(stack, block + (<size_t>SMALLEST << larger))
        self.touched += pages
        self.resident += pages
        return block

    cdef bint affordable(self, size_t pages) noexcept:
        """Whether so many octets more may have pages; others lose theirs for it. Not where parts of pages keep too many."""
        if self.pins or self.resident + pages <= self.resident_limit:
            return True
        self.discard(self.resident + pages - self.resident_limit)
        return self.resident + pages <= self.resident_limit

    cdef char *take_slowly(self, int size_class) noexcept:
        """A block of the class, where no used one is at hand."""
        cdef int larger
        cdef int attempt
        cdef char *block
        for attempt in range(3):
            larger = self.find(self.used, size_class)
            if larger < CLASSES:
                return self.cut_used(larger, size_class)
            larger = self.find(self.fresh, size_class)
            if larger < CLASSES:
                block = self.cut_fresh(larger, size_class)
                if block != NULL:
                    return block
            if attempt == 0:
                if self.count < self.comfortable and self.add_arena():
                    continue
                if nanoseconds() < self.futile_until:
                    if not self.add_arena():
                        return NULL
                    continue
                self.join_all()
            elif attempt == 1:
                self.futile_until = nanoseconds() + FUTILE
                if not self.add_arena():
                    return NULL
        return NULL

    cdef bint obtainable(self, int size_class) noexcept:
        """Whether :meth:`take` would find a block."""
        cdef int attempt, larger
        for attempt in range(2):
            if self.find(self.used, size_class) < CLASSES:
                return True
            larger = self.find(self.fresh, size_class)
            if (larger < CLASSES or self.count < self.most) and self.affordable(
                <size_t>SMALLEST << backed_class(size_class, min(larger, <int>CLASSES - 1))
            ):
                return True
            if attempt == 0:
                if nanoseconds() < self.futile_until:
                    return False
                self.join_all()
        self.futile_until = nanoseconds() + FUTILE
        return False

    cdef bint add_arena(self) noexcept:
        cdef char *base
        cdef char *aligned
        cdef void *bases
        cdef size_t head
        if self.count >= self.most:
            return False
        bases = realloc(self.bases, (self.count + 1) * sizeof(char *))
        if bases == NULL:
            return False
        self.bases = <char **>bases
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
        if not self.push(&self.fresh[CLASSES - 1], aligned):
            munmap(aligned, ARENA)
            return False
        self.bases[self.count] = aligned
        self.count += 1
        self.mapped += ARENA
        return True

    cdef int discard(self, size_t amount) noexcept:
        """Take the pages from used blocks of so many octets, as far as there are any; the largest first."""
        cdef int size_class, attempt
        cdef size_t size
        cdef FreeStack *stack
        cdef char *block
        if self.pins:
            return 0
        for attempt in range(2):
            for size_class in range(CLASSES - 1, PAGE_CLASS - 1, -1):
                stack = &self.used[size_class]
                size = <size_t>SMALLEST << size_class
                while stack.length:
                    block = stack.items[stack.length - 1]
                    if madvise(block, size, MADV_DONTNEED) or not self.push(&self.fresh[size_class], block):
                        return 0
                    stack.length -= 1
                    self.resident -= size
                    if size >= amount:
                        return 0
                    amount -= size
            if attempt == 0:
                if nanoseconds() < self.futile_until:
                    return 0
                self.join(self.used, 0)  # parts of pages may be whole pages together
        return 0

    cdef int join(self, FreeStack *stacks, int first) noexcept:
        """Join free halves, from this class on, smallest first."""
        cdef int size_class
        cdef size_t i, kept, size
        cdef FreeStack *stack
        for size_class in range(first, CLASSES - 1):
            stack = &stacks[size_class]
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
                    and self.push(&stacks[size_class + 1], stack.items[i])
                ):
                    i += 2
                    continue
                stack.items[kept] = stack.items[i]
                kept += 1
                i += 1
            stack.length = kept
        return 0

    cdef int join_all(self) noexcept:
        """Join whatever is free. Rare: only when no arena is to be added."""
        cdef int size_class
        cdef FreeStack *stack
        self.join(self.used, 0)
        self.discard(self.resident)
        if self.pins:
            # What is used keeps its pages, so what is fresh counts as used, to be joined with it.
            for size_class in range(CLASSES):
                stack = &self.fresh[size_class]
                while stack.length and self.push(&self.used[size_class], stack.items[stack.length - 1]):
                    stack.length -= 1
                    self.resident += <size_t>SMALLEST << size_class
            self.join(self.used, 0)
        self.join(self.fresh, PAGE_CLASS)
        return 0

    cdef int tidy(self, size_t in_use) noexcept:
        """Take pages from what has not been wanted for a while. To be called about every second."""
        if self.touched:
            self.wanted = self.resident  # more is used, not less
            self.touched = 0
        self.wanted = max(in_use, self.wanted - self.wanted // FADING)
        if self.resident > self.wanted + SLACK:
            self.discard(min(self.resident - self.wanted - SLACK, <size_t>AT_ONCE))
        return 0
