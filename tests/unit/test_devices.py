"""The inventory of RDMA devices: a host laid out in a directory, what is seen there, what is said to be in the way."""

import dataclasses
import json
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from nfsd import cli
from nfsd.devices import as_json, as_text
from rpcrdma.verbs.inventory import Host, Obstacle, netlink
from rpcrdma.verbs.inventory.host import LIBRARIES, Places, ask_pyverbs, read_host
from rpcrdma.verbs.inventory.obstacles import obstacles, usable

MEMORY = 512 << 20
NO_GID = ":".join(["0000"] * 8)
LIMITS = {
    "max_qp": 1048560,
    "max_qp_wr": 1048576,
    "max_sge": 32,
    "max_sge_rd": 32,
    "max_qp_rd_atom": 128,
    "max_qp_init_rd_atom": 128,
    "max_cq": 1048576,
    "max_cqe": 32767,
    "max_mr": 524287,
    "max_mr_size": 2**64 - 1,
    "max_srq": 917503,
    "max_srq_wr": 1048576,
    "memory_management": True,
}


class Layout:
    """A host in a directory: /sys, /dev and /proc as the kernel shows them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.netdevs: dict[int, Mapping[int, str]] = {}
        self.kernel: dict[str, netlink.RdmaDevice] = {}
        self.addresses: dict[str, list[str]] = {}
        self.answer: dict[str, Any] = {"version": "44.0", "devices": {}, "errors": {}}
        self.memlock = -1
        self.libraries = set(LIBRARIES)
        self.write("proc/self/status", "Name:\tx\nCapEff:\t0000000000000000\n")
        self.write("dev/infiniband/rdma_cm", "")

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def device(
        self,
        name: str,
        node_type: str = "1: CA",
        *,
        netdev: str = "",
        state: str = "4: ACTIVE",
        link_layer: str = "Ethernet",
        gids: tuple[tuple[str, str, str], ...] = (),
        flags: int = 1 << 21,
        limits: Mapping[str, int] | None = LIMITS,
    ) -> None:
        number = len(self.kernel)
        base = f"sys/class/infiniband/{name}"
        for file, text in {
            "node_type": node_type,
            "fw_ver": "16.35.2000",
            "node_guid": "5054:00ff:fe12:3456",
            "ports/1/state": state,
            "ports/1/phys_state": "5: LinkUp" if state == "4: ACTIVE" else "3: Disabled",
            "ports/1/link_layer": link_layer,
            "ports/1/rate": "100 Gb/sec (4X EDR)",
            "ports/1/gids/9": NO_GID,
        }.items():
            self.write(f"{base}/{file}", text + "\n")
        for index, (gid, kind, place) in enumerate(gids):
            self.write(f"{base}/ports/1/gids/{index}", gid + "\n")
            self.write(f"{base}/ports/1/gid_attrs/types/{index}", kind + "\n")
            self.write(f"{base}/ports/1/gid_attrs/ndevs/{index}", place + "\n")
        self.write(f"sys/class/infiniband_verbs/uverbs{number}/ibdev", name + "\n")
        self.write(f"dev/infiniband/uverbs{number}", "")
        self.kernel[name] = netlink.RdmaDevice(number, 1, flags, "")
        self.netdevs[number] = {1: netdev} if netdev else {}
        if limits is not None:
            self.answer["devices"][name] = dict(limits)

    def rxe(self, name: str = "rxe0", netdev: str = "eth0", **more: Any) -> None:
        gids = (
            ("fe80:0000:0000:0000:5054:00ff:fe12:3456", "RoCE v2", netdev),
            ("0000:0000:0000:0000:0000:ffff:0a63:0002", "RoCE v2", netdev),
        )
        self.device(name, netdev=netdev, **{"gids": gids, **more})
        self.addresses.setdefault(netdev, ["10.99.0.2", "fe80::5054:ff:fe12:3456"])

    def places(self) -> Places:
        return Places(
            sys=self.root / "sys",
            dev=self.root / "dev",
            proc=self.root / "proc",
            addresses=lambda: self.addresses,
            rdma_devices=lambda: self.kernel,
            rdma_netdevs=lambda number: self.netdevs[number],
            memlock=lambda: self.memlock,
            library_loads=lambda name: name in self.libraries,
            pyverbs=lambda: (self.answer, ""),
        )

    def look(self) -> tuple[Host, list[Obstacle]]:
        host = read_host(self.places())
        return host, obstacles(host, MEMORY)


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path)


def test_a_roce_device_that_can_be_used(layout: Layout) -> None:
    layout.rxe()
    host, found = layout.look()
    assert found == []
    (device,) = host.devices
    assert usable(device, found)
    assert (device.kind, device.firmware, device.memory_management) == ("RoCE", "16.35.2000", True)
    assert device.uverbs == str(layout.root / "dev/infiniband/uverbs0")
    (port,) = device.ports
    assert (port.state, port.physical_state, port.netdevs) == ("ACTIVE", "LinkUp", ("eth0",))
    assert port.addresses == ("10.99.0.2", "fe80::5054:ff:fe12:3456")
    assert [gid.index for gid in port.gids] == [0, 1], "an empty entry is no GID"
    assert device.attributes is not None
    assert (device.attributes.source, device.attributes.max_qp_wr) == ("pyverbs 44.0", 1048576)


def test_an_iwarp_device_finds_its_interface_over_netlink(layout: Layout) -> None:
    gid = (("5254:0012:3456:0000:0000:0000:0000:0000", "IB/RoCE v1", ""),)
    layout.device("siw0", "4: RNIC", netdev="lan", gids=gid, limits=None)
    layout.addresses["lan"] = ["192.0.2.1"]
    host, found = layout.look()
    (device,) = host.devices
    assert found == []
    assert device.kind == "iWARP"
    assert device.ports[0].addresses == ("192.0.2.1",)
    assert device.ports[0].gids[0].kind == "", "what the kernel says of an iWARP GID's type is a default"
    assert device.attributes is None
    assert device.memory_management is True, "the kernel's flags stand in for pyverbs"


def test_an_infiniband_port_and_its_ipoib_interface(layout: Layout) -> None:
    layout.device("mlx5_0", link_layer="InfiniBand", gids=(("fe80:0:0:0:506b:4b03:0:1", "IB/RoCE v1", ""),))
    for name, kind, port in (("ib0", "32", "0"), ("ib1", "32", "1"), ("eth0", "1", "0")):
        layout.write(f"sys/class/net/{name}/type", kind)
        layout.write(f"sys/class/net/{name}/dev_port", port)
        layout.write(f"sys/class/net/{name}/device/infiniband/mlx5_0", "")
    layout.addresses = {"ib0": ["10.1.0.1"], "ib1": ["10.2.0.1"], "eth0": ["10.3.0.1"]}
    host, found = layout.look()
    assert found == []
    (device,) = host.devices
    assert (device.kind, device.ports[0].netdevs, device.ports[0].addresses) == ("InfiniBand", ("ib0",), ("10.1.0.1",))


def test_a_vlan_above_the_interface_counts(layout: Layout) -> None:
    """RoCE's GID table names the interfaces above the port's own: VLANs, bonds."""
    layout.rxe(gids=(("0000:0000:0000:0000:0000:ffff:0a63:0002", "RoCE v2", "eth0.7"),))
    layout.addresses = {"eth0": ["fe80::1"], "eth0.7": ["10.99.0.2"]}
    host, found = layout.look()
    assert found == []
    assert host.devices[0].ports[0].netdevs == ("eth0", "eth0.7")


def without_uverbs(layout: Layout) -> None:
    (layout.root / "dev/infiniband/uverbs0").unlink()


def without_rdma_cm(layout: Layout) -> None:
    (layout.root / "dev/infiniband/rdma_cm").unlink()


def without_access(layout: Layout) -> None:
    """A directory cannot be opened for writing, not even by root."""
    without_uverbs(layout)
    (layout.root / "dev/infiniband/uverbs0").mkdir()


def with_limits(**changed: int) -> Callable[[Layout], None]:
    def change(layout: Layout) -> None:
        layout.answer["devices"]["rxe0"].update(changed)

    return change


def with_port(**files: str) -> Callable[[Layout], None]:
    def change(layout: Layout) -> None:
        for name, text in files.items():
            layout.write(f"sys/class/infiniband/rxe0/ports/1/{name}", text)

    return change


def with_changed(**attributes: Any) -> Callable[[Layout], None]:
    def change(layout: Layout) -> None:
        for name, value in attributes.items():
            setattr(layout, name, value)

    return change


def without_netdev(layout: Layout) -> None:
    layout.netdevs[0] = {}
    for index in (0, 1):
        layout.write(f"sys/class/infiniband/rxe0/ports/1/gid_attrs/ndevs/{index}", "")


def with_old_gids(layout: Layout) -> None:
    for index in (0, 1):
        layout.write(f"sys/class/infiniband/rxe0/ports/1/gid_attrs/types/{index}", "IB/RoCE v1\n")


@pytest.mark.parametrize(
    ("change", "blocks", "problem", "remedy"),
    [
        (without_uverbs, True, "no /dev/infiniband/uverbs*", "modprobe ib_uverbs"),
        (without_rdma_cm, True, "no /dev/infiniband/rdma_cm", "modprobe rdma_ucm"),
        (without_access, True, "uverbs0 cannot be opened by", "DeviceAllow=char-infiniband_verbs"),
        (with_changed(libraries={"libibverbs.so.1"}), True, "librdmacm.so.1 cannot be loaded", "apt-get install"),
        (
            with_changed(memlock=8 << 20),
            True,
            "may lock 8 MiB of memory, the server registers up to 512 MiB",
            "MEMLOCK",
        ),
        (with_port(state="1: DOWN\n"), True, "port 1 is DOWN", "ip link set eth0 up"),
        (with_port(state="2: INIT\n", link_layer="InfiniBand\n"), True, "port 1 is INIT", "opensm"),
        (
            with_changed(addresses={"eth1": ["10.98.0.2"]}),
            True,
            "eth0 has no IP address",
            "ip addr add ADDRESS/LENGTH dev eth0",
        ),
        (
            with_changed(addresses={"eth0": ["fe80::1"], "eth1": ["10.98.0.2"]}),
            True,
            "eth0 has no IP address",
            "dev eth0",
        ),
        (without_netdev, True, "no network interface", "network driver"),
        (with_limits(max_qp_init_rd_atom=0), True, "no RDMA Reads", "another device"),
        (with_limits(max_qp_init_rd_atom=1), False, "only 1 RDMA Reads", "firmware"),
        (with_limits(memory_management=False), False, "MEM_MGT_EXTENSIONS", "clients invalidate"),
        (with_limits(max_srq=0), False, "no shared Receive queues", "credits"),
        (with_old_gids, False, "no RoCE v2 entry", "RoCE v2"),
    ],
)
def test_each_obstacle_and_its_remedy(
    layout: Layout, change: Callable[[Layout], None], blocks: bool, problem: str, remedy: str
) -> None:
    layout.rxe()
    layout.rxe("rxe1", "eth1")
    change(layout)
    host, found = layout.look()
    mine = [obstacle for obstacle in found if problem in obstacle.problem and obstacle.device in ("", "rxe0")]
    assert [obstacle.severity for obstacle in mine] == ["blocks" if blocks else "limits"], found
    assert remedy in mine[0].remedy
    assert usable(host.devices[0], found) is not blocks
    if mine[0].device:
        others = [obstacle for obstacle in found if obstacle.device != "rxe0"]
        assert others == [], "what ails one device is not said of the other"
    text = as_text(host, found)
    assert mine[0].problem in text
    assert f"remedy: {mine[0].remedy}" in text


def test_locked_memory_without_limit_for_the_capability(layout: Layout) -> None:
    """CAP_IPC_LOCK lifts the limit, but not for siw."""
    layout.rxe()
    layout.memlock = 65536
    layout.write("proc/self/status", "CapEff:\t0000000000004000\n")
    host, found = layout.look()
    assert (host.locked_memory, host.may_exceed) == (65536, True)
    assert found == []
    layout.device("siw0", "4: RNIC", netdev="eth0")
    layout.write("sys/class/infiniband/siw0/node_desc", "Software iWARP stack\n")
    host, found = layout.look()
    (obstacle,) = found
    assert (obstacle.device, obstacle.severity) == ("siw0", "blocks")
    assert "siw applies the limit to root" in obstacle.problem
    assert [usable(device, found) for device in host.devices] == [True, False]


def test_a_host_without_devices(layout: Layout) -> None:
    host, found = layout.look()
    assert host.devices == ()
    assert [obstacle.severity for obstacle in found] == ["blocks"]
    text = as_text(host, found)
    assert "rdma link add rxe0 type rxe netdev" in text
    assert "softiwarp" in text


def test_netlink_that_is_missing_is_survived(layout: Layout) -> None:
    def refuse() -> Mapping[str, Any]:
        raise OSError("no such protocol")

    layout.rxe(limits=None)
    places = dataclasses.replace(layout.places(), addresses=refuse, rdma_devices=refuse)
    host = read_host(places)
    assert host.devices[0].memory_management is None
    assert host.devices[0].ports[0].netdevs == ("eth0",), "from the GID table"
    assert any("no IP address" in obstacle.problem for obstacle in obstacles(host, MEMORY))


def test_the_table_and_the_json_say_the_same(layout: Layout) -> None:
    layout.rxe()
    layout.rxe("rxe1", "eth1", state="1: DOWN")
    host, found = layout.look()
    lines = as_text(host, found).splitlines()
    assert lines[0].split() == ["device", "port", "kind", "link", "state", "netdev", "addresses", "usable"]
    assert lines[1].split()[:6] == ["rxe0", "1", "RoCE", "Ethernet", "ACTIVE", "eth0"]
    assert lines[1].split()[-1] == "yes"
    assert lines[2].split()[-1] == "no"
    assert lines[-1] == "The server can use rxe0."
    document = json.loads(as_json(host, found))
    assert [(device["name"], device["usable"]) for device in document["devices"]] == [("rxe0", True), ("rxe1", False)]
    assert document["devices"][0]["attributes"]["max_qp_wr"] == 1048576
    assert document["obstacles"][0]["port"] == 1


def test_the_command(
    layout: Layout, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """0 when a device can be used, 1 when not; the memory to register is the configuration's."""
    monkeypatch.setattr("rpcrdma.verbs.inventory.host.Places", layout.places)
    assert cli.main(["devices"]) == 1
    assert "no RDMA device" in capsys.readouterr().out
    layout.rxe()
    layout.memlock = 64 << 20
    assert cli.main(["devices", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["locked_memory"] == 64 << 20
    config = tmp_path / "exports.yaml"
    config.write_text(
        "server: {listen: ['tcp://127.0.0.1:0'], limits: {memory: 32MiB, connection_memory: 8MiB}}\n"
        f"exports: [{{path: {tmp_path / 'sys'}, pseudo: /sys}}]\n"
    )
    assert cli.main(["devices", "--config", str(config)]) == 0
    assert "The server can use rxe0." in capsys.readouterr().out
    assert cli.main(["devices", "--config", str(tmp_path / "missing")]) == 2


def test_the_addresses_of_this_very_host() -> None:
    """Netlink for real, against what the kernel says by another way."""
    assert "127.0.0.1" in netlink.interface_addresses()["lo"]
    assert set(netlink.interface_addresses()) <= {name for _, name in socket.if_nameindex()}


def test_pyverbs_is_asked_in_a_process_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pyverbs that answers, and interpreters that have none or a broken one."""

    def interpreter(name: str, script: str) -> str:
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return str(path)

    good = interpreter("good", """echo '{"version": "57", "devices": {}, "errors": {}}'""")
    none = interpreter("none", "exec " + sys.executable + ' "$@"')
    broken = interpreter("broken", "echo 'ImportError: IBVERBS_PRIVATE_34 not found' >&2; exit 3")
    for system, answer, why in (
        (good, {"version": "57", "devices": {}, "errors": {}}, ""),
        (none, {}, "pyverbs is not installed"),
        (broken, {}, "IBVERBS_PRIVATE_34"),
        (str(tmp_path / "absent"), {}, "No such file"),
    ):
        monkeypatch.setattr("rpcrdma.verbs.inventory.host._SYSTEM_PYTHON", system)
        got, said = ask_pyverbs()
        assert got == answer
        assert why in said
        assert bool(said) is bool(why)
