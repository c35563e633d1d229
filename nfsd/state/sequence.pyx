"""SEQUENCE: the next request of a slot, or one that has been before (RFC 8881 sections 2.10.6 and 18.46).

Owns :class:`Sequencer`, which finds session and slot and begins the request there; the slot's own rule is in
:mod:`nfsd.state.records`. Works on the tables of :mod:`nfsd.state.sessions`. The one body of SEQUENCE: COMPOUNDs call
:meth:`Sequencer.run`; :meth:`SessionTable.sequence` is the same for Python.
"""

from libc.stdint cimport uint8_t, uint32_t

from nfsd.state.records cimport ClientRecord, SessionRecord, Slot
from nfsd.wire.nfs4 cimport (
    NFS4ERR_BADSESSION, NFS4ERR_BADSLOT, NFS4ERR_BAD_HIGH_SLOT, NFS4ERR_CONN_NOT_BOUND_TO_SESSION, NFS4ERR_DELAY,
    NFS4ERR_REQ_TOO_BIG, NFS4ERR_SEQ_FALSE_RETRY, NFS4ERR_SEQ_MISORDERED, NFS4ERR_TOO_MANY_OPS, NFS4_SESSIONID_SIZE,
)
from nfsd.state.errors import Nfs4Error

cdef enum:
    # Verdicts of a slot; from IN_PROGRESS on they refuse the request.
    NEW = 0
    IN_PROGRESS = 3
    FALSE_RETRY = 5


cdef class Sequencer:
    def __init__(self, engine, table):
        self.engine = engine
        self.table = table
        self.sessions = table.by_id

    cdef int run(self, object connection, const SequenceRequest *request, uint32_t fingerprint) except -1:
        """Begin a request, renew the lease, and bind the connection's fore channel, unless the client's protection has it
        bound otherwise (RFC 8881 section 2.10.3.1). Returns its status; with any but 0, the slot is as it was."""
        cdef SessionRecord session = self.sessions.get(<bytes>request.sessionid[:NFS4_SESSIONID_SIZE])
        cdef Slot slot
        cdef size_t slots
        cdef int verdict
        if session is None:
            return NFS4ERR_BADSESSION
        slots = len(session.slots)
        if request.slotid >= slots:
            return NFS4ERR_BADSLOT
        if request.highest_slotid >= slots + <size_t>len(session.retired):
            # Within what the client once had it may be a request that another one, sent later, has overtaken.
            return NFS4ERR_BAD_HIGH_SLOT
        if request.operations > session.max_operations:
            return NFS4ERR_TOO_MANY_OPS
        if request.octets > session.max_request:
            return NFS4ERR_REQ_TOO_BIG
        self.bound = connection not in session.connections
        if self.bound and (session.client.binds or len(session.connections) >= self.engine.limits.connections):
            return NFS4ERR_CONN_NOT_BOUND_TO_SESSION
        slot = session.slots[request.slotid]
        verdict = slot.begin(request.sequenceid, request.cachethis, fingerprint)
        if verdict >= IN_PROGRESS:
            # Of a request that is still in progress: section 2.10.6.2.
            return (
                NFS4ERR_DELAY if verdict == IN_PROGRESS
                else NFS4ERR_SEQ_FALSE_RETRY if verdict == FALSE_RETRY
                else NFS4ERR_SEQ_MISORDERED
            )
        if self.bound:
            self.table.bind_fore(connection, session)
        if verdict == NEW:
            self.note_slots(session, slot, request)
        ClientRecord.renew(session.client)
        self.session, self.slot, self.verdict = session, slot, verdict
        return 0

    cdef int note_slots(self, SessionRecord session, Slot slot, const SequenceRequest *request) except -1:
        """Give or take slots, by what a new request tells of their use (:mod:`nfsd.state.slots`)."""
        if request.highest_slotid < session.highest_slotid:
            session.tells = True
        if session.target_highest_slotid != session.highest_slotid:
            self.table.budget.seen(session, slot, request.highest_slotid)
        elif request.slotid == session.highest_slotid and session.tells:
            self.table.budget.grow(session)
        slot.generation = session.generation
        return 0

    def sequence(
        self, connection, bytes sessionid not None, uint32_t sequenceid, uint32_t slotid, uint32_t highest_slotid,
        bint cachethis, uint32_t fingerprint=0, size_t operations=0, size_t request_octets=0,
    ):
        cdef SequenceRequest request
        cdef int status
        if len(sessionid) != NFS4_SESSIONID_SIZE:
            raise Nfs4Error(NFS4ERR_BADSESSION)
        request.sessionid = sessionid
        request.sequenceid, request.slotid, request.highest_slotid = sequenceid, slotid, highest_slotid
        request.cachethis, request.operations, request.octets = cachethis, operations, request_octets
        status = self.run(connection, &request, fingerprint)
        if status:
            raise Nfs4Error(status)
        return self.session, self.slot, self.verdict
