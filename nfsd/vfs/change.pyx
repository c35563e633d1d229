# distutils: extra_compile_args = -O2
"""The change attribute: 64 bits that differ whenever a file's data or attributes do (RFC 8881 section 5.8.1.4).

Owns the arithmetic only; imports nothing. The kernel keeps such a counter but does not tell user space, so it is made
from ctime in nanoseconds.

Fine-grained file systems. Since Linux 6.13, ext4, XFS and btrfs give a ctime that was looked at since the last change a
new, distinct value at the next one: there ctime in nanoseconds *is* the attribute, whoever changes the file. (tmpfs does
so too, but for directories from which a file is removed.)

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

from libc.stdint cimport int64_t, uint64_t

SETTLE_NS = SETTLE
SETTLED_OFFSET = OFFSET

cdef uint64_t MASK = 0xFFFFFFFFFFFFFFFF


cdef class ChangeRecord:
    """What is remembered of one file's change attribute."""

    cdef uint64_t look(self, uint64_t ctime, uint64_t now, bint fine, bint changed) noexcept:
        # Times before 1970 are taken modulo 2**64, and so are differences.
        cdef uint64_t fresh
        if not self.known or ctime != self.ctime:
            fresh = ctime
            if not fine and <int64_t>(now - ctime) > SETTLE:
                fresh += OFFSET
            # A clock stepped back must not take the attribute with it.
            self.value = fresh if not self.known or fresh > self.value else self.value + 1
            self.ctime = ctime
            self.known = True
        elif changed and not fine:
            self.value += 1
        return self.value

    def observe(self, ctime, now, *, bint fine, bint changed):
        return self.look(<uint64_t>(ctime & MASK), <uint64_t>(now & MASK), fine, changed)

    def settled(self, now):
        return not self.known or <int64_t>(<uint64_t>(now & MASK) - self.ctime) > SETTLE
