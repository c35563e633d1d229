"""The hot records of the state engine: client, session, slot, stateid entry, open, lock state.

Owns only their fields and the rules that concern one record alone: the slot's sequence (RFC 8881 section 2.10.6.1) and
the stateid's seqid (section 8.2.2). Everything that concerns several records is in the tables, in Python.
"""

from cpython.object cimport PyObject, PyTypeObject

from nfsd.wire.nfs4 cimport (
    SEQ4_STATUS_BACKCHANNEL_FAULT, SEQ4_STATUS_CB_GSS_CONTEXTS_EXPIRED, SEQ4_STATUS_CB_PATH_DOWN, SEQ4_STATUS_CB_PATH_DOWN_SESSION,
)

from nfsd.state.types import Stateid


cdef class Slot:
    """One slot of a session's fore channel."""

    def __cinit__(self, unsigned int start=0, bint renewed=False):
        self.seqid = start
        self.renewed = renewed
        self.generation = 0
        self.in_use = False
        self.used = False
        self.cachethis = False
        self.fingerprint = 0
        self.promised = 0
        self.reply = None

    cpdef int begin(self, unsigned int seqid, bint cachethis, unsigned int fingerprint):
        """The verdict on a request with this sequence id, see the .pyi; only NEW changes the slot."""
        cdef unsigned int expected = self.seqid + 1  # wraps at 2**32 as the protocol's does
        if seqid == expected or (self.renewed and seqid == 1):
            if self.in_use:
                # The requester may not use the slot before it has our reply (RFC 8881 section 2.10.6.1).
                return 4
            self.seqid = seqid
            self.in_use = True
            self.used_before = self.used
            self.generation_before = self.generation
            self.used = True
            self.renewed = False
            self.cachethis = cachethis
            self.fingerprint = fingerprint
            self.promised = 0
            self.reply = None
            return 0
        if seqid != self.seqid:
            return 4
        if self.in_use:
            return 3
        if not self.used:
            return 4  # sequence 0 of a fresh slot was never a request (section 18.36.4, phase 4)
        if fingerprint != self.fingerprint:
            return 5
        return 1 if self.reply is not None else 2

    cpdef void finish(self, object reply):
        """The request is over; ``reply`` is kept for replays (None: it is not)."""
        self.in_use = False
        self.reply = reply

    cdef void withdraw(self) noexcept:
        """The request begins once more."""
        self.in_use = False
        self.used = self.used_before
        self.generation = self.generation_before
        self.seqid -= 1


cdef class ClientRecord:
    """What every request of a client looks at."""

    cpdef int renew(self) except -1:
        self.lease_end = <double>self.clock() + self.lease
        if not (self.courtesy or self.unheard):
            return 0
        engine = (<object>self).engine
        if self.courtesy:
            self.courtesy = False
            engine.clients.room.came_back(self)
            engine.watch(self.lease_end)  # the timer was set for the end of the courtesy
        if self.unheard:
            engine.heard(self)
        return 0


cdef class BackchannelRecord:
    """What every request in a session looks at of its backchannel."""

    def __cinit__(self, *args):
        self.connections = []
        self.silent = set()
        self.fault = self.lapsed = False
        self.credentials = ()

    cdef bint is_up(self) noexcept:
        return len(self.silent) < len(self.connections)

    cdef bint is_usable(self) noexcept:
        return self.is_up() and not self.fault and not self.lapsed and len(self.credentials) > 0

    @property
    def up(self):
        return self.is_up()

    @property
    def usable(self):
        return self.is_usable()


cdef bint can_be_called(object client) except -1:
    """Whether one of the client's sessions has a backchannel that is up."""
    cdef SessionRecord session
    for session in client.sessions.values():
        if session.backchannel.is_up():
            return True
    return False


cpdef bint backchannel_usable(client) except -1:
    cdef SessionRecord session
    for session in client.sessions.values():
        if session.backchannel.is_usable():
            return True
    return False


cdef class SessionRecord:
    """What every request in a session looks at."""

    def __init__(
        self, bytes sessionid not None, ClientRecord client not None, fore, BackchannelRecord backchannel not None
    ):
        self.sessionid = sessionid
        self.client = client
        self.fore = fore
        self.max_request = fore.maxrequestsize
        self.max_response = fore.maxresponsesize
        self.max_cached = fore.maxresponsesize_cached
        self.max_operations = fore.maxoperations
        self.slots = [Slot() for _ in range(fore.maxrequests)]
        self.highest_slotid = self.target_highest_slotid = fore.maxrequests - 1
        self.generation = 0
        self.tells = False
        self.retired = []
        self.connections = set()
        self.backchannel = backchannel
        self.wants_backchannel = False

    cpdef unsigned int status_flags(self) except? 0xFFFFFFFF:
        """sr_status_flags now (RFC 8881 section 18.46.3). RESTART_RECLAIM_NEEDED is for sessions that survive a restart;
        ours do not, and their loss says the same."""
        cdef unsigned int flags = 0
        if self.wants_backchannel and not self.backchannel.is_up():
            flags = SEQ4_STATUS_CB_PATH_DOWN_SESSION
            if not can_be_called(self.client):
                flags |= SEQ4_STATUS_CB_PATH_DOWN
        if self.backchannel.fault:
            flags |= SEQ4_STATUS_BACKCHANNEL_FAULT
        if self.backchannel.lapsed:
            flags |= SEQ4_STATUS_CB_GSS_CONTEXTS_EXPIRED
        if self.client.revoked:
            client = <object>self.client
            flags |= <unsigned int>client.engine.revoked_flags(client)
        return flags


cdef object stateid_of(unsigned int seqid, bytes other):
    """A stateid4, made as its class makes one, but without the call of a Python function."""
    cdef tuple fields = ((seqid, other),)
    return (<PyTypeObject *>tuple).tp_new(Stateid, <PyObject *>fields, NULL)


cdef class StateEntry:
    """What one stateid names."""

    def __cinit__(self, *args):
        self.seqid = 1
        self.status = 0

    def __init__(self, int kind, bytes other, object client, object file):
        self.kind = kind
        self.other = other
        self.client = client
        self.file = file

    cpdef void bump(self):
        """Advance the seqid; zero is skipped (RFC 8881 section 8.2.2)."""
        self.seqid += 1
        if self.seqid == 0:
            self.seqid = 1

    @property
    def stateid(self):
        """The current stateid4."""
        return stateid_of(self.seqid, self.other)


cdef class OpenState(StateEntry):
    """One open owner's open of one file."""

    def __init__(self, bytes other, object client, object file, object owner):
        self.kind = 1
        self.other = other
        self.client = client
        self.file = file
        self.owner = owner
        self.access = 0
        self.deny = 0
        self.combos = 0
        self.opened = None
        self.lock_states = {}


cdef class LockState(StateEntry):
    """One lock owner's locks under one open."""

    def __init__(self, bytes other, object client, object file, object owner, OpenState open_state):
        self.kind = 2
        self.other = other
        self.client = client
        self.file = file
        self.owner = owner
        self.open_state = open_state


cdef class Delegation(StateEntry):
    """One client's delegation of one file."""

    def __init__(self, bytes other, object client, object file, bint write):
        self.kind = 3
        self.other = other
        self.client = client
        self.file = file
        self.write = write
        self.offered = True
        self.unwanted = False
        self.disclaimed = False
        self.recall_by = None
        self.opened = None
        self.lease = None
        self.referring = None
        self.change = None
        self.times = None
        self.handle = b""
