# distutils: extra_compile_args = -O2
"""What a responder and the native code that stands before it both look at (contract: ``state.pyi``).

Owns :class:`ResponderState`, of which :class:`rpcrdma.engine.responder.Responder` is made; imports this package's ledger of
credits and its counters. Native because it is looked at for each batch of messages, and a client that makes one call at a time
sends batches of one.
"""

from collections import deque


cdef class ResponderState:
    def __init__(self, Credits ledger not None, Counters counters not None, versions, poisoned, bint traced):
        self.credits, self.counters, self.versions = ledger, counters, versions
        self.receives, self.reads, self.chains, self.calls = [], [], [], []
        self.to_read = deque()
        self.poisoned, self.traced = poisoned, traced
        self.may_read = True

    def proceed(self):
        raise NotImplementedError

    def take_back(self, lease, length, sink, holder):
        raise NotImplementedError

    def unfetched(self, lease, length, sink):
        raise NotImplementedError

    def lost(self, count):
        raise NotImplementedError

    def received(self, messages):
        raise NotImplementedError

    cdef bint answers_natively(self) noexcept:
        """Whether calls of a settled version may be answered without it: not while something is to be looked at more
        closely."""
        return not (self.closed or self.draining or self.traced) and self.failure is None

    cdef bint is_wary(self) except -1:
        """Whether calls may come that are poisoned: these are not to be answered natively."""
        if self.poisoned is None:
            return False
        if self.poisoned:
            return True
        self.poisoned = None
        return False

    cdef bint at_rest(self) noexcept:
        """Whether it wants nothing posted, executed or ended."""
        return not (self.calls or self.receives or self.reads or self.chains or self.draining) and self.failure is None

    @property
    def idle(self):
        return not self.credits.outstanding and not self.credits.unsent

    cdef bint holds_too_many(self) noexcept:
        """Whether more Receives are posted than are promised: they are not to be posted again."""
        return self.credits.posted > self.credits.target
