"""``rdma-nfsd client-setup`` for a Debian client without siw: it builds siw, loads it, and the client mounts.

An emulated machine takes half an hour to compile a driver. So the script is run twice: on this host, in the client's
Debian, where the guest's kernel is the running one and the packages that the script asks for are installed, to build;
then in the guest, which has what was built.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.vm.build import REPO, build, chosen_kernel, lab_dir
from tests.vm.guest import Guest
from tests.vm.kernels import SUITES, in_tree
from tests.vm.mounts import rdma_options, rdma_transports
from tests.vm.network import Network
from tests.vm.packages import Suite, merged_usr
from tests.vm.server import Server

pytestmark = [
    pytest.mark.timeout(1800),
    pytest.mark.long,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounting takes root"),
]

SCRIPT = f"{REPO}/nfsd/commands/client_setup.sh"
SHIMS = {
    "uname": "echo {release}",
    "modprobe": "case $* in '-n siw') [ -e /lib/modules/{release}/updates/siw.ko ];; esac",
    "rdma": ":",
    "mount.nfs": ":",
    "depmod": ":",
    "apt-get": "exit 1",
}
INSTALLED = ("dash", "bash", "coreutils", "findutils", "grep", "mawk", "sed", "tar")
"""What every Debian has that was installed."""


@pytest.fixture(scope="module")
def built(directory: Path) -> Path:
    """The directory with the siw.ko that the script has built."""
    release = build().kernel_version
    series = ".".join(release.split(".")[:2])
    suite = Suite(lab_dir(), SUITES[chosen_kernel()])
    asked = [f"linux-headers-{release}", f"linux-source-{series}", "make", "xz-utils", "binutils"]
    tree, work = directory / "debian", directory / "client-setup"
    merged_usr(tree)
    suite.unpack(suite.closure([*asked, *INSTALLED]), tree)
    (tree / "usr/bin/awk").symlink_to("mawk")
    (tree / "shims").mkdir()
    for name, text in SHIMS.items():
        (tree / "shims" / name).write_text(f"#!/bin/sh\n{text.format(release=release)}\n")
        (tree / "shims" / name).chmod(0o755)
    shutil.copy(SCRIPT, tree / "client_setup.sh")
    link = tree / "usr/lib/modules" / release / "build"
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(f"/usr/src/linux-headers-{release}")
    said = in_tree(tree, "mkdir -p /tmp && PATH=/shims:$PATH sh /client_setup.sh lo")
    assert f"building siw.ko for {release}" in said
    work.mkdir()
    shutil.copy(tree / "usr/lib/modules" / release / "updates/siw.ko", work)
    return work


@pytest.fixture(scope="module")
def guest(network: Network, built: Path) -> Iterator[Guest]:
    """A guest whose siw is that one."""
    with Guest("plain", network, memory=1024, cpus=1, shares=[built], time_limit=600) as booted:
        booted.run("rm /lib/modules/$(uname -r)/updates/siw.ko && depmod && ! modprobe siw", timeout=300)
        booted.run(f"cp {built}/siw.ko /lib/modules/$(uname -r)/updates/ && depmod", timeout=300)
        yield booted


def test_siw_is_built_and_loaded_and_the_client_mounts(guest: Guest, network: Network, directory: Path) -> None:
    said = guest.run(f"sh {SCRIPT} eth0", timeout=100).output
    assert "has siw" in said
    assert "state ACTIVE" in said
    with Server(directory / "server", network) as server:
        (server.export / "hello").write_text("over siw\n")
        guest.run(f"mount -t nfs -o {rdma_options('4.2')} {network.server_address}:/export /mnt", timeout=90)
        assert guest.run("cat /mnt/hello").output == "over siw\n"
        assert len(rdma_transports(guest, "/mnt")) == 1
        guest.run("umount /mnt")
    # Once more: nothing is left to do, and nothing is done twice.
    again = guest.run(f"sh {SCRIPT} eth0", timeout=100).output
    assert "eth0 has an RDMA device" in again
    assert again.count("netdev eth0") == 1
