"""What RDMA devices this host has, and what keeps a program from using them.

Owns the records; :mod:`.host` reads them off the host (sysfs, netlink, pyverbs where there is one), :mod:`.obstacles`
judges them. For people and diagnostics only: the server asks the verbs library itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Severity = Literal["blocks", "limits"]


@dataclass(frozen=True, slots=True)
class Attributes:
    """What a device can, as its driver tells the verbs library (ibv_query_device)."""

    source: str
    """Who was asked: ``pyverbs`` and its version."""
    memory_management: bool
    """IBV_DEVICE_MEM_MGT_EXTENSIONS: Send-with-Invalidate and fast registration."""
    max_qp: int
    max_qp_wr: int
    max_sge: int
    max_sge_rd: int
    """Scatter/gather entries of one RDMA Read."""
    max_qp_rd_atom: int
    """RDMA Reads a peer may have outstanding towards one of our queue pairs."""
    max_qp_init_rd_atom: int
    """RDMA Reads one of our queue pairs may have outstanding."""
    max_cq: int
    max_cqe: int
    max_mr: int
    max_mr_size: int
    max_srq: int
    max_srq_wr: int


@dataclass(frozen=True, slots=True)
class Gid:
    """An entry of a port's GID table."""

    index: int
    gid: str
    kind: str = ""
    """``IB/RoCE v1`` or ``RoCE v2`` where the kernel says."""
    netdev: str = ""


@dataclass(frozen=True, slots=True)
class Port:
    """One port of a device."""

    number: int
    state: str
    """ACTIVE, DOWN, INIT, ARMED, ..."""
    physical_state: str
    link_layer: str
    """InfiniBand or Ethernet."""
    rate: str
    netdevs: tuple[str, ...] = ()
    """The network interfaces whose addresses RDMA-CM maps to this port."""
    addresses: tuple[str, ...] = ()
    """Their IP addresses."""
    gids: tuple[Gid, ...] = ()


@dataclass(frozen=True, slots=True)
class Device:
    """One RDMA device."""

    name: str
    kind: str
    """InfiniBand, RoCE, iWARP, or the kernel's node type where it is none of them."""
    description: str
    """node_desc: the driver's or the administrator's text."""
    firmware: str
    guid: str
    uverbs: str
    """The character device's path, "" when the kernel has none for it."""
    ports: tuple[Port, ...]
    attributes: Attributes | None = None
    memory_management: bool | None = None
    """IBV_DEVICE_MEM_MGT_EXTENSIONS as the kernel says; None when it does not."""


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Something that keeps the server from using a device, or from using it well."""

    severity: Severity
    problem: str
    remedy: str
    device: str = ""
    """"" for the host as a whole."""
    port: int = 0


@dataclass(frozen=True, slots=True)
class Host:
    """The host as far as RDMA is concerned. ``None`` is for what could not be found out."""

    devices: tuple[Device, ...]
    missing_libraries: tuple[str, ...]
    rdma_cm: str
    """The path of RDMA-CM's character device, "" when there is none."""
    locked_memory: int | None
    """Octets this process may lock (RLIMIT_MEMLOCK); None for no limit."""
    may_exceed: bool
    """The process has CAP_IPC_LOCK, for which most drivers do not apply the limit."""
    unusable: dict[str, str] = field(default_factory=dict)
    """Character devices that this process may not open, and why."""
    pyverbs: str = ""
    """What pyverbs said instead of an answer, "" when it answered."""
