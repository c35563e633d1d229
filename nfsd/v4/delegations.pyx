"""DELEGRETURN and GET_DIR_DELEGATION in COMPOUNDs (RFC 8881 sections 18.6, 18.39; RFC 7530 section 16.8).

Owns the decoding and encoding, and :class:`Nfs4Delegations`. Imports :mod:`nfsd.v4.opens`, and :mod:`nfsd.v4.giving_directories`,
which has what GET_DIR_DELEGATION does. A delegation that comes back waits for nothing.
"""

from libc.stdint cimport uint8_t, uint32_t

from nfsd.v4.fattr cimport store_mask
from nfsd.v4.native_compound cimport left, room
from nfsd.v4.owners cimport store_stateid
from nfsd.vfs.native_files cimport no
from nfsd.wire.nfs4 cimport (
    GDD4_OK, GDD4_UNAVAIL, NFS4ERR_BADXDR, NFS4ERR_NOTDIR, NFS4_OK, OP_DELEGRETURN, OP_GET_DIR_DELEGATION, stateid4_SIZE,
)
from rpcrdma.declined cimport SIZE
from rpcrdma.octets cimport array_t, load32, load_array, store32, store64
from rpcrdma.place cimport ANSWERED, DECLINED, WAITS
from rpcrdma.rpc.work cimport Errand

from nfsd.protocol.nfs4_types import BITMAP_LIMIT as _BITMAP_LIMIT
from nfsd.v4.giving_directories import give_directory
from nfsd.vfs.types import FileType

cdef enum:
    NOTICE = 12             # octets of an attr_notice4
    # status, gddrnf_status; cookieverf, stateid, notifications of one word, no attributes of entries and of the directory.
    GIVEN_RESULT = 4 + 8 + 8 + stateid4_SIZE + 8 + 4 + 4

cdef uint32_t BITMAP_LIMIT = _BITMAP_LIMIT
cdef object DIR = FileType.DIR


cdef const uint8_t *load_wish(const uint8_t *at, const uint8_t *end, uint32_t *notifications) noexcept nogil:
    """GET_DIR_DELEGATION4args, of which the first word of the notifications asked for is wanted: there are no others. What
    is behind them, or NULL: they do not decode."""
    cdef array_t words
    if end - at < 4 or load32(at) > 1:
        return NULL
    at = load_array(at + 4, end, BITMAP_LIMIT, 4, &words)
    if at == NULL or end - at < 2 * NOTICE:
        return NULL
    notifications[0] = load32(words.octets) if words.count else 0
    at = load_array(at + 2 * NOTICE, end, BITMAP_LIMIT, 4, &words)
    if at == NULL:
        return NULL
    return load_array(at, end, BITMAP_LIMIT, 4, &words)


cdef class Nfs4Delegations(Nfs4Opens):
    cdef int delegreturn(self, Arguments *arguments, Place place) except -1:
        """The client gives a delegation back. Raises what its stateid deserves."""
        cdef const uint8_t *stateid = arguments.at
        if left(arguments) < stateid4_SIZE:
            return self.fail(NFS4ERR_BADXDR, place)
        if not room(place, 8):
            return no(self.files, SIZE)
        self.files.pause()  # Python code of the server runs as the server
        table = self.delegations
        table.give_back(table.find(self.given(stateid), self.client, self.current.key))
        arguments.at += stateid4_SIZE
        place.at = store32(store32(place.at, OP_DELEGRETURN), NFS4_OK)
        return ANSWERED

    cdef int get_dir_delegation(self, Arguments *arguments, Place place) except -1:
        """A delegation of a directory. Others' changes of it are told, if the holder wants that, or recall it. What is not
        available is not an error, for COMPOUNDs of Linux clients go on behind this operation; nor is it remembered."""
        cdef Errand errand = self.brought_here()
        cdef uint32_t words[1]
        cdef const uint8_t *behind = load_wish(arguments.at, arguments.end, words)
        if behind == NULL:
            return self.fail(NFS4ERR_BADXDR, place)
        if errand is None:
            if not room(place, GIVEN_RESULT):
                return no(self.files, SIZE)
            if self.current is None:  # in the pseudo file system
                arguments.at = behind
                return self.unavailable(place)
            if self.current.type is not DIR:
                return self.fail(NFS4ERR_NOTDIR, place)
            if not self.may_wait():
                return DECLINED
            errand = Errand(give_directory(
                self.server, self.client, self.standing.credential, self.current,
                (self.session.sessionid, self.slotid, self.sequenceid), words[0],
            ))
            if self.begin(errand) == WAITS:
                return WAITS
        error, errand.error = errand.error, None  # its traceback leads back to the errand
        if error is not None:
            raise error
        arguments.at = behind
        self.seen = False
        if errand.result is None:
            return self.unavailable(place)
        given, words[0] = errand.result
        place.at = store32(store32(store32(place.at, OP_GET_DIR_DELEGATION), NFS4_OK), GDD4_OK)
        place.at = store_stateid(store64(place.at, 0), given)
        place.at = store_mask(place.at, words, 1)
        place.at = store64(place.at, 0)  # nothing of the attributes of entries, nor of the directory's
        return ANSWERED

    cdef int unavailable(self, Place place) except -1:
        """There is no delegation now, and no word will be sent when there is."""
        place.at = store32(store32(store32(place.at, OP_GET_DIR_DELEGATION), NFS4_OK), GDD4_UNAVAIL)
        place.at = store32(place.at, False)
        return ANSWERED
