"""The Debian package in a guest whose process 1 is systemd: installed, started, upgraded, removed, purged."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.vm.build import REPO, TOOL_PACKAGES
from tests.vm.guest import Guest
from tests.vm.network import Network
from tests.vm.pair import eventually

pytestmark = [pytest.mark.timeout(2400), pytest.mark.long]

UNIT = "rdma-nfsd.service"
SLOWLY = "[Service]\\nTimeoutStartSec=600\\nWatchdogSec=120\\n"
"""A drop-in: an emulated machine takes its time."""
STANZA = (
    "\\nPackage: systemd\\nStatus: install ok installed\\nVersion: 252\\nArchitecture: amd64\\n"
    "Maintainer: the lab\\nDescription: unpacked, not installed, by tests.vm.build\\n"
)
LATER = "0.1.0+later"


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the package as "first.deb", and the same of a later version as "later.deb"."""
    subprocess.run(["make", "-s", "deb"], cwd=REPO, check=True)
    (package,) = (REPO / "dist").glob("rdma-nfsd_*.deb")
    into = tmp_path_factory.mktemp("packages")
    shutil.copy(package, into / "first.deb")
    subprocess.run(["dpkg-deb", "--raw-extract", into / "first.deb", into / "tree"], check=True)
    control = into / "tree/DEBIAN/control"
    lines = [f"Version: {LATER}" if line.startswith("Version:") else line for line in control.read_text().splitlines()]
    control.write_text("\n".join(lines) + "\n")
    subprocess.run(
        ["dpkg-deb", "--build", "--root-owner-group", "-Znone", into / "tree", into / "later.deb"], check=True
    )
    shutil.rmtree(into / "tree")
    return into


@pytest.fixture(scope="module")
def guest(network: Network, packages: Path) -> Iterator[Guest]:
    """A guest with systemd, which dpkg is told of, and nothing of ours but the packages."""
    assert "systemd" in TOOL_PACKAGES
    with Guest("package", network, memory=1536, shares=[packages], time_limit=1500, systemd="basic.target") as booted:
        eventually(booted, "systemctl is-active -q basic.target", 120)
        booted.run(f"grep -q '^Package: systemd$' /var/lib/dpkg/status || printf '{STANZA}' >>/var/lib/dpkg/status")
        booted.run(
            f"mkdir -p /etc/systemd/system/{UNIT}.d && printf '{SLOWLY}' >/etc/systemd/system/{UNIT}.d/slow.conf"
        )
        # Machines that are themselves images forbid packages to start and stop services; the guest is none.
        booted.run("rm -f /usr/sbin/policy-rc.d")
        # The host's manual pages are the guest's: 20,000 of them would be indexed anew by each of dpkg's runs here.
        booted.run("rm -f /var/lib/man-db/auto-update")
        yield booted
        print(booted.run(f"journalctl -q -o cat -u {UNIT}", check=False, label="journal").output)


def test_a_new_package_serves_when_it_is_told_to(guest: Guest, packages: Path) -> None:
    guest.run(f"dpkg -i {packages}/first.deb", timeout=400)
    assert guest.run(f"systemctl is-enabled {UNIT}; systemctl is-active {UNIT}", check=False).output.split() == [
        "disabled",
        "inactive",
    ], "it would take the ports of Linux's own server"
    guest.run('grep -q "anonuid: $(id -u rdma-nfsd)$" /etc/rdma-nfsd/exports.yaml')
    refused = guest.run("rdma-nfsd check --config /etc/rdma-nfsd/exports.yaml", check=False)
    assert (refused.rc, "/srv/nfs does not exist; create it" in refused.output) == (1, True)
    guest.run("mkdir -p /srv/nfs && mount -t tmpfs -o mode=777 none /srv/nfs")
    guest.run(f"systemctl enable --now {UNIT}", timeout=400)
    guest.run(
        "mkdir -p /mnt/nfs && mount -t nfs -o vers=4.2 127.0.0.1:/nfs /mnt/nfs && echo text >/mnt/nfs/file", timeout=90
    )
    assert guest.run("stat -c %U /srv/nfs/file").output.strip() == "rdma-nfsd", "root is squashed"
    assert "file" in guest.run("rdma-nfsd ls rdma://127.0.0.1/nfs", timeout=60).output


def test_what_belongs_to_a_package_is_there(guest: Guest) -> None:
    guest.run("ls /usr/share/man/man{8/rdma-nfsd,8/rdma-nfsd-serve,1/rdma-nfsd-cp}.*.gz")
    guest.run("zcat /usr/share/man/man8/rdma-nfsd-serve.8.gz | grep -q 'state..dir'")
    completed = (
        "source /usr/share/bash-completion/completions/rdma-nfsd; "
        "COMP_WORDS=(rdma-nfsd ser); COMP_CWORD=1; "
        "$(complete -p rdma-nfsd | sed 's/.*-F \\([^ ]*\\).*/\\1/') rdma-nfsd ser rdma-nfsd; echo ${COMPREPLY[@]}"
    )
    assert guest.run(completed).output.split() == ["serve"]
    assert guest.run("rdma-nfsd --version").output.startswith("rdma-nfsd 0.1.0")


def test_an_upgrade_keeps_the_configuration_and_the_clients(guest: Guest, packages: Path) -> None:
    guest.run("echo '# mine' >>/etc/rdma-nfsd/exports.yaml")
    pid = guest.run(f"systemctl show --value -p MainPID {UNIT}").output
    guest.run(f"dpkg -i {packages}/later.deb", timeout=600)
    assert LATER in guest.run("dpkg-query -W rdma-nfsd").output
    eventually(guest, f"systemctl is-active -q {UNIT}", 200)
    assert guest.run(f"systemctl show --value -p MainPID {UNIT}").output != pid, "the old program still runs"
    assert guest.run("cat /mnt/nfs/file", timeout=200).output == "text\n"
    guest.run("tail -n 1 /etc/rdma-nfsd/exports.yaml | grep -q '# mine' && umount /mnt/nfs", timeout=90)


def test_removing_leaves_what_is_the_administrators_and_purging_nothing(guest: Guest) -> None:
    guest.run("dpkg -r rdma-nfsd", timeout=400)
    assert guest.run(f"systemctl is-active {UNIT}", check=False).output.strip() in ("inactive", "failed")
    guest.run("[ ! -e /usr/lib/rdma-nfsd ] && [ ! -e /usr/bin/rdma-nfsd ]")
    guest.run("[ -e /etc/rdma-nfsd/exports.yaml ] && [ -e /var/lib/rdma-nfsd/handle.key ]")
    guest.run("dpkg -P rdma-nfsd", timeout=200)
    guest.run("[ ! -e /etc/rdma-nfsd ] && [ ! -e /var/lib/rdma-nfsd ] && [ -e /srv/nfs/file ]")
    assert "rdma-nfsd" not in guest.run("dpkg -l | grep rdma-nfsd", check=False).output
