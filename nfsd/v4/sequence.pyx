# distutils: extra_compile_args = -O2
"""SEQUENCE in COMPOUNDs: their slot, and the replies that slots keep (RFC 8881 sections 2.10.6 and 18.46).

Owns the decoding and encoding, what tells a retransmission from another request, and :class:`Nfs4Sequence`. Imports
:mod:`nfsd.v4.native_compound` and :mod:`nfsd.v4.kept`; what a SEQUENCE does to its session is the state engine's.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memcpy, memset

from nfsd.state.sequence cimport SequenceRequest, Sequencer
from nfsd.v4.native_compound cimport FAILURE, RPC_HEADER, left, padded, room
from nfsd.vfs.native_files cimport no
from nfsd.wire.nfs4 cimport (
    NFS4ERR_BADXDR, NFS4ERR_DELAY, NFS4ERR_RETRY_UNCACHED_REP, NFS4_OK, OP_SEQUENCE, SEQUENCE4args_SIZE, SEQUENCE4resok_SIZE,
)
from rpcrdma.declined cimport SIZE
from rpcrdma.digest cimport Digest, digest_add, digest_begin, digest_end
from rpcrdma.place cimport ANSWERED, load32, store32

from nfsd.state import NEW as _NEW, REPLAY as _REPLAY
from nfsd.v4.kept import KeptReply, give, keep
from rpcrdma.xdr import Encoder

cdef enum:
    RESULT = 8 + SEQUENCE4resok_SIZE    # with its number and status
    FINGERPRINTED = 256     # octets behind SEQUENCE that tell a retransmission from another request

cdef int NEW = _NEW
cdef int RETRANSMITTED = _REPLAY


cdef class Nfs4Sequence(NativeCompound):
    cdef int sequence(self, Arguments *arguments, Place place) except -1:
        """Find the slot of the COMPOUND. A retransmission is answered from it."""
        cdef SequenceRequest request
        cdef Sequencer sequencer = self.sequencer
        cdef const uint8_t *at = arguments.at
        cdef uint32_t status
        if left(arguments) < SEQUENCE4args_SIZE or load32(at + 28) > 1:
            return self.fail(NFS4ERR_BADXDR, place)
        if not room(place, RESULT + FAILURE):
            return no(self.files, SIZE)  # a refusal of the next operation is told here, too: who goes on knows of none
        arguments.at += SEQUENCE4args_SIZE
        if self.chunked and self.bulk_wanted < arguments.at:
            return self.fail(NFS4ERR_BADXDR, place)
        request.sessionid = at
        self.sequenceid = request.sequenceid = load32(at + 16)
        self.slotid = request.slotid = load32(at + 20)
        self.highest_slotid = request.highest_slotid = load32(at + 24)
        request.cachethis = load32(at + 28)
        request.operations = self.operations
        request.octets = self.octets
        status = sequencer.run(self.caller.transport, &request, self.fingerprint(arguments, &request.octets, place))
        if status != NFS4_OK:
            return self.fail(status, place)
        self.session = sequencer.session
        slot = sequencer.slot
        sequencer.session, sequencer.slot = None, None
        if sequencer.bound:
            self.server.met(self.caller.transport, self.session.client)
        if sequencer.verdict == RETRANSMITTED:
            if slot.promised and slot.promised > self.server.engine.writes_committed:
                return self.fail(NFS4ERR_DELAY, place)
            return self.replay(slot.reply, place)
        self.cachethis = request.cachethis
        self.client = self.session.client
        if sequencer.verdict == NEW:
            self.slot = slot
            # The bounds that the session puts on replies (RFC 8881 section 2.10.6.4).
            self.limit = self.session.max_response
            if self.cachethis:
                self.limit = min(self.limit, self.session.max_cached + RPC_HEADER)
        else:
            self.refusal = NFS4ERR_RETRY_UNCACHED_REP
        place.at = store32(store32(place.at, OP_SEQUENCE), NFS4_OK)
        memcpy(place.at, request.sessionid, 24)  # session, sequence id and slot
        place.at = store32(store32(place.at + 24, self.session.highest_slotid), self.session.target_highest_slotid)
        place.at = store32(place.at, self.session.status_flags())
        return ANSWERED

    cdef int replay(self, object kept, Place place) except -1:
        """Give a whole reply again, as its slot has kept it (RFC 8881 section 2.10.6.1)."""
        place.at, self.replayed = self.start, True
        if isinstance(kept, KeptReply):
            again = Encoder()
            give(kept, again)
            if self.put(again.getbuffer(), again.payloads, place):
                return ANSWERED
        elif self.put(kept or b"", (), place):
            return ANSWERED
        self.replayed = False
        return no(self.files, SIZE)

    cdef int keep_back(self, object error, Place place) except -1:
        """What the reply promises could not be put on stable storage: a full disk, say. The slot keeps it until it is there,
        whether or not the client has asked for that, and until then the request is one that is still in progress (RFC 8881
        section 2.10.6.2): the client asks again, and nothing is done twice. Raises the error if nobody can keep it."""
        kept = None
        if self.slot is not None and isinstance(error, OSError) and (self.general is not None or self.beside == 0):
            kept = self.kept(place, True)
        if kept is None:
            raise error
        self.slot.finish(kept)
        self.slot.promised = self.server.engine.writes_issued
        self.slot = None
        if self.general is not None:
            self.general.forget_behind(NULL)
            self.general.call.forget = True
        place.at = store32(store32(self.start, NFS4ERR_DELAY) + 4 + padded(self.tag), 1)
        place.at = store32(store32(place.at, OP_SEQUENCE), NFS4ERR_DELAY)
        self.tell()
        return ANSWERED

    cdef int keep(self, Place place) except -1:
        if self.slot is not None:
            self.slot.finish(self.kept(place, False))
            self.slot = None
        return 0

    cdef object kept(self, Place place, bint anyway):
        """The reply as its slot keeps it: None unless the client has asked for that, it is a lone SEQUENCE's, something has
        been changed, or ``anyway``; and if it is too long.

        Clients don't ask that the reply to a WRITE be kept: to them it can be repeated. But when others have written there
        meanwhile, that is another write, which nobody has asked for. RFC 8881 section 18.46.3 lets the server keep it."""
        cdef size_t before = self.start - (self.general.head if self.general is not None else self.start)
        cdef bint all_here = self.general is not None or self.beside == 0
        if not (self.cachethis or self.operations == 1 or anyway or (self.changed and all_here)):
            return None
        if self.size(place) - RPC_HEADER > self.session.max_cached:
            return None
        octets = PyBytes_FromStringAndSize(<char *>self.start, place.at - self.start)
        if self.general is None or not self.general.payloads:
            return octets
        return keep(octets, [(offset - before, payload) for offset, payload in self.general.payloads])

    cdef uint32_t fingerprint(self, Arguments *arguments, size_t *octets, Place place) except? 0xFFFFFFFF:
        """What tells a retransmission from another request: neither the RPC header, since a retransmission may have another
        xid (RFC 8881 section 2.10.6.1.3.1), nor how the request came. The same one may come by TCP, or with other Read
        chunks: as if what was fetched stood in its place. The caller counts. Those ``octets`` that were fetched are
        added."""
        cdef Digest digest
        cdef uint8_t head[FINGERPRINTED]
        cdef const uint8_t *at = arguments.at
        cdef size_t covered = 0, behind = left(arguments), part
        while place.bulk != NULL:
            behind += padded(place.bulk_size)
            octets[0] += padded(place.bulk_size)
            part = min(<size_t>(place.bulk_at - at), FINGERPRINTED - covered)
            memcpy(head + covered, at, part)
            at, covered = place.bulk_at, covered + part
            part = min(padded(place.bulk_size), FINGERPRINTED - covered)
            memset(head + covered, 0, part)
            memcpy(head + covered, place.bulk, min(place.bulk_size, part))
            covered += part
            if self.general is None:
                break
            self.general.go_to_chunk(self.general.used + 1)
        if self.general is not None:
            self.general.go_to_chunk(0)
        part = min(<size_t>(arguments.end - at), FINGERPRINTED - covered)
        memcpy(head + covered, at, part)
        covered += part
        digest_begin(&digest)
        digest_add(&digest, &behind, sizeof(behind))
        digest_add(&digest, &self.caller.mark, sizeof(self.caller.mark))
        digest_add(&digest, head, covered)
        return <uint32_t>digest_end(&digest)
