"""Who has how many descriptors open for peers, in records: a share of each host and export, hosts, networks, lanes
(contract: ``open_accounts.pyi``).

Owns the records, what is done to them for each file that is opened and closed (:class:`Places`), and the order in which what
nobody needs is closed. The bounds, and whose turn it is, are those of :mod:`nfsd.vfs.shares`, which derives from it.
"""

import collections
import enum

from nfsd.vfs.records cimport OpenFile
from rpcrdma.parts cimport Part

from rpcrdma.networks import Tree

cdef enum:
    LOOKS = 16              # descriptors that are looked at to find one to close
    MODEST = 8              # fewer places than this do not decide which holder has most


class Bound(enum.Enum):
    """Which bound is met."""

    HOST_IN_EXPORT = "host_in_export"
    HOST = "host"
    EXPORT = "export"
    ALL = "all"


cdef object OF_HOST_IN_EXPORT = Bound.HOST_IN_EXPORT
cdef object OF_HOST = Bound.HOST
cdef object OF_EXPORT = Bound.EXPORT


cdef class Lane:
    pass


cdef class Network(Part):
    def __init__(self, str key not None, Network parent, long long floor=1):
        Part.__init__(self, key, parent, floor)
        self.coarse = True
        self.queue = collections.OrderedDict()


cdef class Host(Network):
    def __init__(self, str key not None, Network parent not None):
        Network.__init__(self, key, parent)
        self.lanes = {}

    @property
    def in_use(self):
        return self.has

    @property
    def is_bare(self):
        return not any([share.cached for share in self.lanes.values()])


cdef class Share:
    def __init__(self, Places shares not None, Host host not None, int lane, Lane whole_lane not None):
        self.shares, self.host, self.lane, self.whole_lane = shares, host, lane, whole_lane
        self.cached = collections.OrderedDict()
        self.waiters = collections.deque()

    cpdef int give_back(self) except -1:
        cdef Places shares = self.shares
        self.in_use -= 1
        self.whole_lane.in_use -= 1
        self.host.shrink()
        if shares.waiting:
            (<object>shares).serve(self.host)
        if not self.in_use:
            shares.drop(self)
        return 0

    cpdef int remember(self, OpenFile opened) except -1:
        if not self.cached:
            self.host.find()
        self.cached[opened] = None
        return 0

    cpdef int forget(self, OpenFile opened) except -1:
        # The host is still found (Shares.crowd): most files that a client opens alone it also closes soon.
        self.cached.pop(opened, None)
        return 0

    cpdef int leaves(self, OpenFile opened) except -1:
        if not opened.leaving:
            opened.leaving = True
            self.leaving += 1
            self.shares.leaving += 1
        return 0

    def left(self):
        self.leaving -= 1
        self.shares.leaving -= 1
        self.give_back()


