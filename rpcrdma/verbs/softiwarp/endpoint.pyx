"""One connection: the two halves, the event loop, and the ways a connection ends.

Owns :class:`Endpoint`, which implements ``rpcrdma.verbs.interface.Endpoint``; RFC 5040 section 6.2 (teardown) and the
watchdog. Imports its siblings and the interface. The loop only ever calls ``on_readable``, ``on_writable`` and
``on_turn``; asyncio and uvloop will both do.

Turns
    What the handler posts while it is being called is sent at the end of the same wake-up, so the replies to a batch
    share their sendmsg() calls. What is posted at other times is sent by one call_soon() per loop iteration.

Ends
    OPEN      both halves work.
    DRAINING  close() was called or a Terminate is queued: what is queued leaves, what arrives is thrown away.
    LINGERING our FIN is sent; the peer's is awaited. DRAINING and LINGERING together last ``close_timeout`` at most.
    CLOSED    the socket is closed, every token reported, every Receive released, ``disconnected`` called.
    Nothing is reported from inside a method the handler calls: an abort, too, takes effect at the next turn.

Back-pressure
    A chain's memory is held until the kernel has taken it, so what a slow peer can tie up is bounded by its own
    credits and by its account. The watchdog ends the connection when for ``stall_timeout`` the peer has acknowledged
    none of what waits, has left an RDMA Read unanswered, or has left an FPDU unfinished, without any sign of progress.
"""

import os
import socket as sockets
import struct

from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int64_t, uint32_t, uint64_t

from rpcrdma.broken cimport broken
from rpcrdma.clock cimport nanoseconds
from rpcrdma.memory cimport Lease
from rpcrdma.pipes cimport Pipe
from rpcrdma.turns cimport SLICE, one_is_gone, shared
from rpcrdma.verbs.native cimport Fetch, NativeEndpoint, Target
from rpcrdma.verbs.softiwarp.chain cimport (
    Chain,
    chain_of_fetch,
    chain_of_post,
    chain_of_reads,
    chain_of_reply,
    chain_of_empty_write,
)
from rpcrdma.verbs.softiwarp.framing cimport MSG_DONTWAIT, SIOCOUTQ, ioctl, recv
from rpcrdma.verbs.softiwarp.intake cimport Intake
from rpcrdma.verbs.softiwarp.receive cimport (
    RECEIVE_END,
    RECEIVE_FAILED,
    RECEIVE_MORE,
    RECEIVE_TERMINATED,
    RECEIVE_VIOLATION,
)
from rpcrdma.verbs.softiwarp.stags cimport Registration, StagTable
from rpcrdma.verbs.softiwarp.transmit cimport FLUSH_BLOCKED, FLUSH_FAILED, FLUSH_IDLE, FLUSH_MORE, Transmitter

from rpcrdma.firewall import contain
from rpcrdma.log_limits import limited_logger
from rpcrdma.verbs.softiwarp.headway import Headway
from rpcrdma.verbs.softiwarp.mpa import RTR
from rpcrdma.verbs.softiwarp.terminate import describe


cdef enum:
    OPEN = 0
    DRAINING = 1
    LINGERING = 2
    CLOSED = 3
    ROUNDS = 8
    TURN = 100000           # nanoseconds that the handler may take before others have their turn, about
    SHARED_TURN = 30000     # the same while there are others
    MOST_MESSAGES = 64      # handed over at once
    MOST_SENT = 4 << 20     # octets in one turn, while there are no others
    MOST_RECEIVED = 1 << 20


log = limited_logger("rpcrdma.softiwarp")


