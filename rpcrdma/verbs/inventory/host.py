"""Reading the host: sysfs, netlink, the limits of this process, and pyverbs where one is installed.

Owns nothing; imports the records and the netlink questions. Every place it looks at is a parameter of
:class:`Places`, so that tests can lay out a host in a directory.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import importlib.util
import ipaddress
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rpcrdma.verbs.inventory import Attributes, Device, Gid, Host, Port, netlink

_CAP_IPC_LOCK = 14
_MEM_MGT_EXTENSIONS = 1 << 21
_SYSTEM_PYTHON = "/usr/bin/python3"
_IPOIB = 32
"""ARPHRD_INFINIBAND, the type of an IP-over-InfiniBand interface."""
LIBRARIES = ("libibverbs.so.1", "librdmacm.so.1")


def _library_loads(name: str) -> bool:
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def ask_pyverbs() -> tuple[dict[str, Any], str]:
    """The answer of :mod:`.pyverbs_query` and "", or {} and why there is none."""
    why = "pyverbs is not installed (Debian: python3-pyverbs)"
    candidates = [sys.executable] if importlib.util.find_spec("pyverbs") else []
    script = Path(__file__).with_name("pyverbs_query.py")
    for interpreter in [*candidates, _SYSTEM_PYTHON]:
        try:
            done = subprocess.run([interpreter, "-I", script], capture_output=True, timeout=20, text=True, check=False)
            if done.returncode == 0:
                return json.loads(done.stdout), ""
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            why = f"pyverbs: {interpreter}: {error}"
            continue
        said = done.stderr.strip().splitlines()
        if done.returncode != 3 or (said and "No module named 'pyverbs'" not in said[-1]):
            why = f"pyverbs: {interpreter}: {said[-1] if said else f'status {done.returncode}'}"
    return {}, why


@dataclass(frozen=True, slots=True)
class Places:
    """Where to look. The defaults are the running host."""

    sys: Path = Path("/sys")
    dev: Path = Path("/dev")
    proc: Path = Path("/proc")
    addresses: Callable[[], Mapping[str, list[str]]] = netlink.interface_addresses
    rdma_devices: Callable[[], Mapping[str, netlink.RdmaDevice]] = netlink.rdma_devices
    rdma_netdevs: Callable[[int], Mapping[int, str]] = netlink.rdma_netdevs
    memlock: Callable[[], int] = lambda: resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    library_loads: Callable[[str], bool] = _library_loads
    pyverbs: Callable[[], tuple[dict[str, Any], str]] = ask_pyverbs


def _read(path: Path) -> str:
    """A sysfs file's content, "" when there is none: unused GID entries, for one, cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _names(path: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in path.iterdir())
    except OSError:
        return []


def _numbers(path: Path) -> list[int]:
    return sorted(int(name) for name in _names(path) if name.isdigit())


def _label(text: str) -> str:
    """``4: ACTIVE`` is ACTIVE."""
    return text.partition(":")[2].strip() if ":" in text else text


