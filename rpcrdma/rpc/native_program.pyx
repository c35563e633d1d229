"""Programs whose procedures are answered natively, and their calls that wait (contract: ``native_program.pyi``).

Owns :class:`NativeProgram`, which programs derive from, :class:`NativeVersion`, one on a connection, and :class:`Waiting`;
imports the vocabulary of :mod:`rpcrdma.rpc`. Who offers calls to them is :mod:`rpcrdma.rpc.native` and
:mod:`rpcrdma.rpc.offers`.
"""

from cython cimport freelist
from libc.stdint cimport uint8_t, uint32_t

from rpcrdma.declined cimport RARE, Declined, word
from rpcrdma.place cimport DECLINED, WAITS, Place, load32
from rpcrdma.rpc.callers cimport Caller
from rpcrdma.rpc.signed cimport Signed
from rpcrdma.rpc.tally cimport Counts, Latencies
from rpcrdma.rpc.work cimport Work


cdef class NativeProgram:
    def __cinit__(self, *args, **kwargs):
        self.latencies = Latencies()
        self.declined = Declined()
        self.waited = Declined()

    cdef int guards(self, uint32_t procedure, const uint8_t *arguments, size_t size) except -1:
        """For how long the replay cache knows a call."""
        return AFTERWARDS if (self.guarded >> procedure) & 1 else NEVER

    cdef int reason(self, uint32_t procedure, uint32_t *row) noexcept:
        """Why the present call is declined (:mod:`rpcrdma.declined`); ``row``: to be counted there."""
        return RARE

    cdef int answer(
        self, Caller caller, uint32_t procedure, const uint8_t *arguments, size_t size, Place place, Work brought
    ) except -1:
        """Write the results: ANSWERED. DECLINED: nothing has happened, or what has been passed on to ``place``. WAITS: for
        ``work``. ``brought``: what the call has waited for, a mere Work if it goes on from what was passed on, None when it
        is offered for the first time."""
        return DECLINED

    cdef void note(self, double seconds) noexcept:
        """Count the call at hand, which took so long."""
        self.latencies.note(self.shown, seconds)
        if self.tally is not None:
            self.tally.over(seconds)

    cdef int wait_for(self, Work work, Work earlier) except -1:
        """WAITS, for ``work``; ``earlier`` is what has been brought before."""
        work.earlier = earlier
        self.work = work
        return WAITS

    cdef object dismiss(self, Work work):
        """The call that has just been answered WAITS, for ``work``, cannot be kept: it is declined. What others go on from,
        or None: nothing has happened."""

    cdef int give_up(self, Work work) except -1:
        """What a call was to wait for could not be begun: it is answered SYSTEM_ERR, and never offered again."""
        return 0

    cdef int pause(self) except -1:
        return 0


@freelist(64)
cdef class Waiting:
    @property
    def transport(self):
        return self.caller.transport

    @property
    def label(self):
        return self.version.rows[self.procedure].label

    @property
    def number(self):
        return self.version.rows[self.procedure].number

    @property
    def why(self):
        return word(self.reason)

    cdef int told(self) except -1:
        """Take over what the program says of the call, and for what it waits."""
        cdef NativeProgram program = self.version.program
        self.work, program.work = program.work, None
        self.row = self.procedure
        self.reason = program.reason(self.procedure, &self.row)
        self.tally = program.tally
        return 0

    def __str__(self):
        row, transport = self.version.rows[self.procedure], self.caller.transport
        return (
            f"{transport.netid} {transport.peer_address} port {transport.peer_port} xid {self.xid:#010x} "
            f"{row.label[0]}v{row.label[1]} {row.label[2]}"
        )


cdef Waiting waiting_call(
    NativeVersion version, Caller caller, const uint8_t *message, uint32_t procedure, size_t offset, size_t end, bytes key,
    double since, Signed signed
):
    """A call that is to be kept."""
    cdef Waiting waiting = Waiting.__new__(Waiting)
    waiting.version, waiting.caller, waiting.xid = version, caller, load32(message)
    waiting.procedure, waiting.offset, waiting.end, waiting.key, waiting.since = procedure, offset, end, key, since
    waiting.signed = signed
    return waiting


cdef class NativeVersion:
    def __init__(self, NativeProgram program not None, uint32_t number, uint32_t version, list rows not None):
        cdef int procedure
        for procedure in range(64):
            if (program.procedures >> procedure) & 1 and not isinstance(rows[procedure], Counts):
                raise ValueError(f"procedure {procedure} has nothing to be counted in")
        self.program, self.number, self.version, self.rows = program, number, version, rows

    cdef int answered(self, uint32_t procedure, double seconds) except -1:
        """Count a call of a procedure that has been answered with success, after so long."""
        cdef Counts counts = self.rows[procedure]
        counts.calls += 1
        counts.native_calls += 1
        counts.seconds += seconds
        return 0
