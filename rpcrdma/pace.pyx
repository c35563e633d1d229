"""How fast hosts may go: rates, what is due for calls, and who goes on when (contract: ``pace.pyi``).

Owns :class:`Rate`, :class:`Pace` (one for each host) and :class:`Dues`. Imports the clock; timers come from outside.

Nothing is held back that has been begun. A call is charged when it is over, to every rate that it counts for: its time,
by the rate, is added to the time until which that is paid for (the virtual scheduling of ATM's generic cell rate
algorithm, ITU-T I.371). While that lies ahead, transports read nothing of the host: the network holds what it sends.
What a rate has not used it may use later, as much as goes into half a second.

Calls in progress are not charged yet, so a host may have only as many as go into a second, and what has been received
of a large one is reckoned with as soon as it is there (``promise``).

Connections of a host that wait for it stand in a row; the first one goes on when the time has come, and the next one if
there is some left. Each step takes the same time however many there are. A host without a rate is never asked for the time.

Where somebody waits for the host (a recall of its delegation, RFC 8881 section 10.4), it is read from for some seconds
whatever it owes (``hurry``). It owes that all the same, and is not hurried again until it has paid. Those that share a rate
with it do not pay for that: about a second's worth is charged to the rate, and what is beyond to the host alone.
"""

from rpcrdma.clock cimport nanoseconds

cdef enum:
    SECOND = 1000000000
    BURST = 500000000       # nanoseconds' worth that may be saved up
    HURRY = 5000000000      # nanoseconds
    LATELY = 2000000000     # nanoseconds
    GAP = 4000000           # nanoseconds longer than need be that is waited, so that some calls go on together
    LARGEST = 1 << 20       # octets of a call
    MOST_CALLS = 4096
    LONGEST = 3600          # seconds that may be owed

cdef uint64_t pretended = 0


cdef inline uint64_t clock() noexcept:
    return pretended if pretended else nanoseconds()


def pretend(uint64_t now):
    global pretended
    pretended = now


cdef inline uint64_t later(uint64_t paid, uint64_t now, double time) noexcept:
    """Until when it is paid for if so much more is due."""
    cdef uint64_t start = paid if paid + BURST > now else now - BURST
    cdef uint64_t last = now + <uint64_t>LONGEST * SECOND
    return start + <uint64_t>time if time < <double>(last - now) and start + <uint64_t>time < last else last


cdef class Rate:
    def __init__(self, octets=0, calls=0):
        self.octets, self.calls = octets, calls
        self.octet_time = SECOND / self.octets if octets else 0
        self.call_time = SECOND / self.calls if calls else 0

    cdef uint64_t charge(self, uint64_t octets, uint64_t now) noexcept:
        """Charge one call. Returns until when all is paid for."""
        if self.octet_time:
            self.octets_paid = later(self.octets_paid, now, octets * self.octet_time)
        if self.call_time:
            self.calls_paid = later(self.calls_paid, now, self.call_time)
        return max(self.octets_paid, self.calls_paid)


cdef class Pace:
    def __init__(self, schedule):
        self.schedule = schedule
        self.rates, self.waiting = {}, {}

    cdef bint over(self) noexcept:
        """Whether nothing of the host is to be read now."""
        cdef uint64_t now = clock()
        if not self.limited or now >= self.until:
            self.hurried = False
            return False
        return now >= self.hurried_until

    cdef void promise(self, uint64_t octets) noexcept:
        """So much has come of a call that is not charged yet."""
        if self.limited and self.octet_time:
            self.until = later(self.until, clock(), octets * self.octet_time)

    def is_over(self):
        return self.over()

    def expect(self, uint64_t octets):
        self.promise(octets)

    @property
    def now(self):
        return clock()

    @property
    def held(self):
        return bool(self.waiting)

    @property
    def held_lately(self):
        return bool(self.waiting) or (self.held_last != 0 and clock() - self.held_last < LATELY)

    @property
    def owed(self):
        """Seconds."""
        cdef uint64_t now = clock()
        return <double>(self.until - now) / SECOND if self.limited and self.until > now else 0.0

    @property
    def held_seconds(self):
        """In which somebody waited, so far."""
        cdef uint64_t since = clock() - self.held_since if self.held_since else 0
        return <double>(self.held_before + since) / SECOND

    def limit(self, Rate rate not None):
        """One of the rates that it goes by."""
        cdef double most = MOST_CALLS
        self.limited = True
        self.octet_time = max(self.octet_time, rate.octet_time)
        if rate.octets:
            most = min(most, rate.octets / LARGEST)
        if rate.calls:
            most = min(most, rate.calls)
        most = max(most, 1)
        self.most_calls = min(self.most_calls or MOST_CALLS, <unsigned int>most)

    def wait(self, member):
        """Have ``member.go_on`` called when it may."""
        if member in self.waiting:
            return
        self.times_held += 1
        if not self.waiting:
            self.held_since = clock()
        self.waiting[member] = None
        if self.timer is None:
            self.arm()

    def leave(self, member):
        """It waits no more."""
        if self.waiting.pop(member, self) is None:
            self.ended()

    cdef int arm(self) except -1:
        cdef uint64_t now = clock()
        cdef uint64_t wait = 0
        if self.limited and now < self.until and now >= self.hurried_until:
            wait = self.until - now + GAP
        self.timer = self.schedule(<double>wait / SECOND, self.turn)
        return 0

    def turn(self):
        """The first one that waits goes on, if the time has come."""
        self.timer = None
        try:
            if self.waiting and not self.over():
                member = next(iter(self.waiting))
                del self.waiting[member]
                self.ended()
                member.go_on()
        finally:
            if self.waiting and self.timer is None:
                self.arm()

    cdef int ended(self) except -1:
        if not self.waiting and self.held_since:
            self.held_last = clock()
            self.held_before += self.held_last - self.held_since
            self.held_since = 0
        return 0

    cdef int at_once(self) except -1:
        if self.waiting:
            if self.timer is not None:
                self.timer.cancel()
            self.arm()
        return 0

    def hurry(self):
        """Whether it may, for some seconds."""
        cdef uint64_t now = clock()
        if not self.limited or now >= self.until:
            self.hurried = False
        if self.hurried:
            return now < self.hurried_until
        self.hurried, self.hurried_until = self.limited, now + HURRY
        self.at_once()
        return True

    def release(self):
        """There are no rates any more, or they are to be found anew; nothing is owed."""
        self.rates.clear()
        self.limited, self.most_calls, self.octet_time = False, 0, 0
        self.until = self.hurried_until = 0
        self.hurried = False
        self.at_once()

    def drop(self):
        """Nobody asks for it any more."""
        self.gone = True


cdef class Dues:
    def __init__(self, Pace pace not None, Rate own, Rate shared, uint64_t charged):
        self.pace, self.own, self.shared, self.charged = pace, own, shared, charged

    cdef void take(self, uint64_t octets) noexcept:
        """A call is over; ``octets``: of all calls there ever were."""
        cdef uint64_t now = clock()
        cdef uint64_t more = octets - self.charged
        cdef double time
        self.charged = octets
        if self.own is not None:
            self.pace.until = max(self.pace.until, self.own.charge(more, now))
        if self.shared is None:
            return
        if now < self.pace.hurried_until and max(self.shared.octets_paid, self.shared.calls_paid) > now + SECOND:
            # It may go on whatever is owed. What is beyond the rate is its own debt: others do not wait for that.
            time = max(more * self.shared.octet_time, self.shared.call_time)
            self.pace.until = later(self.pace.until, now, time)
        else:
            self.pace.until = max(self.pace.until, self.shared.charge(more, now))
