"""The server on a kernel with RDMA devices: one export, by everything it has, to a Linux client in another guest."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.vm.guest import Guest
from tests.vm.guest_server import SOFTIWARP_PORT, GuestServer
from tests.vm.mounts import complaints, load_siw, rdma_transports
from tests.vm.network import Namespace, Network

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    """Two guests that reach each other: a namespace, which only root can make."""
    with Namespace() as made:
        yield made


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
