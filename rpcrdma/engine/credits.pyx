"""Credits and the Receives that back them (RFC 8166 section 3.3.1, RFC 8167 section 4).

Owns the arithmetic; imports nothing of the project.

The invariant
    A requester that heard the limit L may have L calls unanswered. Those that reached us took a Receive each, so a
    grant is safe exactly when ``posted - backward + outstanding >= L``, where ``outstanding`` are the calls we have
    not answered and ``backward`` are Receives spoken for by replies to our own backward calls. Receiving a call moves
    one from ``posted`` to ``outstanding``; only a reply can break the invariant, and so :meth:`Credits.grant` computes
    what that reply may promise. A full house of Receives always yields the whole configured number.

Growth
    A connection begins with few Receives. When as many calls have come as may be outstanding, and the peer asks for more
    (section 3.3.1: rdma_credit of a call), the number doubles, up to ``most`` and to what is asked for. More is posted
    first, and then granted.

Shrinking
    Replies may grant less (section 3.3.1), at once: a peer that has not heard of it yet may have as many calls more as
    Receives are posted, and one that has heard it sends none before enough are answered. Those posted cannot be taken
    back; the next calls take them, and they are not replaced. What may be unfinished stays as it was: the peer may have
    that much under way.

Bounds
    Receives are not replaced while more messages are unfinished than a peer that keeps the rules can cause. A peer that
    overruns its credits, or takes no replies, runs out of Receives (section 3.3.1 allows the connection to break).
"""

cdef class Credits:
    """The ledger of one connection (contract: ``credits.pyi``)."""

    def __init__(self, long limit, long backward_limit, long posted, long most=0):
        self.limit = limit
        self.most = max(most, limit)
        self.target = limit + backward_limit
        self.unfinished_limit = 2 * limit + backward_limit
        self.posted = posted

    cpdef bint due(self) noexcept:
        return self.taken >= self.limit and self.asked > self.limit and self.limit < self.most

    cpdef int grow(self) except -1:
        cdef long more = min(self.limit, self.most - self.limit, self.asked - self.limit)
        self.limit += more
        self.target += more
        self.unfinished_limit = max(self.unfinished_limit, self.limit + self.target)
        self.taken = 0
        return 0

    def shrink(self, long limit):
        cdef long less = max(self.limit - limit, 0)
        self.limit -= less
        self.target -= less
        self.taken = 0

    cdef bint crowded(self) noexcept:
        return self.outstanding + self.unsent >= self.unfinished_limit

    cpdef long wanted(self) noexcept:
        return 0 if self.crowded() else max(self.target - self.posted, 0)

    cpdef long grant(self, long apart=1) noexcept:
        cdef long covered = self.posted - self.backward + self.outstanding - apart
        return self.limit if covered >= self.limit else max(covered, 0)

    cpdef bint can_call_back(self) noexcept:
        return self.posted - self.backward - 1 + self.outstanding >= self.limit
