"""OPEN_CONFIRM and CLOSE in COMPOUNDs (RFC 8881 section 18.2; RFC 7530 sections 16.2, 16.18), and the turns of
NFSv4.0's owners (9.1.7).

Owns the decoding and encoding, and :class:`Nfs4Owners`. Imports :mod:`nfsd.v4.in_python`, and :mod:`nfsd.v4.locking`, which
has what CLOSE does.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from nfsd.state.files cimport FileState
from nfsd.state.owners cimport SeqidOwner
from nfsd.state.records cimport ClientRecord, OpenState, stateid_of
from nfsd.v4.native_compound cimport Arguments, left, room
from nfsd.vfs.native_files cimport Standing, no
from nfsd.vfs.records cimport Node
from nfsd.wire.nfs4 cimport (
    NFS4ERR_BADXDR, NFS4ERR_BAD_SEQID, NFS4ERR_BAD_STATEID, NFS4ERR_DELAY, NFS4ERR_INVAL, NFS4ERR_ISDIR, NFS4ERR_SYMLINK,
    NFS4ERR_WRONG_TYPE, NFS4_OK, OP_CLOSE, OP_OPEN_CONFIRM, stateid4_SIZE,
)
from rpcrdma.declined cimport PROCEDURE, SIZE, STATE
from rpcrdma.place cimport ANSWERED, DECLINED, WAITS, Place, load32, load64, store32
from rpcrdma.rpc.work cimport Errand

from nfsd.state import Nfs4Error
from nfsd.v4 import locking
from nfsd.v4.arrivals import arrive_as
from nfsd.vfs.types import FileType

cdef object REG = FileType.REG
cdef object DIR = FileType.DIR
cdef object LNK = FileType.LNK
cdef object SPEAKER = None  # under which a caller's notes have, beside its exports, whom it speaks for


cdef class Speaker:
    """For whom a caller speaks where state is concerned, by an edition of the exports' answers."""

    cdef unsigned long edition
    cdef str host


cdef object stateid_in(const uint8_t *at):
    return stateid_of(load32(at), <bytes>at[4:stateid4_SIZE])


cdef uint8_t *store_stateid(uint8_t *at, object stateid) except NULL:
    """A stateid4."""
    cdef bytes other = stateid.other
    memcpy(store32(at, stateid.seqid), <const uint8_t *>other, stateid4_SIZE - 4)
    return at + stateid4_SIZE


