"""A sorted map of ranges of octets, each with a value (contract: ``spans.pyi``).

Owns the memory of it: blocks of up to ``FULL`` spans in the order of their offsets, and an array of where each block
begins. Finding is two binary searches, a change moves the rest of one block; a span takes 24 octets, some 35 with the
room left in blocks. Knows nothing of NFS and imports nothing.
"""

from cpython.object cimport Py_EQ, PyObject, PyObject_RichCompareBool
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memmove

cdef enum:
    FULL = 128              # spans of a block
    SPARSE = 32             # a block with fewer joins a neighbour that has room
    FIRST = 4               # room of a map's first block
    BLOCKS = 4              # room for blocks at first

cdef uint64_t LAST = 0xFFFFFFFFFFFFFFFFU
cdef object END = 1 << 64

cdef struct span_t:
    uint64_t start
    uint64_t last           # the last octet: the end may be 2**64
    PyObject *value

cdef struct block_t:
    size_t count
    size_t room
    span_t *spans

cdef struct place_t:
    size_t block
    size_t index


cdef inline object end_of(uint64_t last):
    return END if last == LAST else last + 1


cdef class SpanMap:
    cdef block_t *blocks
    cdef uint64_t *firsts   # where the blocks' first spans start
    cdef size_t count, room # of blocks
    cdef size_t size        # of spans

    def __dealloc__(self):
        self.drop_all()

    def __len__(self):
        return self.size

    def __iter__(self):
        return self.between(0, END)

    def at(self, uint64_t offset):
        cdef place_t place
        if not self.floor(offset, &place):
            return None
        span = self.get(&place)
        return self.shown(span) if span.last >= offset else None

    def hull(self):
        if self.size == 0:
            raise ValueError("nothing is held")
        end = &self.blocks[self.count - 1]
        return self.firsts[0], end_of(end.spans[end.count - 1].last)

    def between(self, uint64_t start, end, *, mine=None):
        cdef uint64_t last
        cdef place_t place
        cdef bint found
        if end <= start:
            return
        last = end - 1
        found = self.touching(start, &place)
        while found:
            span = self.get(&place)
            if span.start > last:
                return
            if span.value == <PyObject *>mine:
                found = self.advance(&place)
                continue
            start = span.last
            yield self.shown(span)
            if start >= last:
                return
            start += 1
            found = self.touching(start, &place)  # anew: the map may have changed meanwhile

    def cut(self, uint64_t start, end):
        cdef list removed = []
        if end > start:
            self.take(start, end - 1, removed)
        return removed

    def put(self, uint64_t start, end, value not None):
        cdef uint64_t last
        cdef place_t place, following
        cdef span_t *before = NULL
        cdef span_t *after
        if end <= start:
            raise ValueError("an empty range")
        last = end - 1
        self.take(start, last, None)
        if self.floor(start, &place):
            before = self.get(&place)
            following = place
            self.advance(&following)
        else:
            following.block = following.index = 0
        after = self.get(&following) if following.block < self.count else NULL
        if before != NULL and not (
            before.last + 1 == start and PyObject_RichCompareBool(<object>before.value, value, Py_EQ)
        ):
            before = NULL
        if after != NULL and last != LAST and after.start == last + 1 and PyObject_RichCompareBool(
            <object>after.value, value, Py_EQ
        ):
            if before == NULL:
                after.start = start
                self.begins(&following)
                return
            before.last = after.last
            self.remove(&following, 1)
        elif before != NULL:
            before.last = last
        else:
            self.insert(&following, start, last, value)

    def clear(self):
        self.drop_all()

    # -- finding -------------------------------------------------------------------------------------------------
    cdef inline span_t *get(self, const place_t *place) noexcept:
        return &self.blocks[place.block].spans[place.index]

    cdef tuple shown(self, const span_t *span):
        return span.start, end_of(span.last), <object>span.value

    cdef bint floor(self, uint64_t offset, place_t *place) noexcept:
        """The last span that starts up to ``offset``; whether there is one."""
        cdef size_t low = 0, high = self.count, middle
        cdef span_t *spans
        while low < high:
            middle = (low + high) >> 1
            if self.firsts[middle] <= offset:
                low = middle + 1
            else:
                high = middle
        if low == 0:
            return False
        place.block = low - 1
        spans = self.blocks[place.block].spans
        low, high = 1, self.blocks[place.block].count
        while low < high:
            middle = (low + high) >> 1
            if spans[middle].start <= offset:
                low = middle + 1
            else:
                high = middle
        place.index = low - 1
        return True

    cdef bint touching(self, uint64_t start, place_t *place) noexcept:
        """The first span that reaches up to ``start`` or beyond; whether there is one."""
        if self.floor(start, place):
            return self.get(place).last >= start or self.advance(place)
        place.block = place.index = 0
        return self.count > 0

    cdef bint advance(self, place_t *place) noexcept:
        """On to the next span; whether there is one."""
        place.index += 1
        if place.index == self.blocks[place.block].count:
            place.block += 1
            place.index = 0
        return place.block < self.count

    # -- changing ------------------------------------------------------------------------------------------------
    cdef int take(self, uint64_t start, uint64_t last, list removed) except -1:
        """Take [start, last] out; what was there is appended to ``removed``, unless that is None."""
        cdef place_t place
        cdef span_t *span
        cdef span_t whole
        cdef size_t run, count
        if not self.touching(start, &place) or self.get(&place).start > last:
            return 0
        span = self.get(&place)
        if span.start < start:
            whole = span[0]
            if removed is not None:
                removed.append((start, end_of(min(last, whole.last)), <object>whole.value))
            span.last = start - 1
            more = self.advance(&place)
            if whole.last > last:
                self.insert(&place, last + 1, whole.last, <object>whole.value)
                return 0
            if not more:
                return 0
        while place.block < self.count:
            span, count = self.get(&place), self.blocks[place.block].count - place.index
            run = 0
            while run < count and span[run].last <= last:
                if removed is not None:
                    removed.append(self.shown(&span[run]))
                run += 1
            if run < count:
                if span[run].start <= last:
                    if removed is not None:
                        removed.append((span[run].start, end_of(last), <object>span[run].value))
                    span[run].start = last + 1
                    if place.index + run == 0:
                        self.begins(&place)
                if run:
                    self.remove(&place, run)
                return 0
            self.remove(&place, run)
        return 0

    cdef void begins(self, const place_t *place) noexcept:
        """A span starts elsewhere: the block may, too."""
        if place.index == 0:
            self.firsts[place.block] = self.blocks[place.block].spans[0].start

    cdef int insert(self, place_t *place, uint64_t start, uint64_t last, value) except -1:
        """Put a span in before the one at ``place``."""
        cdef block_t *block
        cdef size_t kept, room
        cdef void *spans
        if place.block == self.count:
            # Behind everything: the last block takes it, or a new one.
            if self.count == 0 or self.blocks[self.count - 1].count == FULL:
                self.add_block(self.count, FULL if self.count else FIRST)
                place.block, place.index = self.count - 1, 0
            else:
                place.block -= 1
                place.index = self.blocks[place.block].count
        elif self.blocks[place.block].count == FULL:
            kept = FULL >> 1
            self.add_block(place.block + 1, FULL)
            block = &self.blocks[place.block]
            memcpy(block[1].spans, block.spans + kept, (FULL - kept) * sizeof(span_t))
            block[1].count = FULL - kept
            block.count = kept
            self.firsts[place.block + 1] = block[1].spans[0].start
            if place.index > kept:
                place.block += 1
                place.index -= kept
        block = &self.blocks[place.block]
        if block.count == block.room:
            room = block.room << 1
            spans = realloc(block.spans, room * sizeof(span_t))
            if spans == NULL:
                raise MemoryError
            block.spans, block.room = <span_t *>spans, room
        memmove(
            block.spans + place.index + 1, block.spans + place.index, (block.count - place.index) * sizeof(span_t)
        )
        Py_INCREF(value)
        block.spans[place.index].start = start
        block.spans[place.index].last = last
        block.spans[place.index].value = <PyObject *>value
        block.count += 1
        self.size += 1
        self.begins(place)
        return 0

    cdef int remove(self, place_t *place, size_t run) except -1:
        """Take out ``run`` spans of one block; ``place`` is the next span's afterwards."""
        cdef block_t *block = &self.blocks[place.block]
        cdef PyObject *values[FULL]
        cdef size_t position
        for position in range(run):
            values[position] = block.spans[place.index + position].value
        block.count -= run
        self.size -= run
        memmove(
            block.spans + place.index, block.spans + place.index + run, (block.count - place.index) * sizeof(span_t)
        )
        if block.count == 0:
            self.drop_block(place.block)
            place.index = 0
        else:
            self.begins(place)
            if block.count < SPARSE:
                self.join(place)
            block = &self.blocks[place.block]
            if place.index == block.count:
                place.block += 1
                place.index = 0
        for position in range(run):
            Py_DECREF(<object>values[position])  # last, as it may run anything
        return 0

    cdef void join(self, place_t *place) noexcept:
        """Put a sparse block together with a neighbour that has room for it."""
        cdef size_t first = place.block, count
        cdef block_t *block
        if first + 1 == self.count or self.blocks[first].count + self.blocks[first + 1].count > FULL - SPARSE:
            if first == 0:
                return
            first -= 1
        block = &self.blocks[first]
        count = block.count
        if count + block[1].count > FULL - SPARSE or block.room < FULL:
            return
        memcpy(block.spans + count, block[1].spans, block[1].count * sizeof(span_t))
        block.count += block[1].count
        if first < place.block:
            place.block = first
            place.index += count
        self.drop_block(first + 1)

    cdef int add_block(self, size_t at, size_t room) except -1:
        """An empty block at this position; where it starts is still to be said."""
        cdef void *spans
        if self.count == self.room:
            self.make_room(self.room << 1 if self.room else BLOCKS)
        spans = malloc(room * sizeof(span_t))
        if spans == NULL:
            raise MemoryError
        memmove(self.blocks + at + 1, self.blocks + at, (self.count - at) * sizeof(block_t))
        memmove(self.firsts + at + 1, self.firsts + at, (self.count - at) * sizeof(uint64_t))
        self.blocks[at].spans, self.blocks[at].room, self.blocks[at].count = <span_t *>spans, room, 0
        self.count += 1
        return 0

    cdef void drop_block(self, size_t at) noexcept:
        free(self.blocks[at].spans)
        self.count -= 1
        memmove(self.blocks + at, self.blocks + at + 1, (self.count - at) * sizeof(block_t))
        memmove(self.firsts + at, self.firsts + at + 1, (self.count - at) * sizeof(uint64_t))

    cdef int make_room(self, size_t room) except -1:
        cdef void *blocks = realloc(self.blocks, room * sizeof(block_t))
        cdef void *firsts
        if blocks == NULL:
            raise MemoryError
        self.blocks = <block_t *>blocks
        firsts = realloc(self.firsts, room * sizeof(uint64_t))
        if firsts == NULL:
            raise MemoryError
        self.firsts = <uint64_t *>firsts
        self.room = room
        return 0

    cdef void drop_all(self) noexcept:
        """Empty; what it was is taken away first, as letting go of values may run anything."""
        cdef block_t *blocks = self.blocks
        cdef size_t count = self.count, at, position
        free(self.firsts)
        self.blocks, self.firsts, self.count, self.room, self.size = NULL, NULL, 0, 0, 0
        for at in range(count):
            for position in range(blocks[at].count):
                Py_DECREF(<object>blocks[at].spans[position].value)
            free(blocks[at].spans)
        free(blocks)
