"""One Linux client, every NFS version, over proto=rdma: ordinary work on files. One boot per version."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.vm import work
from tests.vm.guest import Guest
from tests.vm.kernel_server import KernelServer
from tests.vm.mounts import complaints, load_siw, rdma_options
from tests.vm.network import Network
from tests.vm.server import Server, command, environment
from tests.vm.work import Client

NEWEST = "4.2"
"""What the newest kernel, too, mounts in every run."""


@pytest.fixture(
    scope="module",
    params=[
        "3",
        pytest.param("4.0", marks=pytest.mark.long),
        pytest.param("4.1", marks=pytest.mark.long),
        pytest.param(NEWEST, marks=pytest.mark.newest),
    ],
)
def client(
    request: pytest.FixtureRequest, network: Network, server: Server | KernelServer, directory: Path
) -> Iterator[Client]:
    version = request.param
    shared = directory / f"shared-{version}"
    shared.mkdir()
    with Guest(f"client-v{version.replace('.', '')}", network, shares=[shared], time_limit=1200) as guest:
        load_siw(guest)
        made = Client(guest, server, version, shared)
        made.mount()
        yield made


def test_mount_says_rdma_and_one_mebibyte(client: Client) -> None:
    line = client.guest.run(f"grep ' {client.point} ' /proc/mounts").output
    for option in ("proto=rdma", "port=20049", f"vers={client.version}", "rsize=1048576", "wsize=1048576"):
        assert option in line
    (transport,) = client.transports()
    assert transport.sends > 0
    client.server.assert_running()


@pytest.mark.parametrize("files", [100, pytest.param(2000, marks=pytest.mark.long)])
def test_tree_of_files(client: Client, files: int) -> None:
    work.tree_of_files(client, files)


def test_archive_unpacked_and_program_built(client: Client) -> None:
    work.program_built(client)


@pytest.mark.parametrize(
    "direct", [pytest.param(1, id="direct", marks=pytest.mark.long), pytest.param(0, id="buffered")]
)
def test_fio_verifies(client: Client, direct: int) -> None:
    work.fio_verified(client, direct)


def test_send_with_invalidate(client: Client) -> None:
    work.sends_invalidate(client)


def test_nothing_went_wrong_on_the_transport(client: Client) -> None:
    work.nothing_wrong_on_the_transport(client)


def test_nconnect(client: Client) -> None:
    work.four_connections(client)


def test_a_client_that_is_refused_mounts_when_the_line_of_the_log_is_followed(
    client: Client, network: Network, directory: Path
) -> None:
    if client.version not in ("3", NEWEST):
        pytest.skip("NFSv3 and the newest version will do")
    address, base = network.listen_address, directory / f"refusing-{client.version}"
    listen = [f"rdma://{address}:20050", f"tcp://{address}:2050"]
    keys = {"listen": listen, "mountd_port": 20058, "nlm": False}
    with Server(base, network, server=keys, export={"clients": ["192.0.2.0/24"]}) as server:
        (server.export / "hello").write_text("hello")
        options = rdma_options(client.version, port=20050).replace("mountport=20048", "mountport=20058")
        mount = f"mount -t nfs -o {options} {server.address}:/export /mnt/other"
        refused = client.guest.run(f"mkdir -p /mnt/other; {mount}", timeout=90, check=False, label=mount)
        assert refused.rc != 0
        assert "access denied by server" in refused.output
        (line,) = [one for one in server.log.read_text().splitlines() if " is refused" in one]
        told = re.search(r"(\S+) is refused.* (?:of|for) /export \(\S+:(\d+)\)", line)
        assert told is not None, line
        lines = server.config.read_text().splitlines()
        assert lines[int(told[2]) - 1].strip() == "clients:"
        lines.insert(int(told[2]), f"  - {told[1]}")
        server.config.write_text("\n".join(lines) + "\n")
        subprocess.run([*command(), "reload", "--config", str(server.config)], env=environment(), check=True)
        client.guest.run(f"{mount} && grep hello /mnt/other/hello && umount /mnt/other", timeout=90, label=mount)


def test_unmounts_and_the_kernel_never_complained(client: Client) -> None:
    client.umount()
    assert complaints(client.guest) == []
    client.server.assert_running()
