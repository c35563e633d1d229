"""GETATTR, SETATTR and ACCESS of NFSv4, natively (RFC 8881 sections 18.1, 18.7, 18.30; RFC 7530 sections 16.1, 16.7, 16.32).

Owns :class:`Nfs4Attributes`; imports :mod:`nfsd.v4.data`, the encoding of attributes (:mod:`nfsd.v4.fattr`) and the decoding of
those that are given (:mod:`nfsd.v4.given`), and the file service's changes. What is rare is an errand in Python
(:mod:`nfsd.v4.attribute_errands`), from whose result the operation writes its own.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memset

from nfsd.v4.changes cimport status_in
from nfsd.v4.native_compound cimport left, room
from nfsd.v4.fattr cimport LARGEST_FATTR, all_native, store_mask, wants_owners
from nfsd.v4.given cimport WORDS, declared_fattr, load_given, time_in
from nfsd.vfs.attribute_changes cimport AttributeChange, changes_owner, changes_times
from nfsd.vfs.native_files cimport UTIME_NOW, no, when_t
from nfsd.vfs.transfers cimport errno_of
from nfsd.wire.nfs4 cimport (
    ACCESS4_DELETE, ACCESS4_EXECUTE, ACCESS4_EXTEND, ACCESS4_LOOKUP, ACCESS4_MODIFY, ACCESS4_READ, ACCESS4_XALIST, ACCESS4_XAREAD,
    ACCESS4_XAWRITE, FATTR4_MODE, FATTR4_MODE_UMASK, FATTR4_OWNER, FATTR4_OWNER_GROUP, FATTR4_SIZE, FATTR4_TIME_ACCESS_SET,
    FATTR4_TIME_DELEG_ACCESS, FATTR4_TIME_DELEG_MODIFY, FATTR4_TIME_MODIFY_SET, NFS4ERR_BADXDR, NFS4ERR_BAD_STATEID, NFS4ERR_INVAL, NFS4ERR_ROFS, NFS4ERR_WRONGSEC, NFS4_OK, OP_ACCESS, OP_GETATTR,
    OP_SETATTR, stateid4_SIZE,
)
from rpcrdma.declined cimport ATTRIBUTES, BUSY, MAY_WAIT, RARE, RECALL, SIZE
from rpcrdma.octets cimport load32, load_array, array_t, store32
from rpcrdma.place cimport ANSWERED
from rpcrdma.rpc.callers cimport Caller

from nfsd.protocol.nfs4_types import BITMAP_LIMIT as _BITMAP_LIMIT
from nfsd.state import Nfs4Error
from nfsd.state.types import Stateid
from nfsd.v4 import attribute_errands as errands
from nfsd.v4.attributes import readable, write_only
from nfsd.v4.delegated_times import Times
from nfsd.v4.facts import CACHED as _CACHED, Asking
from nfsd.vfs.types import FileType, SetAttributes, SetTo

cdef enum:
    MODIFYING = ACCESS4_MODIFY | ACCESS4_EXTEND | ACCESS4_DELETE
    ACCESS_ALL = ACCESS4_READ | ACCESS4_LOOKUP | ACCESS4_EXECUTE | MODIFYING
    XATTRS = ACCESS4_XAREAD | ACCESS4_XAWRITE | ACCESS4_XALIST
    SETATTR_RESULT = 8 + 4 + 4 * WORDS
    # Of attributes to be set, by word.
    SIZE_SET = 1 << FATTR4_SIZE
    MODE_SET = 1 << (FATTR4_MODE - 32)
    OWNERS_SET = 1 << (FATTR4_OWNER - 32) | 1 << (FATTR4_OWNER_GROUP - 32)
    TIMES_SET = 1 << (FATTR4_TIME_ACCESS_SET - 32) | 1 << (FATTR4_TIME_MODIFY_SET - 32)
    UMASK_SET = 1 << (FATTR4_MODE_UMASK - 64)
    DELEGATED_TIMES = 1 << (FATTR4_TIME_DELEG_ACCESS - 64) | 1 << (FATTR4_TIME_DELEG_MODIFY - 64)

cdef uint32_t BITMAP_LIMIT = _BITMAP_LIMIT
cdef uint64_t CACHED = _CACHED
cdef object REG = FileType.REG
cdef object DIR = FileType.DIR
cdef object LNK = FileType.LNK


cdef const uint8_t *load_mask(const uint8_t *at, const uint8_t *end, uint64_t *mask, bint *more) noexcept nogil:
    """A bitmap4 of which the first two words are wanted; ``more``: there are others. NULL: it is none."""
    cdef array_t words
    cdef uint32_t index
    at = load_array(at, end, BITMAP_LIMIT, 4, &words)
    mask[0], more[0] = 0, False
    for index in range(words.count):
        if index < 2:
            mask[0] |= <uint64_t>load32(words.octets + 4 * index) << (32 * index)
        elif load32(words.octets + 4 * index):
            more[0] = True
    return at


cdef object whole_mask(const uint8_t *at):
    """A bitmap4, as :func:`nfsd.v4.attributes.mask_of` has it."""
    cdef uint32_t index
    mask = 0
    for index in range(load32(at)):
        mask |= <object>load32(at + 4 + 4 * index) << (32 * index)
    return mask


cdef object now_or_never(when_t *when):
    """A time that is no client's own."""
    return SetTo.SERVER_TIME if when.nanoseconds == UTIME_NOW else None


