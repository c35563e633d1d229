"""READDIR in COMPOUNDs (RFC 8881 section 18.23; RFC 7530 section 16.24).

Owns what judges the arguments and writes the result, and :class:`Nfs4Directories`. Imports :mod:`nfsd.v4.file_attributes`, and
:mod:`nfsd.v4.listing_errands`, which lists: at once, if that takes no worker.

The entries stand behind the results so far, where there is room for them. Otherwise, on a transport's own path, they stand
beside them like the data of a READ, unless something follows that would have to be put down with them; then a general call
goes on from here with what has been listed.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from nfsd.v4.fattr cimport all_native
from nfsd.v4.file_attributes cimport load_mask, whole_mask
from nfsd.v4.native_compound cimport left, room
from nfsd.vfs.listing cimport Listing
from nfsd.vfs.native_files cimport no
from nfsd.wire.nfs4 cimport NFS4ERR_BADXDR, NFS4ERR_BAD_COOKIE, NFS4ERR_INVAL, NFS4ERR_TOOSMALL, NFS4_OK, OP_READDIR
from rpcrdma.declined cimport SIZE
from rpcrdma.octets cimport load32, load64, store32, store64
from rpcrdma.place cimport ANSWERED, DECLINED, WAITS

from nfsd.listed import COPIED as _COPIED
from nfsd.v4.attributes import readable, write_only
from nfsd.v4.listing_errands import Wanted, of_directory, of_place
from rpcrdma.memory import OutOfMemory
from rpcrdma.xdr.payload import Payload

cdef enum:
    BEFORE_BITMAP = 8 + 8 + 4 + 4   # of the arguments: cookie, verifier, dircount, maxcount
    BEHIND_ENTRIES = 4 + 4          # of the result: the end of the list, eof
    WITHOUT_ENTRIES = 8 + BEHIND_ENTRIES    # READDIR4resok, which is what maxcount bounds

cdef size_t COPIED = _COPIED


cdef class Nfs4Directories(Nfs4Attributes):
    cdef int readdir(self, Arguments *arguments, Place place) except -1:
        """List a directory from a cookie on, within the sizes asked for; ``.`` and ``..`` are left out."""
        cdef const uint8_t *at = arguments.at
        cdef const uint8_t *behind = NULL
        cdef Errand errand = self.brought_here()
        cdef uint64_t cookie, mask
        cdef size_t used, bound
        cdef bint more
        if left(arguments) >= BEFORE_BITMAP:
            behind = load_mask(at + BEFORE_BITMAP, arguments.end, &mask, &more)
        if behind == NULL:
            return self.fail(NFS4ERR_BADXDR, place)
        if not room(place, 8 + WITHOUT_ENTRIES):
            self.brought = errand
            return no(self.files, SIZE)
        if errand is not None:
            return self.have_listed(errand, behind, arguments, place)
        if not self.may_wait():
            return DECLINED
        cookie, wanted = load64(at), mask
        if cookie == 1 or cookie == 2:
            return self.fail(NFS4ERR_BAD_COOKIE, place)
        if more or not all_native(mask):
            wanted = whole_mask(at + BEFORE_BITMAP)
            if write_only(wanted, self.minor):
                return self.fail(NFS4ERR_INVAL, place)
            wanted = readable(wanted, self.minor)
        used = self.size(place) + 8
        bound = min(<size_t>load32(at + 20), self.limit - used if used < self.limit else 0, self.max_transfer)
        if bound < WITHOUT_ENTRIES:
            return self.fail(NFS4ERR_TOOSMALL, place)
        asked = Wanted(cookie, wanted, load32(at + 16), bound - WITHOUT_ENTRIES)
        if self.current is None:
            errand = Errand(of_place(self.server, self.asker(), self.pseudo, asked))
        else:
            lend = None
            if self.general is not None:
                lend = self.general.call.lease
                self.general.call.holding = self.general.holds()
            errand = Errand(of_directory(self.server, self.asker(), self.standing.credential, self.current, asked, lend))
        if self.begin(errand, False) == WAITS:
            return WAITS
        return self.have_listed(errand, behind, arguments, place)

    cdef int have_listed(self, Errand errand, const uint8_t *behind, Arguments *arguments, Place place) except -1:
        """The entries are there, or cannot be had."""
        cdef uint8_t *at = place.at
        if errand.error is not None:
            if self.general is None and isinstance(errand.error, OutOfMemory):
                errand.error = None  # its traceback leads back to the errand
                return no(self.files, SIZE)  # a general call waits for memory before it holds any
            return self.not_brought(errand, place)
        entries, end = errand.result
        # Cookies hold as long as the directory exists, so one verifier fits all (:data:`nfsd.vfs.listings.VERIFIER`).
        place.at = store64(store32(store32(at, OP_READDIR), NFS4_OK), 0)
        if not self.put_entries(entries, place):
            place.at = at
            self.brought = errand
            return no(self.files, SIZE)
        place.at = store32(store32(place.at, False), end)
        arguments.at = behind
        self.seen = False
        return ANSWERED

    cdef bint put_entries(self, object entries, Place place) except -1:
        """Put the entries into the reply, with room behind them. False: there is none."""
        cdef Listing listing = None
        cdef Lease lease = None
        cdef const uint8_t *octets
        cdef size_t size
        if isinstance(entries, bytes):
            octets, size = <const uint8_t *><bytes>entries, len(entries)
        else:
            listing, lease = entries.listing, entries.lease
            octets, size = listing.state.start, listing.state.at - listing.state.start
        if room(place, size + BEHIND_ENTRIES) and (self.general is None or size <= COPIED):
            memcpy(place.at, octets, size)
            place.at += size
        elif self.general is None:
            if not self.set_beside(octets, size, lease, place):
                return False
        elif not room(place, BEHIND_ENTRIES):
            return False
        else:
            payload = Payload(memoryview(entries), eligible=False) if listing is None else entries.payload()
            self.general.put(NULL, 0, [(0, payload)])
            self.beside += size
        if lease is not None:
            entries.release()
        return True

    cdef bint set_beside(self, const uint8_t *octets, size_t size, Lease lease, Place place) except -1:
        """Put the entries beside the results. False: there is no room. ``lease``: they stand there."""
        cdef uint8_t *at = place.at
        cdef uint8_t *there
        if self.cachethis or self.beside or place.reduces():
            return False  # a kept reply stands in one piece, and entries go to no Write chunk (RFC 8267 section 6.4.1)
        if lease is not None and size > COPIED:
            if not place.take(lease.retain(), size):
                return False
        else:
            there = place.data(size)
            if there == NULL:
                return False
            memcpy(there, octets, size)
            place.data_done(size)
        if not room(place, BEHIND_ENTRIES):
            place.forget_payload()
            return False
        if place.at == at:
            self.beside += size
            self.data_at, self.data_result_at, self.data_index = self.part_at, self.result_at, self.index
            self.data_octets = 0
        return True
