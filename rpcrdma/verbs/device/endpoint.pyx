"""One connection: its queue pair, what is posted on it, and the ways it ends.

Owns :class:`Endpoint`, which implements ``rpcrdma.verbs.interface.Endpoint``. Imports its siblings and the interface.

Turns
    Completions are noted while their queue is polled; then each queue pair that got some has its turn: completions,
    then messages are handed up, and what the owner posted meanwhile leaves in one chain, with one doorbell. What is
    posted at other times leaves at the end of the loop's iteration, in the same way.

Ends
    OPEN      works. DRAINING: close() was called; what is posted leaves first, in ``close_timeout``.
    ENDING    the queue pair is in the error state and disconnected. The device flushes what was posted, and when it has
              given all of it back (or after ``flush_timeout``) the queue pair is destroyed.
    CLOSED    nothing is the device's any more: only now are tokens reported and buffers released, and the owner told.
    Nothing is reported from inside a method that the owner calls.
"""

import logging
import os

from libc.stdint cimport uint32_t, uint64_t, uintptr_t
from libc.string cimport memset

from rpcrdma.memory cimport Lease
from rpcrdma.verbs.device.chains cimport Chain, chain_of_post, chain_of_reads
from rpcrdma.verbs.device.cm cimport Identifier
from rpcrdma.verbs.device.completions cimport CompletionQueue, Target
from rpcrdma.verbs.device.device cimport Device
from rpcrdma.verbs.device.pump cimport command_t
from rpcrdma.verbs.device.queue cimport Job, Piece, SendQueue
from rpcrdma.verbs.device.registrations cimport Registration
from rpcrdma.verbs.device.verbs_api cimport (
    IBV_ACCESS_LOCAL_WRITE,
    IBV_ACCESS_REMOTE_READ,
    IBV_ACCESS_REMOTE_WRITE,
    IBV_QPS_ERR,
    IBV_QPT_RC,
    IBV_QP_STATE,
    IBV_SEND_SIGNALED,
    IBV_WC_REM_ACCESS_ERR,
    IBV_WC_REM_INV_REQ_ERR,
    IBV_WC_REM_OP_ERR,
    IBV_WC_SUCCESS,
    IBV_WC_WITH_INV,
    IBV_WC_WR_FLUSH_ERR,
    IBV_WR_SEND,
    IBV_WR_SEND_WITH_INV,
    ibv_modify_qp,
    ibv_post_recv,
    ibv_qp,
    ibv_qp_attr,
    ibv_qp_init_attr,
    ibv_recv_wr,
    ibv_send_wr,
    ibv_sge,
    ibv_wc,
    ibv_wc_status_str,
    rdma_cm_id,
    rdma_create_qp,
    rdma_destroy_qp,
)

from libc.errno cimport errno

from rpcrdma.verbs.device.errors import failure
from rpcrdma.verbs.interface import Received, RemoteAccessError


cdef enum:
    OPEN = 0
    DRAINING = 1
    ENDING = 2
    CLOSED = 3
    RECEIVES_AT_ONCE = 32
    SPARE_SLOTS = 8
    INDEX_BITS = 16

cdef uint64_t RECEIVE = <uint64_t>1 << 63
"""Marks the identifiers of Receives: a failed completion says nothing else about what it was."""

log = logging.getLogger("rpcrdma.verbs")
new_tuple = tuple.__new__


