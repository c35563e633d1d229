"""Whether a peer makes headway: with what it is sent, and with what it owes.

Owns :class:`Headway`, which an endpoint's watchdog asks now and then; imports nothing.
"""

from __future__ import annotations


class Headway:
    """What one connection had done when it was looked at last."""

    def __init__(self, patience: float, now: float) -> None:
        """``patience``: seconds without any sign of progress that are too many."""
        self._patience = patience
        self._acknowledged = self._received = 0
        self._acknowledged_at = self._received_at = now

    def lack(self, now: float, acknowledged: int, queued: int, sending: bool, received: int, owed: str) -> str:
        """What has taken too long; nothing has, if it is empty. ``acknowledged`` and ``received``: octets so far;
        ``queued``: those that the kernel has and the peer has not; ``sending``: whether there are any, here or there;
        ``owed``: what the peer is to send now, or nothing."""
        if acknowledged != self._acknowledged or not sending:
            self._acknowledged, self._acknowledged_at = acknowledged, now
        elif (since := now - self._acknowledged_at) >= self._patience:
            return f"has acknowledged nothing for {since:.0f} s with {queued} octets on the way"
        if received != self._received or not owed:
            self._received, self._received_at = received, now
        elif (since := now - self._received_at) >= self._patience:
            return f"has left {owed} for {since:.0f} s"
        return ""
