"""What a device reports of a connection: noted while the completion queue is polled, handed up in the connection's turn.

Owns :class:`Reporter`, the half of an endpoint (:mod:`rpcrdma.verbs.device.endpoint`) that completions come to. Imports
its siblings below it and the interface. Nothing is posted here, except that a shared Receive goes back to its queue.
"""

from libc.stdint cimport uint64_t

from rpcrdma.memory cimport Lease
from rpcrdma.verbs.device.chains cimport Chain
from rpcrdma.verbs.device.completions cimport Target
from rpcrdma.verbs.device.pair cimport INDEX_BITS
from rpcrdma.verbs.device.queue cimport Job, Piece
from rpcrdma.verbs.device.receives cimport is_receive
from rpcrdma.verbs.device.verbs_api cimport (
    IBV_WC_REM_ACCESS_ERR,
    IBV_WC_REM_INV_REQ_ERR,
    IBV_WC_REM_OP_ERR,
    IBV_WC_SUCCESS,
    IBV_WC_WITH_INV,
    IBV_WC_WR_FLUSH_ERR,
    IBV_WR_SEND,
    IBV_WR_SEND_WITH_INV,
    ibv_wc,
    ibv_wc_status_str,
)

from rpcrdma.log_limits import limited_logger
from rpcrdma.verbs.device.errors import failure
from rpcrdma.verbs.interface import RemoteAccessError

NUDGE = object()
"""The token of a Read that is ours alone."""

log = limited_logger("rpcrdma.verbs")


cdef class Reporter(Target):
    """What has been noted of one connection."""

    def __cinit__(self):
        self.messages = []
        self.finished = []
        self.failed = []
        self.refused = []
        self.unposted = []
        self.flushed = []
        self.registrations = {}
        self.state = OPENING

    cdef int take(self, ibv_wc *completion) except -1:
        """Note a completion."""
        cdef Lease lease
        cdef Piece *piece
        cdef uint64_t sequence
        cdef int slot, index
        cdef object invalidated = None
        if is_receive(completion.wr_id):
            slot = <int>(completion.wr_id & 0xFFFFFFFF)
            lease = self.own.take(slot) if self.shared is None else self.shared.take(slot)
            if completion.status == IBV_WC_SUCCESS and (
                self.state == OPEN or self.state == DRAINING or self.state == OPENING
            ):
                if completion.wc_flags & IBV_WC_WITH_INV:
                    invalidated = completion.invalidated_rkey
                    self.registrations.pop(invalidated, None)
                self.receives += 1
                self.messages.append((lease, completion.byte_len, invalidated))
            elif self.shared is not None:
                self.shared.post([lease], False)
                if completion.status != IBV_WC_SUCCESS:
                    self.note_failure(completion, 0, None)
            else:
                # Released at the end; or it is the caller's again, when the connection does not come about.
                self.flushed.append(lease)
                if completion.status != IBV_WC_SUCCESS:
                    self.note_failure(completion, 0, None)
            return 0
        sequence = completion.wr_id >> INDEX_BITS
        index = <int>(completion.wr_id & ((1 << INDEX_BITS) - 1))
        if sequence < self.queue.completed or sequence >= self.queue.posted:
            return 0
        piece = self.queue.ring + sequence % self.queue.depth
        if completion.status != IBV_WC_SUCCESS:
            self.note_failure(completion, index, <Chain>piece.job)
        if index != (piece.first + piece.count - 1) & ((1 << INDEX_BITS) - 1):
            return 0
        self.queue.finish(
            sequence, completion.status != IBV_WC_SUCCESS, self.failed if self.errored else self.finished
        )
        return 0

    cdef int note_failure(self, ibv_wc *completion, int index, Chain chain) except -1:
        """The first failure is the reason of the end; what follows was flushed."""
        cdef int status = completion.status
        if self.errored:
            return 0
        self.errored = True
        if status == IBV_WC_WR_FLUSH_ERR:
            return 0
        text = (
            f"{self.device.name}: {ibv_wc_status_str(completion.status).decode()} "
            f"(vendor's code {completion.vendor_err:#x})"
        )
        if chain is not None and status in (IBV_WC_REM_ACCESS_ERR, IBV_WC_REM_INV_REQ_ERR, IBV_WC_REM_OP_ERR):
            handle = None
            if chain.requests[index].opcode not in (IBV_WR_SEND, IBV_WR_SEND_WITH_INV):
                handle = chain.requests[index].wr.rdma.rkey
                text = f"{text}, handle {handle:#x}"
            self.reason = RemoteAccessError(text, handle)
        else:
            self.reason = text
        log.warning("%s: %s", self, text)
        return 0

    cdef int take_refusal(self, uint64_t identifier, int error) except -1:
        """Nothing was posted from the work request of this identifier on."""
        # Reported at the end: earlier pieces of a job may still be the device's.
        self.queue.unpost(identifier >> INDEX_BITS, self.unposted)
        if not self.errored:
            self.errored = True
            self.reason = self.reason or str(failure("ibv_post_send", self.device.name, error))
        return 0

    cdef int deliver(self) except -1:
        """Hand over completions, then messages as one batch."""
        cdef list messages
        if self.finished:
            self.report(self.finished, True)
        if self.failed:
            self.report(self.failed, False)
        if self.refused:
            refused, self.refused = self.refused, []
            self.tell(self.handler, refused, False)
        if self.messages:
            messages = self.messages
            self.messages = []
            try:
                self.handler.received(messages)
            except Exception:
                self.handler_failed()
        return 0

    cdef int report(self, list over, bint ok) except -1:
        """Report jobs that are over; empties the list."""
        cdef Chain chain
        cdef list tokens = []
        for job in over:
            chain = <Chain>job
            chain.release()
            if chain.token is not NUDGE:
                tokens.append(chain.token)
        over.clear()
        return self.tell(self.handler, tokens, ok)

    cdef int give_up_work(self) except -1:
        """Nothing more is the device's: all work that has not completed is to be reported as failed."""
        cdef Job job
        self.errored = True
        while self.queue.completed < self.queue.posted:
            job = self.queue.complete_one()
            if job is not None:
                self.failed.append(job)
        self.failed.extend(self.unposted)
        while True:
            job = self.queue.waiting()
            if job is None:
                return 0
            self.failed.append(job)