cdef class Endpoint(Target):
    """A connection's queue pair."""

    def __init__(
        self,
        Device device,
        Identifier identifier,
        handler,
        options,
        list receives,
        int max_reads,
        on_closed,
        bint may_share=False,
    ):
        cdef ibv_qp_init_attr attributes
        cdef rdma_cm_id *cm_id = identifier.id
        cdef int depth = min(options.send_depth, device.max_requests)
        cdef int receive_depth = min(len(receives) + SPARE_SLOTS, device.max_requests)
        if device.failed:
            raise OSError(f"{device.name} is gone")
        self.device = device
        self.identifier = identifier
        self.handler = handler
        self.options = options
        self.on_closed = on_closed
        self.peer_address, self.peer_port = identifier.peer
        self.local_address = identifier.local[0]
        self.max_reads = min(max_reads, device.max_outbound_reads)
        self.messages = []
        self.finished = []
        self.refused = []
        self.unposted = []
        self.spare = []
        self.flushed = []
        self.registrations = {}
        self.state = OPEN
        if may_share and receives:
            self.shared = device.shared_of((<Lease>receives[0]).capacity)
            if self.shared is not None:
                receive_depth = 0
        self.reserved = depth + receive_depth
        self.completions = device.reserve(self.reserved)
        memset(&attributes, 0, sizeof(attributes))
        attributes.send_cq = attributes.recv_cq = self.completions.cq
        attributes.qp_type = IBV_QPT_RC
        attributes.cap.max_send_wr = depth
        attributes.cap.max_recv_wr = receive_depth
        attributes.cap.max_send_sge = device.max_segments
        attributes.cap.max_recv_sge = 1
        if self.shared is not None:
            attributes.srq = self.shared.srq
        self.attributes = attributes
        try:
            device.control.call(self.create_pair)
        except BaseException:
            device.give_back(self.completions, self.reserved)
            raise
        self.pair = cm_id.qp
        self.number = self.pair.qp_num
        device.targets[self.number] = self
        self.queue = SendQueue(depth, self.max_reads)
        self.slots = [None] * receive_depth
        self.progress_at = device.loop.time()
        self.free_slots = list(range(receive_depth))
        try:
            if self.shared is not None:
                self.shared.post(receives, True)
            else:
                self.receive(receives)
        except BaseException:
            self.withdraw()
            raise
        identifier.owner = self

    def create_pair(self):
        """Create the queue pair, on the control thread."""
        cdef rdma_cm_id *cm_id = self.identifier.id
        cdef int result
        if cm_id == NULL:
            raise OSError("the connection request is gone")
        with nogil:
            result = rdma_create_qp(cm_id, self.device.pd, &self.attributes)
        if result:
            raise failure("rdma_create_qp", self.device.name, errno)

    def destroy_pair(self):
        """Destroy the queue pair, on the control thread."""
        cdef rdma_cm_id *cm_id = self.identifier.id
        with nogil:
            rdma_destroy_qp(cm_id)

    def break_pair(self):
        """Disconnect, and bring the queue pair into the error state, on the control thread."""
        cdef ibv_qp_attr attributes
        cdef ibv_qp *pair = self.pair
        self.identifier.disconnect()
        memset(&attributes, 0, sizeof(attributes))
        attributes.qp_state = IBV_QPS_ERR
        with nogil:
            ibv_modify_qp(pair, &attributes, IBV_QP_STATE)

    def __repr__(self):
        return f"<verbs Endpoint {self.device.name} {self.peer_address} port {self.peer_port}>"

    def withdraw(self):
        """Undo the making of an endpoint whose connection could not be had: the Receives are the caller's again."""
        self.state = CLOSED
        self.tear_down()

    def accepted(self, list receives):
        """The connection was accepted: the Receives it was made with are no longer the caller's."""
        cdef Lease lease
        if self.shared is not None:
            for lease in receives:
                lease.release()

    def set_max_reads(self, int max_reads):
        """What was negotiated, for a connection that was made before that was known. Nothing may be posted yet."""
        self.max_reads = min(max_reads, self.device.max_outbound_reads)
        self.queue = SendQueue(self.queue.depth, self.max_reads)

    # -- What the owner posts ------------------------------------------------------------------------------------

    def post_receives(self, leases):
        """Post Receive buffers; they are released at once when the connection has ended."""
        cdef Lease lease
        if self.state == ENDING or self.state == CLOSED:
            for lease in leases:
                lease.release()
            return
        try:
            if self.shared is not None:
                self.shared.post(list(leases), False)
            else:
                self.receive(list(leases))
        except OSError as problem:
            # Those that were not posted are spare, and go with the connection.
            self.device.loop.call_soon(self.fail, str(problem))

    def post(self, writes, send, token):
        """Post RDMA Writes and then a Send as one chain with one signalled completion, reported with ``token``.

        On a connection that has ended or is being closed the token is reported with ok False, at the next turn.
        """
        cdef Chain chain
        if self.state != OPEN:
            self.refused.append(token)
        else:
            try:
                chain = chain_of_post(self.device, writes, send, token)
            except OSError as problem:
                self.refused.append(token)
                self.device.loop.call_soon(self.fail, str(problem))
            else:
                self.queue.submit(chain)
        if not self.in_turn:
            self.device.schedule(self)

    def post_reads(self, reads, token):
        """Post RDMA Reads as one chain with one signalled completion."""
        cdef Chain chain
        if self.state != OPEN or self.max_reads == 0:
            self.refused.append(token)
        else:
            try:
                chain = chain_of_reads(self.device, reads, token)
            except OSError as problem:
                self.refused.append(token)
                self.device.loop.call_soon(self.fail, str(problem))
            else:
                self.queue.submit(chain)
        if not self.in_turn:
            self.device.schedule(self)

    def register(self, view, *, remote_read=False, remote_write=False):
        """Expose ``view`` to the peer. Returns its (handle, offset of the first octet). Raises OSError."""
        cdef Registration registration
        cdef unsigned char[::1] octets = view
        cdef int access = IBV_ACCESS_LOCAL_WRITE
        if self.state == CLOSED:
            raise ConnectionError("the connection is gone")
        if remote_read:
            access |= IBV_ACCESS_REMOTE_READ
        if remote_write:
            access |= IBV_ACCESS_REMOTE_WRITE
        registration = self.device.memory.register(<uintptr_t>&octets[0], octets.shape[0], access, view)
        self.registrations[registration.rkey] = registration
        return registration.rkey, <uintptr_t>&octets[0]

    def invalidate(self, handle):
        """Withdraw a registration; unknown or already invalidated handles raise KeyError."""
        (<Registration>self.registrations.pop(handle)).withdraw()

    def close(self, *, abort=False):
        """Disconnect: after what is posted has left (bounded in time), or at once with ``abort``."""
        if abort:
            if self.state == OPEN or self.state == DRAINING:
                self.device.loop.call_soon(self.fail, self.reason or "aborted by this side")
        elif self.state == OPEN:
            self.state = DRAINING
            self.reason = "closed by this side"
            self.close_timer = self.device.loop.call_later(self.options.close_timeout, self.fail, self.reason)
            if not self.in_turn:
                self.device.schedule(self)

    def check(self, double now):
        """The watchdog: end the connection when none of its posted work has completed for too long.

        InfiniBand and RoCE give up by themselves, after their retries; iWARP leaves it to TCP, for a quarter of an hour.
        """
        if self.state == ENDING or self.state == CLOSED:
            return
        if self.queue.idle or self.queue.completed != self.progress:
            self.progress = self.queue.completed
            self.progress_at = now
        elif now - self.progress_at >= self.options.stall_timeout:
            log.warning("%s: no work has completed for %.0f s; the connection is cut", self, now - self.progress_at)
            self.fail(f"no work has completed for {now - self.progress_at:.0f} s")

    def statistics(self):
        """The connection's counters by name."""
        return {"sends": self.sends, "doorbells": self.doorbells, "receives": self.receives}

    # -- Receives ------------------------------------------------------------------------------------------------

    cdef int receive(self, list leases) except -1:
        """Post Receives. Those there is no slot for wait. Raises OSError; what was not posted is spare then."""
        cdef ibv_recv_wr requests[RECEIVES_AT_ONCE]
        cdef ibv_sge segments[RECEIVES_AT_ONCE]
        cdef ibv_recv_wr *bad
        cdef Lease lease
        cdef uint32_t key = 0
        cdef int count, error, slot
        self.spare.extend(leases)
        while self.spare and self.free_slots:
            count = 0
            while count < RECEIVES_AT_ONCE and self.spare and self.free_slots:
                lease = <Lease>self.spare[len(self.spare) - 1]
                if not self.device.memory.key_of(lease.address, lease.capacity, &key):
                    raise OSError(f"{self.device.name}: a Receive outside of the registered memory")
                self.spare.pop()
                slot = self.free_slots.pop()
                self.slots[slot] = lease
                segments[count].addr = lease.address
                segments[count].length = <uint32_t>lease.capacity
                segments[count].lkey = key
                requests[count].wr_id = RECEIVE | <uint64_t>slot
                requests[count].sg_list = segments + count
                requests[count].num_sge = 1
                requests[count].next = NULL
                if count:
                    requests[count - 1].next = requests + count
                count += 1
            bad = NULL
            error = ibv_post_recv(self.pair, requests, &bad)
            self.posted_receives += count
            if error:
                while bad != NULL:
                    slot = <int>(bad.wr_id & 0xFFFFFFFF)
                    self.spare.append(self.slots[slot])
                    self.slots[slot] = None
                    self.free_slots.append(slot)
                    self.posted_receives -= 1
                    bad = bad.next
                raise failure("ibv_post_recv", self.device.name, error)
        return 0

    # -- Completions ---------------------------------------------------------------------------------------------

    cdef int take(self, ibv_wc *completion) except -1:
        """Note a completion."""
        cdef Lease lease
        cdef Piece *piece
        cdef Job job
        cdef uint64_t sequence
        cdef int slot, index
        cdef list over
        cdef object invalidated = None
        if completion.wr_id & RECEIVE:
            slot = <int>(completion.wr_id & 0xFFFFFFFF)
            if self.shared is not None:
                lease = self.shared.take(slot)
            else:
                lease = <Lease>self.slots[slot]
                self.slots[slot] = None
                self.free_slots.append(slot)
                self.posted_receives -= 1
            if completion.status == IBV_WC_SUCCESS and (self.state == OPEN or self.state == DRAINING):
                if completion.wc_flags & IBV_WC_WITH_INV:
                    invalidated = completion.invalidated_rkey
                    self.registrations.pop(invalidated, None)
                self.receives += 1
                self.messages.append(new_tuple(Received, (lease, completion.byte_len, invalidated)))
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
        over = []
        self.queue.finish(sequence, completion.status != IBV_WC_SUCCESS, over)
        for job in over:
            self.finished.append((job, not self.errored))
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

    cdef int turn(self) except -1:
        """Hand up what was noted, post what comes of it, and see how an end goes on."""
        if self.state == CLOSED:
            if self.refused:
                self.deliver()
            return 0
        self.in_turn = True
        try:
            self.deliver()
            if self.state == OPEN or self.state == DRAINING:
                if self.errored:
                    self.fail(self.reason or "the connection broke")
                else:
                    self.flush()
                    if self.spare and self.free_slots:
                        try:
                            self.receive([])
                        except OSError as problem:
                            self.fail(str(problem))
            if self.state == DRAINING and self.queue.idle:
                self.fail(self.reason)
        finally:
            self.in_turn = False
        if self.state == ENDING:
            self.settle()
        elif self.refused:
            self.device.schedule(self)
        return 0

    cdef int deliver(self) except -1:
        """Hand over completions, then messages as one batch."""
        cdef list finished, messages, refused
        cdef Chain chain
        if self.finished:
            finished = self.finished
            self.finished = []
            for job, ok in finished:
                chain = <Chain>job
                chain.release()
                self.report(chain.token, ok)
        if self.refused:
            refused = self.refused
            self.refused = []
            for token in refused:
                self.report(token, False)
        if self.messages:
            messages = self.messages
            self.messages = []
            try:
                self.handler.received(messages)
            except Exception:
                self.handler_failed()
        return 0

    cdef int report(self, object token, bint ok) except -1:
        try:
            self.handler.completed(token, ok)
        except Exception:
            self.handler_failed()
        return 0

    cdef int handler_failed(self) except -1:
        """Our own mistake costs this connection, and is logged."""
        log.exception("%s: the connection's owner failed; the connection is closed", self)
        self.close(abort=True)
        return 0

    cdef int flush(self) except -1:
        """Post what there is room for, as one chain."""
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
            self.sends += 1
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

    cdef int take_refusal(self, uint64_t identifier, int error) except -1:
        """Nothing was posted from the work request of this identifier on."""
        # Reported at the end: earlier pieces of a job may still be the device's.
        self.queue.unpost(identifier >> INDEX_BITS, self.unposted)
        if not self.errored:
            self.errored = True
            self.reason = self.reason or str(failure("ibv_post_send", self.device.name, error))
        return 0

    # -- The end -------------------------------------------------------------------------------------------------

    def cm_event(self, event, status, request):
        """Take an event of RDMA-CM."""
        if event == "ESTABLISHED":
            log.debug("%s: established", self)
        elif event == "DISCONNECTED":
            self.fail("the peer closed the connection")
        elif event == "DEVICE_REMOVAL":
            self.device.fail("the device was removed", removed=True)
            self.fail(f"{self.device.name}: the device was removed")
        elif event == "ADDR_CHANGE":
            # The address moved to another device; only a new connection can follow it there.
            self.fail(f"{self.device.name}: the address is no longer this device's")
        elif event == "TIMEWAIT_EXIT":
            log.debug("%s: the queue pair's number may be used again", self)
        else:
            reason = os.strerror(-status) if -4096 < status < 0 else f"status {status}"
            self.fail(f"{self.device.name}: {event}: {reason}")

    def fail(self, reason):
        """End the connection. What is posted is flushed first."""
        if self.state == ENDING or self.state == CLOSED:
            return
        self.state = ENDING
        # The first failure of work says more than what it brought about.
        self.reason = self.reason if isinstance(self.reason, RemoteAccessError) else reason
        log.debug("%s: ends: %s", self, self.reason)
        if self.close_timer is not None:
            self.close_timer.cancel()
            self.close_timer = None
        self.device.control.call(self.break_pair)
        self.flush_timer = self.device.loop.call_later(self.options.flush_timeout, self.on_flush_timeout)
        if not self.in_turn:
            self.device.schedule(self)

    def on_flush_timeout(self):
        """The device has not given back everything; it will, when the queue pair is destroyed."""
        log.debug(
            "%s: %d Receives and %d pieces of work were not flushed",
            self, self.posted_receives, self.queue.posted - self.queue.completed,
        )
        self.finish()

    cdef int settle(self) except -1:
        """See whether the device has given everything back."""
        if self.finishing:
            return 0
        if self.device.failed or (self.posted_receives == 0 and self.queue.posted == self.queue.completed):
            self.finishing = True
            # Not from within the polling of the completion queue.
            self.device.loop.call_soon(self.finish)
        return 0

    cdef int tear_down(self) except -1:
        """Destroy the queue pair; from now on nothing is the device's."""
        if self.pair != NULL:
            self.device.pump.hold(self.pair)
            self.pair = NULL
            try:
                self.device.control.call(self.destroy_pair)
            finally:
                # What it left in the queue would be taken for that of the next queue pair of this number.
                self.device.pump.let_go(self.completions.watched)
            self.device.dispatch()
            self.device.schedule_turn()
            self.device.targets.pop(self.number, None)
            self.device.give_back(self.completions, self.reserved)
        return 0

    def finish(self):
        """The end: report every token, release every buffer, and tell the owner. Once only."""
        cdef Job job
        cdef Lease lease
        if self.state == CLOSED:
            return
        if self.flush_timer is not None:
            self.flush_timer.cancel()
            self.flush_timer = None
        self.tear_down()
        self.state = CLOSED
        self.identifier.destroy()
        for registration in self.registrations.values():
            (<Registration>registration).withdraw()
        self.registrations.clear()
        self.errored = True
        while self.queue.completed < self.queue.posted:
            job = self.queue.complete_one()
            if job is not None:
                self.finished.append((job, False))
        for job in self.unposted:
            self.finished.append((job, False))
        while True:
            job = self.queue.waiting()
            if job is None:
                break
            self.finished.append((job, False))
        self.in_turn = True
        try:
            for received in self.messages:
                (<Lease>received[0]).release()
            self.messages = []
            self.deliver()
            for held in self.slots + self.spare + self.flushed:
                if held is not None:
                    lease = <Lease>held
                    lease.release()
            self.slots = []
            self.spare = []
            self.flushed = []
            try:
                self.handler.disconnected(self.reason)
            except Exception:
                log.exception("%s: the connection's owner failed at its end", self)
        finally:
            self.in_turn = False
        if self.refused:
            self.device.schedule(self)
        log.debug("%s: closed: %s", self, self.reason)
        on_closed, self.on_closed = self.on_closed, None
        on_closed(self)