class _Reader:
    """One reading of the host."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._addresses: Mapping[str, list[str]] = {}
        self._kernel: Mapping[str, netlink.RdmaDevice] = {}
        with contextlib.suppress(OSError):
            self._addresses = places.addresses()
        with contextlib.suppress(OSError):
            self._kernel = places.rdma_devices()
        self._root = places.sys / "class/infiniband"

    def host(self) -> Host:
        answer: dict[str, Any] = {}
        complaint = ""
        names = _names(self._root)
        if names:
            answer, complaint = self._places.pyverbs()
        devices = tuple(self._device(name, answer) for name in names)
        cm = self._places.dev / "infiniband/rdma_cm"
        rdma_cm = str(cm) if cm.exists() else ""
        unusable = {}
        for path in filter(None, [rdma_cm, *(device.uverbs for device in devices)]):
            reason = _cannot_open(path)
            if reason:
                unusable[path] = reason
        return Host(
            devices,
            tuple(name for name in LIBRARIES if not self._places.library_loads(name)),
            rdma_cm,
            None if (limit := self._places.memlock()) == resource.RLIM_INFINITY else limit,
            self._has_ipc_lock(),
            unusable,
            complaint or "; ".join(f"{name}: {why}" for name, why in answer.get("errors", {}).items()),
        )

    def _has_ipc_lock(self) -> bool:
        for line in _read(self._places.proc / "self/status").splitlines():
            if line.startswith("CapEff:"):
                return bool(int(line.split()[1], 16) >> _CAP_IPC_LOCK & 1)
        return False

    def _device(self, name: str, answer: Mapping[str, Any]) -> Device:
        path = self._root / name
        kernel = self._kernel.get(name)
        netdevs: Mapping[int, str] = {}
        if kernel is not None:
            with contextlib.suppress(OSError):
                netdevs = self._places.rdma_netdevs(kernel.number)
        ports = tuple(self._port(path, number, netdevs.get(number, "")) for number in _numbers(path / "ports"))
        attributes = None
        if name in answer.get("devices", {}):
            attributes = Attributes(source=f"pyverbs {answer['version']}".strip(), **answer["devices"][name])
        if attributes is not None:
            memory_management: bool | None = attributes.memory_management
        else:
            memory_management = bool(kernel.flags & _MEM_MGT_EXTENSIONS) if kernel is not None else None
        return Device(
            name,
            _kind(_label(_read(path / "node_type")), ports),
            _read(path / "node_desc"),
            _read(path / "fw_ver"),
            _read(path / "node_guid"),
            self._uverbs(name),
            ports,
            attributes,
            memory_management,
        )

    def _uverbs(self, name: str) -> str:
        verbs = self._places.sys / "class/infiniband_verbs"
        for entry in _names(verbs):
            if _read(verbs / entry / "ibdev") == name:
                path = self._places.dev / "infiniband" / entry
                return str(path) if path.exists() else ""
        return ""

    def _port(self, device: Path, number: int, netdev: str) -> Port:
        path = device / "ports" / str(number)
        iwarp = _label(_read(device / "node_type")) == "RNIC"
        gids = []
        for index in _numbers(path / "gids"):
            gid = _read(path / "gids" / str(index))
            try:
                if int(ipaddress.IPv6Address(gid)) == 0:
                    continue
            except ValueError:
                continue
            attrs = path / "gid_attrs"
            kind = "" if iwarp else _read(attrs / "types" / str(index))  # the kernel says RoCE v1 of iWARP's
            gids.append(Gid(index, gid, kind, _read(attrs / "ndevs" / str(index))))
        link_layer = _read(path / "link_layer")
        netdevs = [netdev, *(gid.netdev for gid in gids)]
        if link_layer == "InfiniBand":
            netdevs += self._ipoib(device.name, number)
        netdevs = [name for name in dict.fromkeys(netdevs) if name]
        return Port(
            number,
            _label(_read(path / "state")),
            _label(_read(path / "phys_state")),
            link_layer,
            _read(path / "rate"),
            tuple(netdevs),
            tuple(address for name in netdevs for address in self._addresses.get(name, ())),
            tuple(gids),
        )

    def _ipoib(self, device: str, port: int) -> list[str]:
        """The IP-over-InfiniBand interfaces of a port; dev_port counts from 0."""
        found = []
        net = self._places.sys / "class/net"
        for name in _names(net):
            if _read(net / name / "type") == str(_IPOIB) and device in _names(net / name / "device/infiniband"):
                place = _read(net / name / "dev_port")
                if not place.isdigit() or int(place) == port - 1:
                    found.append(name)
        return found


def _kind(node_type: str, ports: tuple[Port, ...]) -> str:
    if node_type == "RNIC":
        return "iWARP"
    if node_type == "CA":
        return "InfiniBand" if any(port.link_layer == "InfiniBand" for port in ports) else "RoCE"
    return node_type or "unknown"


def _cannot_open(path: str) -> str:
    """Why this process cannot open a character device for reading and writing, "" when it can.

    It is really opened: a container's device rules refuse what the file's mode allows.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, "") + f" ({os.strerror(error.errno or 0)})"
    return ""


def read_host(places: Places | None = None) -> Host:
    """Look at the host. Never raises for what the host lacks."""
    return _Reader(places or Places()).host()
