"""What is exported: which directory is offered under which name, as the configuration describes it.

Owns :class:`Export`. To whom it is offered is :mod:`nfsd.exports`' to say; the file service knows this alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from nfsd.edition import Edition
from nfsd.versions import ALL
from rpcrdma.paces import NO_BOUND, Bound

ANY_SECURITY = ("none", "tls", "mtls")
"""What connections may be secured by unless something is demanded, with the words of exports(5)."""


SECURITY = ("krb5p", "krb5i", "krb5", "sys", "none")
"""How callers may be known, the strongest first, with the words of exports(5): by Kerberos, with privacy, integrity or
neither, by what their host says (AUTH_SYS), not at all (AUTH_NONE)."""
WITHOUT_PROOF = ("sys", "none")
"""What is enough unless something else is demanded."""


@dataclass(frozen=True, slots=True)
class ClientOverride:
    """What one entry of ``clients`` changes for the clients it matches; None keeps the export's own setting."""

    host: str
    """As it stands in :attr:`Export.clients`."""
    read_only: bool | None = None
    squash: str | None = None
    anonuid: int | None = None
    anongid: int | None = None
    secure: bool | str | None = None
    umask: int | None = None
    rate: Bound | None = None
    weight: int | None = None
    xprtsec: tuple[str, ...] | None = None
    sec: tuple[str, ...] | None = None


class Place(NamedTuple):
    """A directory on some server, where clients are sent or find the same files."""

    host: str
    """A name or address, an IPv6 address without brackets."""
    path: str
    """As NFSv4 clients see it there."""

    def __str__(self) -> str:
        return f"[{self.host}]:{self.path}" if ":" in self.host else f"{self.host}:{self.path}"


@dataclass(frozen=True, slots=True)
class BackendChoice:
    """What an export's files are in, where that is no directory."""

    kind: str
    """``memory``, ``git``, ``cephfs`` or ``python``, or the name of an entry point."""
    module: str = ""
    """``package.module:factory``, for ``python``."""
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """What the factory is called with."""

    def __str__(self) -> str:
        return self.module or self.kind


@dataclass(frozen=True, slots=True)
class Export:
    """One export as the configuration describes it; or, with a ``referral``, a name that leads to other servers."""

    id: int
    """Stable over restarts and edits of the configuration: derived from ``path``, or set by ``id:``. 1..2**32-1."""
    path: str
    """Absolute path of the directory."""
    pseudo: str
    """Its absolute name for clients, normalised: ``/export``; ``/`` is allowed."""
    read_only: bool = False
    squash: str = "root"
    """``root``, ``none`` or ``all``."""
    anonuid: int = 65534
    anongid: int = 65534
    clients: tuple[str, ...] = ("*",)
    """Addresses, CIDR blocks, host names (with ``*`` and ``?``), netgroups behind an ``@``, ``*``."""
    asynchronous: bool | str = False
    """What replies do not wait for: True (``late_data`` and ``late_names``), ``"names"``, or False, nothing."""
    cross_mounts: bool = False
    """Whether clients may walk into file systems mounted inside the export."""
    workers: int = 8
    """Jobs of this export that may wait for its disk at the same time."""
    overrides: tuple[ClientOverride, ...] = ()
    """Settings that differ for some of ``clients``."""
    security_labels: bool = False
    """Whether clients see and set the files' security labels."""
    referral: tuple[Place, ...] = ()
    """Where the files really are: nothing is served here, and ``path`` is empty."""
    backend: BackendChoice | None = None
    """What the files are in; None: in the directory at ``path``, which is empty otherwise."""
    replicas: tuple[Place, ...] = ()
    """Where the same files are to be had as well."""
    secure: bool | str = False
    """Whether clients must use a port below 1024: True, ``"tcp"`` (RDMA's ports are not looked at), or False."""
    xprtsec: tuple[str, ...] = ANY_SECURITY
    """How connections may be secured: ``none``, ``tls``, ``mtls``."""
    sec: tuple[str, ...] = WITHOUT_PROOF
    """How callers may be known: words of :data:`SECURITY`."""
    mountpoint: bool | str = False
    """Whether something must be mounted at ``path``, or at another directory, for the export to be served."""
    umask: int = 0
    """Bits that the modes of new files lose, unless their directory has a default ACL."""
    manage_gids: bool = False
    """Whether users are in the groups that this server's system has them in, whatever their calls say."""
    versions: int = ALL
    """Of NFS that it is served by (:mod:`nfsd.versions`)."""
    max_read: int = 1 << 20
    """Octets of one READ; a longer one is answered short."""
    max_write: int = 1 << 20
    """Octets of one WRITE; likewise."""
    rate: Bound = NO_BOUND
    """What all clients together may do in a second."""
    origin: str = field(default="", compare=False)
    """Where the configuration speaks of it: file and line."""
    source: str = field(default="", compare=False)
    """Where its ``clients`` stand in the configuration: file and line."""
    place: str = field(default="", compare=False)
    """Where its ``path`` stands, likewise."""
    late_names: bool = field(init=False, compare=False)
    """Changes of names and attributes may be on the disk some time after their reply."""
    late_data: bool = field(init=False, compare=False)
    """What stable WRITEs and COMMIT promise may be, too."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "late_names", bool(self.asynchronous))
        object.__setattr__(self, "late_data", self.asynchronous is True)


def derive_id(path: str) -> int:
    """The export id that goes with a path: 1..2**32-1, the same at every start."""
    return int.from_bytes(hashlib.blake2b(path.encode("utf-8", "surrogateescape"), digest_size=4).digest(), "big") or 1


class Exports(Protocol):
    """All exports, as far as the file service needs them."""

    exports: tuple[Export, ...]
    """Those that are served here."""
    referrals: tuple[Export, ...]
    """Those that lead elsewhere."""
    edition: Edition
    """Of what they say about callers."""

    def replace(self, exports: Iterable[Export]) -> None:
        """These are all from now on."""
