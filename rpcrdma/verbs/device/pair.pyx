"""A queue pair: its making and its end, and the posting of what its Send queue has room for.

Owns :class:`QueuePair`. Imports the device, the Send queue's accounting, the chains and the libraries.

Identifiers
    A work request's is the sequence number of its piece, then ``INDEX_BITS`` of its place in the piece's chain. Those
    of Receives (see receives.pyx) have the highest bit.
"""

from libc.errno cimport errno
from libc.stdint cimport uint64_t
from libc.string cimport memset

from rpcrdma.verbs.device.chains cimport Chain
from rpcrdma.verbs.device.cm cimport Identifier
from rpcrdma.verbs.device.device cimport Device
from rpcrdma.verbs.device.pump cimport command_t
from rpcrdma.verbs.device.queue cimport Piece, SendQueue
from rpcrdma.verbs.device.verbs_api cimport (
    IBV_QPS_ERR,
    IBV_QPT_RC,
    IBV_QP_STATE,
    IBV_SEND_SIGNALED,
    ibv_modify_qp,
    ibv_qp,
    ibv_qp_attr,
    ibv_send_wr,
    ibv_srq,
    rdma_cm_id,
    rdma_create_qp,
    rdma_destroy_qp,
)

from rpcrdma.log_limits import limited_logger
from rpcrdma.verbs.device.errors import failure

log = limited_logger("rpcrdma.verbs")


cdef class QueuePair:
    """A queue pair, its part of a completion queue, and its Send queue."""

    cdef int open(self, int depth, int receive_depth, int max_reads, ibv_srq *srq, object made) except -1:
        """Have it created; ``made`` takes the outcome. Raises OSError, with nothing held."""
        self.queue = SendQueue(depth, max_reads)
        self.reserved = depth + receive_depth
        self.completions = self.device.reserve(self.reserved)
        memset(&self.attributes, 0, sizeof(self.attributes))
        self.attributes.send_cq = self.attributes.recv_cq = self.completions.cq
        self.attributes.qp_type = IBV_QPT_RC
        self.attributes.srq = srq
        self.attributes.cap.max_send_wr = depth
        self.attributes.cap.max_recv_wr = receive_depth
        self.attributes.cap.max_send_sge = self.device.max_segments
        self.attributes.cap.max_recv_sge = 1
        self.device.control.submit(made, self.create)
        return 0

    def create(self):
        """Create the queue pair, on the control thread."""
        cdef rdma_cm_id *cm_id = self.identifier.id
        cdef int result
        if cm_id == NULL:
            raise OSError("the connection request is gone")
        with nogil:
            result = rdma_create_qp(cm_id, self.device.pd, &self.attributes)
        if result:
            raise failure("rdma_create_qp", self.device.name, errno)
        self.pair = cm_id.qp
        self.number = self.pair.qp_num

    def destroy(self):
        """Destroy the queue pair, if it was created, on the control thread."""
        cdef rdma_cm_id *cm_id = self.identifier.id
        if self.pair == NULL:
            return
        with nogil:
            rdma_destroy_qp(cm_id)

    def break_off(self):
        """Disconnect, and bring the queue pair into the error state, on the control thread."""
        cdef ibv_qp_attr attributes
        cdef ibv_qp *pair = self.pair
        self.identifier.disconnect_now()
        memset(&attributes, 0, sizeof(attributes))
        attributes.qp_state = IBV_QPS_ERR
        with nogil:
            ibv_modify_qp(pair, &attributes, IBV_QP_STATE)

    cdef int flush(self) except -1:
        """Post what there is room for, as one chain, with one doorbell."""
        cdef ibv_send_wr *head = NULL
        cdef ibv_send_wr *tail = NULL
        cdef ibv_send_wr *request = NULL
        cdef command_t command
        cdef Piece *piece
        cdef uint64_t sequence
        cdef int i
        cdef unsigned int others = 0
        if self.device.iwarp and self.device.software:
            # siw sends an unsignalled request's data out of our buffer without a copy, and completes the signalled one
            # behind it once TCP has taken them: the buffer would be reused while TCP still sends from it.
            others = IBV_SEND_SIGNALED
        while True:
            piece = self.queue.take()
            if piece == NULL:
                break
            sequence = self.queue.posted - 1
            for i in range(piece.first, piece.first + piece.count):
                request = (<Chain>piece.job).requests + i
                request.wr_id = sequence << INDEX_BITS | <uint64_t>(i & ((1 << INDEX_BITS) - 1))
                request.send_flags = others
                request.next = request + 1
            request.send_flags = IBV_SEND_SIGNALED
            request.next = NULL
            if tail == NULL:
                head = (<Chain>piece.job).requests + piece.first
            else:
                tail.next = (<Chain>piece.job).requests + piece.first
            tail = request
            self.pieces += 1
        if head == NULL:
            return 0
        self.doorbells += 1
        command.pair = self.pair
        command.number = self.number
        command.watched = self.completions.watched
        command.first = head
        command.broken = &self.broken
        self.device.pump.post(&command)
        return 0

    cdef int close(self, object on_gone) except -1:
        """Have it destroyed, after what was begun with it. Then nothing is the device's, what it had completed is noted
        with its target, and ``on_gone`` is called. Nothing may be posted any more."""
        self.on_gone = on_gone
        if self.pair != NULL:
            self.device.pump.forget(self.pair)
        self.device.control.submit(self.destroyed, self.destroy)
        return 0

    def destroyed(self, result, error):
        """It is gone from the device."""
        if error is not None:
            log.error("%s: a queue pair could not be destroyed: %s", self.device.name, error)
        if self.pair != NULL:
            self.pair = NULL
            # What it left in the queue would be taken for that of the next queue pair of this number, which may exist by
            # now, but has nothing posted yet.
            self.device.pump.drain(self.completions.watched)
            self.device.dispatch()
            self.device.schedule_turn()
            self.device.targets.pop(self.number, None)
        self.device.give_back(self.completions, self.reserved)
        on_gone, self.on_gone = self.on_gone, None
        on_gone()


cdef QueuePair make_queue_pair(Device device, Identifier identifier):
    """A queue pair, to be opened."""
    cdef QueuePair made = QueuePair.__new__(QueuePair)
    made.device = device
    made.identifier = identifier
    return made
