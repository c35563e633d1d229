"""SETATTR in native COMPOUNDs (RFC 8881 section 18.30), and what all changes have in common.

Owns the decoding and encoding; what it does is in :mod:`nfsd.vfs.direct_attributes`. It cannot be declined once it is done.
What the kernel refuses is answered: nothing has been done then.
"""

from libc.errno cimport ESTALE
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memset

from nfsd.v4.direct_compound cimport left, padded, room
from nfsd.vfs.attribute_changes cimport AttributeChange
from nfsd.vfs.attributes cimport statx_t
from nfsd.vfs.direct cimport UTIME_NOW, no, no_changes, when_t
from nfsd.vfs.records cimport Node, OpenFile
from nfsd.vfs.transfers cimport errno_of
from nfsd.wire.nfs4 cimport (
    FATTR4_MODE, FATTR4_MODE_UMASK, FATTR4_OWNER, FATTR4_OWNER_GROUP, FATTR4_SIZE, FATTR4_TIME_ACCESS_SET,
    FATTR4_TIME_MODIFY_SET, NFS4ERR_BADCHAR, NFS4ERR_BADNAME, NFS4ERR_INVAL, NFS4ERR_ROFS, NFS4_OK, OP_SETATTR,
    SET_TO_CLIENT_TIME4, SET_TO_SERVER_TIME4, stateid4_SIZE,
)
from rpcrdma.declined cimport ATTRIBUTES, FAILED, SIZE, STATE
from rpcrdma.octets cimport load_opaque, opaque_t
from rpcrdma.place cimport ANSWERED, DECLINED, load32, load64, store32, store64
from rpcrdma.rpc.work cimport Errand, Work

from os import strerror

from nfsd.v4 import at_once
from nfsd.v4.errors import status_of
from nfsd.vfs.types import FileType

cdef enum:
    BITMAP_MAX = 3              # words of attributes' numbers
    OWNER_MAX = 1024            # octets of an owner's name (nfsd.v4.settable)
    # By word.
    SIZE_BIT = 1 << FATTR4_SIZE
    MODE = 1 << (FATTR4_MODE - 32)
    OWNER = 1 << (FATTR4_OWNER - 32)
    OWNER_GROUP = 1 << (FATTR4_OWNER_GROUP - 32)
    TIME_ACCESS_SET = 1 << (FATTR4_TIME_ACCESS_SET - 32)
    TIME_MODIFY_SET = 1 << (FATTR4_TIME_MODIFY_SET - 32)
    MODE_UMASK = 1 << (FATTR4_MODE_UMASK - 64)


cdef object LNK = FileType.LNK
cdef object REG = FileType.REG


cdef uint32_t status_in(int error) except 0:
    """The nfsstat4 of an errno."""
    return <uint32_t>int(status_of(OSError(error, strerror(error))))


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


cdef uint32_t wrong_name(opaque_t *name) noexcept nogil:
    """NFS4_OK, or what is wrong with a component4 (:func:`nfsd.v4.names.check_name`)."""
    if name.length == 0:
        return NFS4ERR_INVAL
    if name.length <= 2 and name.octets[0] == c"." and name.octets[name.length - 1] == c".":
        return NFS4ERR_BADNAME
    if memchr(name.octets, 0, name.length) != NULL or memchr(name.octets, c"/", name.length) != NULL:
        return NFS4ERR_BADCHAR
    return NFS4_OK


cdef uint8_t *store_change_info(uint8_t *at, uint64_t before, uint64_t after) noexcept nogil:
    """A change_info4: nothing of ours came between, hence atomic."""
    return store64(store64(store32(at, 1), before), after)


cdef uint8_t *store_bitmap(uint8_t *at, const uint32_t *words) noexcept nogil:
    """A bitmap4 of three words, without those behind the last that says anything."""
    cdef uint32_t index, length = BITMAP_MAX
    while length and words[length - 1] == 0:
        length -= 1
    at = store32(at, length)
    for index in range(length):
        at = store32(at, words[index])
    return at


