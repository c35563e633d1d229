"""RDMA-CM: the event channel and its identifiers, non-blocking.

Owns :class:`EventChannel` and :class:`Identifier`; imports the libraries.

Events
    Every event is copied and acknowledged before anything is done about it, for ``rdma_destroy_id`` waits until all
    events of an identifier have been. An identifier's owner is told by ``cm_event``; what it raises is logged.
"""

import fcntl
import os
import socket
from typing import NamedTuple

from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uintptr_t
from libc.string cimport memcpy, memset

from rpcrdma.verbs.device.verbs_api cimport (
    AF_INET,
    AF_INET6,
    RDMA_CM_EVENT_CONNECT_REQUEST,
    RDMA_CM_EVENT_CONNECT_RESPONSE,
    RDMA_CM_EVENT_ESTABLISHED,
    RDMA_CM_EVENT_REJECTED,
    RDMA_OPTION_ID,
    RDMA_OPTION_ID_AFONLY,
    RDMA_OPTION_ID_REUSEADDR,
    RDMA_OPTION_ID_TOS,
    RDMA_PS_TCP,
    htons,
    ibv_context,
    ibv_device,
    ibv_free_device_list,
    ibv_get_device_list,
    ibv_get_device_name,
    ntohs,
    rdma_accept,
    rdma_ack_cm_event,
    rdma_bind_addr,
    rdma_cm_event,
    rdma_cm_event_type,
    rdma_cm_id,
    rdma_conn_param,
    rdma_connect,
    rdma_create_event_channel,
    rdma_create_id,
    rdma_destroy_event_channel,
    rdma_destroy_id,
    rdma_disconnect,
    rdma_event_channel,
    rdma_event_str,
    rdma_get_cm_event,
    rdma_get_local_addr,
    rdma_get_peer_addr,
    rdma_listen,
    rdma_reject,
    rdma_resolve_addr,
    rdma_resolve_route,
    rdma_set_option,
    sockaddr,
    sockaddr_in,
    sockaddr_in6,
)

from rpcrdma.firewall import contain
from rpcrdma.log_limits import limited_logger
from rpcrdma.verbs.device.errors import failure


cdef enum:
    EVENTS_PER_TURN = 128
    LISTEN = 0
    ROUTE = 1
    LARGEST_PRIVATE_DATA = 255
    # A peer without a posted Receive is asked again for ever (7): its Receives come when it gets to them.
    RETRY_FOREVER = 7

log = limited_logger("rpcrdma.verbs")


class Request(NamedTuple):
    """What came with a connect request, or with its answer."""

    identifier: object
    private_data: bytes
    responder_resources: int
    initiator_depth: int


def device_names():
    """The RDMA devices that user space can see now."""
    cdef int count = 0
    cdef ibv_device **devices
    with nogil:
        devices = ibv_get_device_list(&count)
    if devices == NULL:
        return []
    names = [ibv_get_device_name(devices[i]).decode(errors="replace") for i in range(count)]
    ibv_free_device_list(devices)
    return names


cdef int release_context(ibv_context *context) except -1:
    """Let a removed device go: close its files, on which the kernel's removal waits.

    The context is librdmacm's, which closes it much later or, if there is no other device, never. It keeps valid
    descriptors, of nothing, until then.
    """
    cdef int nothing = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    try:
        os.dup2(nothing, context.cmd_fd, False)
        os.dup2(nothing, context.async_fd, False)
    finally:
        os.close(nothing)
    return 0


cdef union Address:
    sockaddr any
    sockaddr_in four
    sockaddr_in6 six


cdef int fill_address(Address *address, bytes host, uint16_t port, uint32_t scope) except -1:
    memset(address, 0, sizeof(Address))
    if len(host) == 4:
        address.four.sin_family = AF_INET
        address.four.sin_port = htons(port)
        memcpy(&address.four.sin_addr, <char *>host, 4)
    elif len(host) == 16:
        address.six.sin6_family = AF_INET6
        address.six.sin6_port = htons(port)
        address.six.sin6_scope_id = scope
        memcpy(&address.six.sin6_addr, <char *>host, 16)
    else:
        raise ValueError("an address has 4 or 16 octets")
    return 0


