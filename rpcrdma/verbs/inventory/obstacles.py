"""What keeps the server from using the devices of a host, or from using them well, each with its remedy.

Owns the rules; imports the records. Pure.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterator

from rpcrdma.verbs.inventory import Device, Host, Obstacle, Port

_SIW = "Software iWARP stack"
"""The description of siw's devices."""
_MIN_READS = 4
"""RDMA Reads in flight below which large WRITEs wait for the network."""


def obstacles(host: Host, memory: int) -> list[Obstacle]:
    """All of them; ``memory`` is how many octets the server is going to register."""
    found = [*_of_host(host, memory)]
    for device in host.devices:
        found += _of_device(host, device, memory)
        for port in device.ports:
            found += _of_port(device, port)
    return found


def usable(device: Device, found: list[Obstacle]) -> bool:
    """Can the server use the device, by at least one of its ports?"""
    blocks = [obstacle for obstacle in found if obstacle.severity == "blocks" and obstacle.device in ("", device.name)]
    if any(not obstacle.port for obstacle in blocks):
        return False
    blocked = {obstacle.port for obstacle in blocks}
    return any(port.number not in blocked for port in device.ports)


def _of_host(host: Host, memory: int) -> Iterator[Obstacle]:
    if not host.devices:
        yield Obstacle(
            "blocks",
            "the kernel has no RDMA device",
            "load the adapter's driver (such as mlx5_ib, irdma, bnxt_re), or make a software device: "
            "modprobe rdma_rxe && rdma link add rxe0 type rxe netdev NETDEV",
        )
        return
    if host.missing_libraries:
        yield Obstacle(
            "blocks",
            f"{' and '.join(host.missing_libraries)} cannot be loaded",
            "apt-get install libibverbs1 librdmacm1 ibverbs-providers",
        )
    if not host.rdma_cm:
        yield Obstacle("blocks", "there is no /dev/infiniband/rdma_cm", "modprobe rdma_ucm")
    elif host.rdma_cm in host.unusable:
        yield _no_access(host.rdma_cm, host.unusable[host.rdma_cm])
    if not host.may_exceed and host.locked_memory is not None and host.locked_memory < memory:
        yield _locked_memory(host.locked_memory, memory)


def _of_device(host: Host, device: Device, memory: int) -> Iterator[Obstacle]:
    if (
        host.may_exceed
        and host.locked_memory is not None
        and host.locked_memory < memory
        and device.description == _SIW
    ):
        yield _locked_memory(host.locked_memory, memory, device.name)
    if not device.uverbs:
        yield Obstacle("blocks", "it has no /dev/infiniband/uverbs*", "modprobe ib_uverbs", device.name)
    elif device.uverbs in host.unusable:
        yield _no_access(device.uverbs, host.unusable[device.uverbs], device.name)
    if device.memory_management is False:
        yield Obstacle(
            "limits",
            "it lacks MEM_MGT_EXTENSIONS: no Send-with-Invalidate",
            "none needed: clients invalidate their memory themselves, at one more interrupt per call",
            device.name,
        )
    attributes = device.attributes
    if attributes is None:
        return
    if attributes.max_qp_init_rd_atom == 0:
        yield Obstacle(
            "blocks", "it can issue no RDMA Reads, which WRITE needs", "none: use another device", device.name
        )
    elif attributes.max_qp_init_rd_atom < _MIN_READS:
        yield Obstacle(
            "limits",
            f"it issues only {attributes.max_qp_init_rd_atom} RDMA Reads at a time: large WRITEs are slower",
            "look for a firmware setting of the adapter",
            device.name,
        )
    if attributes.max_srq == 0:
        yield Obstacle(
            "limits",
            "it has no shared Receive queues: every connection keeps Receive buffers of its own",
            "with many clients, lower the listener's credits or raise server.limits.memory",
            device.name,
        )


def _of_port(device: Device, port: Port) -> Iterator[Obstacle]:
    netdev = port.netdevs[0] if port.netdevs else "NETDEV"
    if port.state != "ACTIVE":
        if port.state == "INIT" and port.link_layer == "InfiniBand":
            remedy = "the fabric has no subnet manager: start one (opensm) on a host or switch"
        elif port.link_layer == "InfiniBand":
            remedy = "look at the cable and the switch's port; ibstat shows the physical state"
        else:
            remedy = f"ip link set {netdev} up; then look at the cable and the switch"
        physical = f" (physical state {port.physical_state})" if port.physical_state else ""
        yield Obstacle("blocks", f"port {port.number} is {port.state}{physical}", remedy, device.name, port.number)
    if not port.netdevs:
        remedy = "modprobe ib_ipoib" if port.link_layer == "InfiniBand" else "reload the adapter's network driver"
        problem = f"port {port.number} has no network interface, whose address RDMA-CM could listen on"
        yield Obstacle("blocks", problem, remedy, device.name, port.number)
    elif not any(_reachable(address) for address in port.addresses):
        yield Obstacle(
            "blocks",
            f"{' and '.join(port.netdevs)} has no IP address, by which RDMA-CM finds port {port.number}",
            f"ip addr add ADDRESS/LENGTH dev {netdev}",
            device.name,
            port.number,
        )
    elif device.kind == "RoCE" and not any(gid.kind == "RoCE v2" for gid in port.gids) and port.gids:
        yield Obstacle(
            "limits",
            f"port {port.number} has no RoCE v2 entry in its GID table: its traffic cannot be routed",
            "enable RoCE v2 in the adapter's firmware (mlxconfig ROCE_NEXT_PROTOCOL, or the vendor's tool)",
            device.name,
            port.number,
        )


def _reachable(address: str) -> bool:
    """Is it an address a client can name? A link-local one needs a zone."""
    return not ipaddress.ip_address(address).is_link_local


def _locked_memory(limit: int, memory: int, device: str = "") -> Obstacle:
    return Obstacle(
        "blocks",
        f"this process may lock {_size(limit)} of memory, the server registers up to {_size(memory)}"
        + (" (siw applies the limit to root, too)" if device else ""),
        "LimitMEMLOCK=infinity in the unit (systemd/rdma-nfsd.service has it), or ulimit -l unlimited as root, or "
        "a smaller server.limits.memory",
        device,
    )


def _no_access(path: str, reason: str, device: str = "") -> Obstacle:
    who = "root" if os.geteuid() == 0 else f"user id {os.geteuid()}"
    return Obstacle(
        "blocks",
        f"{path} cannot be opened by {who}: {reason}",
        "chmod or a udev rule (Debian's rdma-core: MODE=0666); in a unit DeviceAllow=char-infiniband_verbs rw and "
        "DeviceAllow=/dev/infiniband/rdma_cm rw; in a container --device=/dev/infiniband",
        device,
    )


def _size(octets: int) -> str:
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if octets >= 1 << shift:
            return f"{octets / (1 << shift):g} {unit}" if octets % (1 << shift) == 0 else f"{octets >> shift} {unit}"
    return f"{octets} octets"
