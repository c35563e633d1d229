"""LOCK and LOCKU in native COMPOUNDs (RFC 8881 sections 18.10, 18.12).

Owns the decoding and encoding, and :class:`DirectLocks`; what they do is in :mod:`nfsd.v4.at_once`. Imports that and
:mod:`nfsd.v4.direct_moves`.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from nfsd.v4.direct_compound cimport left, padded, room
from nfsd.v4.direct_opens cimport store_stateid
from nfsd.vfs.direct cimport no
from nfsd.wire.nfs4 cimport NFS4_OPAQUE_LIMIT, OP_LOCK, OP_LOCKU, READ_LT, WRITEW_LT, WRITE_LT, stateid4_SIZE
from rpcrdma.declined cimport PROCEDURE, SIZE, STATE
from rpcrdma.place cimport load32, load64, store32

from nfsd.state.types import Stateid
from nfsd.v4 import at_once
from nfsd.vfs.types import FileType


cdef object REG = FileType.REG


cdef object stateid_in(const uint8_t *at):
    return Stateid(load32(at), <bytes>at[4:stateid4_SIZE])


cdef class DirectLocks(DirectMoves):
    cdef bint may_lock(self, Place place) except -1:
        if not room(place, 8 + stateid4_SIZE):
            return no(self.files, SIZE)
        return self.current.type is REG

    cdef bint locked(self, Place place, int number, object done) except -1:
        """What :mod:`nfsd.v4.at_once` says is the result; in NFSv4.0 it comes with an owner, who keeps it."""
        if done is None:
            return no(self.files, STATE)
        self.stateid = done if self.minor else done[0]
        place.at = store_stateid(store32(store32(place.at, number), 0), self.stateid)
        if not self.minor:
            self.opened_by = done[1].client
            self.recorded(done[1], 0, place, None)
        return True

    cdef bint lock(self, Arguments *arguments, Place place) except -1:
        cdef const uint8_t *at = arguments.at
        cdef uint32_t kind, length
        cdef const uint8_t *given
        cdef const uint8_t *behind
        cdef bytes owner = None
        cdef object whose = None
        cdef uint32_t seqid, lock_seqid = 0
        # locktype, reclaim, offset, length; new_lock_owner
        if not self.may_lock(place) or left(arguments) < 28:
            return False
        kind = load32(at)
        if kind < READ_LT or kind > WRITEW_LT or load32(at + 4) or load32(at + 24) > 1:
            return False
        if load32(at + 24) == 0:
            # lock_stateid, lock_seqid
            if left(arguments) < 28 + stateid4_SIZE + 4:
                return False
            given = at + 28
            seqid = load32(given + stateid4_SIZE)
            behind = given + stateid4_SIZE + 4
        else:
            # open_seqid, open_stateid, lock_seqid; clientid, owner
            if left(arguments) < 32 + stateid4_SIZE + 16:
                return False
            given = at + 32
            seqid, lock_seqid = load32(at + 28), load32(given + stateid4_SIZE)
            length = load32(given + stateid4_SIZE + 12)
            if length > NFS4_OPAQUE_LIMIT or left(arguments) < 32 + stateid4_SIZE + 16 + padded(length):
                return False
            owner = (given + stateid4_SIZE + 16)[:length]
            whose = <uint64_t>load64(given + stateid4_SIZE + 4), owner
            behind = given + stateid4_SIZE + 16 + padded(length)
        self.files.pause()  # Python code of the file service runs as the server
        range_ = <uint64_t>load64(at + 8), <uint64_t>load64(at + 16)
        exclusive = (kind & 1) == 0
        if self.minor:
            done = at_once.lock(self.server, self.client, self.current, stateid_in(given), owner, exclusive, *range_)
        else:
            done = at_once.lock40(
                self.server, self.caller.transport, self.current, stateid_in(given), whose, exclusive, *range_, seqid,
                lock_seqid,
            )
        arguments.at = behind
        return self.locked(place, OP_LOCK, done)

    cdef bint unlock(self, Arguments *arguments, Place place) except -1:
        cdef const uint8_t *at = arguments.at
        # locktype, seqid, lock_stateid, offset, length
        if not self.may_lock(place) or left(arguments) < 8 + stateid4_SIZE + 16:
            return False
        if load32(at) < READ_LT or load32(at) > WRITEW_LT:
            return False
        self.files.pause()  # Python code of the file service runs as the server
        range_ = <uint64_t>load64(at + 8 + stateid4_SIZE), <uint64_t>load64(at + 16 + stateid4_SIZE)
        if self.minor:
            done = at_once.unlock(self.server, self.client, self.current, stateid_in(at + 8), *range_)
        else:
            done = at_once.unlock40(self.server, self.current, stateid_in(at + 8), *range_, load32(at + 4))
        arguments.at = at + 24 + stateid4_SIZE
        return self.locked(place, OP_LOCKU, done)
