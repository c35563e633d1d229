"""Calls that cost a connection, remembered until they are tried again on the next (RFC 8166 section 4.5.3)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator

MOST_POISONED = 64
"""Of one address. A connection adds one at most, at its end."""
MOST_ADDRESSES = 1024
POISON_SECONDS = 60.0
"""A client that lost its connection sends its calls again as soon as it has another one."""

_Entries = dict[int, tuple[float, int]]
"""XID: (until when, the how manyth it was); in that order."""


class Remembered:
    """The calls that a connection is wary of: those that an earlier one from its address ended with.

    Nothing that happens after it was made can make it wary: not what other programs on its peer's host do meanwhile.
    """

    __slots__ = ("_before", "_clock", "_entries")

    def __init__(self, entries: _Entries, before: int, clock: Callable[[], float]) -> None:
        self._entries, self._before, self._clock = entries, before, clock

    def __bool__(self) -> bool:
        entries, now = self._entries, self._clock()
        while entries:
            xid = next(iter(entries))
            until, number = entries[xid]
            if until >= now:
                return number < self._before
            del entries[xid]
        return False

    def __contains__(self, xid: object) -> bool:
        until, number = self._entries.get(xid, (0.0, 0))  # type: ignore[call-overload]
        return bool(number and number < self._before and until >= self._clock())

    def __iter__(self) -> Iterator[int]:
        return (xid for xid in self._entries if xid in self)

    def discard(self, xid: int) -> None:
        """The call has been answered: the XID's next use is another call."""
        self._entries.pop(xid, None)


class PoisonedCalls:
    """XIDs of calls whose RDMA Reads or Writes the peer refused, by peer (RFC 8166 section 4.5.3).

    Such a refusal costs the connection. The peer will send the call again on the next one, where it gets an error
    instead of another attempt. Ports say nothing about who it is (RFC 8166 section 4.1), so the address has to do, and
    another program there may be at fault. That one call with an equal XID on a later connection gets an error, once and
    for a minute at most, is all that comes of it. Bounded in number as well: of too many, the oldest are forgotten.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._peers: OrderedDict[str, _Entries] = OrderedDict()
        self._added = 0

    def add(self, peer_address: str, xid: int) -> None:
        """Remember one."""
        entries = self._peers.setdefault(peer_address, {})
        self._peers.move_to_end(peer_address)
        self._added += 1
        entries.pop(xid, None)
        entries[xid] = self._clock() + POISON_SECONDS, self._added
        if len(entries) > MOST_POISONED:
            del entries[next(iter(entries))]
        if len(self._peers) > MOST_ADDRESSES:
            self._peers.popitem(last=False)

    def of(self, peer_address: str) -> Remembered | None:
        """What a connection made now has to be wary of; None: of nothing."""
        entries = self._peers.get(peer_address)
        if entries is None:
            return None
        suspects = Remembered(entries, self._added + 1, self._clock)
        if not suspects and not entries:
            del self._peers[peer_address]
            return None
        return suspects
