"""OPEN of a file that is there, and CLOSE, in native COMPOUNDs (RFC 8881 sections 18.2, 18.16; RFC 7530 sections
16.2, 16.16), and RENEW (16.28).

Owns the decoding and encoding, and :class:`DirectOpens`; what they do is in :mod:`nfsd.v4.at_once`. Imports that and :mod:`nfsd.v4.direct_compound`.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from nfsd.state.records cimport OpenState
from nfsd.v4.direct_compound cimport Arguments, left, padded, room
from nfsd.vfs.direct cimport no
from nfsd.vfs.records cimport Node
from nfsd.wire.nfs4 cimport (
    CLAIM_FH, CLAIM_NULL, NFS4_OPAQUE_LIMIT, OPEN4_CREATE, OPEN4_NOCREATE, OPEN4_SHARE_ACCESS_BOTH, OPEN4_SHARE_ACCESS_WRITE,
    OPEN4_SHARE_DENY_BOTH, OPEN_DELEGATE_NONE, OPEN_DELEGATE_NONE_EXT, OP_CLOSE, OP_OPEN, OP_OPEN_CONFIRM, OP_RENEW, WND4_CONTENTION, WND4_RESOURCE,
    change_info4_SIZE, stateid4_SIZE,
)
from rpcrdma.declined cimport PROCEDURE, RECALL, SIZE, STATE
from rpcrdma.place cimport DECLINED, Place, load32, load64, store32, store64

from nfsd.protocol import nfs4 as declared
from nfsd.v4 import at_once
from nfsd.vfs.types import FileType

cdef enum:
    NAME_MAX = 255
    OPEN_RESULT = 8 + stateid4_SIZE + change_info4_SIZE + 4 + 4 + 12      # at most


cdef uint32_t WISHES = at_once.WISHES
cdef uint32_t WANT = declared.OPEN4_SHARE_ACCESS_WANT_DELEG_MASK
cdef object REG = FileType.REG
cdef object DIR = FileType.DIR


cdef uint8_t *store_no_delegation(uint8_t *at, uint32_t wanted, uint32_t why) noexcept nogil:
    if not wanted & WANT:
        return store32(at, OPEN_DELEGATE_NONE)
    at = store32(store32(at, OPEN_DELEGATE_NONE_EXT), why)
    return store32(at, 0) if why == WND4_CONTENTION or why == WND4_RESOURCE else at


cdef uint8_t *store_stateid(uint8_t *at, object stateid) except NULL:
    """A stateid4."""
    cdef bytes other = stateid.other
    memcpy(store32(at, stateid.seqid), <const uint8_t *>other, stateid4_SIZE - 4)
    return at + stateid4_SIZE


cdef class DirectOpens(DirectCompound):
    cdef int open(self, Arguments *arguments, Place place) except -1:
        cdef const uint8_t *at = arguments.at
        cdef uint32_t wanted, length, claim
        # seqid, share_access, share_deny, clientid; owner; opentype, claim.
        if left(arguments) < 24:
            return DECLINED
        wanted = load32(at + 4)
        self.share, self.denied = wanted & ~WISHES if self.minor else wanted, load32(at + 8)
        length = load32(at + 20)
        if self.share < 1 or self.share > OPEN4_SHARE_ACCESS_BOTH or self.denied > OPEN4_SHARE_DENY_BOTH:
            return DECLINED
        if length > NFS4_OPAQUE_LIMIT:
            return DECLINED
        if left(arguments) < 24 + padded(length) + 8 or not room(place, OPEN_RESULT):
            return DECLINED
        self.owner = (at + 24)[:length]
        self.seqid = load32(at)
        at += 24 + padded(length)
        if load32(at) == OPEN4_CREATE:
            return self.open_new(arguments, at + 4, wanted, place)
        claim = load32(at + 4)
        if load32(at) != OPEN4_NOCREATE or (claim != CLAIM_NULL and (claim != CLAIM_FH or not self.minor)):
            return no(self.files, PROCEDURE)
        client = self.opener_of(arguments.at + 12)
        if client is None:
            return no(self.files, STATE)
        arguments.at = at + 8
        return self.open_there(arguments, client, claim, wanted, place)

    cdef object opener_of(self, const uint8_t *clientid):
        """The client whose OPEN it is, if its owner may open; None: it is for the general path to say what is amiss."""
        if self.client is not None:
            return self.client
        client = self.client_of(load64(clientid))
        return client if client is not None and at_once.may_open(client, self.owner, self.seqid) else None

    cdef bint open_there(self, Arguments *arguments, object client, uint32_t claim, uint32_t wanted, Place place) except -1:
        """OPEN of a file that is there: the current one, or of the name that comes next."""
        cdef Node node = self.current
        cdef uint64_t change
        cdef bytes other
        if not self.look():
            return False
        change = node.inode.change.value
        if claim == CLAIM_NULL:
            node = self.named(arguments)
            if node is None:
                return False
        if node.type is not REG or (self.share & OPEN4_SHARE_ACCESS_WRITE and self.standing.read_only):
            return False
        why = at_once.why_no_delegation(self.server, client, node, wanted, self.owner)
        if why is None:
            return no(self.files, RECALL)
        self.files.pause()  # Python code of the file service runs as the server
        done = at_once.open_(
            self.server, client, self.caller.credential, self.standing.credential, node, self.owner, self.share,
            self.denied, self.seqid,
        )
        if done is None:
            return no(self.files, STATE)
        state, flags = done
        if not self.minor:
            self.opened_by = client
        self.current, self.stateid = node, state.stateid
        other = state.other
        place.at = store32(store32(store32(place.at, OP_OPEN), 0), state.seqid)
        memcpy(place.at, <const uint8_t *>other, stateid4_SIZE - 4)
        place.at = store64(store64(store32(place.at + stateid4_SIZE - 4, 1), change), change)
        place.at = store_no_delegation(store32(store32(place.at, flags), 0), wanted, <uint32_t>why)
        if not self.minor:
            self.recorded(state.owner, 0, place, node.handle)
        return True

    cdef int open_new(self, Arguments *arguments, const uint8_t *how, uint32_t wanted, Place place) except -1:
        """OPEN that creates, from its createhow4 on: for those who derive from this."""
        return no(self.files, PROCEDURE)

    cdef object client_of(self, uint64_t clientid):
        """The client that a COMPOUND of NFSv4.0 names; None: it is for the general path to say what is amiss."""
        self.files.pause()
        return at_once.named(self.server, self.caller.transport, clientid)

    cdef bint renew(self, Arguments *arguments, Place place) except -1:
        if self.minor or left(arguments) < 8 or not room(place, 8):
            return no(self.files, PROCEDURE)
        client = self.client_of(load64(arguments.at))
        if client is None or client.delegations or not self.server.engine.stable:
            return no(self.files, STATE)
        arguments.at += 8
        place.at = store32(store32(place.at, OP_RENEW), 0)
        return True

    cdef Node named(self, Arguments *arguments):
        """The file of the name that comes next, in the current directory."""
        cdef size_t length
        cdef int error
        cdef Node node
        if left(arguments) < 4 or self.current.type is not DIR:
            return None
        length = load32(arguments.at)
        if length > NAME_MAX or left(arguments) < 4 + padded(length):
            return None
        node = self.files.lookup(
            self.standing.credential, self.current, arguments.at + 4, length, &self.status, &error
        )
        self.seen = node is not None
        arguments.at += 4 + padded(length)
        return node

    cdef bint close(self, Arguments *arguments, Place place) except -1:
        cdef OpenState closing
        cdef bytes other
        cdef uint32_t seqid
        if left(arguments) < 4 + stateid4_SIZE:
            return False
        if not room(place, 8 + stateid4_SIZE):
            return no(self.files, SIZE)
        closing = self.state.open_of(self.client, arguments.at + 4, self.current.key)
        seqid = load32(arguments.at)
        if closing is None or not at_once.closable(self.server, closing, seqid):
            return no(self.files, STATE)
        arguments.at += 4 + stateid4_SIZE
        self.files.pause()  # Python code of the file service runs as the server
        left_over = self.stateid = at_once.close(self.server, closing, seqid)
        other = left_over.other
        place.at = store32(store32(store32(place.at, OP_CLOSE), 0), left_over.seqid)
        memcpy(place.at, <const uint8_t *>other, stateid4_SIZE - 4)
        place.at += stateid4_SIZE - 4
        if not self.minor:
            self.recorded(closing.owner, 0, place, None)
        return True

    cdef bint open_confirm(self, Arguments *arguments, Place place) except -1:
        """OPEN_CONFIRM (RFC 7530 section 16.18)."""
        cdef OpenState opened
        cdef uint32_t seqid
        if self.minor or left(arguments) < stateid4_SIZE + 4:
            return no(self.files, PROCEDURE)
        if not room(place, 8 + stateid4_SIZE):
            return no(self.files, SIZE)
        opened = self.state.open_of(None, arguments.at, self.current.key)
        seqid = load32(arguments.at + stateid4_SIZE)
        self.files.pause()  # Python code of the file service runs as the server
        confirmed = None if opened is None else at_once.confirm(self.server, opened, seqid)
        if confirmed is None:
            return no(self.files, STATE)
        arguments.at += stateid4_SIZE + 4
        self.opened_by = opened.client
        place.at = store_stateid(store32(store32(place.at, OP_OPEN_CONFIRM), 0), confirmed)
        self.recorded(opened.owner, 0, place, None)
        return True

    cdef int recorded(self, object owner, uint32_t status, Place place, object handle) except -1:
        """An owner's operation, whose seqid has begun, is over; its result is kept for a retransmission (RFC 7530 section
        9.1.9)."""
        owner.finish(status, PyBytes_FromStringAndSize(<char *>self.result_at, place.at - self.result_at), handle)
        return 0
