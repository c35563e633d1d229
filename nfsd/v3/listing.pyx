"""Entries of READDIR and READDIRPLUS in native code (RFC 1813 sections 3.3.16 and 3.3.17; contract: ``listing.pyi``).

Owns the encoding of entry3 and entryplus3, and what they count against the sizes the client names. What follows from the
sizes, and the rest of the reply, are :mod:`nfsd.v3.directory`'s.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t

from nfsd.v3.fattr cimport fsid3, store_fattr
from nfsd.vfs.listing cimport FULL, GROW, TAKEN, Listing, entry_t, listing_t, outcome_t
from nfsd.wire.nfs3 cimport fattr3_SIZE
from rpcrdma.octets cimport padded, store32, store64, store_opaque

cdef enum:
    ENTRY = 4 + 8 + 4 + 8       # octets besides the name: the link before it, fileid, length of the name, cookie

ENTRY_SIZE = ENTRY


cdef inline uint8_t *store_entry(uint8_t *at, entry_t *entry) noexcept nogil:
    """What an entry3 and an entryplus3 begin with."""
    at = store64(store32(at, 1), entry.fileid)
    at = store_opaque(at, entry.name, entry.name_size)
    return store64(at, entry.cookie)


cdef outcome_t encode_name(listing_t *listing, entry_t *entry) noexcept nogil:
    """An entry3."""
    cdef int64_t size = ENTRY + padded(entry.name_size)
    if size > listing.room:
        return FULL
    if size > listing.end - listing.at:
        return GROW
    listing.at = store_entry(listing.at, entry)
    listing.room -= size
    return TAKEN


cdef outcome_t encode_plus(listing_t *listing, entry_t *entry) noexcept nogil:
    """An entryplus3. Attributes and handle are missing where the caller may not search, or the file has gone."""
    cdef int64_t named = ENTRY + padded(entry.name_size)
    cdef int64_t size = named + 4 + 4
    cdef uint8_t *at = listing.at
    if entry.status != NULL:
        size += fattr3_SIZE + 4 + padded(entry.handle_size)
    if size > listing.room or (named > listing.names and listing.taken):
        return FULL
    if size > listing.end - at:
        return GROW
    at = store_entry(at, entry)
    if entry.status == NULL:
        at = store32(store32(at, 0), 0)
    else:
        at = store_fattr(store32(at, 1), entry.status, fsid3(entry.fsid[0], entry.fsid[1]))
        at = store_opaque(store32(at, 1), entry.handle, entry.handle_size)
    listing.at = at
    listing.room -= size
    listing.names -= named
    return TAKEN


cdef class Listing3(Listing):
    def __init__(self, int64_t room, int64_t names=0, *, bint plus):
        self.state.encode = encode_plus if plus else encode_name
        self.state.want_status = self.state.want_handle = plus
        self.state.room = max(room, 0)
        self.state.names = names
        # The name's, and with it a fattr3 and a handle of middling length.
        self.state.octets_each = ENTRY + 16 + (4 + fattr3_SIZE + 8 + 32 if plus else 0)
