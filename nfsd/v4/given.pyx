"""Attributes that clients give files by SETATTR, CREATE and OPEN, in native code (RFC 8881 section 5).

Owns :c:struct:`settable_t`; imports which attributes there are, and the file service's changes. Values that take a question
to the name service, and those of ACLs, labels and masked modes, are decoded by :mod:`nfsd.v4.settable`.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.string cimport memset

from nfsd.vfs.direct cimport UTIME_NOW, no_changes, when_t
from nfsd.wire.nfs4 cimport (
    FATTR4_MODE, FATTR4_MODE_UMASK, FATTR4_OWNER, FATTR4_OWNER_GROUP, FATTR4_SIZE, FATTR4_TIME_ACCESS_SET, FATTR4_TIME_MODIFY_SET, NFS4ERR_ATTRNOTSUPP, NFS4ERR_BADOWNER, NFS4ERR_BADXDR,
    NFS4ERR_INVAL, NFS4_OK, SET_TO_CLIENT_TIME4, SET_TO_SERVER_TIME4,
)
from rpcrdma.octets cimport load32, load64, load_opaque, opaque_t, padded

from nfsd.protocol import nfs4 as declared
from nfsd.protocol.nfs4_types import ATTRIBUTES_LIMIT as _ATTRIBUTES_LIMIT, BITMAP_LIMIT as _BITMAP_LIMIT
from nfsd.v4.attributes import SETTABLE as _SETTABLE, supported
from nfsd.v4.settable import OWNER_LIMIT as _OWNER_LIMIT

cdef uint32_t BITMAP_LIMIT = _BITMAP_LIMIT
cdef uint32_t ATTRIBUTES_LIMIT = _ATTRIBUTES_LIMIT
cdef uint32_t OWNER_LIMIT = _OWNER_LIMIT
_RARE = 1 << declared.FATTR4_ACL | 1 << declared.FATTR4_MODE_SET_MASKED | 1 << declared.FATTR4_SEC_LABEL
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


cdef const uint8_t *load_time(const uint8_t *at, const uint8_t *end, when_t *when, settable_t *given) noexcept nogil:
    """A settime4; returns what is behind it, or NULL: it is none."""
    if end - at < 4:
        return fails(given, NFS4ERR_BADXDR)
    if load32(at) == SET_TO_SERVER_TIME4:
        when.nanoseconds = UTIME_NOW
        return at + 4
    if load32(at) != SET_TO_CLIENT_TIME4 or end - at < 16:
        return fails(given, NFS4ERR_BADXDR)
    if load32(at + 12) >= 1000000000:
        return fails(given, NFS4ERR_INVAL)
    when.seconds = <int64_t>load64(at + 4)
    when.nanoseconds = load32(at + 12)
    return at + 16


cdef const uint8_t *load_owner(
    const uint8_t *at, const uint8_t *end, object names, bint group, uint32_t *number, settable_t *given
) except? NULL:
    """An owner or owner_group; returns what is behind it, or NULL: it is nobody's, or its name is to be looked up."""
    cdef opaque_t text
    at = load_opaque(at, end, OWNER_LIMIT, &text)
    if at == NULL:
        return fails(given, NFS4ERR_BADXDR)
    if text.length == 0:
        return fails(given, NFS4ERR_INVAL)
    meant = names.question(text.octets[:text.length], group=group)
    if meant is None:
        return fails(given, NFS4ERR_BADOWNER)
    if not isinstance(meant, int):
        given.rare = True
        return NULL
    number[0] = <uint32_t>meant
    return at


cdef const uint8_t *load_mode_umask(const uint8_t *at, const uint8_t *end, settable_t *given) noexcept nogil:
    """A mode_umask4 (RFC 8275 section 3); not together with MODE."""
    if has(given, FATTR4_MODE):
        return fails(given, NFS4ERR_INVAL)
    if end - at < 8:
        return fails(given, NFS4ERR_BADXDR)
    given.umask_given = True
    given.changes.mode, given.umask = <int>(load32(at) & 0o7777), load32(at + 4) & 0o777
    return at + 8


cdef const uint8_t *load_values(const uint8_t *at, const uint8_t *end, object names, settable_t *given) except? NULL:
    """The values of these attributes, in the order of their numbers; returns what is behind them. NULL: they have failed, or
    are rare."""
    if has(given, FATTR4_SIZE):
        if end - at < 8:
            return fails(given, NFS4ERR_BADXDR)
        given.size = <int64_t>load64(at)
        if given.size < 0:
            given.rare = True  # what no file can have; when that is said, is not for here to know
            return NULL
        at += 8
    if has(given, FATTR4_MODE):
        if end - at < 4:
            return fails(given, NFS4ERR_BADXDR)
        if load32(at) & ~<uint32_t>0o7777:
            return fails(given, NFS4ERR_INVAL)
        given.changes.mode = <int>load32(at)
        at += 4
    if has(given, FATTR4_OWNER):
        at = load_owner(at, end, names, False, &given.changes.uid, given)
    if at != NULL and has(given, FATTR4_OWNER_GROUP):
        at = load_owner(at, end, names, True, &given.changes.gid, given)
    if at != NULL and has(given, FATTR4_TIME_ACCESS_SET):
        at = load_time(at, end, &given.changes.times[0], given)
    if at != NULL and has(given, FATTR4_TIME_MODIFY_SET):
        at = load_time(at, end, &given.changes.times[1], given)
    if at != NULL and has(given, FATTR4_MODE_UMASK):
        at = load_mode_umask(at, end, given)
    return at


cdef const uint8_t *load_given(
    const uint8_t *at, const uint8_t *end, uint32_t minor, object names, settable_t *given
) except? NULL:
    cdef uint32_t words, word, index, unknown = 0, readable = 0, length
    cdef const uint8_t *values
    cdef const uint8_t *behind
    memset(given, 0, sizeof(settable_t))
    no_changes(&given.changes)
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
    behind = given.end = values + padded(length)
    if unknown:
        given.failure = NFS4ERR_ATTRNOTSUPP
    elif readable:
        given.failure = NFS4ERR_INVAL
    elif not given.rare:
        at = load_values(values, values + length, names, given)
        if not given.rare and given.failure == NFS4_OK and at != values + length:
            given.failure = NFS4ERR_BADXDR
    return behind


cdef object declared_fattr(const settable_t *given):
    cdef uint32_t words = load32(given.at), index
    cdef const uint8_t *values = given.at + 4 + 4 * words
    return declared.fattr4(
        [load32(given.at + 4 + 4 * index) for index in range(words)],
        PyBytes_FromStringAndSize(<char *>values + 4, load32(values)),
    )
