"""The server on a kernel with RDMA devices: one export, by everything it has, to a Linux client in another guest."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from typing import Any

import pytest

from tests.vm.build import REPO
from tests.vm.guest import Guest
from tests.vm.guest_server import SOFTIWARP_PORT, GuestServer, address_over, load_devices
from tests.vm.mounts import complaints, load_siw, rdma_transports
from tests.vm.network import Namespace, Network
from tests.vm.server import command

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    """Two guests that reach each other: a namespace, which only root can make."""
    with Namespace() as made:
        yield made


@pytest.mark.long
def test_embedded_provider_and_tcp_serve_one_export(network: Network) -> None:
    with (
        GuestServer(network, listen=[f"rdma://*:{SOFTIWARP_PORT}", "tcp://*:2049"]) as server,
        Guest("client", network, memory=1024, cpus=1) as client,
    ):
        load_siw(client)
        client.run(
            f"mkdir -p /mnt/tcp /mnt/rdma && mount -t nfs -o vers=4.2 {server.address}:/export /mnt/tcp && "
            f"mount -t nfs -o vers=3,rdma,port={SOFTIWARP_PORT},nolock,mountproto=tcp,mountport=20048 "
            f"{server.address}:/export /mnt/rdma",
            timeout=90,
        )
        client.run(
            "dd if=/dev/urandom of=/mnt/rdma/data bs=1M count=8 oflag=direct && cmp /mnt/rdma/data /mnt/tcp/data"
        )
        assert client.run("sha256sum </mnt/tcp/data").output.split()[0] == server.sha256("data")
        assert len(rdma_transports(client, "/mnt/rdma")) == 1
        assert rdma_transports(client, "/mnt/tcp") == []
        server.kill()
        server.start()
        client.run("cmp /mnt/rdma/data /mnt/tcp/data && umount /mnt/rdma /mnt/tcp", timeout=120)
        assert complaints(client, allow="not responding|server .* OK") == []
        assert complaints(server.guest) == []
        server.stop()


def test_devices_says_what_can_be_used_and_what_is_in_the_way(network: Network) -> None:
    """``rdma-nfsd devices`` on a kernel that has devices, with pyverbs in the system's interpreter."""

    def devices(before: str, status: int) -> dict[str, Any]:
        script = f"cd /; export PYTHONPATH={shlex.quote(str(REPO))}; {before}{shlex.join(command())} devices --json"
        done = guest.run(script, timeout=120, check=False, label=f"{before}rdma-nfsd devices --json")
        assert done.rc == status, done.output
        found: dict[str, Any] = json.loads(done.output)
        return found

    with Guest("devices", network, memory=1024, interfaces=2) as guest:
        assert [obstacle["problem"] for obstacle in devices("", 1)["obstacles"]] == ["the kernel has no RDMA device"]
        load_devices(guest)
        found = devices("ulimit -l unlimited; ", 0)
        assert found["obstacles"] == []
        assert {d["name"]: (d["kind"], d["usable"]) for d in found["devices"]} == {
            "rxe0": ("RoCE", True),
            "siw0": ("iWARP", True),
        }
        for device, address in zip(
            found["devices"], (address_over(guest, "rxe"), address_over(guest, "siw")), strict=True
        ):
            (port,) = device["ports"]
            assert address in port["addresses"]
            assert device["attributes"]["max_qp_init_rd_atom"] > 0, "pyverbs was asked"
            assert device["memory_management"] is True
        # siw heeds the limit for root, too; a port goes down; a character device is not to be opened
        found = devices("ulimit -l 64; ip link set eth1 down; rm /dev/infiniband/uverbs1; ", 1)
        problems = {(obstacle["device"], obstacle["problem"].partition(" (")[0]) for obstacle in found["obstacles"]}
        assert ("rxe0", "port 1 is DOWN") in problems
        assert ("siw0", "this process may lock 64 KiB of memory, the server registers up to 512 MiB") in problems
        assert "it has no /dev/infiniband/uverbs*" in {problem for _, problem in problems}