cdef class Setting(Errand):
    pass


cdef class Nfs4Attributes(Nfs4Data):
    cdef object asker(self):
        cdef Caller caller = self.caller
        return Asking(self.minor, caller.transport, caller.credential)

    # -- GETATTR ---------------------------------------------------------------------------------------------------
    cdef int getattr(self, Arguments *arguments, Place place) except -1:
        cdef uint64_t mask
        cdef bint more
        cdef const uint8_t *behind = load_mask(arguments.at, arguments.end, &mask, &more)
        cdef Work brought = self.brought_here()
        if behind == NULL:
            return self.fail(NFS4ERR_BADXDR, place)
        if brought is not None:
            arguments.at = behind
            return self.fetched(<Errand?>brought, place)
        if not room(place, 8 + LARGEST_FATTR):
            return no(self.files, SIZE)
        if more or not all_native(mask):
            wanted = whole_mask(arguments.at)
            if write_only(wanted, self.minor):
                return self.fail(NFS4ERR_INVAL, place)
            wanted = readable(wanted, self.minor)
            more = wanted >> 64 != 0
            mask = wanted & <uint64_t>0xFFFFFFFFFFFFFFFF
        else:
            wanted = None
        if more or not all_native(mask) or self.current is None or self.asks_others(mask) or not self.look():
            if more or not all_native(mask) or self.current is None:
                self.files.why = ATTRIBUTES
            here = self.current if self.current is not None else self.pseudo
            client = self.client or self.server.speaker(self.caller.transport) or self.opened_by
            self.files.pause()
            return self.wait_for(
                Errand(errands.fattr(self.server, self.asker(), here, mask if wanted is None else wanted, client)), None
            )
        arguments.at = behind
        place.at = store32(store32(place.at, OP_GETATTR), NFS4_OK)
        place.at = self.attributes.store(place.at, mask, self.current, &self.status)
        return ANSWERED

    cdef bint asks_others(self, uint64_t mask) except -1:
        """Whether somebody else is to be asked: who holds a write delegation, or the name service about owners."""
        if wants_owners(mask) and not self.server.names.numeric:
            self.files.why = ATTRIBUTES
            return True
        return mask & CACHED != 0 and not self.told_by_us()

    cdef int fetched(self, Errand brought, Place place) except -1:
        """The fattr4 has been brought."""
        cdef bytes octets
        if brought.error is not None:
            return self.fail(self.failed_in(brought), place)
        octets = brought.result
        if self.size(place) + 8 + len(octets) > self.limit:
            return self.fail_too_big(place)
        place.at = store32(store32(place.at, OP_GETATTR), NFS4_OK)
        if not self.put(octets, (), place):
            self.brought = brought
            return no(self.files, SIZE)
        return ANSWERED

    # -- ACCESS ----------------------------------------------------------------------------------------------------
    cdef int access(self, Arguments *arguments, Place place) except -1:
        cdef uint32_t asked
        cdef int allowed
        cdef bint is_directory = self.current is None or self.current.type is DIR
        cdef Work brought = self.brought_here()
        if left(arguments) < 4:
            return self.fail(NFS4ERR_BADXDR, place)
        if not room(place, 16):
            return no(self.files, SIZE)
        asked = load32(arguments.at) & (ACCESS_ALL if self.minor < 2 else ACCESS_ALL | XATTRS)
        if self.current is None:  # in the pseudo file system, of directories that anybody may read
            asked &= ACCESS_ALL
            return self.granted(arguments, asked, asked & (ACCESS4_READ | ACCESS4_LOOKUP), place)
        asked &= ~ACCESS4_EXECUTE if is_directory else ~(ACCESS4_LOOKUP | ACCESS4_DELETE)
        if brought is None:
            allowed = self.permitted(asked & XATTRS != 0)
            if allowed < 0:
                self.files.pause()
                return self.wait_for(
                    Errand(
                        errands.permissions(
                            self.files.service, self.standing.credential, self.current, asked & XATTRS != 0
                        )
                    ),
                    None,
                )
        elif (<Errand?>brought).error is not None:
            return self.fail(self.failed_in(<Errand>brought), place)
        else:
            allowed = (<Errand>brought).result
        if asked & XATTRS and not self.current.mount.features.xattrs:
            asked &= ~XATTRS  # RFC 8276 section 8.5: where there are none, the bits mean nothing
        if allowed & ACCESS4_READ and (is_directory or self.current.type is REG):
            allowed |= ACCESS4_XAREAD | ACCESS4_XALIST
        if self.standing.read_only:
            allowed &= ~(MODIFYING | ACCESS4_XAWRITE)
        return self.granted(arguments, asked, asked & <uint32_t>allowed, place)

    cdef int granted(self, Arguments *arguments, uint32_t supported, uint32_t allowed, Place place) except -1:
        arguments.at += 4
        place.at = store32(store32(place.at, OP_ACCESS), NFS4_OK)
        place.at = store32(store32(place.at, supported), allowed)
        return ANSWERED

    cdef int permitted(self, bint xattrs) except -2:
        """What the caller may do with the current file, with its extended attributes too; -1: that has to be found out."""
        cdef int allowed
        if not self.look():
            return -1
        allowed = self.files.access(self.standing.credential, self.current)
        if allowed < 0 or not xattrs or self.current.export.read_only:
            return allowed
        if self.current.mount.features is None:
            return -1
        if allowed & ACCESS4_MODIFY and (self.current.type is DIR or self.current.type is REG):
            return allowed | ACCESS4_XAWRITE
        # Whether a directory's attributes may be written is another matter than its entries.
        return -1 if self.current.mount.features.xattrs and self.current.type is DIR else allowed

    # -- SETATTR ---------------------------------------------------------------------------------------------------
    cdef int setattr(self, Arguments *arguments, Place place) except -1:
        cdef settable_t given
        cdef const uint8_t *stateid = arguments.at
        cdef const uint8_t *behind = NULL
        cdef Work brought = self.brought_here()
        if left(arguments) >= stateid4_SIZE:
            behind = load_given(stateid + stateid4_SIZE, arguments.end, self.minor, self.server.names, &given)
        if behind == NULL:
            return self.fail(NFS4ERR_BADXDR, place)
        if not room(place, SETATTR_RESULT):
            return no(self.files, SIZE)
        arguments.at = behind
        if self.current.type is LNK:
            # The mode of a symbolic link means nothing, and Linux cannot change it: taken and ignored, as knfsd does.
            given.changes.mode = -1
        if brought is None:
            return self.set_first(stateid, &given, place)
        if isinstance(brought, Setting):
            return self.set_otherwise(<Setting>brought, &given, place)
        if isinstance(brought, AttributeChange):
            return self.set_so_far(<AttributeChange>brought, &given, place)
        if errno_of(<Errand?>brought):
            return self.fail(status_in(errno_of(<Errand>brought)), place)
        self.saw_change(self.current, &(<AttributeChange?>brought.earlier).data.after)
        return self.was_set(given.mask, place)

    cdef int set_first(self, const uint8_t *stateid, settable_t *given, Place place) except -1:
        """See whether the attributes may be set, and begin."""
        cdef AttributeChange change
        cdef tuple through = (None, None)
        told = None
        if self.standing.only and (given.mask[0] | given.mask[1] | (given.mask[2] & ~DELEGATED_TIMES)):
            return self.fail(NFS4ERR_WRONGSEC, place)  # it is let here to return what was delegated, times among that
        if self.standing.read_only:
            return self.fail(NFS4ERR_ROFS, place)
        if given.failure and not given.rare:
            return self.fail(given.failure, place)
        if given.mask[2] & UMASK_SET:
            return self.fail(NFS4ERR_INVAL, place)  # RFC 8275 section 3: only where a file is made
        if given.mask[0] & SIZE_SET:
            # The stateid is for the size (RFC 8881 section 18.30.3).
            through = self.resizable(stateid)
            if through is None:
                return self.fail(self.failure, place)
        if given.mask[2] & DELEGATED_TIMES:
            if given.failure:
                return self.fail(given.failure, place)
            told = self.told(stateid, given)
            if told is None:
                return self.fail(self.failure, place)
        if given.rare:
            self.files.why = ATTRIBUTES
            return self.set_rarely(given, through[0], through[1], told)
        self.files.asker = self.client
        change = self.files.to_set(
            self.standing.credential, self.current, &given.changes, given.size, through[0]
        )
        if change is None:
            if given.size >= 0 or (self.files.why != MAY_WAIT and self.files.why != BUSY):
                return self.set_rarely(given, through[0], through[1], None)
            change = self.files.setting_of(self.standing.credential, self.current, &given.changes, -1, None)
            return self.wait_for(change, None)
        if not self.current.inline:
            return self.wait_for(change, None)
        return self.set_so_far(change, given, place)

    cdef object told(self, const uint8_t *stateid, settable_t *given):
        """What the holder of a delegation tells of the times that are delegated to it (RFC 9754 section 5), or None: the
        stateid is none of such a delegation, and ``failure`` is set."""
        self.files.pause()  # Python code of the server runs as the server
        try:
            holder = self.delegations.find(self.given(stateid), self.client, self.current.key)
        except Nfs4Error as error:
            self.failure = error.status
            return None
        if holder.times is None:
            self.failure = NFS4ERR_BAD_STATEID
            return None
        return holder, Times(time_in(&given.delegated[0]), time_in(&given.delegated[1]))

    cdef int set_rarely(self, settable_t *given, object opened, object client, object told) except -1:
        """WAITS, for what is carried out as one errand: values that name users, ACLs, labels, delegated times, and what a
        delegation or the lack of a descriptor stands in the way of."""
        if client is None:
            client = self.client or self.server.speaker(self.caller.transport)
        self.files.pause()
        return self.wait_for(
            Setting(
                errands.set_attributes(
                    self.server, self.minor, self.standing.credential, self.current, declared_fattr(given), opened, client, told
                )
            ),
            None,
        )

    cdef int set_so_far(self, AttributeChange change, settable_t *given, Place place) except -1:
        """A change has been made, or part of it."""
        cdef uint32_t words[WORDS]
        cdef int made = change.data.made
        cdef Errand settling = None
        if self.files.have_set(change):
            if not self.current.inline and not self.current.export.late_names:
                settling = self.files.to_settle_attributes(change)
            if settling is not None:
                return self.wait_for(settling, change)
            self.saw_change(self.current, &change.data.after)
            return self.was_set(given.mask, place)
        self.changed = self.changed or made > 0
        if self.files.why == RARE:
            # All but the times has been set, and these may be set by who may write.
            times = SetAttributes(
                atime=now_or_never(&given.changes.times[0]), mtime=now_or_never(&given.changes.times[1])
            )
            self.files.pause()
            return self.wait_for(
                Setting(errands.set_times(self.files.service, self.standing.credential, self.current, times)), change
            )
        # RFC 8881 section 18.30.3: attrsset tells what has been set, also when the rest could not be; in this order.
        self.fail(status_in(change.data.error), place)
        memset(words, 0, sizeof(words))
        if made and given.size >= 0:
            words[0] = given.mask[0] & SIZE_SET
            made -= 1
        if made and changes_owner(&given.changes):
            words[1] |= given.mask[1] & OWNERS_SET
            made -= 1
        if made and given.changes.mode >= 0:
            words[1] |= MODE_SET
            made -= 1
        if made and changes_times(&given.changes):
            words[1] |= given.mask[1] & TIMES_SET
        place.at = store_mask(place.at - 4, words, WORDS)
        return ANSWERED

    cdef int set_otherwise(self, Setting brought, settable_t *given, Place place) except -1:
        """An errand has set the attributes, some of them, or none; or the times, after all others."""
        cdef uint32_t words[WORDS]
        cdef uint32_t status, index
        if brought.error is not None:
            status, made = self.failed_in(brought), 0
        else:
            status, made = brought.result
        for index in range(WORDS):
            words[index] = made >> (32 * index) & 0xFFFFFFFF
            if brought.earlier is not None:
                words[index] |= given.mask[index]
        if brought.earlier is not None and status != NFS4_OK:
            words[1] &= ~<uint32_t>TIMES_SET
        if status == NFS4_OK:
            return self.was_set(words, place)
        self.fail(status, place)
        place.at = store_mask(place.at - 4, words, WORDS)
        return ANSWERED

    cdef int was_set(self, const uint32_t *mask, Place place) except -1:
        place.at = store_mask(store32(store32(place.at, OP_SETATTR), NFS4_OK), mask, WORDS)
        return ANSWERED

    cdef tuple resizable(self, const uint8_t *stateid):
        """Through which open file the stateid lets the caller set the current file's size (None: the mode decides), and which
        client's it is, as far as that is known; or None: ``failure`` is set."""
        engine = self.server.engine
        issued = engine.writes_issued
        if not self.current.inode.delegated and not self.is_current(stateid):
            descriptors = self.state.opened_of(self.client, stateid, self.current.key, True)
            if descriptors is not None:
                return descriptors.serving(self.caller.credential, write=True), None
        self.files.pause()
        try:
            if not self.is_current(stateid):
                given = Stateid(load32(stateid), <bytes>stateid[4:stateid4_SIZE])
            elif self.stateid is None:
                raise Nfs4Error(NFS4ERR_BAD_STATEID)
            else:
                given = self.stateid
            state = engine.stateids.check_io(given, self.client, self.current.key, write=True)
        except Nfs4Error as error:
            self.failure = error.status
            return None
        finally:
            # A client was heard of that had not been: the reply waits until that is on stable storage.
            self.changed |= engine.writes_issued != issued
        if state is None:
            return None, None
        opened = None if state.opened is None else state.opened.serving(self.caller.credential, write=True)
        return opened, state.client
