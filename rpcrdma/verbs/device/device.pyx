"""A device in use: its protection domain, registered memory, completion queues and events.

Owns :class:`Device`. The event loop calls ``on_notices`` (the device's thread has something) or ``on_completions`` (a
completion queue has something), ``on_async`` (the device has something to say) and ``on_turn`` (something was posted
outside of a wake-up). See :mod:`rpcrdma.verbs.device.pump` on which devices have a thread.

Life
    Made for the first connection over a device, and kept: registering the arenas again for every connection would be
    dear. When the device is removed (RDMA_CM_EVENT_DEVICE_REMOVAL) or breaks (IBV_EVENT_DEVICE_FATAL) all its
    connections end, and then it is given back at once, since a removal in the kernel may wait for that.
"""

import fcntl
import os

from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport uintptr_t

from rpcrdma.memory cimport Pool
from rpcrdma.verbs.device.cm cimport Identifier, release_context
from rpcrdma.verbs.device.completions cimport CompletionQueue, Target, make_completion_queue
from rpcrdma.verbs.device.pump cimport Pump, notices_t
from rpcrdma.verbs.device.registrations cimport Registrations
from rpcrdma.verbs.device.receives cimport SharedReceives, make_shared_receives
from rpcrdma.verbs.device.verbs_api cimport (
    IBV_DEVICE_MEM_MGT_EXTENSIONS,
    IBV_EVENT_CQ_ERR,
    IBV_EVENT_DEVICE_FATAL,
    IBV_EVENT_GID_CHANGE,
    IBV_EVENT_LID_CHANGE,
    IBV_EVENT_PORT_ACTIVE,
    IBV_EVENT_PORT_ERR,
    IBV_EVENT_QP_ACCESS_ERR,
    IBV_EVENT_QP_FATAL,
    IBV_EVENT_QP_REQ_ERR,
    IBV_TRANSPORT_IWARP,
    ibv_ack_async_event,
    ibv_alloc_pd,
    ibv_async_event,
    ibv_comp_channel,
    ibv_cq,
    ibv_create_comp_channel,
    ibv_dealloc_pd,
    ibv_destroy_comp_channel,
    ibv_device_attr,
    ibv_event_type,
    ibv_event_type_str,
    ibv_get_async_event,
    ibv_query_device,
)

from rpcrdma.firewall import contain, report
from rpcrdma.log_limits import limited_logger
from rpcrdma.verbs.device.errors import failure


cdef enum:
    EVENTS_PER_TURN = 256
    ROUNDS = 8
    # siw's vendor id, the name of the research group it comes from; rxe's is Red Hat's.
    SIW_VENDOR = 0x626D74
    RXE_VENDOR = 0xFFFFFF
    LARGEST_DEPTH = 16384
    SEGMENTS = 16
    ACCOUNT = 64 << 20

KERNEL_BELLS = ("hfi1", "qib")
"""Devices besides rxe and siw that are posted to by a system call."""

log = limited_logger("rpcrdma.verbs")


cdef int set_nonblocking(int fd) except -1:
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_NONBLOCK)
    return 0


