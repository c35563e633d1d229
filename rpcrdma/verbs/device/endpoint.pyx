"""One connection: its queue pair, what is posted on it, and the ways it ends.

Owns :class:`Endpoint`, which implements ``rpcrdma.verbs.interface.Endpoint``. Imports its siblings and the interface; what
completions come to is :class:`rpcrdma.verbs.device.reports.Reporter`, of which this is the part that posts, and ends.

Turns
    Completions are noted while their queue is polled; then each queue pair that got some has its turn: completions,
    then messages are handed up, and what the owner posted meanwhile leaves in one chain, with one doorbell. What is
    posted at other times leaves at the end of the loop's iteration, in the same way.

Ends
    OPENING   the queue pair is being made, or the connection: the owner may post already, but nothing leaves, and what
              arrives waits. What would end the connection does so when it is open. The device's commands take their
              time, and the loop does not wait for them (:mod:`rpcrdma.verbs.device.control`).
    OPEN      works. DRAINING: close() was called; what is posted leaves first, in ``close_timeout``.
    ENDING    the queue pair is in the error state and disconnected. The device flushes what was posted, and when it has
              given all of it back (or after ``flush_timeout``) the queue pair is destroyed.
    CLOSED    nothing is the device's any more: only now are tokens reported and buffers released, and the owner told.
    Nothing is reported from inside a method that the owner calls.
"""

import os

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint32_t, uint64_t, uintptr_t

from rpcrdma.memory cimport Lease
from rpcrdma.verbs.device.chains cimport (
    Chain,
    chain_of_fetch,
    chain_of_nothing,
    chain_of_post,
    chain_of_reads,
    chain_of_reply,
)
from rpcrdma.verbs.device.cm cimport Identifier
from rpcrdma.verbs.device.device cimport Device
from rpcrdma.verbs.device.pair cimport make_queue_pair
from rpcrdma.verbs.device.queue cimport SendQueue
from rpcrdma.verbs.device.receives cimport Receives
from rpcrdma.verbs.device.registrations cimport Registration
from rpcrdma.verbs.device.reports cimport CLOSED, DRAINING, ENDING, OPEN, OPENING, Reporter
from rpcrdma.verbs.device.verbs_api cimport (
    IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE, ibv_srq,
)
from rpcrdma.verbs.native cimport Fetch, Target as Remote

from rpcrdma.firewall import contain
from rpcrdma.log_limits import limited_logger
from rpcrdma.memory import OutOfMemory
from rpcrdma.verbs.device.overlooked import unread
from rpcrdma.verbs.device.reports import NUDGE
from rpcrdma.verbs.interface import RemoteAccessError
from rpcrdma.verbs.native import ANSWERED


cdef enum:
    SPARE_SLOTS = 8

cdef double OVERLOOKED_AFTER = 0.1
"""Seconds after which a first message that siw has had, and has not handed over, was overlooked by it."""

log = limited_logger("rpcrdma.verbs")


