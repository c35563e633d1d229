"""LOCK and LOCKU in COMPOUNDs (RFC 8881 sections 18.10, 18.12; RFC 7530 sections 16.10, 16.12), and what all operations
have in common that are in their owner's turn.

Owns the decoding and encoding, and :class:`Nfs4Locks`; what they do is in :mod:`nfsd.v4.locking`. Imports that and
:mod:`nfsd.v4.delegations`.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from nfsd.state.records cimport OpenState, StateEntry
from nfsd.v4.native_compound cimport left, padded, room, store_opaque
from nfsd.v4.owners cimport BEGUN, stateid_in, store_stateid
from nfsd.v4.under_way cimport UNCHECKED_RESULT
from nfsd.vfs.native_files cimport no
from nfsd.wire.nfs4 cimport (
    NFS4ERR_BADXDR, NFS4ERR_BAD_STATEID, NFS4_OK, NFS4_OPAQUE_LIMIT, OP_CLOSE, OP_DELEGRETURN,
    OP_GET_DIR_DELEGATION, OP_LOCK, OP_LOCKU, OP_OPEN,
    OP_OPEN_CONFIRM, OP_OPEN_DOWNGRADE, READW_LT, READ_LT, WRITEW_LT, WRITE_LT, stateid4_SIZE,
)
from rpcrdma.declined cimport SIZE
from rpcrdma.place cimport ANSWERED, DECLINED, WAITS, load32, load64, store32, store64
from rpcrdma.rpc.work cimport Errand

from nfsd.state import LockDenied, Nfs4Error
from nfsd.v4 import locking
from nfsd.v4.errors import told


cdef const uint8_t *load_lock(const uint8_t *at, const uint8_t *end, lock_t *asked) noexcept:
    """LOCK4args; what is behind them, or NULL: they do not decode."""
    if end - at < 28 + stateid4_SIZE + 4:
        return NULL
    asked.kind, asked.reclaim = load32(at), load32(at + 4)
    asked.offset, asked.length = load64(at + 8), load64(at + 16)
    asked.new_owner = load32(at + 24)
    if asked.kind < READ_LT or asked.kind > WRITEW_LT or load32(at + 4) > 1 or load32(at + 24) > 1:
        return NULL
    at += 28
    asked.lock_seqid = asked.owner_length = 0
    if not asked.new_owner:
        asked.stateid, asked.seqid = at, load32(at + stateid4_SIZE)
        return at + stateid4_SIZE + 4
    if end - at < 4 + stateid4_SIZE + 16:
        return NULL
    asked.seqid, asked.stateid = load32(at), at + 4
    at += 4 + stateid4_SIZE
    asked.lock_seqid, asked.clientid, asked.owner_length = load32(at), load64(at + 4), load32(at + 12)
    asked.owner = at + 16
    if asked.owner_length > NFS4_OPAQUE_LIMIT or <size_t>(end - asked.owner) < padded(asked.owner_length):
        return NULL
    return asked.owner + padded(asked.owner_length)


cdef class Nfs4Locks(Nfs4Delegations):
    cdef int owned(self, uint32_t number, Arguments *arguments, Place place) except -1:
        """Carry out an operation on the state of a client. In v4.0 it is the next one of an owner, whose turn ends with the
        result, which is kept for a retransmission (RFC 7530 section 9.1.9)."""
        cdef int outcome
        try:
            if number == OP_OPEN:
                outcome = self.open(arguments, place)
            elif number == OP_OPEN_CONFIRM:
                outcome = self.open_confirm(arguments, place)
            elif number == OP_OPEN_DOWNGRADE:
                outcome = self.downgrade(arguments, place)
            elif number == OP_CLOSE:
                outcome = self.close(arguments, place)
            elif number == OP_DELEGRETURN:
                outcome = self.delegreturn(arguments, place)
            elif number == OP_GET_DIR_DELEGATION:
                outcome = self.get_dir_delegation(arguments, place)
            elif number == OP_LOCK:
                outcome = self.lock(arguments, place)
            else:
                outcome = self.unlock(arguments, place)
        except Exception as error:
            outcome = self.failed(error, place)
        if self.turn is not None and outcome != WAITS:
            if outcome == ANSWERED:
                handle = self.current.handle if number == OP_OPEN and self.current is not None else None
                self.recorded(self.turn, self.failure, place, handle)
            else:
                self.turn.abandon()
            self.turn = None
        return outcome

    cdef int failed(self, object error, Place place) except -1:
        """The present operation fails so: LOCK tells what is in the way."""
        cdef bytes owner
        self.fail(<uint32_t>told(error, self.caller.transport), place)
        if isinstance(error, LockDenied):
            owner = error.owner
            place.at = store64(store64(place.at, error.offset), error.length)
            place.at = store64(store32(place.at, WRITE_LT if error.exclusive else READ_LT), error.clientid)
            place.at = store_opaque(place.at, owner, len(owner))
        return ANSWERED

    cdef int locked(self, Errand errand, const uint8_t *behind, Arguments *arguments, Place place) except -1:
        """What an errand has come to: the stateid to answer with."""
        error, errand.error = errand.error, None  # its traceback leads back to the errand
        if error is not None:
            return self.failed(error, place)
        self.stateid = errand.result
        arguments.at = behind
        place.at = store_stateid(store32(store32(place.at, self.number), NFS4_OK), self.stateid)
        return ANSWERED

    cdef int lock(self, Arguments *arguments, Place place) except -1:
        cdef lock_t asked
        cdef const uint8_t *behind = load_lock(arguments.at, arguments.end, &asked)
        cdef Errand errand = self.brought_here()
        cdef uint32_t status
        cdef int outcome
        if behind == NULL:
            return self.fail(NFS4ERR_BADXDR, place)
        if errand is None:
            if not room(place, UNCHECKED_RESULT):
                return no(self.files, SIZE)
            if not self.may_wait():
                return DECLINED
            status = self.not_regular(self.current)
            if status != NFS4_OK:
                return self.fail(status, place)
            self.files.pause()  # Python code of the server runs as the server
            outcome = self.lock_turn(&asked, behind, arguments, place)
            if outcome != BEGUN:
                return outcome
            errand = Errand(locking.lock(
                self.server, self.current, self.lock_holder(&asked),
                asked.owner[:asked.owner_length] if asked.new_owner else None,
                asked.kind == WRITE_LT or asked.kind == WRITEW_LT, asked.kind == READW_LT or asked.kind == WRITEW_LT,
                asked.reclaim, asked.offset, asked.length, asked.lock_seqid,
            ))
            if self.begin(errand) == WAITS:
                return WAITS
        return self.locked(errand, behind, arguments, place)

    cdef int lock_turn(self, lock_t *asked, const uint8_t *behind, Arguments *arguments, Place place) except -1:
        """The turn of the open's or the lock's owner; a new lock owner's client must be the open's."""
        if self.minor:
            return BEGUN
        if asked.new_owner:
            self.named_client(asked.clientid)
        return self.take_turn(asked.stateid, asked.seqid, behind, arguments, place)

    cdef StateEntry lock_holder(self, lock_t *asked):
        """The open under which a new lock owner locks, or the lock state."""
        cdef OpenState opened
        stateids, given = self.server.engine.stateids, self.given(asked.stateid)
        if not asked.new_owner:
            return stateids.find_lock(given, self.client, self.current.key)
        opened = stateids.find_open(given, self.client, self.current.key)
        if not self.minor and opened.client is not self.named_client(asked.clientid):
            raise Nfs4Error(NFS4ERR_BAD_STATEID)  # an open of another client
        return opened

    cdef int unlock(self, Arguments *arguments, Place place) except -1:
        cdef const uint8_t *at = arguments.at
        cdef const uint8_t *behind
        cdef Errand errand = self.brought_here()
        cdef int outcome
        # locktype, seqid, lock_stateid, offset, length
        if left(arguments) < 8 + stateid4_SIZE + 16 or load32(at) < READ_LT or load32(at) > WRITEW_LT:
            return self.fail(NFS4ERR_BADXDR, place)
        behind = at + 24 + stateid4_SIZE
        if errand is None:
            if not room(place, 8 + stateid4_SIZE):
                return no(self.files, SIZE)
            if not self.may_wait():
                return DECLINED
            self.files.pause()  # Python code of the server runs as the server
            outcome = self.take_turn(at + 8, load32(at + 4), behind, arguments, place)
            if outcome != BEGUN:
                return outcome
            holder = self.server.engine.stateids.find_lock(self.given(at + 8), self.client, self.current.key)
            errand = Errand(locking.unlock(
                self.server, holder, <uint64_t>load64(at + 8 + stateid4_SIZE), <uint64_t>load64(at + 16 + stateid4_SIZE)
            ))
            if self.begin(errand) == WAITS:
                return WAITS
        return self.locked(errand, behind, arguments, place)