cdef class Device:
    """A device in use. To be made by the control thread, and then started by the loop's."""

    def __init__(self, Identifier identifier, Pool pool, loop, options, on_failure, control):
        cdef ibv_device_attr attributes
        cdef int error
        self.control = control
        self.pump = Pump()
        self.queues = []
        self.targets = {}
        self.shared = {}
        self.due = []
        self.loop = loop
        self.options = options
        self.on_failure = on_failure
        self.name = identifier.device()
        self.context = identifier.id.verbs
        self.account = pool.account(ACCOUNT)
        with nogil:
            error = ibv_query_device(self.context, &attributes)
        if error:
            raise failure("ibv_query_device", self.name, error)
        self.iwarp = self.context.device.transport_type == IBV_TRANSPORT_IWARP
        self.software = attributes.vendor_id in (SIW_VENDOR, RXE_VENDOR)
        self.can_invalidate = (attributes.device_cap_flags & IBV_DEVICE_MEM_MGT_EXTENSIONS) != 0
        # siw checks a Read's sink for local write access only (see registrations.pyx on the others).
        self.register_sinks = options.register_sinks or (self.iwarp and not self.software)
        self.max_requests = min(attributes.max_qp_wr, LARGEST_DEPTH)
        self.max_segments = min(attributes.max_sge, SEGMENTS)
        self.max_completions = attributes.max_cqe
        if not self.iwarp and attributes.max_srq > 0:
            self.shared_receives = min(options.shared_receives, attributes.max_srq_wr)
        self.max_inbound_reads = min(attributes.max_qp_rd_atom, options.inbound_reads)
        self.max_outbound_reads = min(attributes.max_qp_init_rd_atom, options.outbound_reads)
        try:
            self.open(pool)
        except BaseException:
            self.destroy()
            raise

    def open(self, Pool pool):
        """Take protection domain, channel and memory. Raises OSError."""
        with nogil:
            self.pd = ibv_alloc_pd(self.context)
        if self.pd == NULL:
            raise failure("ibv_alloc_pd", self.name, errno)
        with nogil:
            self.channel = ibv_create_comp_channel(self.context)
        if self.channel == NULL:
            raise failure("ibv_create_comp_channel", self.name, errno)
        set_nonblocking(self.channel.fd)
        set_nonblocking(self.context.async_fd)
        self.memory = Registrations.__new__(Registrations)
        self.memory.pd = self.pd
        self.memory.pool = pool
        self.memory.device = self.name
        # siw takes the real address, whatever it is told.
        self.memory.can_rename = not (self.iwarp and self.software)
        self.memory.control = self.control
        self.memory.refresh()
        threaded = self.options.thread == "always" or (
            self.options.thread == "auto" and (self.software or self.name.startswith(KERNEL_BELLS))
        )
        self.pump.start(self.channel, threaded)

    def start(self):
        """Have the loop watch the device."""
        if self.pump.threaded:
            self.loop.add_reader(self.pump.event_fd, contain, self.crashed, self.on_notices)
        else:
            self.loop.add_reader(self.channel.fd, contain, self.crashed, self.on_completions)
        self.loop.add_reader(self.context.async_fd, contain, self.crashed, self.on_async)
        self.watching = True

    def __repr__(self):
        return f"<Device {self.name}>"

    @property
    def key(self):
        """What identifiers of this device have as ``device_key``; 0 once it is closed."""
        return <uintptr_t>self.context

    def statistics(self):
        """What is in use."""
        return {
            "connections": len(self.targets),
            "completion_queues": len(self.queues),
            "arenas": self.memory.count,
        }

    def close(self):
        """Give everything back. The connections must be gone. Idempotent."""
        if self.watching:
            self.watching = False
            self.loop.remove_reader(self.pump.event_fd if self.pump.threaded else self.channel.fd)
            self.loop.remove_reader(self.context.async_fd)
        self.control.call_last(self.destroy)
        for shared in self.shared.values():
            shared.release()
        self.shared.clear()
        self.account.close()

    def destroy(self):
        """Give everything back, on the control thread."""
        cdef ibv_pd *pd = self.pd
        cdef ibv_comp_channel *channel = self.channel
        self.pump.stop()
        for queue in self.queues:
            queue.close()
        self.queues.clear()
        for shared in self.shared.values():
            shared.close()
        if self.memory is not None:
            self.memory.close()
        self.channel = NULL
        if channel != NULL:
            with nogil:
                ibv_destroy_comp_channel(channel)
        self.pd = NULL
        if pd != NULL:
            with nogil:
                ibv_dealloc_pd(pd)
        if self.removed:
            release_context(self.context)
        self.context = NULL

    def fail(self, str reason, bint removed=False):
        """The device is ``removed`` or broken: every connection on it ends. Of a broken one another use may be made."""
        self.removed |= removed
        if self.failed:
            return
        self.failed = True
        log.error("%s: %s; its connections end", self.name, reason)
        for target in list(self.targets.values()):
            contain(None, target.fail, f"{self.name}: {reason}")
        self.on_failure(self)

    def crashed(self):
        """The end of a device of which an event could not be served: it would be told of for ever."""
        self.fail("a mistake of this server's")

    # -- Completion queues ---------------------------------------------------------------------------------------

    cdef SharedReceives shared_of(self, size_t size):
        """The shared Receive queue for buffers of this size; None where there is none. Raises OSError."""
        if self.shared_receives == 0:
            return None
        if size not in self.shared:
            self.shared[size] = self.control.call(self.make_shared)
        return self.shared[size]

    def make_shared(self):
        """A new shared Receive queue, on the control thread."""
        return make_shared_receives(self.pd, self.memory, self.shared_receives, self.name)

    cdef CompletionQueue reserve(self, int count):
        """A queue with room for ``count`` more completions. Raises OSError."""
        cdef CompletionQueue queue
        cdef object found
        for found in self.queues:
            queue = <CompletionQueue>found
            if queue.reserved + count <= queue.capacity:
                break
        else:
            queue = self.control.call(self.make_queue, count)
            # Any queue pair may come to use all shared Receives.
            queue.reserved = self.shared_receives
            queue.watched = self.pump.watch(queue.cq)
            self.queues.append(queue)
            if self.pump.threaded:
                self.pump.kick()
            else:
                self.loop.call_soon(contain, self.crashed, self.on_completions)
        queue.reserved += count
        return queue

    def make_queue(self, int count):
        """A new queue for ``count`` completions and more, on the control thread."""
        cdef int shared = self.shared_receives
        cdef int wanted = min(max(self.options.completion_depth, count) + shared, self.max_completions)
        cdef CompletionQueue queue = make_completion_queue(self.context, self.channel, wanted, self.name)
        if queue.capacity < count + shared:
            queue.close()
            raise OSError(f"{self.name}: a completion queue of this device holds {queue.capacity}, {count} needed")
        return queue

    cdef int give_back(self, CompletionQueue queue, int count) except -1:
        """A connection no longer needs its part of a queue. One empty queue is kept."""
        queue.reserved -= count
        if queue.reserved == self.shared_receives and queue.cq != NULL and len(self.queues) > 1:
            self.queues.remove(queue)
            self.pump.unwatch(queue.watched)
            self.control.submit(None, queue.close)
        return 0

    # -- What the loop calls -------------------------------------------------------------------------------------

    def on_notices(self):
        """The device's thread has notices."""
        self.pump.clear()
        self.dispatch()
        self.run_due()

    def on_completions(self):
        """A completion queue raised its event."""
        cdef int round
        for round in range(ROUNDS):
            if self.channel == NULL:
                return
            more = self.pump.work()
            self.dispatch()
            self.run_due()
            if not more and not self.pump.pump.notices.count:
                return
        self.loop.call_soon(contain, self.crashed, self.on_completions)

    cdef int dispatch(self) except -1:
        """Note every completion there is with its target, and give each of these a turn soon."""
        cdef notices_t *notices = self.pump.collect()
        cdef Target target = None
        cdef unsigned int number = 0
        cdef size_t i
        if self.pump.pump.error and not self.failed:
            self.loop.call_soon(contain, None, self.fail, str(failure("ibv_poll_cq", self.name, self.pump.pump.error)))
        for i in range(notices.count):
            if target is None or notices.items[i].completion.qp_num != number:
                number = notices.items[i].completion.qp_num
                found = self.targets.get(number)
                target = <Target>found if found is not None else None
                if target is None:
                    continue  # of a queue pair that is gone
                if not target.touched:
                    target.touched = True
                    self.due.append(target)
            try:
                if notices.items[i].refused:
                    target.take_refusal(notices.items[i].completion.wr_id, notices.items[i].refused)
                else:
                    target.take(&notices.items[i].completion)
            except Exception as error:
                self.fail_one(target, error)
        return 0

    cdef int fail_one(self, object target, object error) except -1:
        """A mistake of ours costs one connection, and the others their turn least of all."""
        report(target, error)
        self.loop.call_soon(contain, None, target.fail, "a mistake of this side")
        return 0

    cdef int schedule(self, Target target) except -1:
        """Give ``target`` a turn: at the end of this wake-up, or of this iteration of the loop."""
        if not target.touched:
            target.touched = True
            self.due.append(target)
        return self.schedule_turn()

    cdef int schedule_turn(self) except -1:
        if not self.in_turn and not self.turn_scheduled:
            self.turn_scheduled = True
            self.loop.call_soon(contain, None, self.on_turn)
        return 0

    def on_turn(self):
        """Post what was posted outside of a wake-up."""
        self.turn_scheduled = False
        self.run_due()

    cdef int run_due(self) except -1:
        cdef Target target
        cdef list due
        while self.due:
            due = self.due
            self.due = []
            self.in_turn = True
            try:
                for target in due:
                    target.touched = False
                    try:
                        target.turn()
                    except Exception as error:
                        self.fail_one(target, error)
            finally:
                self.in_turn = False
        if self.pump.threaded:
            self.pump.kick()
        elif self.pump.pump.notices.count:
            self.loop.call_soon(contain, self.crashed, self.on_completions)
        return 0

    def on_async(self):
        """The device has something to say about itself, a port or a queue pair."""
        cdef ibv_async_event event
        cdef int result, count
        cdef ibv_event_type kind
        cdef size_t pair, queue
        for count in range(EVENTS_PER_TURN):
            if self.context == NULL:
                return
            with nogil:
                result = ibv_get_async_event(self.context, &event)
            if result:
                if errno != EAGAIN and errno != EINTR:
                    self.fail(str(failure("ibv_get_async_event", self.name, errno)))
                return
            kind = event.event_type
            pair = queue = 0
            if kind in (IBV_EVENT_QP_FATAL, IBV_EVENT_QP_REQ_ERR, IBV_EVENT_QP_ACCESS_ERR):
                pair = event.element.qp.qp_num
            elif kind == IBV_EVENT_CQ_ERR:
                queue = <uintptr_t>event.element.cq
            port = event.element.port_num if kind in PORT_EVENTS else 0
            # Acknowledged first: destroying what an event is about waits for that.
            ibv_ack_async_event(&event)
            try:
                self.take_event(kind, pair, queue, port)
            except Exception as error:
                report(self, error)

    cdef int take_event(self, int kind, size_t queue_pair, size_t completion_queue, int port) except -1:
        text = ibv_event_type_str(<ibv_event_type>kind).decode()
        if kind == IBV_EVENT_DEVICE_FATAL:
            self.fail(text)
        elif kind == IBV_EVENT_CQ_ERR:
            # Completions were lost, of whichever of its queue pairs.
            self.fail(text)
        elif queue_pair:
            target = self.targets.get(queue_pair)
            if target is not None:
                # Work that failed says more about why; it is looked at first.
                self.loop.call_soon(contain, None, target.fail, f"{self.name}: {text}")
        elif kind == IBV_EVENT_PORT_ERR:
            log.warning("%s port %d is down; connections over it wait for it, as long as their retries last",
                        self.name, port)
        elif port:
            log.info("%s port %d: %s", self.name, port, text)
        else:
            log.debug("%s: %s", self.name, text)
        return 0


PORT_EVENTS = frozenset((IBV_EVENT_PORT_ERR, IBV_EVENT_PORT_ACTIVE, IBV_EVENT_GID_CHANGE, IBV_EVENT_LID_CHANGE))
