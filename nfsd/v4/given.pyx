"""Attributes that clients give files by SETATTR, CREATE and OPEN, in native code (RFC 8881 section 5).

Owns :c:struct:`settable_t`, the decoding of all values; imports which attributes there are, and the file service's changes.
Names of users are looked up, and ACLs mapped, by :mod:`nfsd.v4.settable`, which has their octets from here.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memset

from nfsd.vfs.native_files cimport NO_ID, UTIME_NOW, UTIME_OMIT, no_changes, when_t
from nfsd.wire.nfs4 cimport (
    FATTR4_ACL, FATTR4_MODE, FATTR4_MODE_SET_MASKED, FATTR4_MODE_UMASK, FATTR4_OWNER, FATTR4_OWNER_GROUP, FATTR4_SEC_LABEL,
    FATTR4_SIZE, FATTR4_TIME_ACCESS_SET, FATTR4_TIME_DELEG_ACCESS, FATTR4_TIME_DELEG_MODIFY, FATTR4_TIME_MODIFY_SET, NFS4ERR_ATTRNOTSUPP, NFS4ERR_BADLABEL, NFS4ERR_BADOWNER,
    NFS4ERR_BADXDR, NFS4ERR_INVAL, NFS4ERR_NOSPC, NFS4ERR_WRONG_LFS, NFS4_OK, SET_TO_CLIENT_TIME4, SET_TO_SERVER_TIME4,
)
from rpcrdma.octets cimport load32, load64, load_opaque, opaque_t, padded

from nfsd.protocol import nfs4 as declared
from nfsd.protocol.nfs4_types import ATTRIBUTES_LIMIT as _ATTRIBUTES_LIMIT, BITMAP_LIMIT as _BITMAP_LIMIT
from nfsd.v4.attributes import DELEGATED_TIMES as _DELEGATED_TIMES, SETTABLE as _SETTABLE, supported
from nfsd.vfs.syscalls import LABEL_MAX as _LABEL_MAX
from nfsd.vfs.types import SetAttributes, SetTo, Time
from rpcrdma.xdr import Encoder

cdef enum:
    OWNER_LIMIT = 1024
    LABEL_LIMIT = 65536
    MAX_ACES = 1024             # more than the largest ACL of any Linux file system but XFS needs; mapping takes their square
    MINIMAL_ACE = 20

cdef uint32_t BITMAP_LIMIT = _BITMAP_LIMIT
cdef uint32_t ATTRIBUTES_LIMIT = _ATTRIBUTES_LIMIT
cdef uint32_t LABEL_MAX = _LABEL_MAX
_RARE = 1 << declared.FATTR4_ACL | 1 << declared.FATTR4_MODE_SET_MASKED | 1 << declared.FATTR4_SEC_LABEL | _DELEGATED_TIMES
cdef uint32_t SETTABLE[WORDS]
cdef uint32_t SUPPORTED[3][WORDS]     # by minor version
cdef uint32_t RARE[WORDS]
for word in range(WORDS):
    SETTABLE[word] = _SETTABLE >> (32 * word) & 0xFFFFFFFF
    for minor in range(3):
        SUPPORTED[minor][word] = supported(minor) >> (32 * word) & 0xFFFFFFFF
    RARE[word] = _RARE >> (32 * word) & 0xFFFFFFFF
assert _SETTABLE >> 32 * WORDS == 0


cdef inline bint has(const settable_t *given, uint32_t number) noexcept nogil:
    return (given.mask[number // 32] >> (number % 32)) & 1


cdef inline const uint8_t *fails(settable_t *given, uint32_t failure) noexcept nogil:
    given.failure = failure
    return NULL


cdef const uint8_t *load_nfstime(const uint8_t *at, const uint8_t *end, when_t *when, settable_t *given) noexcept nogil:
    """A nfstime4; returns what is behind it, or NULL: it is none."""
    if end - at < 12:
        return fails(given, NFS4ERR_BADXDR)
    if load32(at + 8) >= 1000000000:
        return fails(given, NFS4ERR_INVAL)
    when.seconds = <int64_t>load64(at)
    when.nanoseconds = load32(at + 8)
    return at + 12


cdef const uint8_t *load_time(const uint8_t *at, const uint8_t *end, when_t *when, settable_t *given) noexcept nogil:
    """A settime4; returns what is behind it, or NULL: it is none."""
    if end - at < 4:
        return fails(given, NFS4ERR_BADXDR)
    if load32(at) == SET_TO_SERVER_TIME4:
        when.nanoseconds = UTIME_NOW
        return at + 4
    if load32(at) != SET_TO_CLIENT_TIME4:
        return fails(given, NFS4ERR_BADXDR)
    return load_nfstime(at + 4, end, when, given)


cdef const uint8_t *load_owner(
    const uint8_t *at, const uint8_t *end, object names, bint group, uint32_t *number, settable_t *given
) except? NULL:
    """An owner or owner_group; returns what is behind it, or NULL: it is nobody's."""
    cdef opaque_t text
    at = load_opaque(at, end, OWNER_LIMIT, &text)
    if at == NULL:
        return fails(given, NFS4ERR_BADXDR)
    if text.length == 0:
        return fails(given, NFS4ERR_INVAL)
    meant = names.question(text.octets[:text.length], group=group)
    if meant is None:
        return fails(given, NFS4ERR_BADOWNER)
    if isinstance(meant, int):
        number[0] = <uint32_t>meant
    else:
        given.names[group] = text
        given.rare = True
    return at