cdef tuple text_of_address(sockaddr *address):
    cdef sockaddr_in *four
    cdef sockaddr_in6 *six
    cdef bytes host
    if address == NULL:
        return "", 0
    if address.sa_family == AF_INET:
        four = <sockaddr_in *>address
        return socket.inet_ntop(socket.AF_INET, (<char *>&four.sin_addr)[:4]), ntohs(four.sin_port)
    if address.sa_family == AF_INET6:
        six = <sockaddr_in6 *>address
        host = (<char *>&six.sin6_addr)[:16]
        if host[:12] == b"\0" * 10 + b"\xff\xff":
            return socket.inet_ntop(socket.AF_INET, host[12:]), ntohs(six.sin6_port)
        return socket.inet_ntop(socket.AF_INET6, host), ntohs(six.sin6_port)
    return f"address family {address.sa_family}", 0


cdef class EventChannel:
    """Where the events of identifiers arrive."""

    def __init__(self, control, loop):
        self.identifiers = {}
        self.control = control
        self.loop = loop
        control.call(self.open)
        loop.add_reader(self.channel.fd, contain, None, self.read)

    def open(self):
        """Create the channel, on the control thread."""
        cdef int flags
        with nogil:
            self.channel = rdma_create_event_channel()
        if self.channel == NULL:
            raise failure("rdma_create_event_channel", "", errno)
        flags = fcntl.fcntl(self.channel.fd, fcntl.F_GETFL)
        fcntl.fcntl(self.channel.fd, fcntl.F_SETFL, flags | os.O_NONBLOCK)

    def read(self):
        """There are events: have them taken, and look for no more meanwhile."""
        self.loop.remove_reader(self.channel.fd)
        self.control.submit(self.hand_out, self.take_events)

    def hand_out(self, events, error):
        """Tell of the events, each its identifier's owner; then look for more."""
        cdef Identifier made
        if self.channel == NULL:
            return
        if error is not None:
            log.error("RDMA-CM's events: %s", error)
        for identifier, made, kind, status, request in events or ():
            self.tell(identifier, kind, status, request)
            if made is not None and made.owner is None:
                contain(None, made.destroy)  # nobody took it
        if self.channel != NULL:
            self.loop.add_reader(self.channel.fd, contain, None, self.read)

    def take_events(self):
        """The events there are, on the control thread."""
        cdef rdma_cm_event *event = NULL
        cdef rdma_event_channel *channel = self.channel
        cdef rdma_cm_event_type kind
        cdef int result, status, count
        cdef Identifier identifier, made
        cdef object request
        cdef list events = []
        for count in range(EVENTS_PER_TURN):
            with nogil:
                result = rdma_get_cm_event(channel, &event)
            if result:
                if errno != EAGAIN and errno != EINTR:
                    log.error("%s", failure("rdma_get_cm_event", "", errno))
                break
            kind = event.event
            status = event.status
            made = None
            request = None
            if kind == RDMA_CM_EVENT_CONNECT_REQUEST:
                identifier = self.identifiers.get(<uintptr_t>event.listen_id)
                made = Identifier.__new__(Identifier)
                made.id = event.id
                made.channel = self
                self.identifiers[<uintptr_t>event.id] = made
            else:
                identifier = self.identifiers.get(<uintptr_t>event.id)
            if (
                kind == RDMA_CM_EVENT_CONNECT_REQUEST
                or kind == RDMA_CM_EVENT_CONNECT_RESPONSE
                or kind == RDMA_CM_EVENT_ESTABLISHED
                or kind == RDMA_CM_EVENT_REJECTED
            ):
                request = Request(
                    made,
                    (<char *>event.param.conn.private_data)[:event.param.conn.private_data_len]
                    if event.param.conn.private_data != NULL
                    else b"",
                    event.param.conn.responder_resources,
                    event.param.conn.initiator_depth,
                )
            rdma_ack_cm_event(event)
            events.append((identifier, made, rdma_event_str(kind).decode()[14:], status, request))
        return events

    cdef int tell(self, Identifier identifier, str kind, int status, object request) except -1:
        if identifier is None or identifier.owner is None:
            log.debug("RDMA-CM event %s, status %d, is nobody's", kind, status)
            return 0
        try:
            identifier.owner.cm_event(kind, status, request)
        except Exception:
            log.exception("RDMA-CM event %s, status %d", kind, status)
        return 0

    def close(self):
        """Destroy the channel, after all its identifiers."""
        if self.channel != NULL:
            self.loop.remove_reader(self.channel.fd)
        self.control.call_last(self.destroy)

    def destroy(self):
        """Destroy, on the control thread."""
        cdef rdma_event_channel *channel = self.channel
        for identifier in list(self.identifiers.values()):
            identifier.destroy_now()
        self.channel = NULL
        if channel != NULL:
            with nogil:
                rdma_destroy_event_channel(channel)


