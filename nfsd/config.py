"""The configuration as the program uses it: frozen, complete, checked.

Owns the declarations; imports :mod:`nfsd.exports` for exports. :mod:`nfsd.config_file` makes these from a YAML file:
the field names (or aliases) are the file's keys, the annotations its bounds. Every default is here and nowhere else.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, ConfigDict, Field, StrictBool, StrictStr

from nfsd.config_stable import ServerName, Stable, StableStorage
from nfsd.config_values import (
    Asynchronous,
    Identity,
    Integer,
    Port,
    Processes,
    Sec,
    Seconds,
    Secure,
    Size,
    Squash,
    TransferSize,
    Umask,
    Versions,
    XprtSec,
    lone_string,
    loopback,
)
from nfsd.exports import Export
from nfsd.versions import of_names
from rpcrdma.tls.certificates import Files
from rpcrdma.weights import HEAVIEST

Location = tuple[str | int, ...]
"""A key by the keys and indices that lead to it."""
DEFAULT_PORTS = {"rdma": 20049, "tcp": 2049}


def dotted(where: Location) -> str:
    """A key as people write it: ``exports[0].squash``."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in where).lstrip(".")


def split_host_port(text: str, default_port: int | None = None) -> tuple[str, int]:
    """``host:port`` with a literal address as host, which comes back without brackets; ``*`` is ``::``. Raises
    ValueError with the remedy."""
    found = re.fullmatch(r"(?:\[([^\]]*)\]|([^:\[\]]*))(?::(\d{1,5}))?/?", text)
    if found is None:
        raise ValueError("write HOST:PORT, an IPv6 address in brackets: [::1]:2049")
    host = found[1] if found[1] is not None else found[2]
    if host == "*":
        host = "::"
    try:
        is_ipv6 = ipaddress.ip_address(host).version == 6
    except ValueError:
        raise ValueError(
            f"{host!r} is no address; write one of this host's, or 0.0.0.0 for all IPv4, [::] for all addresses"
        ) from None
    if is_ipv6 and found[1] is None and found[2] != "*":
        raise ValueError(f"an IPv6 address goes in brackets: [{host}]")
    if found[3] is None and default_port is None:
        raise ValueError(f"the port is missing: {text}:PORT")
    port = int(found[3]) if found[3] is not None else default_port
    assert port is not None
    if port > 65535:
        raise ValueError(f"there is no port {port}; the last one is 65535")
    return host, port


class Address(NamedTuple):
    """Where to listen."""

    scheme: str
    """``rdma`` or ``tcp``."""
    host: str
    """A literal address, without brackets; ``::`` takes IPv4 as well."""
    port: int

    def __str__(self) -> str:
        return f"{self.scheme}://[{self.host}]:{self.port}" if ":" in self.host else "{}://{}:{}".format(*self)


_STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listen:
    """One address to listen on. In the file a string is the ``url`` alone."""

    __pydantic_config__ = _STRICT

    url: StrictStr
    """``rdma://host:port`` or ``tcp://host:port``; the host is an IPv4 address, an IPv6 address in brackets, or ``*``
    for all addresses; without a port it is the usual one."""
    provider: Literal["auto", "softiwarp", "verbs"] = "auto"
    """Where RDMA comes from: ``softiwarp`` is the embedded iWARP over TCP, ``verbs`` a device, ``auto`` a device where
    the address has one."""
    send_size: Annotated[Size, Field(ge=1024, le=262144, multiple_of=1024)] = 4096
    """Largest inline message we send, in octets, unless the peer takes less (RFC 8797)."""
    receive_size: Annotated[Size, Field(ge=1024, le=262144, multiple_of=1024)] = 4096
    """Largest inline message we take."""
    credits: Annotated[Integer, Field(ge=2, le=1024)] = 128
    """Calls a client may have outstanding on one connection."""
    version_two: bool = True
    """Speak version Two of RPC-over-RDMA (draft-cel-nfsv4-rpcrdma-version-two-02) with peers that ask for it."""
    crc: Literal["auto", "always"] = "auto"
    """softiwarp: checksum FPDUs when the peer asks, or always (then peers that cannot are refused)."""

    tos: Annotated[Integer, Field(ge=0, le=255)] = 0
    """DSCP and ECN octet of the packets to clients (RFC 2474); 0 leaves it to the system."""

    @property
    def address(self) -> Address:
        """What the URL says. Raises ValueError, with the remedy, for one that says nothing sensible."""
        scheme, separator, rest = self.url.partition("://")
        if not separator or scheme not in DEFAULT_PORTS:
            raise ValueError("write rdma://HOST:PORT or tcp://HOST:PORT")
        return Address(scheme, *split_host_port(rest, DEFAULT_PORTS[scheme]))

    def __str__(self) -> str:
        return self.url


