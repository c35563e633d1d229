"""REMOVE, and SETATTR of mode and times, in native COMPOUNDs (RFC 8881 sections 18.25, 18.30).

Owns the decoding and encoding; what they do is in :mod:`nfsd.vfs.direct` and :mod:`nfsd.vfs.direct_names`. Like a WRITE
they cannot be declined once they are done, so that what stands behind them is looked at first.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from nfsd.v4.direct_attributes cimport LARGEST_FATTR
from nfsd.v4.direct_compound cimport left, padded, room
from nfsd.vfs.attribute_changes cimport AttributeChange
from nfsd.vfs.direct cimport NAME_MAX, UTIME_NOW, no, no_changes, when_t
from nfsd.vfs.name_changes cimport REMOVE_ANY, NameChange, Walk
from nfsd.wire.nfs4 cimport (
    FATTR4_MODE, FATTR4_TIME_ACCESS_SET, FATTR4_TIME_MODIFY_SET, OP_GETATTR, OP_REMOVE, OP_SETATTR, SET_TO_CLIENT_TIME4,
    SET_TO_SERVER_TIME4, stateid4_SIZE,
)
from rpcrdma.declined cimport ATTRIBUTES, MAY_WAIT, PROCEDURE, SIZE, STATE
from rpcrdma.place cimport ANSWERED, DECLINED, load32, load64, store32, store64
from rpcrdma.rpc.work cimport Errand, Work

from nfsd.v4.operations import ROOM_FOR_RESULT
from nfsd.vfs.types import FileType

cdef enum:
    BITMAP_MAX = 3              # words of attributes' numbers
    # In the second word.
    MODE = 1 << (FATTR4_MODE - 32)
    TIME_ACCESS_SET = 1 << (FATTR4_TIME_ACCESS_SET - 32)
    TIME_MODIFY_SET = 1 << (FATTR4_TIME_MODIFY_SET - 32)


cdef size_t _room_for_result = ROOM_FOR_RESULT
cdef object LNK = FileType.LNK


cdef const uint8_t *load_time(const uint8_t *at, const uint8_t *end, when_t *when) noexcept:
    """A settime4; returns what is behind it, or NULL for what is for the general path."""
    if end - at < 4:
        return NULL
    if load32(at) == SET_TO_SERVER_TIME4:
        when.nanoseconds = UTIME_NOW
        return at + 4
    if load32(at) != SET_TO_CLIENT_TIME4 or end - at < 16 or load32(at + 12) >= 1000000000:
        return NULL
    when.seconds = <int64_t>load64(at + 4)
    when.nanoseconds = load32(at + 12)
    return at + 16


cdef class DirectChanges(DirectOpens):
    cdef bint may_change(self, Place place, const uint8_t *behind, const uint8_t *end, size_t result) except -1:
        """Whether nothing can come between the change and the end of the COMPOUND: a result of so many octets, and what
        may stand behind it, fit whatever they are."""
        if self.standing.read_only or self.prepared or self.bulk_wanted != NULL:
            return False
        if not self.server.engine.stable:
            return no(self.files, STATE)
        if not room(place, result + 8 + LARGEST_FATTR):
            return no(self.files, SIZE)
        if self.limit < self.size(place) + _room_for_result + LARGEST_FATTR:
            return no(self.files, SIZE)
        return self.may_follow(behind, end)

    cdef bint may_follow(self, const uint8_t *at, const uint8_t *end) except -1:
        """Whether nothing stands behind a change but a GETATTR that will not be declined."""
        cdef size_t used
        cdef uint64_t mask
        if self.index + 1 == self.operations:
            return at == end
        if self.index + 2 != self.operations or end - at < 4 or load32(at) != OP_GETATTR:
            return no(self.files, PROCEDURE)
        if not self.attributes.known(at + 4, end - at - 4, &used, &mask):
            return no(self.files, ATTRIBUTES)
        return at + 4 + used == end and self.told_by_us()

    cdef bint comes_first(self) noexcept:
        """Whether nothing but SEQUENCE and PUTFH stands before this operation: what a COMPOUND that has waited for a change
        does once more, and cannot decline."""
        return self.index == (2 if self.minor else 1)

    cdef int remove(self, Arguments *arguments, Place place) except -1:
        cdef size_t length
        cdef NameChange change = None
        cdef Work brought = self.brought_here()
        cdef const uint8_t *name = arguments.at + 4
        if left(arguments) < 4:
            return DECLINED
        length = load32(arguments.at)
        if length > NAME_MAX or left(arguments) < 4 + padded(length):
            return DECLINED
        if brought is None or isinstance(brought, Walk):
            if not self.may_change(place, name + padded(length), arguments.end, 28):
                return DECLINED
            if not self.current.inline and not self.comes_first():
                return no(self.files, MAY_WAIT)
            self.files.walked = <Walk>brought
            change = self.files.to_remove(REMOVE_ANY, self.standing.credential, self.current, name, length)
            if change is None:
                return DECLINED if self.files.needs is None or brought is not None else self.wait_for(self.files.needs, None)
            if not self.current.inline:
                return self.wait_for(change, None)
        else:
            change = <NameChange?>(brought if brought.earlier is None else brought.earlier)
        if brought is not None and brought is not change:
            if (<Errand?>brought).error is not None:
                raise (<Errand>brought).error  # it has been removed, but perhaps not for good
        elif not self.files.settled(change):
            return DECLINED  # it is tried again, and fails again
        elif not self.current.inline and not self.current.export.asynchronous:
            return self.wait_for(self.files.to_settle(change), change)
        self.status = change.data.after
        arguments.at = name + padded(length)
        # change_info4: nothing of ours came between, hence atomic.
        place.at = store32(store32(store32(place.at, OP_REMOVE), 0), 1)
        place.at = store64(store64(place.at, change.change_before), change.change_after)
        self.seen = True
        return ANSWERED

    cdef int setattr(self, Arguments *arguments, Place place) except -1:
        cdef changes_t changes
        cdef uint32_t mask = 0
        cdef AttributeChange change = None
        cdef Errand settling
        cdef Work brought = self.brought_here()
        cdef const uint8_t *behind
        if left(arguments) < stateid4_SIZE:
            return DECLINED
        # The stateid is for a size (RFC 8881 section 18.30.3).
        behind = self.wanted(arguments.at + stateid4_SIZE, arguments.end, &changes, &mask)
        if behind == NULL or (changes.mode >= 0 and self.current.type is LNK):
            return no(self.files, ATTRIBUTES)
        if brought is None:
            if not self.may_change(place, behind, arguments.end, 20):
                return DECLINED
            if not self.current.inline and not self.comes_first():
                return no(self.files, MAY_WAIT)
            change = self.files.to_set(self.standing.credential, self.current, &changes, -1)
            if change is None:
                return DECLINED
            if not self.current.inline:
                return self.wait_for(change, None)
        else:
            change = <AttributeChange?>(brought if brought.earlier is None else brought.earlier)
        if brought is not None and brought is not change:
            if (<Errand?>brought).error is not None:
                return DECLINED  # it is done again, and fails again
        elif not self.files.have_set(change):
            return DECLINED
        elif not self.current.inline and not self.current.export.asynchronous:
            settling = self.files.to_settle_attributes(change)
            return self.wait_for(settling, change)
        self.status = change.data.after
        arguments.at = behind
        place.at = store32(store32(store32(place.at, OP_SETATTR), 0), 2)
        place.at = store32(store32(place.at, 0), mask)
        self.seen = True
        return ANSWERED

    cdef const uint8_t *wanted(self, const uint8_t *at, const uint8_t *end, changes_t *changes, uint32_t *mask):
        """A fattr4 of nothing but mode and times; returns what is behind it, or NULL: it is for the general path."""
        cdef uint32_t words, word
        cdef size_t length
        cdef const uint8_t *behind
        if end - at < 4:
            return NULL
        words = load32(at)
        if words < 2 or words > BITMAP_MAX or end - at < 4 + 4 * words + 4:
            return NULL
        if load32(at + 4) or (words > 2 and load32(at + 12)):
            return NULL
        mask[0] = load32(at + 8)
        if mask[0] == 0 or mask[0] & ~<uint32_t>(MODE | TIME_ACCESS_SET | TIME_MODIFY_SET):
            return NULL
        at += 4 + 4 * words
        length = load32(at)
        at += 4
        if length & 3 or <size_t>(end - at) < length:
            return NULL  # all these attributes have whole words
        behind = at + length
        no_changes(changes)
        if mask[0] & MODE:
            if behind - at < 4 or load32(at) & ~<uint32_t>0o7777:
                return NULL
            changes.mode = <int>load32(at)
            at += 4
        if mask[0] & TIME_ACCESS_SET:
            at = load_time(at, behind, &changes.times[0])
        if at != NULL and mask[0] & TIME_MODIFY_SET:
            at = load_time(at, behind, &changes.times[1])
        return behind if at == behind else NULL
