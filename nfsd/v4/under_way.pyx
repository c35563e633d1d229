# distutils: extra_compile_args = -O2
"""A COMPOUND that is under way natively: where it stands, and how it is put down and taken up (contract: ``under_way.pyi``).

Owns :class:`UnderWay`, from which :mod:`nfsd.v4.native_compound` derives. Imports :mod:`nfsd.v4.halfway` and
:mod:`rpcrdma.rpc.native`.

Between two operations a COMPOUND can be put down (:class:`~nfsd.v4.halfway.Halfway`): its slot, its current file, its results
so far. It is put down where an operation waits, and taken up again with that operation. Where one is declined it is handed
over to where there is more room (:mod:`rpcrdma.rpc.offers`), and goes on there. Nothing is done twice but a READ whose data
stand beside the results on a transport's own path: no operation behind it there changes anything or leaves its file, so that it
can be done again. A general call takes such data along.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from nfsd.state.records cimport Slot
from nfsd.v4.halfway cimport Halfway
from nfsd.vfs.native_files cimport Standing, no, standing_on
from rpcrdma.declined cimport MAY_WAIT, RARE, SIZE
from rpcrdma.place cimport ANSWERED, DECLINED, WAITS, Place
from rpcrdma.rpc.native_program cimport NativeProgram
from rpcrdma.rpc.offers cimport ReplyPlace
from rpcrdma.rpc.tally cimport Tally
from rpcrdma.rpc.work cimport Errand, Work

from nfsd.protocol import nfs4 as declared
from nfsd.v4.arrivals import learn
from nfsd.v4.errors import told

cdef enum:
    # Octets of results with which a COMPOUND may wait: where it goes on there may be no more room than this, for what stands
    # before them, for them, and for the result that an operation gives without looking for room again.
    LEAST_ROOM = 4096
    BEFORE = 88 + 96        # the longest header of a reply, and what protects results
    HELD = LEAST_ROOM - BEFORE - UNCHECKED_RESULT


cdef class Learning(Errand):
    """Finds out what the caller is on the exports of the current and the saved file."""


cdef class UnderWay(NativeProgram):
    cdef int take_up(self, Work brought) except -1:
        """Another COMPOUND is at hand. ``brought``: what it has waited for, or from where it goes on."""
        self.changed = self.going = self.done = self.ended = self.replayed = False
        self.part_at = self.data_at = NULL
        self.failure = self.refusal = 0
        self.number = self.shown
        self.files.why = RARE
        self.seen = False
        if brought is None:
            return 0
        self.begun = <Halfway?>brought.kept
        self.slot = self.begun.take_slot()
        self.turn, self.begun.turn = self.begun.turn, None
        self.after, self.begun.after = self.begun.after, None
        self.brought = None if type(brought) is Work else brought
        if self.begun.errand is not None:
            self.brought, self.begun.errand = self.begun.errand, None
        return 0

    cdef int put_away(self) except -1:
        """No COMPOUND is at hand."""
        self.brought = self.begun = None
        self.caller = self.general = None
        self.session = self.slot = self.client = None
        self.opened_by = self.turn = self.after = None
        self.current = self.saved = None
        self.pseudo = self.saved_pseudo = None
        self.standing = self.saved_standing = None
        self.stateid = self.saved_stateid = None
        self.foreign = self.saved_foreign = 0
        return 0

    cdef int tell(self) except -1:
        """The reply is on its way: callbacks about what it says would not overtake it."""
        after, self.after = self.after, None
        for action in after or ():
            action()
        return 0

    cdef int give_back(self) except -1:
        """The COMPOUND is declined: its request is to be begun by others, or to be gone on with from where it was."""
        if self.slot is None:
            return 0
        if self.begun is not None:
            self.begun.slot = self.slot
        else:
            self.slot.withdraw()
        return 0

    cdef Halfway halt(self, const uint8_t *arguments):
        """The COMPOUND as it stands before the present operation, or before the READ whose data stand beside the
        results."""
        cdef Halfway halfway = self.begun
        cdef size_t index = self.index
        cdef const uint8_t *at = self.part_at
        cdef uint8_t *behind = self.result_at
        if self.data_at != NULL:
            index, at, behind = self.data_index, self.data_at, self.data_result_at
            self.octets_read -= self.data_octets
        self.count(index)
        if halfway is None or halfway.index != index:
            halfway = Halfway.__new__(Halfway)
            halfway.index, halfway.offset = index, at - arguments
            halfway.results = PyBytes_FromStringAndSize(<char *>self.start, behind - self.start)
        halfway.failure = 0 if self.data_at != NULL else self.failure
        if self.general is not None:
            halfway.payloads, halfway.beside = self.general.set_aside(), self.beside
            halfway.chunks_used = self.general.used
        else:
            halfway.chunks_used = self.chunked and self.bulk_wanted == NULL
        halfway.current, halfway.stateid, halfway.standing = self.current, self.stateid, self.standing
        halfway.pseudo, halfway.foreign = self.pseudo, self.foreign
        halfway.saved, halfway.saved_stateid, halfway.saved_standing = self.saved, self.saved_stateid, self.saved_standing
        halfway.saved_pseudo, halfway.saved_foreign = self.saved_pseudo, self.saved_foreign
        halfway.opened_by, halfway.altered, halfway.going = self.opened_by, self.changed, self.going
        halfway.session, halfway.sequenceid = self.session, self.sequenceid
        halfway.slotid, halfway.highest_slotid = self.slotid, self.highest_slotid
        halfway.cachethis, halfway.room = self.cachethis, self.limit
        halfway.number, halfway.shown, halfway.tally = self.number, self.shown, self.tally
        halfway.errand = <Errand>self.brought if isinstance(self.brought, Errand) else None
        halfway.slot, self.slot = self.slot, None
        halfway.turn, self.turn = self.turn, None
        halfway.after, self.after = self.after, None
        return halfway

    cdef bint resume(self, const uint8_t *whole, Arguments *arguments, Place place) except -1:
        """Take up the COMPOUND where it stands. False: others do."""
        cdef Halfway begun = self.begun
        cdef size_t size = len(begun.results)
        self.index = begun.index
        self.part_at = arguments.at = whole + begun.offset
        self.failure, self.number = begun.failure, begun.number
        self.current, self.standing, self.stateid = begun.current, begun.standing, begun.stateid
        self.pseudo, self.foreign = begun.pseudo, begun.foreign
        self.saved_pseudo, self.saved_foreign = begun.saved_pseudo, begun.saved_foreign
        self.opened_by, self.changed, self.going = begun.opened_by, begun.altered, begun.going
        self.saved, self.saved_standing, self.saved_stateid = begun.saved, begun.saved_standing, begun.saved_stateid
        self.session, self.sequenceid = begun.session, begun.sequenceid
        self.client = None if begun.session is None else begun.session.client
        self.slotid, self.highest_slotid = begun.slotid, begun.highest_slotid
        self.cachethis, self.limit = begun.cachethis, begun.room
        self.counted, self.tally = begun.index, begun.tally
        if begun.index:
            self.shown = begun.shown
        self.octets_read = self.octets_written = 0
        self.start = self.result_at = place.at
        self.beside = begun.beside
        if self.general is not None:
            if begun.payloads is not None:
                self.general.take_back(begun.payloads)
                begun.payloads = None
            self.general.go_to_chunk(begun.chunks_used)
            self.bulk_wanted = place.bulk_at
        elif begun.chunks_used:
            self.bulk_wanted = NULL
        if not room(place, size):
            return no(self.files, SIZE)  # it is put down again as it is
        memcpy(place.at, <const uint8_t *>begun.results, size)
        self.result_at = place.at = place.at + size
        return True

    cdef bint same_standing(self) except -1:
        """See what the caller is on the exports of the current and the saved file by now. False: that takes time."""
        cdef Standing standing
        if self.current is not None:
            standing = self.files.standing(self.caller, self.current)
            if standing is None:
                return False
            self.standing = standing
        if self.saved is not None:
            self.saved_standing = self.files.standing(self.caller, self.saved)
            return self.saved_standing is not None
        return True

    cdef int learn(self) except -1:
        """WAITS, for what the caller is on the exports of the current and the saved file."""
        cdef uint64_t only = 0 if self.standing is None else self.standing.only
        caller = self.caller
        self.files.pause()
        return self.wait_for(
            Learning(learn(
                self.server, caller.transport, self.minor, caller.credential, self.current, self.saved, only=only
            )),
            None,
        )

    cdef uint32_t learned(self) except? 0xFFFFFFFF:
        """Take what :meth:`learn` has brought, if that is what the COMPOUND has waited for: NFS4_OK, or what the next
        operation fails with."""
        cdef Learning learning = <Learning>self.brought
        self.brought = None
        if learning.error is not None:
            return self.failed_in(learning)
        standing, saved = learning.result
        if standing is not None:
            self.standing = standing_on(self.current.export, standing[0], standing[1], standing[2], standing[3])
        if saved is not None:
            self.saved_standing = standing_on(self.saved.export, saved[0], saved[1], saved[2], saved[3])
        return 0

    cdef uint32_t failed_in(self, Errand errand) except 0:
        """What the present operation fails with, of which an errand has failed."""
        error, errand.error = errand.error, None  # its traceback leads back to the errand
        return <uint32_t>told(error, self.caller.transport)

    cdef bint hand_over(self, const uint8_t *arguments, Place place) except -1:
        """The present operation is declined: others go on from there. False: they begin anew, nothing has been done."""
        cdef Halfway halfway
        if self.part_at == NULL or (self.begun is None and self.index == 0):
            return False
        halfway = self.halt(arguments)
        if not place.pass_on(halfway, halfway.changed):
            self.slot = halfway.take_slot()
            return False
        return True

    cdef int held_up(self, const uint8_t *arguments, Place place) except -1:
        """An operation waits for :attr:`work`: the COMPOUND keeps its slot meanwhile."""
        if self.general is None and (self.begun is None or self.begun.index != self.index):
            if self.data_at != NULL or self.result_at - self.start > HELD:
                self.work = None
                return no(self.files, MAY_WAIT)
        self.work.kept = self.halt(arguments)
        if self.counts.weights[self.number & 127] >= self.counts.weights[self.shown & 127]:
            self.shown = self.number    # to who asks what is in flight
        return WAITS

    cdef object dismiss(self, Work work):
        cdef Halfway begun = work.kept
        if isinstance(work, Errand) and (<Errand>work).begun:
            begun.errand, work.kept = <Errand>work, None
        elif begun.turn is not None:
            # The operation is begun once more.
            begun.turn.abandon()
            begun.turn = None
        return begun

    cdef int give_up(self, Work work) except -1:
        cdef Slot slot = (<Halfway?>work.kept).take_slot()
        if slot is not None:
            slot.finish(None)
        return 0

    cdef int begin(self, Errand errand, bint changes=True) except -1:
        """Begin with what the operation may have to wait for. ANSWERED: it is over already; WAITS. For an operation that
        :meth:`may_wait`. One that ``changes`` nothing is of no use when the call has gone."""
        self.files.pause()  # Python code runs as the server
        if errand.begin(self.caller.peer_address):
            return ANSWERED
        self.going |= changes
        return self.wait_for(errand, None)

    cdef bint may_wait(self) except -1:
        """Whether the COMPOUND can be kept before the present operation."""
        return self.general is not None or self.result_at - self.start <= HELD or no(self.files, MAY_WAIT)

    cdef Work brought_here(self):
        """What has been brought for the present operation; None: nothing. It is handed over once."""
        cdef Work brought = self.brought
        self.brought = None
        return brought

    cdef void charge(self, Standing standing) noexcept:
        """The COMPOUND goes on where the caller is ``standing``. What has been done on another export is charged there."""
        cdef Tally tally = self.tally if self.standing is None else self.standing.tally
        if tally is None or tally is standing.tally:
            return
        self.leave()
        tally.left()

    cdef void leave(self) noexcept:
        """The COMPOUND goes to where nothing is counted, or on from there."""
        if self.standing is not None:
            self.tally = self.standing.tally
            self.tally.read += self.octets_read
            self.tally.written += self.octets_written
            self.octets_read = self.octets_written = 0
            self.standing = None

    # -- what is counted -----------------------------------------------------------------------------------------
    cdef void count(self, size_t operations) noexcept:
        """Count so many operations, but those that have been."""
        cdef size_t index
        cdef uint8_t number, weight = self.counts.weights[self.shown & 127] if self.counted else 0
        for index in range(self.counted, operations):
            number = self.numbers[index - self.counted]
            self.counts.calls[number] += 1
            if self.counts.weights[number] >= weight:
                weight = self.counts.weights[number]
                self.shown = number
        self.counted = operations
        if self.standing is not None:
            self.tally = self.standing.tally
            self.tally.read += self.octets_read
            self.tally.written += self.octets_written
            self.octets_read = self.octets_written = 0

    cdef int count_failure(self) except -1:
        if self.tally is not None:
            self.tally.errors += 1
        name = declared.nfs_opnum4(self.number).name.removeprefix("OP_")
        self.server.exports.usage.failed(4, name, declared.nfsstat4(self.failure).name.removeprefix("NFS4ERR_"))
        return 0
