"""Whose turn on the event loop it is, and whether there are others whose turns should come soon.

Owns what all transports' connections know of each other; imports the clock. A connection that is alone may
take as long as it likes, and moves most with the fewest system calls. Where there are others, whatever it does in one
turn is what they wait. Others are there if one of them had a turn lately: a client that asks now and then is to be
answered as soon as one that asks all the time.
"""

from libc.stdint cimport uint64_t

from rpcrdma.clock cimport nanoseconds

cdef enum:
    LATELY = 1000000000     # nanoseconds

cdef void *latest = NULL    # whose turn was the last; only ever compared
cdef uint64_t other_at = 0  # when somebody else than the latest had the last turn
cdef bint others = False    # whether anybody had
cdef bint ignored = False


cdef bint shared(void *who, uint64_t now) noexcept:
    """Note that it is the turn of ``who``. Returns whether there are others lately."""
    global latest, other_at, others
    if who != latest:
        others = others or latest != NULL
        latest = who
        other_at = now
    return others and not ignored and now - other_at < <uint64_t>LATELY


cdef bint crowded() noexcept:
    """Whether more than one connection had a turn lately."""
    return others and not ignored and nanoseconds() - other_at < <uint64_t>LATELY


def begin(who, uint64_t now):
    return shared(<void *>who, now)


def is_crowded():
    return crowded()


cdef void one_is_gone() noexcept:
    """A connection has ended. If it was not the only other one, the next turns will tell."""
    global latest, others
    latest, others = NULL, False


def forget():
    one_is_gone()


def ignore_others(bint wanted):
    global ignored
    ignored = wanted


globals()["SLICE"] = <object>SLICE
globals()["BULK"] = <object>BULK
