"""Operations of a COMPOUND that have no native body: each is an errand.

Owns :class:`PythonOperations`; imports :mod:`nfsd.v4.sequence`, and :mod:`nfsd.v4.compound`, which carries them out. Their
arguments are decoded here, as they stand in the message and its chunks; their results are put into the reply with the data
that they have brought.
"""

from libc.stdint cimport uint8_t, uint32_t

from nfsd.vfs.native_files cimport no
from nfsd.wire.nfs4 cimport (
    NFS4ERR_BADXDR, OP_LOOKUP, OP_LOOKUPP, OP_OPEN, OP_PUTFH, OP_PUTPUBFH, OP_PUTROOTFH, OP_RESTOREFH, OP_SAVEFH,
    OP_SECINFO, OP_SECINFO_NO_NAME,
)
from rpcrdma.declined cimport PROCEDURE, SIZE
from rpcrdma.place cimport ANSWERED, DECLINED, load32, store32
from rpcrdma.rpc.work cimport Work

from nfsd.protocol import nfs4 as declared
from nfsd.v4 import compound as python
from nfsd.v4.arrivals import Barred
from nfsd.v4.operations import TABLE
from rpcrdma.xdr import XdrError


cdef class InPython(Errand):
    def __del__(self):
        if self.coroutine is not None:
            self.coroutine.close()
        if self.context is not None:
            self.context.call.results.truncate(0)  # nobody wants its data any more


cdef class PythonOperations(Nfs4Sequence):
    cdef int in_python(self, Arguments *arguments, Place place) except -1:
        """Carry out an operation that has no native body."""
        cdef Work brought = self.brought_here()
        cdef InPython errand
        if brought is not None:
            return self.have_done(<InPython?>brought, arguments, place)
        self.files.why = PROCEDURE
        if self.general is None:
            return DECLINED
        row, given, decoder = TABLE[self.number], (), self.general.decoder(arguments.at)
        if row.arguments is not None:
            try:
                given = (decoder.decode(row.arguments),)
            except XdrError:
                return self.fail(NFS4ERR_BADXDR, place)
            if self.chunked and decoder.skipped_chunk:
                # RFC 8166 section 4.5.2: it took something out that may not be, or put it where nothing is wanted.
                return self.fail(NFS4ERR_BADXDR, place)
        self.files.pause()
        context = self.context(place)
        errand = InPython(python.carry_out(context, row, *given))
        errand.context, errand.decoder, errand.issued = context, decoder, self.server.engine.writes_issued
        return self.wait_for(errand, None)

    cdef bint is_barred(self, const uint8_t *at, const uint8_t *end) noexcept:
        """Whether a put filehandle operation fails, as the caller must be known otherwise at what is now the current file. It
        does not if nothing more is done with that, and before operations that see to it themselves (RFC 8881 section
        2.6.3.1.1). ``at``: where the operations behind it stand."""
        cdef size_t index = self.index + 1
        cdef uint32_t number
        if type(self.pseudo) is not Barred:
            return False
        while index < self.operations and end - at >= 4:
            number = load32(at)
            if number != OP_SAVEFH:
                return not (
                    number == OP_LOOKUP or number == OP_LOOKUPP or number == OP_OPEN or number == OP_SECINFO
                    or number == OP_SECINFO_NO_NAME or number == OP_PUTFH or number == OP_PUTPUBFH or number == OP_PUTROOTFH
                    or number == OP_RESTOREFH
                )
            at += 4
            index += 1
        return False

    cdef object context(self, Place place):
        """What an operation in Python knows of its COMPOUND."""
        c = python.Compound(self.server, self.general.call, self.minor)
        c.operations, c.index = self.operations, self.index
        c.room = <ssize_t>self.limit - <ssize_t>self.size(place) - 4  # its number stands before the result
        c.call.holding = self.general.holds()
        c.current = self.current if self.current is not None else self.pseudo
        c.saved = self.saved if self.saved is not None else self.saved_pseudo
        c.foreign, c.saved_foreign = self.foreign, self.saved_foreign
        if self.stateid is not None:
            c.stateid = self.stateid
        if self.saved_stateid is not None:
            c.saved_stateid = self.saved_stateid
        c.opener = self.opened_by
        if self.session is not None:
            c.session = self.session
            c.sequence = declared.SEQUENCE4args(
                self.session.sessionid, self.sequenceid, self.slotid, self.highest_slotid, self.cachethis
            )
        return c

    cdef int have_done(self, InPython errand, Arguments *arguments, Place place) except -1:
        """An operation has been carried out in Python, or has failed there."""
        c = errand.context
        results = c.call.results
        self.changed |= self.server.engine.writes_issued != errand.issued
        if errand.error is not None:
            return self.not_brought(errand, place)
        if self.size(place) + 4 + <size_t>results.size > self.limit:
            return self.fail_too_big(place)
        place.at = store32(place.at, self.number)
        if not self.put(results.getbuffer(), results.payloads, place):
            self.brought = errand
            return no(self.files, SIZE)
        errand.context = None
        self.failure = errand.result
        arguments.at = self.general.decoded(errand.decoder)
        self.bulk_wanted = place.bulk_at if place.bulk != NULL else NULL
        self.seen = False
        if c.moved:
            self.arrived((c.current, c.there))
            if self.is_barred(arguments.at, arguments.end):
                return self.fail(self.pseudo.refused(), place)
        if c.after:
            self.after = [*(self.after or ()), *c.after]
        return ANSWERED