cdef class DirectChanges(DirectOpens):
    cdef int saw_change(self, Node node, statx_t *status) except -1:
        """A change has left the current file so. On a disk others may have changed it since, and what it is then belongs
        to the change attribute that it has by now."""
        self.seen = not node.inline and self.files.look(node, &self.status)
        if not self.seen:
            self.status, self.seen = status[0], True
        return 0

    # -- attributes ------------------------------------------------------------------------------------------------
    cdef int setattr(self, Arguments *arguments, Place place) except -1:
        cdef settable_t given
        cdef AttributeChange change = None
        cdef OpenFile opened
        cdef Errand settling
        cdef Work brought = self.brought_here()
        cdef const uint8_t *behind
        if left(arguments) < stateid4_SIZE:
            return DECLINED
        behind = self.wanted(arguments.at + stateid4_SIZE, arguments.end, &given)
        if behind == NULL or (given.changes.mode >= 0 and self.current.type is LNK):
            return no(self.files, ATTRIBUTES)
        if given.umask_given or not (given.mask[0] or given.mask[1]):
            return no(self.files, ATTRIBUTES)
        if brought is None:
            if not room(place, 24):
                return no(self.files, SIZE)
            if self.standing.read_only:
                return self.not_set(NFS4ERR_ROFS, place)
            # The stateid is for a size (RFC 8881 section 18.30.3).
            through = self.resized_through(arguments.at) if given.size >= 0 else None
            if through is False:
                return DECLINED
            opened = through
            change = self.files.to_set(self.standing.credential, self.current, &given.changes, given.size, opened)
            if change is None:
                return DECLINED
            if not self.current.inline:
                return self.wait_for(change, None)
        else:
            change = <AttributeChange?>(brought if brought.earlier is None else brought.earlier)
        if brought is not None and brought is not change:
            if errno_of(<Errand?>brought):
                return self.not_set(status_in(errno_of(<Errand>brought)), place)
        elif not self.files.have_set(change):
            # What has been set in part is set again, and fails again: the general path tells the part.
            if self.files.why != FAILED or change.data.made or change.data.error == ESTALE:
                return DECLINED
            return self.not_set(status_in(change.data.error), place)
        elif not self.current.inline and not self.current.export.asynchronous:
            settling = self.files.to_settle_attributes(change)
            return self.wait_for(settling, change)
        arguments.at = behind
        place.at = store_bitmap(store32(store32(place.at, OP_SETATTR), NFS4_OK), given.mask)
        self.saw_change(self.current, &change.data.after)
        return ANSWERED

    cdef int not_set(self, uint32_t status, Place place) except -1:
        """SETATTR fails, and has set nothing: its result has a bitmap in any case."""
        self.fail(status, place)
        place.at = store32(place.at, 0)
        return ANSWERED

    cdef object resized_through(self, const uint8_t *stateid):
        """Through which open file the stateid lets the caller set the current file's size; None: the mode decides
        (:func:`nfsd.v4.ops.attributes.opened_for_size`); False: that is for the general path to say."""
        if self.current.type is not REG:
            return False
        self.files.why = STATE
        if is_special(stateid):
            return None if at_once.may_resize(self.server, self.current.key) else False
        descriptors = self.state.opened_of(self.client, stateid, self.current.key, True)
        return False if descriptors is None else descriptors.serving(self.caller.credential, write=True)

    cdef const uint8_t *wanted(self, const uint8_t *at, const uint8_t *end, settable_t *given):
        """A fattr4 of size, mode, owners as numbers, and times (:mod:`nfsd.v4.settable`); returns what is behind it, or
        NULL: it is for the general path."""
        cdef uint32_t words, word
        cdef size_t length
        cdef const uint8_t *behind
        if end - at < 4:
            return NULL
        words = load32(at)
        if words > BITMAP_MAX or end - at < 4 + 4 * words + 4:
            return NULL
        memset(given.mask, 0, sizeof(given.mask))
        for word in range(words):
            given.mask[word] = load32(at + 4 + 4 * word)
        at += 4 + 4 * words
        length = load32(at)
        at += 4
        if length & 3 or <size_t>(end - at) < length:
            return NULL  # all these attributes have whole words
        behind = at + length
        if given.mask[0] & ~<uint32_t>SIZE_BIT or given.mask[2] & ~<uint32_t>MODE_UMASK or given.mask[1] & ~<uint32_t>(
            MODE | OWNER | OWNER_GROUP | TIME_ACCESS_SET | TIME_MODIFY_SET
        ):
            return NULL
        return behind if self.values(at, behind, given) == behind else NULL

    cdef const uint8_t *values(self, const uint8_t *at, const uint8_t *end, settable_t *given):
        """The values of these attributes, in the order of their numbers; returns what is behind them, or NULL."""
        cdef uint32_t mask = given.mask[1]
        no_changes(&given.changes)
        given.size, given.umask, given.umask_given = -1, 0, False
        if given.mask[0] & SIZE_BIT:
            if end - at < 8 or <int64_t>load64(at) < 0:
                return NULL
            given.size = <int64_t>load64(at)
            at += 8
        if mask & MODE:
            if end - at < 4 or load32(at) & ~<uint32_t>0o7777:
                return NULL
            given.changes.mode = <int>load32(at)
            at += 4
        if mask & OWNER:
            at = self.load_owner(at, end, False, &given.changes.uid)
        if at != NULL and mask & OWNER_GROUP:
            at = self.load_owner(at, end, True, &given.changes.gid)
        if at != NULL and mask & TIME_ACCESS_SET:
            at = load_time(at, end, &given.changes.times[0])
        if at != NULL and mask & TIME_MODIFY_SET:
            at = load_time(at, end, &given.changes.times[1])
        if at != NULL and given.mask[2] & MODE_UMASK:
            # RFC 8275 section 3: of NFSv4.2, and not together with MODE.
            if self.minor < 2 or mask & MODE or end - at < 8:
                return NULL
            given.umask_given = True
            given.changes.mode, given.umask = <int>(load32(at) & 0o7777), load32(at + 4) & 0o777
            at += 8
        return at

    cdef const uint8_t *load_owner(self, const uint8_t *at, const uint8_t *end, bint group, uint32_t *number):
        """An owner or owner_group that needs no name service; returns what is behind it, or NULL."""
        cdef opaque_t text
        at = load_opaque(at, end, OWNER_MAX, &text)
        if at == NULL or text.length == 0:
            return NULL
        meant = self.server.names.question(text.octets[:text.length], group=group)
        if not isinstance(meant, int):
            return NULL
        number[0] = <uint32_t>meant
        return at


cdef bint is_special(const uint8_t *stateid) noexcept nogil:
    """Whether a stateid is the anonymous one or the READ bypass (RFC 8881 section 8.2.3)."""
    cdef uint8_t octets[stateid4_SIZE]
    memset(octets, 0, stateid4_SIZE)
    if memcmp(stateid, octets, stateid4_SIZE) == 0:
        return True
    memset(octets, 0xFF, stateid4_SIZE)
    return memcmp(stateid, octets, stateid4_SIZE) == 0
