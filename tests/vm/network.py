"""Networks for guests.

* ``Namespace``: a network namespace of its own with a bridge on 10.99.0.1 and a tap device per guest. Needs root. The
  server runs inside it (``ip netns exec``), so nothing touches the machine's own network. It is what the tests use:
  several guests, both directions, jumbo frames.
* ``Slirp``: qemu's user-mode network. No rights needed; the host's loopback is 10.0.2.2 for the guest, and nothing
  can dial the guest.
"""

from __future__ import annotations

import itertools
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

_PREFIX = "rnfsd"
_serial = itertools.count()


@dataclass(frozen=True)
class Nic:
    """How one guest is attached: qemu's arguments, the guest's address, its gateway and MTU ("" for none), and the
    device at the host's end, if there is one."""

    qemu: tuple[str, ...]
    address: str
    gateway: str
    mtu: str
    device: str = ""


class Network(Protocol):
    """What a guest needs to know of the network it is put on."""

    server_address: str
    """The address under which a guest reaches the server."""
    listen_address: str
    """The address the server has to listen on."""
    enter: tuple[str, ...]
    """Command prefix that runs a program on this network."""

    def attach(self, number: int = 0) -> Nic:
        """Make a place for one more guest, or for the further interface ``number`` of a guest."""
        ...

    def set_link(self, nic: Nic, *, up: bool) -> None:
        """Pull a guest's cable, or plug it in again."""
        ...

    def close(self) -> None:
        """Remove what was made. Idempotent."""
        ...


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")


def _sweep() -> None:
    """Delete namespaces left by test runs whose process is gone."""
    for path in Path("/run/netns").glob(f"{_PREFIX}-*"):
        owner = path.name.split("-")[1]
        if owner.isdigit() and not Path("/proc", owner).exists():
            subprocess.run(["ip", "netns", "del", path.name], capture_output=True, check=False)


class Namespace:
    """A namespace named after this process, with a bridge; also a context manager.

    Raises OSError without the right to make one.
    """

    server_address = "10.99.0.1"
    listen_address = "10.99.0.1"

    def __init__(self, mtu: int = 9000) -> None:
        self.name = f"{_PREFIX}-{os.getpid()}-{next(_serial)}"
        self.mtu = mtu
        self.enter: tuple[str, ...] = ("ip", "netns", "exec", self.name)
        self._taps = 0
        self._open = False
        _sweep()
        _ip("netns", "add", self.name)
        self._open = True
        try:
            _ip("-n", self.name, "link", "set", "lo", "up")
            _ip("-n", self.name, "link", "add", "br0", "type", "bridge")
            _ip("-n", self.name, "addr", "add", "10.99.0.1/24", "dev", "br0")
            _ip("-n", self.name, "link", "set", "br0", "mtu", str(mtu), "up")
        except OSError:
            self.close()
            raise

    def attach(self, number: int = 0) -> Nic:
        """Make a tap device; the guest gets 10.99.0.2, .3, … in the order of calls."""
        place = self._taps
        self._taps += 1
        tap = f"tap{place}"
        _ip("netns", "exec", self.name, "ip", "tuntap", "add", "dev", tap, "mode", "tap")
        _ip("-n", self.name, "link", "set", tap, "mtu", str(self.mtu), "master", "br0", "up")
        mac = f"52:54:00:99:00:{place + 2:02x}"
        qemu = (
            *("-netdev", f"tap,id=n{number},ifname={tap},script=no,downscript=no"),
            *("-device", f"virtio-net-pci,netdev=n{number},mac={mac},host_mtu={self.mtu},romfile="),
        )
        return Nic(qemu, f"10.99.0.{place + 2}/24", "", str(self.mtu), tap)

    def set_link(self, nic: Nic, *, up: bool) -> None:
        """Pull a guest's cable, or plug it in again."""
        _ip("-n", self.name, "link", "set", nic.device, "up" if up else "down")

    def close(self) -> None:
        """Delete the namespace, and with it the bridge and the taps."""
        if self._open:
            self._open = False
            subprocess.run(["ip", "netns", "del", self.name], capture_output=True, check=False)

    def __enter__(self) -> Namespace:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Slirp:
    """qemu's user-mode network: the fallback where no namespace can be made."""

    server_address = "10.0.2.2"
    listen_address = "127.0.0.1"
    enter: tuple[str, ...] = ()

    def attach(self, number: int = 0) -> Nic:
        """One more guest, or interface; each has a network to itself."""
        qemu = ("-netdev", f"user,id=n{number}", "-device", f"virtio-net-pci,netdev=n{number},romfile=")
        return Nic(qemu, "10.0.2.15/24", "10.0.2.2", "")

    def set_link(self, nic: Nic, *, up: bool) -> None:
        """Raises OSError: there is no cable to pull."""
        raise OSError("this needs a network namespace")

    def close(self) -> None:
        """Nothing was made."""

    def __enter__(self) -> Slirp:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def namespace_or_slirp() -> Namespace | Slirp:
    """A namespace where this process may make one, else slirp."""
    try:
        return Namespace()
    except OSError:
        return Slirp()
