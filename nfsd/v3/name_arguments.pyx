"""The arguments of NFSv3's procedures about names, LOOKUP to LINK (RFC 1813 sections 3.3.3 and 3.3.8 to 3.3.15).

Owns nothing; imports the formats. They are loaded in one place, so that a malformed call is told before its handle is
looked at, as by any decoder.
"""

from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memchr, memcpy

from nfsd.v3.sattr cimport load_sattr
from nfsd.vfs.native_files cimport no_changes
from nfsd.wire.nfs3 cimport (
    EXCLUSIVE, GUARDED, NF3BLK, NF3CHR, NF3FIFO, NF3SOCK, NFS3ERR_BADTYPE, NFS3ERR_INVAL, NFS3_OK, NFSPROC3_CREATE,
    NFSPROC3_LINK, NFSPROC3_LOOKUP, NFSPROC3_MKNOD, NFSPROC3_REMOVE, NFSPROC3_RENAME, NFSPROC3_RMDIR, NFSPROC3_SYMLINK,
    load_nfs_fh3,
)
from rpcrdma.octets cimport load32, load_opaque, opaque_t, padded
from rpcrdma.place cimport Place

cdef enum:
    ONLY_NAMES = 1 << NFSPROC3_LOOKUP | 1 << NFSPROC3_REMOVE | 1 << NFSPROC3_RMDIR | 1 << NFSPROC3_LINK


cdef bint load_name_arguments(
    uint32_t procedure, const uint8_t *at, const uint8_t *end, Place place, name_arguments_t *into
) noexcept:
    """Whether these are a procedure's arguments, behind the call's first handle. More octets than that do no harm."""
    if procedure == NFSPROC3_LINK:
        at = load_nfs_fh3(at, end, &into.handle)
        if at == NULL:
            return False
    at = load_opaque(at, end, NAME3_MAX, &into.name)
    if at == NULL:
        return False
    if (ONLY_NAMES >> procedure) & 1:
        return True
    if procedure == NFSPROC3_RENAME:
        at = load_nfs_fh3(at, end, &into.handle)
        return at != NULL and load_opaque(at, end, NAME3_MAX, &into.new_name) != NULL
    into.wrong, into.size = NFS3_OK, -1
    no_changes(&into.changes)
    if procedure == NFSPROC3_CREATE:
        return load_createhow3(at, end, into)
    if procedure == NFSPROC3_MKNOD:
        return load_mknoddata3(at, end, into)
    at = load_sattr(at, end, &into.changes, &into.size, &into.wrong)
    if at == NULL:
        return False
    if procedure == NFSPROC3_SYMLINK:
        if not load_text(at, end, place, &into.text):
            return False
        if into.text.length == 0 or memchr(into.text.octets, 0, into.text.length) != NULL:
            # No local file system can keep it: symlink(2) has ENOENT for an empty text and cannot be told of a NUL.
            into.wrong = NFS3ERR_INVAL
    return True


cdef bint load_createhow3(const uint8_t *at, const uint8_t *end, name_arguments_t *into) noexcept:
    if end - at < 4:
        return False
    into.how = load32(at)
    at += 4
    if into.how != EXCLUSIVE:
        return into.how <= GUARDED and load_sattr(at, end, &into.changes, &into.size, &into.wrong) != NULL
    if end - at < 8:
        return False
    memcpy(into.verifier, at, 8)
    # Where it is kept (nfsd.vfs.creation).
    into.changes.times[0].seconds = load32(at) & 0x7FFFFFFF
    into.changes.times[1].seconds = load32(at + 4) & 0x7FFFFFFF
    into.changes.times[0].nanoseconds = into.changes.times[1].nanoseconds = 0
    return True


cdef bint load_mknoddata3(const uint8_t *at, const uint8_t *end, name_arguments_t *into) noexcept:
    cdef bint device
    if end - at < 4:
        return False
    into.type = load32(at)
    device = into.type == NF3CHR or into.type == NF3BLK
    into.device[0] = into.device[1] = 0
    if not device and into.type != NF3SOCK and into.type != NF3FIFO:
        into.wrong = NFS3ERR_BADTYPE
        return True
    at = load_sattr(at + 4, end, &into.changes, &into.size, &into.wrong)
    if at == NULL or not device:
        return at != NULL
    if end - at < 8:
        return False
    into.device[0], into.device[1] = load32(at), load32(at + 4)
    return True


cdef bint load_text(const uint8_t *at, const uint8_t *end, Place place, opaque_t *text) noexcept:
    """The nfspath3 of a SYMLINK, which may come in a Read chunk: it is DDP-eligible (RFC 8267 section 3)."""
    if place.bulk == NULL:
        return load_opaque(at, end, NAME3_MAX, text) != NULL
    if end - at < 4 or place.bulk_at != at + 4:
        return False
    text.octets, text.length = place.bulk, load32(at)
    # The chunk is the item, or the item with its padding (RFC 8166 section 3.4.5.2).
    return text.length <= NAME3_MAX and (place.bulk_size == text.length or place.bulk_size == padded(text.length))