cdef class Endpoint(NativeEndpoint):
    """One connection: a queue pair on a TCP socket past its MPA negotiation."""

    def __init__(
        self, loop, sock, handler, receives, agreement, options, tuple peer, str local_address, bint initiator, on_closed
    ):
        self.batch = MOST_MESSAGES
        self.loop = loop
        self.socket = sock
        self.fd = sock.fileno()
        self.handler = handler
        self.on_closed = on_closed
        self.peer_address, self.peer_port = peer
        self.local_address = local_address
        self.max_reads = agreement.outbound_reads
        self.headway = Headway(options.stall_timeout, loop.time())
        self.close_timeout = options.close_timeout
        self.nudge_after = options.nudge_after if initiator else 0
        self.refused = []
        self.stags = StagTable()
        self.transmitter = Transmitter(
            self.fd,
            agreement.crc,
            agreement.markers,
            options.fpdu == "segment",
            max(agreement.outbound_reads, 1 if agreement.send_rtr == RTR.READ else 0),
            # RFC 5044 section 7.1.2 rule 4: a responder sends nothing before the initiator's first FPDU.
            initiator,
        )
        self.receiver = Intake(
            self.fd, agreement.crc, agreement.inbound_reads, agreement.expect_send_rtr, self.stags, self.transmitter
        )
        self.receiver.posted.extend(receives)
        self.send_rtr(agreement.send_rtr)

    def __repr__(self):
        return f"<softiwarp Endpoint {self.peer_address} port {self.peer_port}>"

    def send_rtr(self, rtr):
        """Queue the indication that RFC 6581 section 9.2 wants before anything else."""
        cdef Chain chain
        if rtr == RTR.WRITE:
            self.transmitter.post(chain_of_empty_write())
        elif rtr == RTR.READ:
            chain = chain_of_reads([(1, 0, bytearray())], None)
            chain.signalled = False
            self.transmitter.post(chain)

    def start(self):
        """Begin to receive. Called once, after the Reply has been sent or received."""
        if self.state == OPEN:
            self.started = True
            self.loop.add_reader(self.fd, contain, self.crashed, self.on_readable)
            self.schedule()
            if self.nudge_after:
                self.nudge_timer = self.loop.call_later(self.nudge_after, contain, None, self.nudge)

    def fail(self, str reason, code=None):
        """End a connection that could not be started; with ``code``, after a Terminate of layer LLP (MPA)."""
        if code is None:
            self.state = DRAINING
            self.reason = reason
            self.loop.call_soon(contain, None, self.on_abort)
            return
        self.terminate_sent = (0x20, code)
        self.transmitter.enabled = True
        self.transmitter.terminate(bytes((0x20, code, 0, 0)))
        self.start()
        self.drain(f"{reason} ({describe(2, 0, code)})")

    # -- What the owner posts ------------------------------------------------------------------------------------

    def post_receives(self, leases):
        """Post Receive buffers; they are released at once when the connection has ended."""
        cdef Lease lease
        if self.state != OPEN:
            for lease in leases:
                lease.release()
            return
        self.receiver.posted.extend(leases)

    def post(self, writes, send, token):
        """Post RDMA Writes and then a Send as one chain with one signalled completion, reported with ``token``.

        On a connection that has ended or is being closed the token is reported with ok False, at the next turn.
        """
        self.post_chain(chain_of_post(writes, send, token))

    cdef int repost(self, Lease lease) except -1:
        if self.state != OPEN:
            lease.release()
        else:
            self.receiver.posted.append(lease)
        return 0

    cdef int post_reply(
        self, const Target *targets, size_t count, Lease payload, Lease head, size_t length, bint invalidates,
        uint32_t handle
    ) except -1:
        return self.post_chain(chain_of_reply(targets, count, payload, None, head, length, invalidates, handle))

    cdef bint takes_pages(self) except -1:
        return self.state == OPEN and self.transmitter.takes_pages()

    cdef int post_pages(
        self, const Target *targets, size_t count, Pipe pages, Lease head, size_t length, bint invalidates,
        uint32_t handle
    ) except -1:
        return self.post_chain(chain_of_reply(targets, count, None, pages, head, length, invalidates, handle))

    cdef int post_chain(self, Chain chain) except -1:
        """Post Writes and a Send."""
        if self.state != OPEN:
            chain.release()
            self.refused.append(chain.token)
        else:
            self.transmitter.post(chain)
        return self.schedule()

    def post_reads(self, reads, token):
        """Post RDMA Reads as one chain with one signalled completion."""
        self.issue(chain_of_reads(reads, token))

    cdef int post_fetch(self, const Target *sources, size_t count, Fetch fetch) except -1:
        return self.issue(chain_of_fetch(sources, count, fetch))

    cdef int issue(self, Chain chain) except -1:
        """Post a chain of Reads."""
        if self.state != OPEN or self.max_reads == 0:
            chain.release()
            self.refused.append(chain.token)
        else:
            self.transmitter.post(chain)
        return self.schedule()

    def register(self, view, *, remote_read=False, remote_write=False):
        """Expose ``view`` to the peer. Returns its (handle, offset of the first octet)."""
        cdef Registration registration = self.stags.register(view, remote_read, remote_write)
        return registration.handle, registration.base

    def invalidate(self, handle):
        """Withdraw a registration; unknown or already invalidated handles raise KeyError."""
        self.stags.invalidate(handle)

    def close(self, *, abort=False):
        """Disconnect: after what is posted has left (bounded in time), or at once with ``abort``."""
        if self.state == CLOSED:
            return
        if abort:
            if self.reason is None:
                self.reason = "aborted by this side"
            if self.state == OPEN:
                self.state = DRAINING
            self.loop.call_soon(contain, None, self.on_abort)
        elif self.state == OPEN:
            self.drain("closed by this side")

    def statistics(self):
        """The connection's counters by name."""
        return {**self.transmitter.counter_values(), **self.receiver.counter_values()}

    # -- What the loop calls -------------------------------------------------------------------------------------

    def on_readable(self):
        """The socket has data, an end or an error."""
        cdef int outcome
        self.unsure = self.state == OPEN
        if not self.unsure:
            self.discard()
            return
        if self.receiver.messages:
            return  # our turn comes, and what has not been received waits
        self.begin_turn()
        outcome = self.receiver.receive(SLICE if self.shared else MOST_RECEIVED)
        self.in_turn = True
        try:
            self.deliver()
            while outcome != RECEIVE_MORE and self.receiver.messages:
                self.deliver()  # the last ones
        finally:
            self.in_turn = False
        if self.state == CLOSED:
            return
        if outcome == RECEIVE_MORE:
            self.flush()
            self.make_sure()
        elif outcome == RECEIVE_VIOLATION:
            self.terminate_sent = self.receiver.terminate_codes
            log.warning("%s: %s", self, self.receiver.problem)
            self.drain(self.receiver.problem)
            self.flush()
        elif outcome == RECEIVE_TERMINATED:
            self.terminate_received = self.receiver.terminate_codes
            log.warning("%s: %s", self, self.receiver.problem)
            self.finish(self.receiver.problem, False)
        elif outcome == RECEIVE_FAILED:
            self.finish(os.strerror(self.receiver.error), True)
        elif self.receiver.within_fpdu():
            self.finish("the peer closed the connection in the middle of an FPDU", False)
        else:
            self.finish("the peer closed the connection", False)

    def on_writable(self):
        """The socket takes data again."""
        if self.state != CLOSED:
            self.begin_turn()
            self.flush()

    def on_turn(self):
        """Send what was posted since the last iteration of the loop."""
        self.turn_scheduled = False
        self.begin_turn()
        if self.refused:
            tokens, self.refused = self.refused, []
            self.report(tokens, False)
        if self.state != CLOSED and self.receiver.messages:
            self.in_turn = True
            try:
                self.deliver()
            finally:
                self.in_turn = False
        elif self.unsure:
            self.on_readable()
        if self.state != CLOSED:
            self.flush()
            self.make_sure()

    def crashed(self):
        """The end of a connection of which an event could not be served."""
        self.finish("a mistake of this side", True)

    def on_abort(self):
        """Carry out an abort or a failed start."""
        self.finish(self.reason, True)

    def on_close_timeout(self):
        """A graceful close has used up its time."""
        self.finish(self.reason, True)

    def check(self, double now):
        """The watchdog: cut the connection when its peer has made no progress for too long."""
        cdef int queued = 0
        if self.state != OPEN or not self.started:
            return
        ioctl(self.fd, SIOCOUTQ, &queued)
        owed = "an RDMA Read unanswered" if self.transmitter.outstanding_reads else ""
        if self.receiver.within_fpdu():
            owed = "an FPDU unfinished"
        acknowledged = <int64_t>self.transmitter.counters.octets - queued
        sending = bool(queued or self.writer_added)
        lack = self.headway.lack(now, acknowledged, queued, sending, self.receiver.counters.octets, owed)
        if lack:
            log.warning("%s: the peer %s; the connection is cut", self, lack)
            self.finish(f"the peer {lack}", True)

    def nudge(self):
        """Have siw look at a first message that lies unread.

        Linux's siw, when it accepts, sends the MPA Reply before it listens to what arrives on the connection. What
        came in between is read when the next segment comes; but none would, since we wait for the answer. A
        zero-length RDMA Write is one, and has no other effect anywhere (RFC 5040 section 5.1).
        """
        self.nudge_timer = None
        if self.state != OPEN or self.receiver.counters.octets:
            return
        if self.transmitter.counters.octets:
            log.info("%s: has not answered for %g s; it gets an RDMA Write of no octets", self, self.nudge_after)
            self.transmitter.post(chain_of_empty_write())
            self.schedule()
            self.nudge_after *= 2
        self.nudge_timer = self.loop.call_later(self.nudge_after, contain, None, self.nudge)

    # -- How it works --------------------------------------------------------------------------------------------

    cdef int begin_turn(self) except -1:
        """Find out whether others wait for theirs."""
        self.shared = shared(<void *>self, nanoseconds())
        return 0

    cdef int schedule(self) except -1:
        if not self.turn_scheduled and not self.in_turn:
            self.turn_scheduled = True
            self.loop.call_soon(contain, self.crashed, self.on_turn)
        return 0

    cdef int make_sure(self) except -1:
        """At the end of a turn in which nothing was sent: see whether there is an end that nobody will tell of."""
        if self.unsure and self.state == OPEN and not self.receiver.messages:
            self.unsure = broken(self.fd)
            if self.unsure:
                self.schedule()
        return 0

    cdef int deliver(self) except -1:
        """Hand over what was received: completions of Reads, then the messages as one batch, of so many as lately
        took no longer than a turn. The others have theirs after the other connections'."""
        cdef list messages
        cdef list tokens
        cdef uint64_t begun, taken, turn
        if self.receiver.answered:
            tokens = self.receiver.answered
            self.receiver.answered = []
            self.report(tokens, True)
        if self.state != OPEN:
            self.receiver.drop_messages()  # what waited when the owner closed; as what still arrives
        elif self.receiver.messages:
            messages = self.receiver.messages
            self.receiver.messages = messages[self.batch :]
            if self.receiver.messages:
                messages = messages[: self.batch]
                if not self.turn_scheduled:
                    self.turn_scheduled = True
                    self.loop.call_soon(contain, self.crashed, self.on_turn)
            turn = SHARED_TURN if self.shared else TURN
            begun = nanoseconds()
            try:
                self.handler.received(messages)
            except Exception:
                self.handler_failed()
            taken = nanoseconds() - begun
            if taken > turn:
                self.batch = max(self.batch // 2, 1)
            elif 2 * taken < turn and <size_t>len(messages) == self.batch:
                self.batch = min(2 * self.batch, MOST_MESSAGES)
        return 0

    cdef int report(self, list tokens, bint ok) except -1:
        """Report completions."""
        return self.tell(self.handler, tokens, ok)

    cdef int handler_failed(self) except -1:
        """Our own mistake costs this connection, and is logged."""
        log.exception("%s: the connection's owner failed; the connection is closed", self)
        self.close(abort=True)
        return 0

    cdef int flush(self) except -1:
        """Send what is posted, report what has left, and see whether a close can go on."""
        cdef int outcome = FLUSH_IDLE
        cdef int round
        cdef list tokens
        cdef uint64_t sent = self.transmitter.counters.octets
        self.in_turn = True
        try:
            for round in range(1 if self.shared else ROUNDS):
                outcome = self.transmitter.flush(SLICE if self.shared else MOST_SENT)
                if self.transmitter.done:
                    tokens = self.transmitter.done
                    self.transmitter.done = []
                    self.report(tokens, True)
                if outcome != FLUSH_IDLE or not self.transmitter.enabled or not self.transmitter.busy():
                    break
        finally:
            self.in_turn = False
        if self.state == CLOSED:
            return 0
        if outcome == FLUSH_FAILED:
            self.finish(os.strerror(self.transmitter.error), True)
            return 0
        if self.transmitter.counters.octets != sent:
            self.unsure = False  # it would have failed
        if self.transmitter.refused and self.state == OPEN:
            self.terminate_sent = (0x01, 0x00)
            self.drain("registered memory was withdrawn while the peer was reading it")
        if outcome == FLUSH_BLOCKED:
            if not self.writer_added:
                self.writer_added = True
                self.loop.add_writer(self.fd, contain, self.crashed, self.on_writable)
            return 0
        if self.writer_added:
            self.writer_added = False
            self.loop.remove_writer(self.fd)
        if self.refused:
            self.schedule()
        if self.transmitter.enabled and self.transmitter.busy():
            self.schedule()
        elif self.state == DRAINING and self.reason is not None:
            self.state = LINGERING
            try:
                self.socket.shutdown(sockets.SHUT_WR)
            except OSError as problem:
                self.finish(problem.strerror, True)
        return 0

    cdef int drain(self, str reason) except -1:
        """Begin a graceful end."""
        self.state = DRAINING
        self.reason = reason
        if self.close_timer is not None:
            self.close_timer.cancel()
        self.close_timer = self.loop.call_later(self.close_timeout, contain, None, self.on_close_timeout)
        self.schedule()
        return 0

    cdef int discard(self) except -1:
        """Throw away what arrives during a graceful end, up to the peer's FIN."""
        cdef char scrap[16384]
        cdef ssize_t got
        cdef int round
        for round in range(ROUNDS):
            got = recv(self.fd, scrap, sizeof(scrap), MSG_DONTWAIT)
            if got == 0 or (got < 0 and errno != EAGAIN and errno != EINTR):
                self.finish(self.reason, False)
                return 0
            if got < 0:
                return 0
        return 0

    cdef int finish(self, str reason, bint reset) except -1:
        """The end: close the socket, report every token, release every Receive, and tell the owner. Once only."""
        cdef list tokens
        if self.state == CLOSED:
            return 0
        self.state = CLOSED
        one_is_gone()
        if self.close_timer is not None:
            self.close_timer.cancel()
            self.close_timer = None
        if self.nudge_timer is not None:
            self.nudge_timer.cancel()
            self.nudge_timer = None
        if self.started:
            self.loop.remove_reader(self.fd)
        if self.writer_added:
            self.loop.remove_writer(self.fd)
            self.writer_added = False
        if reset:
            try:
                # RST instead of FIN: nothing that is still queued may linger in the kernel.
                self.socket.setsockopt(sockets.SOL_SOCKET, sockets.SO_LINGER, struct.pack("ii", 1, 0))
            except OSError:
                pass
        self.socket.close()
        self.fd = -1  # another connection's from now on
        self.unsure = False
        tokens = self.transmitter.drop_all()
        self.receiver.release_all()
        self.stags.clear()
        self.in_turn = True
        try:
            self.report(self.receiver.answered, True)
            self.report(tokens, False)
            tokens, self.refused = self.refused, []
            self.report(tokens, False)
            contain(None, self.handler.disconnected, self.receiver.refusal or reason)
        finally:
            self.in_turn = False
            log.debug("%s: closed: %s", self, reason)
            on_closed, self.on_closed = self.on_closed, None
            on_closed(self)
        if self.refused:
            self.schedule()
        return 0
