"""What native COMPOUNDs ask the state engine (RFC 8881 sections 2.10.6, 8.2, 9.1, 18.46; RFC 7530 section 9.1).

Owns nothing: it works on the tables and records of the engine. Each function gives what the one it names gives when
nothing is out of the ordinary, and None otherwise, having changed nothing; then the general path asks that one.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint32_t

from nfsd.state.records cimport ClientRecord, Delegation, LockState, OpenState, SessionRecord, Slot, StateEntry
from nfsd.wire.nfs4 cimport NFS4_OTHER_SIZE, NFS4_SESSIONID_SIZE, OPEN4_SHARE_ACCESS_WRITE
from rpcrdma.octets cimport load32


cdef class DirectState:
    def __init__(self, engine):
        self.engine = engine
        self.sessions = engine.sessions.by_id
        self.entries = engine.stateids.entries

    cdef SessionRecord expected(self, object connection, const SequenceRequest *request):
        """The session, if this is the next request on its slot, over a connection that is bound to it, and nothing is
        to be done for it but :meth:`begin`."""
        cdef bytes sessionid = PyBytes_FromStringAndSize(<char *>request.sessionid, NFS4_SESSIONID_SIZE)
        cdef SessionRecord session = self.sessions.get(sessionid)
        cdef ClientRecord client
        cdef Slot slot
        cdef size_t slots
        if session is None:
            return None
        slots = len(session.slots)
        if request.slotid >= slots or request.highest_slotid >= slots + <size_t>len(session.retired):
            return None
        if request.operations > session.max_operations or request.octets > session.max_request:
            return None
        slot = session.slots[request.slotid]
        if slot.in_use or request.sequenceid != <uint32_t>(slot.seqid + 1):
            return None  # a retransmission, or a mistake
        client = session.client
        if client.courtesy or client.unheard or session.target_highest_slotid != session.highest_slotid:
            return None  # somebody is to be told, or slots may be given back
        return session if connection in session.connections else None

    cdef uint32_t begin(
        self, SessionRecord session, const SequenceRequest *request, uint32_t fingerprint
    ) except? 0xFFFFFFFF:
        """What :meth:`SessionTable.sequence` does for a new request that was ``expected``. Returns the status flags."""
        cdef Slot slot = session.slots[request.slotid]
        engine = self.engine
        if slot.begin(request.sequenceid, request.cachethis, fingerprint) != 0:
            raise RuntimeError("the request was not the expected one")
        if request.highest_slotid < session.highest_slotid:
            session.tells = True
        if request.slotid == session.highest_slotid and session.tells:
            engine.sessions.budget.grow(session)
        slot.generation = session.generation
        session.client.lease_end = engine.now() + engine.limits.lease
        return session.status_flags()

    cdef int withdraw(self, SessionRecord session, const SequenceRequest *request) except -1:
        """The request that was begun is to be begun by others."""
        cdef Slot slot = session.slots[request.slotid]
        slot.withdraw()
        return 0

    cdef int finish(self, SessionRecord session, const SequenceRequest *request, bytes reply) except -1:
        """The COMPOUND is over; ``reply`` is kept for its retransmission."""
        cdef Slot slot = session.slots[request.slotid]
        slot.finish(reply)
        return 0

    cdef StateEntry current(self, ClientRecord client, const uint8_t *stateid, bytes file_key):
        """What :meth:`StateidTable.find` gives, if it is of this file. ``client`` is the session's; None in NFSv4.0, where
        the stateid tells the client, whose lease begins anew. Special stateids are in no table."""
        cdef uint32_t seqid = load32(stateid)
        cdef StateEntry entry = self.entries.get(PyBytes_FromStringAndSize(<char *>stateid + 4, NFS4_OTHER_SIZE))
        cdef ClientRecord holder
        if entry is None or entry.status or entry.file is None or entry.file.key != file_key:
            return None
        if client is not None:
            return entry if entry.client is client and (seqid == entry.seqid or seqid == 0) else None
        holder = <ClientRecord?>entry.client
        if holder.minor or seqid != entry.seqid or holder.courtesy or holder.unheard:
            return None
        holder.lease_end = self.engine.now() + self.engine.limits.lease
        return entry

    cdef object opened_of(self, ClientRecord client, const uint8_t *stateid, bytes file_key, bint write):
        """What the open or delegation of a stateid has open (its descriptors), where :meth:`StateidTable.check_io`
        would let a READ or WRITE pass."""
        cdef StateEntry entry = self.current(client, stateid, file_key)
        cdef OpenState opened
        if entry is None:
            return None
        if entry.kind == 3:
            if write and not (<Delegation?>entry).write:
                return None
            return (<Delegation?>entry).opened
        if entry.kind == 1:
            opened = <OpenState?>entry
        elif entry.kind == 2:
            opened = (<LockState?>entry).open_state
        else:
            return None
        if client is None and not opened.owner.confirmed:
            return None  # in 4.1 there is nothing to confirm (RFC 8881 section 18.16.3)
        if write and not opened.access & OPEN4_SHARE_ACCESS_WRITE:
            return None
        return opened.opened

    cdef OpenState open_of(self, ClientRecord client, const uint8_t *stateid, bytes file_key):
        """What :meth:`StateidTable.find_open` gives."""
        cdef StateEntry entry = self.current(client, stateid, file_key)
        return None if entry is None or entry.kind != 1 else <OpenState?>entry
