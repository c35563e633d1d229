"""``rdma-nfsd client-setup`` for a Debian client without siw: it builds siw, loads it, and the client mounts.

An emulated machine takes half an hour to compile a driver. So the script is run twice: on this host, on a view of /usr
in which the guest's kernel is the running one and its packages are installed, to build; then in the guest, which has
what was built.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.vm.build import REPO, build, lab_dir
from tests.vm.guest import Guest
from tests.vm.mounts import rdma_options, rdma_transports
from tests.vm.network import Network
from tests.vm.server import Server

pytestmark = [
    pytest.mark.timeout(1800),
    pytest.mark.skipif(os.geteuid() != 0, reason="mounting takes root"),
]

SCRIPT = f"{REPO}/nfsd/commands/client_setup.sh"
SHIMS = {
    "uname": "echo {release}",
    # What the kernel of this host has is nothing to the test.
    "modprobe": "case $* in '-n siw') [ -e /lib/modules/{release}/updates/siw.ko ];; esac",
    "rdma": ":",
    "mount.nfs": ":",
    "depmod": ":",
    "apt-get": "exit 1",
}
INSTALLED = """\
mount -t overlay none -o lowerdir=/usr,upperdir={work}/usr,workdir={work}/work /usr
for file in {packages}/*.deb; do dpkg-deb --fsys-tarfile $file | tar -x --keep-directory-symlink -C /; done
mkdir -p /lib/modules/{release}
ln -sfn /usr/src/linux-headers-{release} /lib/modules/{release}/build
exec sh {script} lo
"""


@pytest.fixture(scope="module")
def packages() -> Path:
    """The packages that the script has apt-get install, as files: kept in the lab."""
    release = build().kernel_version
    series, flavour_free = ".".join(release.split(".")[:2]), release.removesuffix("-amd64")
    into = lab_dir() / f"client-setup-{release}"
    names = [f"linux-source-{series}", f"linux-kbuild-{series}"]
    names += [f"linux-headers-{release}", f"linux-headers-{flavour_free}-common"]
    if not all(list(into.glob(f"{name}_*.deb")) for name in names):
        into.mkdir(parents=True, exist_ok=True)
        download = ["apt-get", "-q", "-o", "APT::Sandbox::User=root", "download", *names]
        subprocess.run(download, cwd=into, check=True)
    return into


@pytest.fixture(scope="module")
def built(packages: Path, directory: Path) -> Path:
    """The directory with the siw.ko that the script has built."""
    release = build().kernel_version
    work = directory / "client-setup"
    for name in ("usr", "work", "shims"):
        (work / name).mkdir(parents=True)
    for name, text in SHIMS.items():
        (work / "shims" / name).write_text(f"#!/bin/sh\n{text.format(release=release)}\n")
        (work / "shims" / name).chmod(0o755)
    script = INSTALLED.format(work=work, packages=packages, release=release, script=SCRIPT)
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-euc", script],
        env={**os.environ, "PATH": f"{work}/shims:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"building siw.ko for {release}" in done.stdout
    assert not Path(f"/lib/modules/{release}").exists(), "this host is left alone"
    return work / f"usr/lib/modules/{release}/updates"


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
