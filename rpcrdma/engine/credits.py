"""Credits and the Receives that back them (RFC 8166 section 3.3.1, RFC 8167 section 4).

Owns the arithmetic; imports nothing of the project.

The invariant
    A requester that heard the limit L may have L calls unanswered. Those that reached us took a Receive each, so a
    grant is safe exactly when ``posted - backward + outstanding >= L``, where ``outstanding`` are the calls we have
    not answered and ``backward`` are Receives spoken for by replies to our own backward calls. Receiving a call moves
    one from ``posted`` to ``outstanding``; only a reply can break the invariant, and so :meth:`Credits.grant` computes
    what that reply may promise. A full house of Receives always yields the whole configured number.

Bounds
    Receives are not replaced while more messages are unfinished than a peer that keeps the rules can cause. A peer that
    overruns its credits, or takes no replies, runs out of Receives (section 3.3.1 allows the connection to break).
"""

from __future__ import annotations


class Credits:
    """The ledger of one connection."""

    __slots__ = ("backward", "limit", "outstanding", "posted", "target", "unfinished_limit", "unsent")

    def __init__(self, limit: int, backward_limit: int, posted: int) -> None:
        self.limit = limit
        """Calls a peer may have outstanding when nothing is short."""
        self.target = limit + backward_limit
        """Receives to keep posted."""
        self.unfinished_limit = 2 * limit + backward_limit
        self.posted = posted
        self.outstanding = 0
        """Messages received and not answered yet, those being read included."""
        self.unsent = 0
        """Replies, errors and backward calls whose Send has not completed."""
        self.backward = 0
        """Backward calls that await their reply."""

    def wanted(self) -> int:
        """How many Receives are to be posted now."""
        if self.outstanding + self.unsent >= self.unfinished_limit:
            return 0
        return self.target - self.posted

    def grant(self) -> int:
        """What the reply to one of the ``outstanding`` may grant; 0 when it must wait for a Receive to be posted."""
        covered = self.posted - self.backward + self.outstanding - 1
        return self.limit if covered >= self.limit else max(covered, 0)

    def can_call_back(self) -> bool:
        """Whether a backward call's reply would find a Receive that no grant of ours counts on."""
        return self.posted - self.backward - 1 + self.outstanding >= self.limit
