"""The table of all stateids, and how they come into it and go (contract: ``entries.pyi``).

Owns :class:`StateEntries`; what a stateid that a client shows may be used for is in :mod:`nfsd.state.stateids`, which derives from
it.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.string cimport memcpy

from nfsd.state.charges cimport HostAccount
from nfsd.state.owners cimport SeqidOwner
from nfsd.state.records cimport ClientRecord, LockState, OpenState, StateEntry
from nfsd.wire.nfs4 cimport NFS4ERR_BAD_STATEID, NFS4_OTHER_SIZE

from nfsd.state.accounts import STATE
from nfsd.state.errors import Nfs4Error

cdef enum:
    DRAWN = 1024            # random octets drawn at a time; a system call for each would cost as much as all the rest
    KINDS = 6

cdef long[KINDS] COSTS
COSTS[0], COSTS[1], COSTS[2], COSTS[3], COSTS[4], COSTS[5] = 0, STATE[1], STATE[2], STATE[3], 0, STATE[5]


cdef class StateEntries:
    def __init__(self, bytes epoch not None, random):
        self.entries = {}
        self.counts = [0] * KINDS
        self._closed = {}
        self._epoch = epoch
        self._draw = random
        self._random = b""
        self._drawn = 0

    cpdef bytes new_other(self, ClientRecord client):
        cdef bytes other, epoch = self._epoch, tag = client.tag
        cdef char octets[NFS4_OTHER_SIZE]
        if len(epoch) != 4 or len(tag) != 4:
            raise ValueError("a stateid begins with four octets of the epoch and four of its client's")
        memcpy(octets, PyBytes_AS_STRING(epoch), 4)
        memcpy(octets + 4, PyBytes_AS_STRING(tag), 4)
        while True:
            if len(self._random) - self._drawn < 4:
                self._random, self._drawn = self._draw(DRAWN), 0
            memcpy(octets + 8, PyBytes_AS_STRING(self._random) + self._drawn, 4)
            other = PyBytes_FromStringAndSize(octets, sizeof(octets))
            self._drawn += 4
            if other not in self.entries and other not in self._closed:
                return other

    cpdef int add(self, StateEntry entry) except -1:
        cdef ClientRecord client = entry.client
        if entry.other not in self.entries:
            if not client.states:
                (<object>client).filled()
            (<HostAccount>client.account).charge(COSTS[entry.kind])
            self.counts[entry.kind] += 1
        self.entries[entry.other] = entry
        client.states[entry.other] = entry
        return 0

    cpdef int remove(self, StateEntry entry) except -1:
        cdef ClientRecord client
        if self.entries.pop(entry.other, None) is not None:
            client = entry.client
            del client.states[entry.other]
            (<HostAccount>client.account).charge(-COSTS[entry.kind])
            self.counts[entry.kind] -= 1
            if not client.states:
                (<object>client).emptied()
        return 0

    cpdef SeqidOwner owner_of(self, bytes other):
        cdef StateEntry entry
        cdef SeqidOwner closed = self._closed.get(other)
        if closed is not None:
            return closed
        entry = self.entries.get(other)
        if entry is None or (<ClientRecord>entry.client).minor:
            entry = (<object>self).locate(other, None)  # says what is wrong with it
        ClientRecord.renew(entry.client)
        if isinstance(entry, OpenState):
            return (<OpenState>entry).owner
        if isinstance(entry, LockState):
            return (<LockState>entry).owner
        raise Nfs4Error(NFS4ERR_BAD_STATEID, "neither open nor lock")

    cpdef int remember_closed(self, bytes other, owner) except -1:
        self.forget_closed(owner)
        (<SeqidOwner?>owner).last_closed = other
        self._closed[other] = owner
        return 0

    cpdef int forget_closed(self, owner) except -1:
        cdef SeqidOwner one = owner
        if one.last_closed is not None:
            self._closed.pop(one.last_closed, None)
            one.last_closed = None
        return 0