@dataclass(frozen=True, slots=True, kw_only=True)
class Nfs4Limits:
    """Bounds on what one NFSv4 client (or all) can make the server remember; fields of :class:`nfsd.state.Limits`."""

    __pydantic_config__ = _STRICT

    octets: Annotated[Size, Field(ge=1 << 20)] = 1 << 30
    host_share: Annotated[Integer, Field(ge=1, le=100)] = 25
    clients: Annotated[Integer, Field(ge=1, le=1000000)] = 10000
    unconfirmed_clients: Annotated[Integer, Field(ge=1, le=1000000)] = 1000
    sessions: Annotated[Integer, Field(ge=1, le=1024)] = 64
    connections: Annotated[Integer, Field(ge=1, le=1024)] = 64
    slots: Annotated[Integer, Field(ge=1, le=1024)] = 256
    operations: Annotated[Integer, Field(ge=8, le=1024)] = 128
    cached_reply_octets: Annotated[Size, Field(ge=512, le=1 << 20)] = 8192
    client_cached_octets: Annotated[Size, Field(ge=8192)] = 8 << 20
    all_cached_octets: Annotated[Size, Field(ge=8192)] = 256 << 20
    opens: Annotated[Integer, Field(ge=1)] = 100000
    open_owners: Annotated[Integer, Field(ge=1)] = 100000
    lock_owners: Annotated[Integer, Field(ge=1)] = 100000
    lock_states: Annotated[Integer, Field(ge=1)] = 100000
    locks: Annotated[Integer, Field(ge=1)] = 1000000
    waiters: Annotated[Integer, Field(ge=1)] = 1000
    client_waiters: Annotated[Integer, Field(ge=1)] = 1000
    client_copies: Annotated[Integer, Field(ge=0, le=10000)] = 16
    copies: Annotated[Integer, Field(ge=0, le=10000)] = 128
    delegations: Annotated[Integer, Field(ge=0, le=1000000)] = 20000
    client_delegations: Annotated[Integer, Field(ge=0, le=1000000)] = 5000


