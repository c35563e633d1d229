"""Entries of READDIR in native code (RFC 7530 section 16.24, RFC 8881 section 18.23; contract: ``listing.pyi``).

Owns the encoding of entry4, and what it counts against the sizes the client names. Attributes are those that GETATTR
encodes natively, by the same function (:mod:`nfsd.v4.fattr`).
"""

import os

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy

from nfsd.v4.fattr cimport LARGEST_FATTR, all_native, facts_t, store_fattr, wants_owners
from nfsd.vfs.listing cimport (
    FAILED, FULL, GROW, NEEDS, SKIPPED, TAKEN, Listing, entry_t, listing_t, mark, outcome_t,
)
from rpcrdma.octets cimport padded, store32, store64, store_opaque

from nfsd.protocol import nfs4 as declared
from nfsd.v4.errors import status_of

cdef enum:
    ERRNOS = 134
    ENOENT = 2
    LONGEST_NAME = 4095         # of any file system; longer ones could not be asked for
    HEAD_SIZE = 4 + 8 + 4       # of an entry: the link before it, cookie, length of the name

cdef uint64_t CHANGE = 1 << declared.FATTR4_CHANGE
cdef uint64_t FILEHANDLE = 1 << declared.FATTR4_FILEHANDLE
cdef uint64_t RDATTR_ERROR = 1 << declared.FATTR4_RDATTR_ERROR
cdef uint32_t STALE = declared.NFS4ERR_STALE
cdef uint32_t SERVERFAULT = declared.NFS4ERR_SERVERFAULT
cdef uint32_t statuses[ERRNOS]
for number in range(ERRNOS):
    statuses[number] = status_of(OSError(number, os.strerror(number)))

ctypedef struct place_t:        # a name that leads on in the pseudo file system
    const uint8_t *name
    size_t size

ctypedef struct asked_t:
    uint64_t mask
    uint32_t lease_time
    place_t *places
    size_t place_count


cdef bint leads_on(asked_t *asked, entry_t *entry) noexcept nogil:
    cdef size_t index
    for index in range(asked.place_count):
        if asked.places[index].size == entry.name_size and (
            memcmp(asked.places[index].name, entry.name, entry.name_size) == 0
        ):
            return True
    return False


cdef uint8_t *store_failure(uint8_t *at, uint32_t status) noexcept nogil:
    """The fattr4 of an entry whose attributes cannot be had."""
    at = store32(store32(at, 1), <uint32_t>RDATTR_ERROR)
    return store32(store32(at, 4), status)


cdef outcome_t encode_entry(listing_t *listing, entry_t *entry) noexcept nogil:
    """An entry4, with the link before it."""
    cdef asked_t *asked = <asked_t *>listing.context
    cdef uint8_t aside[HEAD_SIZE + LONGEST_NAME + 1 + LARGEST_FATTR]
    cdef uint8_t *begin = listing.at
    cdef uint8_t *at
    cdef int64_t named = 12 + padded(entry.name_size), size
    cdef facts_t facts
    if entry.name_size > LONGEST_NAME:
        return SKIPPED
    if asked.place_count and leads_on(asked, entry):
        return NEEDS
    if entry.status == NULL:
        if entry.error == ENOENT:
            return SKIPPED  # it has gone since the directory was read
        listing.error = <int>(STALE if entry.error == 0 else statuses[entry.error] if entry.error < ERRNOS else SERVERFAULT)
        if not asked.mask & RDATTR_ERROR:
            return FAILED  # RFC 7530 section 16.24.4
    if listing.end - begin < <int64_t>(HEAD_SIZE + padded(entry.name_size) + LARGEST_FATTR):
        begin = aside
    at = store64(store32(begin, 1), entry.cookie)
    at = store_opaque(at, entry.name, entry.name_size)
    if entry.status == NULL:
        at = store_failure(at, <uint32_t>listing.error)
    else:
        facts.change = 0
        facts.change_at = NULL
        facts.fsid[0], facts.fsid[1] = entry.fsid[0], entry.fsid[1]
        facts.lease_time, facts.error = asked.lease_time, 0
        facts.handle, facts.handle_size = entry.handle, entry.handle_size
        facts.mounted_on_fileid = entry.mounted_on_fileid
        at = store_fattr(at, asked.mask, entry.status, &facts)
    size = at - begin
    # dircount bounds names and cookies alone, and is only a hint (RFC 8881 section 18.23.3).
    if size > listing.room or (listing.taken and named > listing.names):
        return FULL
    if begin == aside:
        if size > listing.end - listing.at:
            return GROW
        memcpy(listing.at, aside, size)
    if entry.status != NULL and facts.change_at != NULL:
        mark(listing, entry, listing.at + (facts.change_at - begin))
    listing.at += size
    listing.room -= size
    listing.names -= named
    return TAKEN


cdef class Listing4(Listing):
    cdef asked_t asked
    cdef list names             # of places, whose octets they have

    def __init__(self, mask, int64_t room, int64_t names, uint32_t lease_time, places=()):
        cdef size_t index
        cdef bytes name
        if not native(mask):
            raise ValueError("attributes that Python alone knows")
        self.state.encode = encode_entry
        self.state.context = &self.asked
        self.state.skip_dots = True
        self.state.room = room
        self.state.names = names if names else 0x7FFFFFFFFFFFFFFF
        self.state.want_status = True
        self.state.octets_each = 56 + 8 * <unsigned int>int(mask).bit_count()
        self.asked.mask = mask
        self.asked.lease_time = lease_time
        self.state.want_handle = self.asked.mask & (CHANGE | FILEHANDLE) != 0
        if self.asked.mask & CHANGE:
            self.want_changes()
        self.names = list(places)
        if self.names:
            self.asked.places = <place_t *>malloc(len(self.names) * sizeof(place_t))
            if self.asked.places == NULL:
                raise MemoryError
            for index in range(<size_t>len(self.names)):
                name = self.names[index]
                self.asked.places[index].name = <const uint8_t *>name
                self.asked.places[index].size = len(name)
            self.asked.place_count = len(self.names)

    def __dealloc__(self):
        free(self.asked.places)


def native(mask, *, bint numeric=True):
    return mask >> 64 == 0 and all_native(mask) and (numeric or not wants_owners(mask))
