"""LOCK and LOCKU in native COMPOUNDs (RFC 8881 sections 18.10, 18.12).

Owns the decoding and encoding, and :class:`DirectLocks`; what they do is in :mod:`nfsd.v4.at_once`. Imports that and
:mod:`nfsd.v4.direct_moves`.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from nfsd.v4.direct_compound cimport left, padded, room
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
        if self.client is None:
            return no(self.files, PROCEDURE)
        if not room(place, 8 + stateid4_SIZE):
            return no(self.files, SIZE)
        return self.current.type is REG

    cdef bint locked(self, Place place, int number, object stateid) except -1:
        """What :mod:`nfsd.v4.at_once` says is the result."""
        cdef bytes other
        if stateid is None:
            return no(self.files, STATE)
        self.stateid = stateid
        other = stateid.other
        place.at = store32(store32(store32(place.at, number), 0), stateid.seqid)
        memcpy(place.at, <const uint8_t *>other, stateid4_SIZE - 4)
        place.at += stateid4_SIZE - 4
        return True

    cdef bint lock(self, Arguments *arguments, Place place) except -1:
        cdef const uint8_t *at = arguments.at
        cdef uint32_t kind, length
        cdef const uint8_t *given
        cdef bytes owner = None
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
            arguments.at = given + stateid4_SIZE + 4
        else:
            # open_seqid, open_stateid, lock_seqid; clientid, owner
            if left(arguments) < 32 + stateid4_SIZE + 16:
                return False
            given = at + 32
            length = load32(given + stateid4_SIZE + 12)
            if length > NFS4_OPAQUE_LIMIT or left(arguments) < 32 + stateid4_SIZE + 16 + padded(length):
                return False
            owner = (given + stateid4_SIZE + 16)[:length]
            arguments.at = given + stateid4_SIZE + 16 + padded(length)
        self.files.pause()  # Python code of the file service runs as the server
        stateid = at_once.lock(
            self.server, self.client, self.current, stateid_in(given), owner, (kind & 1) == 0,
            <uint64_t>load64(at + 8), <uint64_t>load64(at + 16),
        )
        return self.locked(place, OP_LOCK, stateid)

    cdef bint unlock(self, Arguments *arguments, Place place) except -1:
        cdef const uint8_t *at = arguments.at
        # locktype, seqid, lock_stateid, offset, length
        if not self.may_lock(place) or left(arguments) < 8 + stateid4_SIZE + 16:
            return False
        if load32(at) < READ_LT or load32(at) > WRITEW_LT:
            return False
        self.files.pause()  # Python code of the file service runs as the server
        stateid = at_once.unlock(
            self.server, self.client, self.current, stateid_in(at + 8), <uint64_t>load64(at + 8 + stateid4_SIZE),
            <uint64_t>load64(at + 16 + stateid4_SIZE),
        )
        arguments.at = at + 24 + stateid4_SIZE
        return self.locked(place, OP_LOCKU, stateid)