cdef const uint8_t *load_acl(const uint8_t *at, const uint8_t *end, settable_t *given) noexcept nogil:
    """A fattr4_acl, whose entries are whole."""
    cdef opaque_t who
    cdef uint32_t count
    given.acl.octets = at
    if end - at < 4:
        return fails(given, NFS4ERR_BADXDR)
    count = load32(at)
    at += 4
    if <uint64_t>count * MINIMAL_ACE > <uint64_t>(end - at):
        return fails(given, NFS4ERR_BADXDR)
    if count > MAX_ACES:
        return fails(given, NFS4ERR_NOSPC)
    while count:
        if end - at < 12:
            return fails(given, NFS4ERR_BADXDR)
        at = load_opaque(at + 12, end, OWNER_LIMIT, &who)
        if at == NULL:
            return fails(given, NFS4ERR_BADXDR)
        count -= 1
    given.acl.length = <uint32_t>(at - given.acl.octets)
    return at


cdef const uint8_t *load_masked_mode(const uint8_t *at, const uint8_t *end, settable_t *given) noexcept nogil:
    """A mode_masked4 (RFC 8881 section 5.12); not together with MODE."""
    if has(given, FATTR4_MODE):
        return fails(given, NFS4ERR_INVAL)
    if end - at < 8:
        return fails(given, NFS4ERR_BADXDR)
    given.masked[0], given.masked[1] = load32(at), load32(at + 4)
    if given.masked[0] & ~given.masked[1] or given.masked[1] & ~<uint32_t>0o7777:
        return fails(given, NFS4ERR_INVAL)
    return at + 8


cdef const uint8_t *load_label(const uint8_t *at, const uint8_t *end, settable_t *given) noexcept nogil:
    """A sec_label4: octets of SELinux (RFC 7862 section 9.3: of no other format)."""
    cdef const uint8_t *behind
    if end - at < 8:
        return fails(given, NFS4ERR_BADXDR)
    behind = load_opaque(at + 8, end, LABEL_LIMIT, &given.label)
    if behind == NULL:
        return fails(given, NFS4ERR_BADXDR)
    if load32(at):
        return fails(given, NFS4ERR_WRONG_LFS)
    if given.label.length == 0 or given.label.length > LABEL_MAX:
        return fails(given, NFS4ERR_BADLABEL)
    return behind


cdef const uint8_t *load_mode_umask(const uint8_t *at, const uint8_t *end, settable_t *given) noexcept nogil:
    """A mode_umask4 (RFC 8275 section 3); not together with MODE."""
    if has(given, FATTR4_MODE) or has(given, FATTR4_MODE_SET_MASKED):
        return fails(given, NFS4ERR_INVAL)
    if end - at < 8:
        return fails(given, NFS4ERR_BADXDR)
    given.umask_given = True
    given.changes.mode, given.umask = <int>(load32(at) & 0o7777), load32(at + 4) & 0o777
    return at + 8