cdef class Nfs4Owners(PythonOperations):
    # -- what operations on state and data have in common ----------------------------------------------------------
    cdef bint is_current(self, const uint8_t *stateid) noexcept:
        """Whether a stateid stands for the current one (RFC 8881 section 8.2.3)."""
        return self.minor > 0 and load32(stateid) == 1 and load64(stateid + 4) == 0 and load32(stateid + 12) == 0

    cdef uint32_t not_regular(self, Node node) noexcept:
        """NFS4_OK, or what a file that is no regular one deserves (:func:`nfsd.v4.ops.data.regular`)."""
        if node.type is REG:
            return NFS4_OK
        if node.type is DIR:
            return NFS4ERR_ISDIR
        if self.minor == 0:
            return NFS4ERR_INVAL
        return NFS4ERR_SYMLINK if node.type is LNK else NFS4ERR_WRONG_TYPE

    # -- OPEN_CONFIRM and CLOSE ------------------------------------------------------------------------------------
    cdef int close(self, Arguments *arguments, Place place) except -1:
        cdef OpenState closing
        cdef Errand errand = self.brought_here()
        cdef const uint8_t *stateid = arguments.at + 4
        cdef const uint8_t *behind = stateid + stateid4_SIZE
        cdef int outcome
        if left(arguments) < 4 + stateid4_SIZE:
            return self.fail(NFS4ERR_BADXDR, place)
        if errand is None:
            if not room(place, 8 + stateid4_SIZE):
                return no(self.files, SIZE)
            if not self.may_wait():
                return DECLINED
            self.files.pause()  # Python code of the server runs as the server
            outcome = self.take_turn(stateid, load32(arguments.at), behind, arguments, place)
            if outcome != BEGUN:
                return outcome
            closing = self.state.open_of(self.client, stateid, self.current.key)
            if closing is None:
                closing = self.server.engine.stateids.find_open(self.given(stateid), self.client, self.current.key)
            left_over = self.close_now(closing)
            if left_over is None:
                errand = Errand(locking.close(self.server, closing))
                if self.begin(errand) == WAITS:
                    return WAITS
        if errand is not None:
            error, errand.error = errand.error, None
            if error is not None:
                raise error
            left_over = errand.result
        self.stateid = left_over
        arguments.at = behind
        place.at = store_stateid(store32(store32(place.at, OP_CLOSE), NFS4_OK), left_over)
        return ANSWERED

    cdef object close_now(self, OpenState state):
        """CLOSE of an open under which nothing is locked; None: there are locks to be given up (:func:`locking.close`)."""
        cdef FileState file = state.file
        if state.lock_states or file.dirty or file.is_gated():
            return None
        return self.state.opens.close(state)  # nobody waits for a lock of it

    cdef int open_confirm(self, Arguments *arguments, Place place) except -1:
        """OPEN_CONFIRM (RFC 7530 section 16.18): the new open owner's first OPEN was no stray retransmission."""
        cdef const uint8_t *behind = arguments.at + stateid4_SIZE + 4
        cdef int outcome
        if left(arguments) < stateid4_SIZE + 4:
            return self.fail(NFS4ERR_BADXDR, place)
        if not room(place, 8 + stateid4_SIZE):
            return no(self.files, SIZE)
        self.files.pause()  # Python code of the server runs as the server
        outcome = self.take_turn(arguments.at, load32(arguments.at + stateid4_SIZE), behind, arguments, place)
        if outcome != BEGUN:
            return outcome
        engine = self.server.engine
        confirmed = self.state.opens.confirm(engine.stateids.find_open(stateid_in(arguments.at), None, self.current.key))
        arguments.at = behind
        place.at = store_stateid(store32(store32(place.at, OP_OPEN_CONFIRM), NFS4_OK), confirmed)
        return ANSWERED

    # -- v4.0: who it is, and whose turn ----------------------------------------------------------------------------
    cdef object named_client(self, uint64_t clientid):
        """The client that an operation of v4.0 names, for whom the connection speaks; its lease is renewed. Raises
        STALE_CLIENTID, EXPIRED."""
        cdef dict notes = self.caller.notes
        cdef Speaker speaker
        cdef ClientRecord client
        server, transport = self.server, self.caller.transport
        if notes is None:
            notes = self.caller.notes = {}
        speaker = notes.get(SPEAKER)
        if speaker is None or speaker.edition != self.files.tables.edition.number:
            speaker = notes[SPEAKER] = Speaker.__new__(Speaker)
            speaker.edition, speaker.host = self.files.tables.edition.number, server.exports.speaker(transport)
        client = server.speakers.get(transport)  # whom this connection has been found to speak for
        if client is None or client.clientid != clientid or client.expired or speaker.host not in client.hosts:
            client = server.engine.clients.client40(clientid, speaker.host)
            server.heard(transport, client)
        else:
            ClientRecord.renew(client)
        return client

    cdef int take_turn(
        self, const uint8_t *stateid, uint32_t seqid, const uint8_t *behind, Arguments *arguments, Place place
    ) except -1:
        """In v4.0, begin the next operation of the owner that a stateid tells. BEGUN, or the outcome of a retransmission,
        whose arguments end ``behind``. Raises BAD_SEQID and what the stateid deserves."""
        if self.minor:
            return BEGUN
        owner, replay = self.state.opens.begin_seqid(<bytes>stateid[4:stateid4_SIZE], seqid)
        if replay is not None:
            arguments.at = behind
            return self.give_again(replay, None, place)
        self.turn, self.opened_by = owner, owner.client
        return BEGUN

    cdef int give_again(self, object replay, Errand arrived, Place place) except -1:
        """Give an owner's last result again (RFC 7530 section 9.1.9). ``arrived``: what has been found of its file."""
        cdef bytes result = replay.result
        cdef const uint8_t *octets = result
        if load32(octets) != self.number:
            # Another operation than the one that had this seqid: no retransmission, and the old result has another form.
            return self.fail(NFS4ERR_BAD_SEQID, place)
        if not room(place, len(result)):
            return no(self.files, SIZE)
        if replay.filehandle is not None:
            if arrived is not None and arrived.error is not None:
                error, arrived.error = arrived.error, None
                raise error
            if not self.go_again(replay.filehandle, arrived):
                if arrived is not None:
                    return self.fail(NFS4ERR_DELAY, place)  # it has gone from the tables again
                caller = self.caller
                return self.wait_for(
                    Errand(arrive_as(self.server, caller.transport, self.minor, replay.filehandle, caller.credential)), None
                )
        memcpy(place.at, octets, len(result))
        place.at += len(result)
        self.failure = replay.status
        return ANSWERED

    cdef bint go_again(self, bytes handle, Errand arrived) except -1:
        """Go to the file of a handle that the client has been given."""
        cdef Node node
        cdef Standing standing
        if arrived is not None:
            self.arrived(arrived.result)
            return True
        node = self.files.find(handle, len(handle))
        standing = None if node is None else self.files.standing(self.caller, node)
        if standing is None:
            return False
        self.charge(standing)
        self.go(node)
        self.standing = standing
        return True

    cdef object given(self, const uint8_t *stateid):
        """A stateid argument, with the special value for the current stateid replaced (RFC 8881 section 8.2.3)."""
        if not self.is_current(stateid):
            return stateid_in(stateid)
        if self.stateid is None:
            raise Nfs4Error(NFS4ERR_BAD_STATEID)
        return self.stateid

    cdef int recorded(self, SeqidOwner owner, uint32_t status, Place place, bytes handle) except -1:
        """An owner's operation, whose seqid has begun, is over; its result is kept for a retransmission (RFC 7530 section
        9.1.9)."""
        owner.finish(status, PyBytes_FromStringAndSize(<char *>self.result_at, place.at - self.result_at), handle)
        return 0
