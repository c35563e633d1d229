"""Networks and hosts as parts of the network that they are in, sorted by how much they have (contract: ``parts.pyi``).

Owns :class:`Part`, from which :mod:`rpcrdma.networks` and those who count other things derive, and :class:`Bag`. Imports
nothing of ours. A connection, a call's descriptor and a client's state are counted in all networks that their host is in, so this is
part of many operations.
"""

import random


cdef class Bag:
    def __init__(self):
        self._things = []
        self._places = {}

    @classmethod
    def __class_getitem__(cls, _):
        return cls

    def __len__(self):
        return len(self._things)

    cdef int put(self, thing) except -1:
        self._places[thing] = len(self._things)
        self._things.append(thing)
        return 0

    cdef bint take(self, thing) except -1:
        place = self._places.pop(thing, None)
        if place is None:
            return False
        last = self._things.pop()
        if last is not thing:
            self._things[<Py_ssize_t>place] = last
            self._places[last] = place
        return True

    def add(self, thing):
        self.put(thing)

    def discard(self, thing):
        return self.take(thing)

    def some(self, Py_ssize_t count):
        return random.sample(self._things, count) if count < len(self._things) else list(self._things)


cdef class Part:
    def __init__(self, str key not None, Part parent, long long floor=1):
        self.key, self.parent, self.floor = key, parent, floor
        self.has = 0
        self.weight = self._upto = 1 if parent is None else parent.floor
        self._least = 0
        self._ranked = False
        self._ranks = {}
        self.most = 0

    @classmethod
    def __class_getitem__(cls, _):
        return cls

    def chain(self):
        cdef list found = []
        cdef Part group = self
        while group is not None:
            found.append(group)
            group = group.parent
        found.reverse()
        return found

    def fullest(self):
        return self.some_fullest(1)[0]

    def some_fullest(self, Py_ssize_t count):
        return self._ranks[self.most].some(count) if self.most else []

    def crowd(self):
        group = self
        while (<Part>group).most > (<Part>group).floor:
            group = group.fullest()
        return group

    cpdef int grow(self) except -1:
        cdef Part group = self
        while group is not None:
            group.has += 1
            if group.has > group._upto:
                group.weigh()
            group = group.parent
        return 0

    cpdef int shrink(self) except -1:
        cdef Part group = self
        while group is not None:
            group.has -= 1
            if group.has < group._least:
                group.weigh()
            group = group.parent
        return 0

    cpdef int find(self) except -1:
        cdef Part part = self
        while part.parent is not None and not part._ranked:
            part._ranked = True
            part.parent.enlist(part)
            part = part.parent
        return 0

    cpdef int hide(self) except -1:
        cdef Part part = self
        cdef Part parent
        while part.parent is not None and part._ranked:
            parent = part.parent
            part._ranked = False
            parent.delist(part)
            if parent.most not in parent._ranks:
                parent.most = max(parent._ranks, default=0)
            if parent._ranks:
                break
            part = parent
        return 0

    cdef int weigh(self) except -1:
        """It weighs more or less than it did."""
        cdef Part parent = self.parent
        cdef long long has = self.has, power
        if parent is None:
            self._least, self._upto = 0, <long long>1 << 62
            return 0
        if self._ranked:
            parent.delist(self)
        if has <= parent.floor:
            self._least, self._upto = 0, parent.floor
        elif self.coarse:
            power = 1
            while power <= has:
                power *= 2
            self._least, self._upto = max(power // 2, parent.floor + 1), power - 1
        else:
            self._least = self._upto = has
        self.weight = self._upto
        if self._ranked:
            parent.enlist(self)
            if parent.most not in parent._ranks:
                parent.most = self.weight  # the next lower one: its own was the most, and the last of those
        return 0

    cdef int enlist(self, Part part) except -1:
        cdef Bag same = self._ranks.get(part.weight)
        if same is None:
            same = self._ranks[part.weight] = Bag()
        same.put(part)
        if part.weight > self.most:
            self.most = part.weight
        return 0

    cdef int delist(self, Part part) except -1:
        cdef Bag same = self._ranks[part.weight]
        same.take(part)
        if not same._things:
            del self._ranks[part.weight]
        return 0
