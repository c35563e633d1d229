"""The change attribute: 64 bits that differ whenever a file's data or attributes do (RFC 8881 section 5.8.1.4).

Owns the arithmetic only; imports nothing. The kernel keeps such a counter but does not tell user space, so it is made
from ctime in nanoseconds.

Fine-grained file systems. Since Linux 6.13, ext4, XFS, btrfs and tmpfs give a ctime that was looked at since the last
change a new, distinct value at the next one: there ctime in nanoseconds *is* the attribute, whoever changes the file.

Tick-grained file systems. Elsewhere ctime advances once per timer tick (1 to 10 ms), and two changes inside a tick look
alike. The changes this server makes are counted: inside one tick the value is ctime + n, n being the number of our
changes seen since that ctime first showed. n stays far below a tick's nanoseconds (a change costs microseconds), so
the next ctime is always greater. The count lives in memory. To stay monotonic when it is lost:

* a record is given up only once its ctime is *settled*, that is older than any tick, so that no further change can
  carry that ctime; a restart waits for the same (:data:`SETTLE_NS`);
* a ctime first seen when already settled counts as ctime + :data:`SETTLED_OFFSET`, more than any n can be and less than
  a tick. So after a loss the value can only have grown, and all later losses give the same value again.

What remains hidden: on tick-grained file systems, a *local* process that changes a file twice within one tick, with our
look in between. And a clock stepped back: values still grow while the record lives, but a record lost afterwards
starts again from the smaller ctime. Linux knfsd shares both limits on file systems without a persistent counter.
"""

from __future__ import annotations

SETTLE_NS = 40_000_000
"""Four times the longest tick Linux can be built with."""
SETTLED_OFFSET = 1 << 19
"""Half of the shortest tick, and thousands of our own changes."""
_MASK = (1 << 64) - 1


class ChangeRecord:
    """What is remembered of one file's change attribute."""

    __slots__ = ("ctime", "value")

    def __init__(self) -> None:
        self.ctime: int | None = None
        self.value = 0

    def observe(self, ctime: int, now: int, *, fine: bool, changed: bool) -> int:
        """The attribute for a ``ctime`` (ns) seen at ``now`` (ns). ``changed``: we changed the file since the last
        look. ``fine``: the file system's ctime is distinct for every change."""
        if ctime != self.ctime:
            settled = not fine and now - ctime > SETTLE_NS
            fresh = ctime + SETTLED_OFFSET if settled else ctime
            # A clock stepped back must not take the attribute with it.
            self.value = fresh if self.ctime is None else max(fresh, self.value + 1)
            self.ctime = ctime
        elif changed and not fine:
            self.value += 1
        return self.value & _MASK

    def settled(self, now: int) -> bool:
        """Whether no further change can carry the remembered ctime: the record may be given up."""
        return self.ctime is None or now - self.ctime > SETTLE_NS