cdef const uint8_t *load_values(const uint8_t *at, const uint8_t *end, object names, settable_t *given) except? NULL:
    """The values of these attributes, in the order of their numbers; returns what is behind them. NULL: they have failed."""
    if has(given, FATTR4_SIZE):
        if end - at < 8:
            return fails(given, NFS4ERR_BADXDR)
        given.size = <int64_t>load64(at)
        given.rare |= given.size < 0  # as no file can have; when that is said, is not for here to know
        at += 8
    if has(given, FATTR4_ACL):
        at = load_acl(at, end, given)
    if at != NULL and has(given, FATTR4_MODE):
        if end - at < 4:
            return fails(given, NFS4ERR_BADXDR)
        if load32(at) & ~<uint32_t>0o7777:
            return fails(given, NFS4ERR_INVAL)
        given.changes.mode = <int>load32(at)
        at += 4
    if at != NULL and has(given, FATTR4_OWNER):
        at = load_owner(at, end, names, False, &given.changes.uid, given)
    if at != NULL and has(given, FATTR4_OWNER_GROUP):
        at = load_owner(at, end, names, True, &given.changes.gid, given)
    if at != NULL and has(given, FATTR4_TIME_ACCESS_SET):
        at = load_time(at, end, &given.changes.times[0], given)
    if at != NULL and has(given, FATTR4_TIME_MODIFY_SET):
        at = load_time(at, end, &given.changes.times[1], given)
    if at != NULL and has(given, FATTR4_MODE_SET_MASKED):
        at = load_masked_mode(at, end, given)
    if at != NULL and has(given, FATTR4_SEC_LABEL):
        at = load_label(at, end, given)
    if at != NULL and has(given, FATTR4_MODE_UMASK):
        at = load_mode_umask(at, end, given)
    if at != NULL and has(given, FATTR4_TIME_DELEG_ACCESS):
        at = load_nfstime(at, end, &given.delegated[0], given)
    if at != NULL and has(given, FATTR4_TIME_DELEG_MODIFY):
        at = load_nfstime(at, end, &given.delegated[1], given)
    return at


cdef const uint8_t *load_given(
    const uint8_t *at, const uint8_t *end, uint32_t minor, object names, settable_t *given
) except? NULL:
    cdef uint32_t words, word, index, unknown = 0, readable = 0, length
    cdef const uint8_t *values
    cdef const uint8_t *behind
    memset(given, 0, sizeof(settable_t))
    no_changes(&given.changes)
    given.delegated[0].nanoseconds = given.delegated[1].nanoseconds = UTIME_OMIT
    given.size, given.failure, given.at = -1, NFS4_OK, at
    if end - at < 4:
        return NULL
    words = load32(at)
    if words > BITMAP_LIMIT or end - at < <int64_t>(4 + 4 * words + 4):
        return NULL
    for index in range(words):
        word = load32(at + 4 + 4 * index)
        if index < WORDS:
            given.mask[index] = word
            unknown |= word & ~SUPPORTED[minor][index]
            readable |= word & ~SETTABLE[index]
            given.rare |= word & RARE[index] != 0
        else:
            unknown |= word
    at += 4 + 4 * words
    length = load32(at)
    values = at + 4
    if length > ATTRIBUTES_LIMIT or end - values < <int64_t>padded(length):
        return NULL
    behind = values + padded(length)
    if unknown:
        given.failure = NFS4ERR_ATTRNOTSUPP
    elif readable:
        given.failure = NFS4ERR_INVAL
    else:
        at = load_values(values, values + length, names, given)
        if given.failure == NFS4_OK and at != values + length:
            given.failure = NFS4ERR_BADXDR
    return behind


cdef object meant(settable_t *given, bint group, uint32_t number):
    """Whose id it is, the octets of the name that is to be looked up, or None."""
    if given.names[group].octets != NULL:
        return given.names[group].octets[:given.names[group].length]
    return None if number == NO_ID else number


cdef object octets_of(opaque_t *given):
    return None if given.octets == NULL else PyBytes_FromStringAndSize(<char *>given.octets, given.length)


cdef object time_in(const when_t *when):
    if when.nanoseconds == UTIME_OMIT:
        return None
    return SetTo.SERVER_TIME if when.nanoseconds == UTIME_NOW else Time(when.seconds, when.nanoseconds)


def decoded(names, uint32_t minor, given not None):
    cdef settable_t found
    cdef bytes octets
    cdef const uint8_t *at
    encoder = Encoder()
    encoder.encode(declared.fattr4, given)
    octets = encoder.getvalue()
    at = <const uint8_t *>octets
    if load_given(at, at + len(octets), minor, names, &found) == NULL:
        raise ValueError("no fattr4")
    changes = SetAttributes(
        mode=None if found.changes.mode < 0 else found.changes.mode,
        size=<uint64_t>found.size if has(&found, FATTR4_SIZE) else None,
        atime=time_in(&found.changes.times[0]),
        mtime=time_in(&found.changes.times[1]),
        label=octets_of(&found.label),
        umask=found.umask,
    )
    return (
        found.failure, changes, meant(&found, False, found.changes.uid), meant(&found, True, found.changes.gid),
        octets_of(&found.acl), (found.masked[0], found.masked[1]),
    )


cdef object declared_fattr(const settable_t *given):
    cdef uint32_t words = load32(given.at), index
    cdef const uint8_t *values = given.at + 4 + 4 * words
    return declared.fattr4(
        [load32(given.at + 4 + 4 * index) for index in range(words)],
        PyBytes_FromStringAndSize(<char *>values + 4, load32(values)),
    )