@dataclass(frozen=True, slots=True, kw_only=True)
class Nfs4:
    """NFSv4's times, names and bounds."""

    __pydantic_config__ = _STRICT

    lease_time: Annotated[Integer, Field(ge=5, le=3600)] = 90
    """Seconds a client's state lives without a word from it."""
    grace_time: Annotated[Integer, Field(ge=0, le=3600)] | None = None
    """Seconds after a restart in which only reclaims are served; default: ``lease_time``."""
    courtesy_time: Annotated[Integer, Field(ge=0, le=30 * 86400)] = 86400
    """Seconds an expired client's state is kept while nobody else wants what it holds."""
    delegations: Literal["local", "nfs", "off"] = "local"
    """Which files are delegated: ``local``, those the kernel protects against local processes by a lease; ``nfs``, all,
    for exports that only NFS clients use; ``off``, none."""
    callbacks_to: Literal["peer", "any"] = "peer"
    """Which addresses clients of NFSv4.0 may have callbacks sent to: ``peer``, their own, as the server sees it;
    ``any``, whatever they name."""
    id_names: Literal["numeric", "names"] = "numeric"
    """How clients are told of users and groups."""
    domain: StrictStr | None = None
    """What stands behind the @ of names; default: the domain of this host's name."""
    limits: Nfs4Limits = field(default_factory=Nfs4Limits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds on what clients together can make the server use."""

    __pydantic_config__ = _STRICT

    memory: Annotated[Size, Field(ge=16 << 20)] = 512 << 20
    """Octets of all message and data buffers together."""
    host_memory: Annotated[Size, Field(ge=8 << 20)] | None = None
    """Octets of the buffers of all connections of one client address (IPv6: /64); default: a quarter of ``memory``, or
    ``connection_memory`` if that is more; five eighths of ``memory`` at most."""
    connection_memory: Annotated[Size, Field(ge=8 << 20)] = 64 << 20
    """Octets of one connection's buffers."""
    connections: Annotated[Integer, Field(ge=1, le=100000)] = 1024
    """Connections to all listeners together, TCP and RDMA, those that are only being made included."""
    host_connections: Annotated[Integer, Field(ge=1, le=100000)] = 256
    """Connections of one client address."""
    shared_receives: Annotated[Integer, Field(ge=0, le=32768)] = 0
    """Receive buffers that all connections over an InfiniBand or RoCE device share, whatever their credits; 0: every
    connection has as many as it has credits."""
    calls: Annotated[Integer, Field(ge=1, le=4096)] = 128
    """Calls of one TCP connection that are worked on at a time."""
    host_calls: Annotated[Integer, Field(ge=1, le=65536)] = 1024
    """Calls of all connections of one client address that are worked on at a time."""
    all_calls: Annotated[Integer, Field(ge=1, le=1000000)] = 8192
    """Calls of all clients that are worked on at a time."""
    open_files: Annotated[Integer, Field(ge=16)] | None = None
    """Files kept open for clients; default, and at most: three eighths of the descriptors that connections and calls
    leave."""
    host_open_files: Annotated[Integer, Field(ge=16)] | None = None
    """Files kept open for one client address; default: half of ``open_files``."""
    idle_time: Seconds = 360.0
    """Seconds a connection may stay without any call."""
    transfer_time: Seconds = 60.0
    """Seconds in which a record that has begun must arrive, and replies must make headway."""
    replay_memory: Annotated[Size, Field(ge=1 << 20)] = 16 << 20
    """Octets of replies kept for calls that are sent again (NFSv3 and NFSv4.0), over all clients."""
    drain_time: Seconds = 10.0
    """Seconds calls in flight get to finish when the server stops."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """What goes to stderr."""

    __pydantic_config__ = _STRICT

    level: Literal["debug", "info", "warning", "error"] = "info"


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """The log of what happens with clients, as JSON lines."""

    __pydantic_config__ = _STRICT

    file: StrictStr | None = None
    """None: there is none."""
    size: Annotated[Size, Field(ge=4096)] = 64 << 20
    """Octets at which the file becomes ``FILE.1`` and a new one is begun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """The Prometheus endpoint."""

    __pydantic_config__ = _STRICT

    listen: Annotated[StrictStr | None, BeforeValidator(loopback)] = None
    """``host:port`` to serve ``/metrics`` and the page on, or a port of the loopback address; none without it."""
    names: tuple[StrictStr, ...] = ()
    """Names that this host is asked by there, besides its own; ``*`` for any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """What may be done in a second."""

    __pydantic_config__ = _STRICT

    octets: Annotated[Size, Field(ge=4096)] | None = None
    """Of files, read and written."""
    calls: Annotated[Integer, Field(ge=1)] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """TLS on the TCP listeners (RFC 9289). Names of PEM files, but for the last."""

    __pydantic_config__ = _STRICT

    certificate: StrictStr
    """The server's, with those between it and a root."""
    key: StrictStr
    """Its private key."""
    client_roots: StrictStr | None = None
    """Whose clients' certificates are believed. Without it clients are not asked for one."""
    revoked: StrictStr | None = None
    """Revocation lists of those roots."""
    kernel: Literal["auto", "never"] = "auto"
    """Whether the kernel enciphers what is sent, where it can."""

    def files(self) -> Files:
        """As the transport has them."""
        return Files(self.certificate, self.key, self.client_roots or "", self.revoked or "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kerberos:
    """RPCSEC_GSS with Kerberos 5 (RFC 2203), on every transport."""

    __pydantic_config__ = _STRICT

    keytab: StrictStr = "/etc/krb5.keytab"
    """Has the keys of ``nfs/HOST``; read again when it changes."""
    principal: Annotated[StrictStr, Field(pattern=r"^nfs/[A-Za-z0-9._-]+(@[^@/\s]+)?$")] | None = None
    """Whom clients must ask for; without it, any ``nfs/HOST`` of the keytab."""
    realms: tuple[Annotated[StrictStr, Field(pattern=r"^[^@/\s]+$")], ...] = ()
    """Whose users are this host's of the same name, besides the realms of the keytab."""
    users: dict[Annotated[StrictStr, Field(pattern=r"^[^@\[\]?\\]+@[^@/\[\]?\\]+$")], StrictStr] = field(
        default_factory=dict
    )
    """Rules, from principals or patterns with ``*`` to users of this host, or to ``nobody``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """Everything but the exports."""

    __pydantic_config__ = _STRICT

    listen: tuple[Annotated[Listen, lone_string("url")], ...]
    mountd_port: Port = 20048
    """TCP port of MOUNT (NFSv3), on the hosts of the TCP listeners, or of all if there is none of those."""
    nlm: StrictBool = True
    """Whether NFSv3 clients may lock files (NLM), and are told of restarts (NSM)."""
    nlm_port: Port = 0
    """TCP port of NLM, on the hosts of MOUNT; 0: any. Clients ask rpcbind."""
    nsm_port: Port = 0
    """TCP and UDP port of NSM, likewise."""
    rquota: StrictBool = False
    """Whether to answer clients' ``quota`` commands (RQUOTA)."""
    rquota_port: Port = 0
    """TCP and UDP port of RQUOTA, likewise."""
    processes: Processes = 1
    """Processes that serve together, each of them its part of the clients; ``auto``: one for each processor."""
    state_dir: StrictStr = "./state"
    """Where client records and the handle key live; made if missing, readable by the server alone."""
    name: ServerName | None = None
    """What this server is called among those of its cluster, and its records with it."""
    stable_storage: Stable = field(default_factory=StableStorage)
    """Where what must outlive the server is kept: ``sqlite``, or ``rados`` with a pool."""
    rpcbind: StrictBool = True
    """Whether to register with rpcbind when one runs."""
    portmapper: StrictBool = False
    """Whether to answer on port 111 in rpcbind's place."""
    local_users: Literal["own", "all"] = "own"
    """Whose connections from this host are taken where the server cannot act as other users: its own user's and root's,
    or all."""
    read_only: StrictBool = False
    """Whether nothing may be changed, whatever the exports say."""
    versions: Versions | None = None
    """Of NFS that are spoken; without it, all."""
    io_uring: StrictBool = True
    """Whether workers may make READs of disks many at a time, with io_uring(7)."""
    recent_listings: StrictBool = True
    """Whether a directory that is listed again and again is remembered for a moment."""
    client_rate: Rate = field(default_factory=Rate)
    """What each client may do, on all exports that have no rate for it."""
    tls: Tls | None = None
    """Without it connections cannot be secured."""
    kerberos: Kerberos | None = None
    """Without it callers cannot be known by Kerberos."""
    nfs4: Nfs4 = field(default_factory=Nfs4)
    limits: Limits = field(default_factory=Limits)
    log: Log = field(default_factory=Log)
    audit: Audit = field(default_factory=Audit)
    metrics: Metrics = field(default_factory=Metrics)

    @property
    def connection_descriptors(self) -> int:
        """Of a connection: one whose handshake is under way has another one."""
        return 1 if self.tls is None else 2

    @property
    def spoken(self) -> int:
        """The versions of NFS that are spoken (:mod:`nfsd.versions`)."""
        return of_names(self.versions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """One entry of an export's ``clients``. In the file a string is the ``host`` alone."""

    __pydantic_config__ = _STRICT

    host: StrictStr
    access: Literal["rw", "ro"] | None = None
    squash: Squash | None = None
    anonuid: Identity | None = None
    anongid: Identity | None = None
    secure: Secure | None = None
    xprtsec: XprtSec | None = None
    sec: Sec | None = None
    umask: Umask | None = None
    rate: Rate | None = None
    """Of this client on this export, in place of ``server.client_rate``."""
    weight: Annotated[Integer, Field(ge=1, le=HEAVIEST)] | None = None
    """Turns of this client on this export for one of another's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportEntry:
    """One export as the file has it; :class:`nfsd.exports.Export` says what the settings mean."""

    __pydantic_config__ = _STRICT

    path: StrictStr | None = None
    """Required, except with ``referral`` or ``backend``."""
    pseudo: StrictStr | None = None
    """Default: the last part of ``path``."""
    id: Annotated[Integer, Field(ge=1, le=0xFFFFFFFF)] | None = None
    access: Literal["rw", "ro"] = "rw"
    squash: Squash = "root"
    anonuid: Identity = 65534
    anongid: Identity = 65534
    clients: tuple[Annotated[Client, lone_string("host")], ...] = (Client(host="*"),)
    asynchronous: Annotated[Asynchronous, Field(alias="async")] = False
    cross_mounts: StrictBool = False
    mountpoint: StrictBool | StrictStr = False
    workers: Annotated[Integer, Field(ge=1, le=256)] = 8
    security_labels: StrictBool = False
    secure: Secure = False
    xprtsec: XprtSec = ("none", "tls", "mtls")
    """How connections may be secured: not at all, by TLS, by TLS with a client's certificate. exports(5) has the words.
    """
    sec: Sec = ("sys", "none")
    """How callers may be known: by Kerberos, by what their host says, not at all. exports(5) has the words."""
    umask: Umask = 0
    manage_gids: StrictBool = False
    versions: Versions | None = None
    """Without it, all that the server speaks."""
    max_read: TransferSize = 1 << 20
    max_write: TransferSize = 1 << 20
    rate: Rate = field(default_factory=Rate)
    """Of all clients together."""
    referral: tuple[StrictStr, ...] = ()
    replicas: tuple[StrictStr, ...] = ()
    backend: StrictStr | None = None
    """Instead of ``path``: ``memory``, ``python``, or the name of an installed plug-in."""
    module: StrictStr | None = None
    """With ``backend: python``: ``package.module:factory``."""
    options: dict[StrictStr, Any] = field(default_factory=dict)
    """What the backend is made with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """The whole file."""

    __pydantic_config__ = _STRICT

    server: Server
    exports: Annotated[tuple[ExportEntry, ...], Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class Config:
    """What the daemon runs on; paths are absolute."""

    file: str
    server: Server
    exports: tuple[Export, ...]
    lines: Mapping[Location, int] = field(default_factory=dict, compare=False, repr=False)
    """The line of each key."""

    def line(self, where: Location) -> int:
        """The line of a key, or of what it is missing from; 0: there is no file."""
        while where not in self.lines and where:
            where = where[:-1]
        return self.lines.get(where, 0)