cdef class Places:
    def __init__(self):
        self.exports = 1
        self.leaving = self.waiting = 0
        self._hosts = {}
        self._lanes = {}
        self._networks = Tree(Network, MODEST, MODEST, MODEST)
        self.everybody = self._networks.everybody

    def set_bounds(self, long limit, long host_limit, long plenty):
        self.limit, self.host_limit, self._plenty = limit, host_limit, plenty

    @property
    def in_use(self):
        return self.everybody.has

    # -- taking and giving back ----------------------------------------------------------------------------------
    cpdef bint has_room(self, str host, int lane) except -1:
        cdef Share share
        if self.everybody.has < self._plenty:
            return True
        share = self.at_once(host, lane)
        if share is None:
            return False
        share.give_back()
        return True

    cpdef Share at_once(self, str host, int lane):
        cdef Share share = self._share(host, lane)
        if self.everybody.has < self._plenty:  # as nearly always: nobody can have met a bound
            return self._charge(share)
        return (<object>self).at_a_bound(share)

    cpdef bint take(self, OpenFile opened, str host) except -1:
        cdef Share before = opened.share, share
        opened.keep()  # first, or it may be what closes to make room
        if before.host.key == host:
            return True
        if opened.count == 1:
            share = self.at_once(host, before.lane)
            if share is not None:
                self.move(opened, share)
                return True
        elif not (<object>self).is_full(host, before.lane):
            return True
        opened.let_go()
        return False

    # -- what clients keep open ----------------------------------------------------------------------------------
    cpdef int hold(self, OpenFile opened, str host) except -1:
        cdef Share share = opened.share
        if opened.holders is None:
            opened.holders = {host: 1}
            share.forget(opened)
            if share.host.key != host:
                self.move(opened, self._charge(self._share(host, share.lane)))
        elif host in opened.holders:
            opened.holders[host] += 1
        else:
            opened.holders[host] = 1
            self.count_guest(self._share(host, share.lane), 1)
        return 0

    cpdef int let(self, OpenFile opened, str host) except -1:
        cdef Share share = opened.share, other
        cdef dict holders = opened.holders
        cdef int left = holders[host] - 1
        if left:
            holders[host] = left
            return 0
        del holders[host]
        if share.host.key != host:
            self.count_guest((<Host>self._hosts[host]).lanes[share.lane], -1)
        elif holders:
            other = (<Host>self._hosts[next(iter(holders))]).lanes[share.lane]
            other.guests -= 1
            other.host.guests -= 1
            if opened.fd != -1:  # else the server stops, and its place is given back already
                self.move(opened, self._charge(other))
        else:
            opened.holders = None
            if opened.cached is not None:
                share.remember(opened)
        return 0

    cdef int count_guest(self, Share share, int change) except -1:
        share.guests += change
        share.host.guests += change
        if change < 0:
            if self.waiting:
                (<object>self)._serve(share.host)
            self.drop(share)
        return 0

    cdef int move(self, OpenFile opened, Share share) except -1:
        """It has this place now instead of its own."""
        cdef Share before = opened.share
        opened.share = share
        if opened.leaving:
            before.leaving -= 1
            share.leaving += 1
        if opened in before.cached:
            before.forget(opened)
            share.remember(opened)
        before.give_back()
        return 0

    cpdef Share _charge(self, Share share):
        share.in_use += 1
        share.whole_lane.in_use += 1
        share.host.grow()
        return share

    cpdef Share _share(self, str key, int lane):
        cdef Host host = self._hosts.get(key)
        cdef Share share
        cdef Lane whole_lane
        if host is None:
            host = self._hosts[key] = Host(key, self._networks.of(key))
        share = host.lanes.get(lane)
        if share is None:
            whole_lane = self._lanes.get(lane)
            if whole_lane is None:
                whole_lane = self._lanes[lane] = Lane()
            share = host.lanes[lane] = Share(self, host, lane, whole_lane)
        return share

    cpdef int drop(self, Share share) except -1:
        cdef Host host = share.host
        if not (share.in_use or share.guests or share.waiters) and host.lanes.get(share.lane) is share:
            del host.lanes[share.lane]
            if not host.lanes and self._hosts.get(host.key) is host:
                del self._hosts[host.key]
                host.hide()
        return 0


cpdef OpenFile held_by(OpenFile opened, str host):
    opened.keep()
    Places.hold((<Share?>opened.share).shares, opened, host)
    return opened


cpdef int let_by(OpenFile opened, str host) except -1:
    Places.let((<Share?>opened.share).shares, opened, host)
    opened.let_go()
    return 0


cpdef OpenFile oldest_idle(table, lane):
    cdef OpenFile best = None, opened
    for _ in range(min(len(table), LOOKS)):
        opened = next(iter(table))
        if not opened.count and (lane is None or opened.node.lane == lane):
            if not opened.unstable:
                return opened
            best = opened if best is None else best
        table.move_to_end(opened)
    return best


def idle_within(Share share not None, bound, everything):
    cdef OpenFile found
    lane = share.lane if bound is OF_EXPORT else None
    tables = [share.cached]
    if bound is OF_HOST:
        tables += [other.cached for other in share.host.lanes.values() if other is not share]
    elif bound is not OF_HOST_IN_EXPORT:
        crowd = (<object>share.shares).crowd()
        if crowd is not None:
            tables = [one.cached for one in crowd.lanes.values() if lane in (None, one.lane)] + tables
        tables.append(everything)
    for table in tables:
        found = oldest_idle(table, lane)
        if found is not None:
            return found
    return None