cdef class Endpoint(Reporter):
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
        on_made,
        bint may_share=False,
        int most_receives=0,
    ):
        cdef int depth = min(options.send_depth, device.max_requests)
        cdef int receive_depth = min(max(<int>len(receives), most_receives) + SPARE_SLOTS, device.max_requests)
        cdef ibv_srq *srq = NULL
        if device.failed:
            raise OSError(f"{device.name} is gone")
        self.device = device
        self.identifier = identifier
        self.handler = handler
        self.options = options
        self.on_closed = on_closed
        self.on_made = on_made
        self.peer_address, self.peer_port = identifier.peer
        self.local_address = identifier.local[0]
        self.max_reads = min(max_reads, device.max_outbound_reads)
        self.reposted = []
        self.spare = []
        self.given = receives
        if may_share and receives:
            self.shared = device.shared_of((<Lease>receives[0]).capacity)
            if self.shared is not None:
                receive_depth = 0
                srq = self.shared.srq
        self.own = Receives.__new__(Receives)
        self.own.open(receive_depth, device.memory, device.name)
        self.progress_at = device.loop.time()
        self.pair = make_queue_pair(device, identifier)
        self.pair.open(depth, receive_depth, self.max_reads, srq, self.made)
        self.queue = self.pair.queue
        identifier.owner = self

    def __repr__(self):
        return f"<verbs Endpoint {self.device.name} {self.peer_address} port {self.peer_port}>"

    def made(self, result, error):
        """The queue pair is there, or cannot be had: post the Receives, and tell who is to make the connection."""
        on_made, self.on_made = self.on_made, None
        if self.state != OPENING:
            return  # withdrawn meanwhile
        if error is None and self.device.failed:
            error = OSError(f"{self.device.name} is gone")
        if error is None and self.doomed is not None:
            error = OSError(self.doomed)
        if self.pair.pair != NULL:
            self.device.targets[self.pair.number] = self
            self.own.pair = self.pair.pair
        if error is None:
            given, self.given = self.given, []
            try:
                if self.shared is not None:
                    self.shared.post(given, False)
                else:
                    self.spare.extend(given)
                    self.own.put(self.spare)
            except OSError as problem:
                error = problem
        on_made(error)

    def opened(self):
        """The connection is made."""
        self.state = OPEN
        self.progress_at = self.device.loop.time()
        if self.doomed is not None:
            self.fail(self.doomed)
        else:
            self.device.schedule(self)

    def give_up(self, reason):
        """The connection cannot be had: report so, as of one that has ended."""
        self.state = ENDING
        self.reason = reason
        self.finish()

    def withdraw(self, on_withdrawn):
        """Undo the making of an endpoint whose connection could not be had: the Receives are the caller's again when
        ``on_withdrawn`` is called."""
        self.state = CLOSED
        self.pair.close(on_withdrawn)

    def set_max_reads(self, int max_reads):
        """What was negotiated, for a connection that was made before that was known. Nothing may be posted yet."""
        self.max_reads = min(max_reads, self.device.max_outbound_reads)
        self.queue = self.pair.queue = SendQueue(self.queue.depth, self.max_reads)

    # -- What the owner posts ------------------------------------------------------------------------------------

    def post_receives(self, leases):
        """Post Receive buffers; they are released at once when the connection has ended."""
        cdef Lease lease
        if self.state == ENDING or self.state == CLOSED:
            for lease in leases:
                lease.release()
        elif self.state == OPENING:
            self.reposted.extend(leases)
        else:
            self.receive(list(leases))

    cdef int repost(self, Lease lease) except -1:
        if self.state == ENDING or self.state == CLOSED:
            lease.release()
        else:
            self.reposted.append(lease)
        return 0

    def post(self, writes, send, token):
        """Post RDMA Writes and then a Send as one chain with one signalled completion, reported with ``token``.

        On a connection that has ended or is being closed the token is reported with ok False, at the next turn.
        """
        cdef Chain chain = None
        if self.state == OPEN or self.state == OPENING:
            try:
                chain = chain_of_post(self.device, writes, send, token)
            except OSError as problem:
                self.fail_soon(problem)
        self.submit(chain, token)

    def post_reads(self, reads, token):
        """Post RDMA Reads as one chain with one signalled completion."""
        cdef Chain chain = None
        if (self.state == OPEN or self.state == OPENING) and self.max_reads:
            try:
                chain = chain_of_reads(self.device, reads, token)
            except OSError as problem:
                self.fail_soon(problem)
        self.submit(chain, token)

    cdef int post_reply(
        self, const Remote *targets, size_t count, Lease payload, Lease head, size_t length, bint invalidates,
        uint32_t handle
    ) except -1:
        cdef Chain chain = None
        if self.state == OPEN:
            try:
                chain = chain_of_reply(self.device, targets, count, payload, head, length, invalidates, handle)
            except OSError as problem:
                self.fail_soon(problem)
        else:
            head.release()
            if payload is not None:
                payload.release()
        return self.submit(chain, ANSWERED)

    cdef int post_fetch(self, const Remote *sources, size_t count, Fetch fetch) except -1:
        cdef Chain chain = None
        if (self.state == OPEN or self.state == OPENING) and self.max_reads:
            try:
                chain = chain_of_fetch(self.device, sources, count, fetch)
            except OSError as problem:
                self.fail_soon(problem)
        return self.submit(chain, fetch)

    cdef int submit(self, Chain chain, object token) except -1:
        """Queue a chain; without one, its token is to be reported as failed."""
        if chain is None:
            self.refused.append(token)
        else:
            self.queue.submit(chain)
        if not self.in_turn:
            self.device.schedule(self)
        return 0

    cdef int fail_soon(self, object problem) except -1:
        self.device.loop.call_soon(contain, None, self.fail, str(problem))
        return 0

    def register(self, view, *, remote_read=False, remote_write=False):
        """Expose ``view`` to the peer. Returns its (handle, offset of the first octet). Raises OSError, and BufferError
        for memory that is read-only where the peer is to write."""
        cdef Registration registration
        cdef Py_buffer octets
        # Of memory that is only read nothing more may be asked: it may be read-only.
        cdef int access = IBV_ACCESS_LOCAL_WRITE if remote_write else 0
        if self.state == CLOSED:
            raise ConnectionError("the connection is gone")
        if remote_read:
            access |= IBV_ACCESS_REMOTE_READ
        if remote_write:
            if memoryview(view).readonly:
                raise BufferError("the memory is read-only")
            access |= IBV_ACCESS_REMOTE_WRITE
        # The registration holds the view from here on.
        PyObject_GetBuffer(view, &octets, PyBUF_SIMPLE)
        try:
            registration = self.device.memory.register(<uintptr_t>octets.buf, octets.len, access, view)
        finally:
            PyBuffer_Release(&octets)
        self.registrations[registration.rkey] = registration
        return registration.rkey, registration.base

    def invalidate(self, handle):
        """Withdraw a registration; unknown or already invalidated handles raise KeyError."""
        (<Registration>self.registrations.pop(handle)).withdraw()

    def close(self, *, abort=False):
        """Disconnect: after what is posted has left (bounded in time), or at once with ``abort``."""
        if abort or self.state == OPENING:
            if self.state == OPEN or self.state == DRAINING or self.state == OPENING:
                self.device.loop.call_soon(contain, None, self.fail, self.reason or "aborted by this side")
        elif self.state == OPEN:
            self.state = DRAINING
            self.reason = "closed by this side"
            self.close_timer = self.device.loop.call_later(
                self.options.close_timeout, contain, None, self.fail, self.reason
            )
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
        return {"sends": self.pair.pieces, "doorbells": self.pair.doorbells, "receives": self.receives}

    # -- Receives ------------------------------------------------------------------------------------------------

    cdef int receive(self, list leases) except -1:
        """Post Receives. Those there is no slot for wait; those that cannot be posted go with the connection."""
        try:
            if self.shared is not None:
                self.shared.post(leases, False)
            else:
                self.spare.extend(leases)
                self.own.put(self.spare)
        except OSError as problem:
            self.fail_soon(problem)
        return 0

    cdef int turn(self) except -1:
        """Hand up what was noted, post what comes of it, and see how an end goes on."""
        if self.state == OPENING:
            return 0
        if self.state == CLOSED:
            if self.refused:
                self.deliver()
            return 0
        self.in_turn = True
        try:
            self.deliver()
            if self.state == OPEN or self.state == DRAINING:
                if self.errored:
                    # Everything was flushed, and the device does not say why: siw tells so of a peer that closes.
                    self.fail(self.reason or "the peer closed the connection, or it broke")
                else:
                    if self.reposted or self.spare:
                        # Before the replies that grant their credits.
                        reposted, self.reposted = self.reposted, []
                        self.receive(reposted)
                    self.pair.flush()
            if self.state == DRAINING and self.queue.idle:
                self.fail(self.reason)
        finally:
            self.in_turn = False
        if self.state == ENDING:
            self.settle()
        elif self.refused:
            self.device.schedule(self)
        return 0

    cdef int handler_failed(self) except -1:
        """Our own mistake costs this connection, and is logged."""
        log.exception("%s: the connection's owner failed; the connection is closed", self)
        self.close(abort=True)
        return 0

    # -- The end -------------------------------------------------------------------------------------------------

    def cm_event(self, event, status, request):
        """Take an event of RDMA-CM."""
        if event == "ESTABLISHED":
            log.debug("%s: established", self)
            if self.device.iwarp and self.device.software:
                self.device.loop.call_later(OVERLOOKED_AFTER, contain, None, self.look_for_overlooked)
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

    def look_for_overlooked(self):
        """Have siw look at a first message that lies unread: see overlooked.py."""
        if self.state != OPEN or self.receives or self.max_reads == 0 or not self.identifier.alive:
            return
        if not unread(self.identifier.local, self.identifier.peer):
            return
        log.info("%s: siw has overlooked the first message; reading nothing, so that it looks again", self)
        try:
            self.queue.submit(chain_of_nothing(self.device, NUDGE))
        except (OSError, OutOfMemory) as problem:
            log.warning("%s: %s", self, problem)
        else:
            self.device.schedule(self)

    def fail(self, reason):
        """End the connection. What is posted is flushed first."""
        if self.state == ENDING or self.state == CLOSED:
            return
        if self.state == OPENING:
            self.doomed = self.doomed or reason
            return
        self.state = ENDING
        # The first failure of work says more than what it brought about.
        self.reason = self.reason if isinstance(self.reason, RemoteAccessError) else reason
        log.debug("%s: ends: %s", self, self.reason)
        if self.close_timer is not None:
            self.close_timer.cancel()
            self.close_timer = None
        self.flush_timer = self.device.loop.call_later(self.options.flush_timeout, contain, None, self.on_flush_timeout)
        self.device.control.submit(None, self.pair.break_off)
        if not self.in_turn:
            self.device.schedule(self)

    def on_flush_timeout(self):
        """The device has not given back everything; it will, when the queue pair is destroyed."""
        log.debug(
            "%s: %d Receives and %d pieces of work were not flushed",
            self, self.own.posted, self.queue.posted - self.queue.completed,
        )
        self.finish()

    cdef int settle(self) except -1:
        """See whether the device has given everything back."""
        if self.finishing:
            return 0
        if self.device.failed or (self.own.posted == 0 and self.queue.posted == self.queue.completed):
            self.finishing = True
            # Not from within the polling of the completion queue.
            self.device.loop.call_soon(contain, None, self.finish)
        return 0

    def finish(self):
        """The end: have the queue pair destroyed. Once only."""
        if self.state == CLOSED or self.closing:
            return
        self.closing = True
        if self.flush_timer is not None:
            self.flush_timer.cancel()
            self.flush_timer = None
        self.pair.close(self.gone)

    def gone(self):
        """Nothing is the device's any more: report every token, release every buffer, and tell the owner."""
        cdef Lease lease
        self.state = CLOSED
        self.identifier.destroy()
        for registration in self.registrations.values():
            (<Registration>registration).withdraw()
        self.registrations.clear()
        self.give_up_work()
        self.in_turn = True
        try:
            for received in self.messages:
                (<Lease>received[0]).release()
            self.messages = []
            self.deliver()
            for lease in self.own.withdraw() + self.spare + self.flushed + self.reposted + self.given:
                lease.release()
            self.given = []
            self.spare = []
            self.flushed = []
            self.reposted = []
            contain(None, self.handler.disconnected, self.reason)
        finally:
            self.in_turn = False
            log.debug("%s: closed: %s", self, self.reason)
            on_closed, self.on_closed = self.on_closed, None
            on_closed(self)
        if self.refused:
            self.device.schedule(self)