cdef class Identifier:
    """An ``rdma_cm_id``: a listener, a connect request or a connection."""

    def __init__(self, EventChannel channel, owner):
        self.channel = channel
        channel.control.call(self.create)
        self.owner = owner
        channel.identifiers[<uintptr_t>self.id] = self

    def create(self):
        """Create it, on the control thread."""
        cdef rdma_event_channel *events = self.channel.channel
        cdef int result
        with nogil:
            result = rdma_create_id(events, &self.id, NULL, RDMA_PS_TCP)
        if result:
            self.id = NULL
            raise failure("rdma_create_id", "", errno)

    cdef str device(self):
        if self.id == NULL or self.id.verbs == NULL:
            return ""
        return ibv_get_device_name(self.id.verbs.device).decode(errors="replace")

    @property
    def alive(self):
        """Not destroyed."""
        return self.id != NULL

    @property
    def device_name(self):
        """The device's name, '' for none."""
        return self.device()

    @property
    def device_key(self):
        """The same for all identifiers of one device."""
        return 0 if self.id == NULL else <uintptr_t>self.id.verbs

    @property
    def port(self):
        """The device's port."""
        return 0 if self.id == NULL else self.id.port_num

    @property
    def local(self):
        """(address, port) of this end."""
        return ("", 0) if self.id == NULL else text_of_address(rdma_get_local_addr(self.id))

    @property
    def peer(self):
        """(address, port) of the other end."""
        return ("", 0) if self.id == NULL else text_of_address(rdma_get_peer_addr(self.id))

    def option(self, int name, int value, size_t length):
        """Set an option; raises OSError."""
        self.channel.control.call(self.set_option, name, value, length)

    def set_option(self, int name, int value, size_t length):
        """The same, on the control thread."""
        cdef int integer = value
        cdef uint8_t octet = <uint8_t>value
        cdef void *pointer = <void *>&octet if length == 1 else <void *>&integer
        if rdma_set_option(self.id, RDMA_OPTION_ID, name, pointer, length):
            raise failure("rdma_set_option", self.device(), errno)

    def set_type_of_service(self, int value):
        """The packets' DSCP and ECN octet; 0 leaves it to the system."""
        if value:
            self.option(RDMA_OPTION_ID_TOS, value, 1)

    def bind(self, bytes host, int port, uint32_t scope=0, *, bint only_ipv6=False):
        """Bind to a packed address."""
        self.option(RDMA_OPTION_ID_REUSEADDR, 1, sizeof(int))
        if len(host) == 16:
            self.option(RDMA_OPTION_ID_AFONLY, only_ipv6, sizeof(int))
        self.channel.control.call(self.name_address, "rdma_bind_addr", host, port, scope, 0)

    def resolve_address(self, bytes host, int port, uint32_t scope, int milliseconds):
        """Find the device for a destination; ADDR_RESOLVED or ADDR_ERROR follows."""
        self.channel.control.call(self.name_address, "rdma_resolve_addr", host, port, scope, milliseconds)

    def name_address(self, str call, bytes host, int port, uint32_t scope, int milliseconds):
        """Bind to an address, or find the way to it, on the control thread."""
        cdef Address address
        cdef rdma_cm_id *identifier = self.id
        cdef bint own = call == "rdma_bind_addr"
        cdef int result
        fill_address(&address, host, port, scope)
        with nogil:
            if own:
                result = rdma_bind_addr(identifier, &address.any)
            else:
                result = rdma_resolve_addr(identifier, NULL, &address.any, milliseconds)
        if result:
            raise failure(call, self.device(), errno)

    def listen(self, int backlog):
        """Listen."""
        self.channel.control.call(self.step, LISTEN, backlog)

    def step(self, int which, int argument):
        """Listen, or find the route, on the control thread."""
        cdef rdma_cm_id *identifier = self.id
        cdef int result
        with nogil:
            result = rdma_listen(identifier, argument) if which == LISTEN else rdma_resolve_route(identifier, argument)
        if result:
            raise failure("rdma_listen" if which == LISTEN else "rdma_resolve_route", self.device(), errno)

    def resolve_route(self, int milliseconds):
        """Find the route; ROUTE_RESOLVED or ROUTE_ERROR follows."""
        self.channel.control.call(self.step, ROUTE, milliseconds)

    def connect(self, bytes private_data, int initiator_depth, int responder_resources):
        """Connect; ESTABLISHED, REJECTED, UNREACHABLE or CONNECT_ERROR follows."""
        self.channel.control.call(self.agree, False, private_data, initiator_depth, responder_resources)

    def accept(self, done, bytes private_data, int initiator_depth, int responder_resources, int type_of_service=0):
        """Have it accepted; ``done`` takes the outcome, then ESTABLISHED, or an error event, follows."""
        self.channel.control.submit(
            done, self.accept_now, private_data, initiator_depth, responder_resources, type_of_service
        )

    def accept_now(self, bytes private_data, int initiator_depth, int responder_resources, int type_of_service):
        """The same, on the control thread."""
        if type_of_service:
            self.set_option(RDMA_OPTION_ID_TOS, type_of_service, 1)
        self.agree(True, private_data, initiator_depth, responder_resources)

    def agree(self, bint accepting, bytes private_data, int initiator_depth, int responder_resources):
        """Connect or accept, on the control thread."""
        cdef rdma_conn_param parameters
        cdef rdma_cm_id *identifier = self.id
        cdef int result
        if identifier == NULL:
            raise OSError("the connection request is gone")
        fill_parameters(&parameters, private_data, initiator_depth, responder_resources)
        with nogil:
            result = rdma_accept(identifier, &parameters) if accepting else rdma_connect(identifier, &parameters)
        if result:
            raise failure("rdma_accept" if accepting else "rdma_connect", self.device(), errno)

    def reject(self, bytes private_data):
        """Have it refused. Nothing happens when it is gone by now."""
        self.channel.control.submit(not_rejected, self.reject_now, private_data)

    def reject_now(self, bytes private_data):
        """The same, on the control thread."""
        cdef rdma_cm_id *identifier = self.id
        cdef const char *data = private_data
        cdef uint8_t length = <uint8_t>min(len(private_data), LARGEST_PRIVATE_DATA)
        cdef int result
        if identifier == NULL:
            return
        with nogil:
            result = rdma_reject(identifier, data, length)
        if result:
            raise failure("rdma_reject", self.device(), errno)

    def disconnect_now(self):
        """Disconnect, on the control thread. Nothing happens when that is the case already."""
        cdef rdma_cm_id *identifier = self.id
        if identifier != NULL:
            with nogil:
                rdma_disconnect(identifier)

    def release_device(self):
        """The identifier's device was removed: see :func:`release_context`. Its objects must be gone."""
        self.channel.control.call(self.release_device_now)

    def release_device_now(self):
        """The same, on the control thread."""
        if self.id != NULL and self.id.verbs != NULL:
            release_context(self.id.verbs)

    def destroy(self):
        """Have it destroyed, after what was begun with it. Idempotent. Its queue pair must be gone by then."""
        self.owner = None
        self.channel.control.submit(None, self.destroy_now)

    def destroy_at_once(self):
        """The same, and wait for it: for one that has no connection, and whose address may be wanted again."""
        self.owner = None
        self.channel.control.call(self.destroy_now)

    def destroy_now(self):
        """The same, on the control thread."""
        cdef rdma_cm_id *identifier = self.id
        self.owner = None
        if identifier != NULL:
            self.id = NULL
            self.channel.identifiers.pop(<uintptr_t>identifier, None)
            with nogil:
                rdma_destroy_id(identifier)


def not_rejected(result, error):
    """A rejection that could not be sent: the peer is gone."""
    if error is not None:
        log.debug("a rejection could not be sent: %s", error)


cdef int fill_parameters(rdma_conn_param *parameters, bytes private_data, int initiator_depth, int responder_resources) except -1:
    if len(private_data) > LARGEST_PRIVATE_DATA:
        raise ValueError(f"{len(private_data)} octets of private data")
    memset(parameters, 0, sizeof(rdma_conn_param))
    parameters.private_data = <char *>private_data
    parameters.private_data_len = <uint8_t>len(private_data)
    parameters.initiator_depth = <uint8_t>min(initiator_depth, 255)
    parameters.responder_resources = <uint8_t>min(responder_resources, 255)
    parameters.flow_control = 1
    parameters.retry_count = RETRY_FOREVER
    parameters.rnr_retry_count = RETRY_FOREVER
    return 0
