"""The common COMPOUNDs of NFSv4.1 and 4.2, answered natively (RFC 8881 sections 16.2 and 18.46, and its operations').

Owns :class:`Nfs4Direct`; imports the direct parts of the state engine, the file service and the attributes,
:mod:`rpcrdma.place` and :mod:`rpcrdma.rpc.direct`. Replies are octet for octet those of :mod:`nfsd.v4.compound` and the
operations in :mod:`nfsd.v4.ops`, which run whatever is declined here: all that fails, waits or is rare, v4.0 among it.

Operation. SEQUENCE is looked at first, and carried out last: its result has one length, and until then every operation
may still decline the whole COMPOUND, since none of them has changed anything. But for WRITE: whatever stands behind it
is looked at before it, so that it cannot be declined any more, and only a GETATTR may stand there. What an operation
has seen of its file serves the GETATTR behind it.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from nfsd.state.direct cimport DirectState, SequenceRequest
from nfsd.state.records cimport SessionRecord
from nfsd.v4.direct_attributes cimport LARGEST_FATTR, DirectAttributes
from nfsd.vfs.attributes cimport statx_t
from nfsd.vfs.direct cimport DirectFiles, Standing
from nfsd.vfs.records cimport Node, OpenFile
from rpcrdma.place cimport Place, load32, load64, store32, store64
from rpcrdma.rpc.direct cimport Caller, DirectProgram

from zlib import crc32

from nfsd.protocol import nfs4 as declared
from nfsd.v4.ops.data import RESULT_OVERHEAD
from nfsd.v4.ops.sessions import FINGERPRINTED
from nfsd.v4.operations import ROOM_FOR_RESULT
from nfsd.vfs.types import FileType

cdef extern from "Python.h":
    const int PyBUF_READ

cdef enum:
    COMPOUND = 1
    OP_ACCESS = 3
    OP_COMMIT = 5
    OP_GETATTR = 9
    OP_GETFH = 10
    OP_LOOKUP = 15
    OP_PUTFH = 22
    OP_READ = 25
    OP_WRITE = 38
    OP_SEQUENCE = 53
    TAG_MAX = 64
    OPERATIONS = 8
    RPC_HEADER = 24         # of an accepted reply
    SEQUENCE_ARGS = 32
    SEQUENCE_RESULT = 44    # with its number and status
    HANDLE_MAX = 128
    STATEID = 16
    FILE_SYNC = 2
    UNSTABLE = 0
    ACCESS_READ = 0x01
    ACCESS_LOOKUP = 0x02
    ACCESS_EXECUTE = 0x20
    ACCESS_DELETE = 0x10
    ACCESS_ALL = 0x3F
    MODIFYING = 0x04 | 0x08 | 0x10      # ACCESS4_MODIFY, EXTEND, DELETE
    XAREAD = 0x40
    XAWRITE = 0x80
    XALIST = 0x100
    XATTRS = 0x1C0

assert (declared.OP_ACCESS, declared.OP_COMMIT, declared.OP_GETATTR) == (OP_ACCESS, OP_COMMIT, OP_GETATTR)
assert (declared.OP_GETFH, declared.OP_LOOKUP, declared.OP_PUTFH) == (OP_GETFH, OP_LOOKUP, OP_PUTFH)
assert (declared.OP_READ, declared.OP_WRITE, declared.OP_SEQUENCE) == (OP_READ, OP_WRITE, OP_SEQUENCE)
assert (declared.ACCESS4_XAREAD, declared.ACCESS4_XAWRITE, declared.ACCESS4_XALIST) == (XAREAD, XAWRITE, XALIST)

cdef size_t _fingerprinted = FINGERPRINTED
cdef size_t _result_overhead = RESULT_OVERHEAD
cdef size_t _room_for_result = ROOM_FOR_RESULT
cdef object REG = FileType.REG
cdef object DIR = FileType.DIR
cdef uint64_t OFFSET_MAX = 0x7FFFFFFFFFFFFFFF


cdef inline size_t padded(size_t length) noexcept nogil:
    return (length + 3) & ~<size_t>3


cdef inline uint8_t *store_opaque(uint8_t *at, const uint8_t *octets, size_t length) noexcept nogil:
    at = store32(at, <uint32_t>length)
    if length:
        memset(at + (length & ~<size_t>3), 0, padded(length) - (length & ~<size_t>3))
        memcpy(at, octets, length)
    return at + padded(length)


cdef inline bint room(Place place, size_t wanted) noexcept:
    return <size_t>(place.end - place.at) >= wanted


cdef struct Arguments:
    # What is left of the COMPOUND's arguments.
    const uint8_t *at
    const uint8_t *end


cdef inline size_t left(Arguments *arguments) noexcept nogil:
    return arguments.end - arguments.at


cdef class Nfs4Direct(DirectProgram):
    cdef object server
    cdef DirectFiles files
    cdef DirectState state
    cdef DirectAttributes attributes
    cdef object delegations
    cdef size_t max_transfer
    # The COMPOUND at hand.
    cdef Caller caller
    cdef SessionRecord session
    cdef bint cachethis
    cdef uint32_t minor
    cdef size_t operations
    cdef size_t index
    cdef uint8_t *start         # COMPOUND4res, in the reply
    cdef size_t limit           # octets that the reply may have
    cdef size_t beside          # of it that do not stand in the head
    cdef Node current
    cdef Standing standing
    cdef bint seen              # ``status`` is the current file's
    cdef statx_t status

    def __init__(self, server):
        self.server = server
        self.files = DirectFiles(server.service)
        self.state = DirectState(server.engine)
        self.attributes = DirectAttributes(server, self.files)
        self.delegations = server.engine.delegations
        self.max_transfer = server.max_transfer
        self.procedures = 1 << COMPOUND
        self.guarded = 0

    cdef int pause(self) except -1:
        return self.files.pause()

    cdef bint answer(
        self, Caller caller, uint32_t procedure, const uint8_t *arguments, size_t size, Place place
    ) except -1:
        cdef Arguments rest
        if place.bulk != NULL:
            return False
        rest.at, rest.end = arguments, arguments + size
        self.caller = caller
        try:
            return self.compound(&rest, caller.header + size, place)
        finally:
            self.caller = None
            self.session = None
            self.current = None
            self.standing = None

    cdef bint compound(self, Arguments *arguments, size_t octets, Place place) except -1:
        """Answer a COMPOUND whose call has so many octets."""
        cdef SequenceRequest request
        cdef const uint8_t *tag
        cdef uint8_t *sequence_at
        cdef uint32_t length, flags, fingerprint
        cdef size_t whole
        cdef bytes kept = None
        if left(arguments) < 4:
            return False
        length = load32(arguments.at)
        tag = arguments.at + 4
        if length > TAG_MAX or left(arguments) < 4 + padded(length) + 8 + 4 + SEQUENCE_ARGS:
            return False
        arguments.at += 4 + padded(length)
        self.minor = load32(arguments.at)
        self.operations = load32(arguments.at + 4)
        if self.minor < 1 or self.minor > 2 or self.operations < 1 or self.operations > OPERATIONS:
            return False
        if load32(arguments.at + 8) != OP_SEQUENCE or load32(arguments.at + 40) > 1:
            return False
        request.sessionid = arguments.at + 12
        request.sequenceid = load32(arguments.at + 28)
        request.slotid = load32(arguments.at + 32)
        request.highest_slotid = load32(arguments.at + 36)
        self.cachethis = request.cachethis = load32(arguments.at + 40)
        request.operations = self.operations
        request.octets = octets
        arguments.at += 12 + SEQUENCE_ARGS
        self.session = self.state.expected(self.caller.transport, &request)
        if self.session is None or not room(place, 12 + padded(length) + SEQUENCE_RESULT):
            return False
        fingerprint = self.fingerprint(arguments)
        self.start = place.at
        # The bounds that the session put on replies (RFC 8881 section 2.10.6.4).
        self.limit = self.session.max_response
        if self.cachethis:
            self.limit = min(self.limit, self.session.max_cached + RPC_HEADER)
        self.beside = 0
        place.at = store_opaque(store32(place.at, 0), tag, length)
        sequence_at = place.at = store32(place.at, <uint32_t>self.operations)
        place.at += SEQUENCE_RESULT
        self.seen = False
        for self.index in range(1, self.operations):
            if not self.operation(arguments, place):
                return False
        if left(arguments):
            return False  # nothing belongs there, and the general path tells what to do about it
        whole = self.size(place)
        if whole > self.limit:
            return False
        flags = self.state.begin(self.session, &request, fingerprint)
        sequence_at = store32(store32(sequence_at, OP_SEQUENCE), 0)
        memcpy(sequence_at, request.sessionid, 24)  # session, sequence id and slot
        sequence_at = store32(sequence_at + 24, self.session.highest_slotid)
        store32(store32(sequence_at, self.session.target_highest_slotid), flags)
        if (self.cachethis or self.operations == 1) and whole - RPC_HEADER <= self.session.max_cached:
            kept = PyBytes_FromStringAndSize(<char *>self.start, place.at - self.start)
        self.state.finish(self.session, &request, kept)
        return True

    cdef size_t size(self, Place place) noexcept:
        """Octets of the reply so far."""
        return RPC_HEADER + (place.at - self.start) + self.beside

    cdef uint32_t fingerprint(self, Arguments *arguments) except? 0xFFFFFFFF:
        """What tells a retransmission from another request (:func:`nfsd.v4.ops.sessions._digest`)."""
        cdef size_t behind = left(arguments)
        cdef uint32_t uid = self.caller.credential.uid
        cdef uint32_t flavor = self.caller.credential.flavor
        return crc32(
            PyMemoryView_FromMemory(<char *>arguments.at, min(behind, _fingerprinted), PyBUF_READ),
            <uint32_t>behind ^ uid ^ flavor << 28,
        )

    cdef bint operation(self, Arguments *arguments, Place place) except -1:
        """Run the next operation, or decline."""
        cdef uint32_t number
        if left(arguments) < 4:
            return False
        number = load32(arguments.at)
        arguments.at += 4
        if number == OP_PUTFH:
            return self.putfh(arguments, place)
        if self.current is None:
            return False
        if number == OP_GETATTR:
            return self.getattr(arguments, place)
        if number == OP_READ:
            return self.read(arguments, place)
        if number == OP_WRITE:
            return self.write(arguments, place)
        if number == OP_LOOKUP:
            return self.lookup(arguments, place)
        if number == OP_ACCESS:
            return self.access(arguments, place)
        if number == OP_GETFH:
            return self.getfh(place)
        if number == OP_COMMIT:
            return self.commit(arguments, place)
        return False

    # -- handles and names ---------------------------------------------------------------------------------------
    cdef bint putfh(self, Arguments *arguments, Place place) except -1:
        cdef size_t length
        if left(arguments) < 4 or not room(place, 8):
            return False
        length = load32(arguments.at)
        if length == 0 or length > HANDLE_MAX or left(arguments) < 4 + padded(length):
            return False
        self.current = self.files.find(arguments.at + 4, length)
        if self.current is None:
            return False
        self.standing = self.files.standing(self.caller, self.current)
        if self.standing is None:
            return False
        self.seen = False
        arguments.at += 4 + padded(length)
        place.at = store32(store32(place.at, OP_PUTFH), 0)
        return True

    cdef bint getfh(self, Place place) except -1:
        cdef bytes handle = self.current.handle
        if not room(place, 12 + HANDLE_MAX):
            return False
        place.at = store_opaque(store32(store32(place.at, OP_GETFH), 0), handle, len(handle))
        return True

    cdef bint lookup(self, Arguments *arguments, Place place) except -1:
        cdef size_t length
        cdef Node node
        if left(arguments) < 4 or not room(place, 8):
            return False
        length = load32(arguments.at)
        if length > 255 or left(arguments) < 4 + padded(length) or self.current.type is not DIR:
            return False
        if self.files.service.is_root(self.current) and self.server.pseudo.of_export(self.current.export).children:
            return False  # names of further exports shadow real ones
        node = self.files.lookup(self.standing.credential, self.current, arguments.at + 4, length, &self.status)
        if node is None:
            return False
        self.current = node  # on the same mount: in the same export
        self.seen = True
        arguments.at += 4 + padded(length)
        place.at = store32(store32(place.at, OP_LOOKUP), 0)
        return True

    # -- attributes ----------------------------------------------------------------------------------------------
    cdef bint getattr(self, Arguments *arguments, Place place) except -1:
        cdef size_t used
        cdef uint64_t mask
        if not self.attributes.known(arguments.at, left(arguments), &used, &mask) or not room(place, 8 + LARGEST_FATTR):
            return False
        if not self.told_by_us():
            return False
        arguments.at += used
        if not self.look():
            return False
        place.at = store32(store32(place.at, OP_GETATTR), 0)
        place.at = self.attributes.store(place.at, mask, self.current, &self.status)
        return True

    cdef bint told_by_us(self) except -1:
        """Whether no other client may know the file's attributes better (RFC 8881 section 10.4.3)."""
        if self.current.inode.delegated != 2:
            return True
        return self.delegations.other_writer(self.current.key, self.session.client) is None

    cdef bint look(self) except -1:
        """See that ``status`` is the current file's."""
        if not self.seen:
            self.seen = self.files.look(self.current, &self.status)
        return self.seen

    cdef bint access(self, Arguments *arguments, Place place) except -1:
        cdef uint32_t asked
        cdef int allowed
        cdef bint is_directory = self.current.type is DIR
        if left(arguments) < 4 or not room(place, 16):
            return False
        asked = load32(arguments.at) & (ACCESS_ALL if self.minor < 2 else ACCESS_ALL | XATTRS)
        asked &= ~ACCESS_EXECUTE if is_directory else ~(ACCESS_LOOKUP | ACCESS_DELETE)
        if not self.look():
            return False
        allowed = self.files.access(self.standing.credential, self.current)
        if allowed < 0:
            return False
        if asked & XATTRS:
            kept = self.current.mount.xattrs
            if kept is None:
                return False
            if not kept:
                asked &= ~XATTRS
            elif is_directory or self.current.type is REG:
                if is_directory and not allowed & 0x04 and not self.current.export.read_only:
                    return False  # whether its attributes may be written is another matter than its entries
                if allowed & ACCESS_READ:
                    allowed |= XAREAD | XALIST
                if allowed & 0x04:
                    allowed |= XAWRITE
        if self.standing.read_only:
            allowed &= ~(MODIFYING | XAWRITE)
        arguments.at += 4
        place.at = store32(store32(place.at, OP_ACCESS), 0)
        place.at = store32(store32(place.at, asked), asked & <uint32_t>allowed)
        return True

    # -- data ----------------------------------------------------------------------------------------------------
    cdef OpenFile opened(self, const uint8_t *stateid, bint write, bint *held):
        """What :func:`nfsd.v4.ops.data.opened_for` gives; ``held``: the stateid's own, which needs no permission."""
        cdef OpenFile opened
        if self.current.type is not REG:
            return None
        descriptors = self.state.opened_of(self.session, stateid, self.current.key, write)
        if descriptors is None:
            return None
        caller = self.caller.credential
        if write:
            opened, opener = descriptors.write, descriptors.writer
        else:
            opened, opener = descriptors.read, descriptors.reader
        held[0] = opened is not None and (opener is caller or opener == caller)
        if held[0]:
            return opened
        # The look comes first: it may tell that permissions have changed.
        if write and (self.current.export.read_only or not self.look()):
            return None
        return self.files.opened(self.current, self.standing.credential, 2 if write else 1)

    cdef bint read(self, Arguments *arguments, Place place) except -1:
        cdef OpenFile opened
        cdef uint64_t offset
        cdef size_t count, size, limit = self.limit
        cdef uint8_t *head = place.at
        cdef uint8_t *sink
        cdef ssize_t got
        cdef bint eof = False, held = False
        if left(arguments) < STATEID + 12 or self.beside or self.cachethis or not room(place, 16):
            return False
        offset = load64(arguments.at + STATEID)
        size = self.size(place) + 4 + _result_overhead
        if size >= limit:
            return False
        count = min(min(<size_t>load32(arguments.at + STATEID + 8), self.max_transfer), limit - size)
        if count == 0 or offset > OFFSET_MAX - count:
            return False
        opened = self.opened(arguments.at, False, &held)
        if opened is None:
            return False
        place.at += 16
        sink = place.data(count)
        if sink == NULL:
            return False
        got = self.files.read(opened, held, offset, sink, count, &self.status, &eof)
        if got < 0:
            return False
        store32(store32(store32(store32(head, OP_READ), 0), eof), <uint32_t>got)
        if sink != place.at:
            self.beside = padded(got)
        place.data_done(got)
        arguments.at += STATEID + 12
        return self.saw(opened)

    cdef bint saw(self, OpenFile opened) except -1:
        """``status`` was got through an open file: it serves a GETATTR, unless it is another export's."""
        self.seen = False
        if opened.node is self.current and self.index + 1 < self.operations:
            self.seen = self.files.take(self.current, &self.status)
            return self.seen
        return True

    cdef bint write(self, Arguments *arguments, Place place) except -1:
        cdef OpenFile opened
        cdef uint64_t offset
        cdef uint32_t stable
        cdef size_t count
        cdef ssize_t done
        cdef statx_t before
        cdef bytes verifier
        cdef bint held = False
        cdef Node node = self.current
        engine = self.server.engine
        if left(arguments) < STATEID + 16 or self.standing.read_only:
            return False
        offset = load64(arguments.at + STATEID)
        stable = load32(arguments.at + STATEID + 8)
        count = load32(arguments.at + STATEID + 12)
        if left(arguments) - (STATEID + 16) < padded(count) or count > self.max_transfer:
            return False
        if stable > FILE_SYNC or (stable != UNSTABLE and not node.export.asynchronous) or not engine.stable:
            return False
        # The result, and what may stand behind it, fit whatever they are.
        if not room(place, 32 + LARGEST_FATTR) or self.limit < self.size(place) + _room_for_result + LARGEST_FATTR:
            return False
        if not self.may_follow(arguments.at + STATEID + 16 + padded(count), arguments.end):
            return False
        opened = self.opened(arguments.at, True, &held)
        if opened is None or opened.node is not node:
            return False
        verifier = self.files.service.write_verifier
        done = self.files.write(
            opened, held, offset, arguments.at + STATEID + 16, count, &before, &self.status
        )
        if done < 0:
            return False
        arguments.at += STATEID + 16 + padded(count)
        place.at = store32(store32(place.at, OP_WRITE), 0)
        place.at = store32(store32(place.at, <uint32_t>done), stable)
        memcpy(place.at, <const uint8_t *>verifier, 8)
        place.at += 8
        self.seen = True
        return True

    cdef bint may_follow(self, const uint8_t *at, const uint8_t *end) except -1:
        """Whether nothing stands behind a WRITE but a GETATTR that will not be declined."""
        cdef size_t used
        cdef uint64_t mask
        if self.index + 1 == self.operations:
            return at == end
        if self.index + 2 != self.operations or end - at < 4 or load32(at) != OP_GETATTR:
            return False
        return self.attributes.known(at + 4, end - at - 4, &used, &mask) and at + 4 + used == end and self.told_by_us()

    cdef bint commit(self, Arguments *arguments, Place place) except -1:
        cdef statx_t before
        cdef bytes verifier
        if left(arguments) < 12 or not room(place, 16) or self.current.type is not REG:
            return False
        if load64(arguments.at) > <uint64_t>0xFFFFFFFFFFFFFFFF - load32(arguments.at + 8):
            return False
        if self.current.export.asynchronous or not self.files.commit(self.current, &before, &self.status):
            return False
        verifier = self.files.service.write_verifier
        self.seen = True
        arguments.at += 12
        place.at = store32(store32(place.at, OP_COMMIT), 0)
        memcpy(place.at, <const uint8_t *>verifier, 8)
        place.at += 8
        return True
