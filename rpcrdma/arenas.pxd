"""C declarations of the memory that the pool cuts into buffers."""

from libc.stdint cimport uint64_t


cdef enum:
    CLASSES = 13
    SMALLEST = 1024
    ARENA = 4 << 20


cdef struct FreeStack:
    char **items
    size_t length
    size_t capacity


cdef int size_class_of(size_t size) noexcept

cdef class Arenas:
    cdef readonly size_t mapped         # octets
    cdef readonly size_t resident       # octets that have pages behind them, at most
    cdef size_t resident_limit
    cdef FreeStack used[13]             # free blocks whose pages have been written to
    cdef FreeStack fresh[13]            # free blocks without pages
    cdef char **bases                   # of the arenas, oldest first
    cdef size_t count
    cdef size_t comfortable             # arenas that are mapped before free neighbours are joined
    cdef size_t most                    # arenas
    cdef size_t touched                 # octets that got pages since :meth:`tidy` looked
    cdef size_t wanted                  # octets that tidy leaves resident
    cdef int pins
    cdef uint64_t futile_until          # joining neighbours has been of no use, and is not tried again before then

    cdef char *take_slowly(self, int size_class) noexcept
    cdef bint obtainable(self, int size_class) noexcept
    cdef int tidy(self, size_t in_use) noexcept
    cdef int find(self, FreeStack *stacks, int size_class) noexcept
    cdef char *cut_used(self, int larger, int size_class) noexcept
    cdef char *cut_fresh(self, int larger, int size_class) noexcept
    cdef bint affordable(self, size_t pages) noexcept
    cdef bint add_arena(self) noexcept
    cdef int discard(self, size_t amount) noexcept
    cdef int join(self, FreeStack *stacks, int first) noexcept
    cdef int join_all(self) noexcept
    cdef bint push(self, FreeStack *stack, char *block) noexcept

    cdef inline char *take(self, int size_class) noexcept:
        """A free block of the class, or NULL."""
        cdef FreeStack *stack = &self.used[size_class]
        if stack.length:
            stack.length -= 1
            return stack.items[stack.length]
        return self.take_slowly(size_class)

    cdef inline int give(self, int size_class, char *block) noexcept:
        """Take a block back."""
        cdef FreeStack *stack = &self.used[size_class]
        if stack.length < stack.capacity:
            stack.items[stack.length] = block
            stack.length += 1
        else:
            self.push(stack, block)
        return 0
