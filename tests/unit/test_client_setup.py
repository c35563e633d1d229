"""``rdma-nfsd client-setup`` says what it will do, and why it cannot; tests/vm/test_client_setup.py lets it do it."""

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from nfsd.cli import main
from tests.support.installed import REPO

SCRIPT = REPO / "nfsd/commands/client_setup.sh"


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """Commands of a Debian that has no siw, in a directory; each writes its call to the file "calls"."""
    commands = {
        "modprobe": 'case "$*" in *siw*) exit 1;; esac',
        "apt-get": ":",
        "uname": "echo 6.1.0-56-amd64",
        "ip": "echo 'default via 10.0.0.1 dev lo proto dhcp'",
        "id": "echo 0",
    }
    for name, text in commands.items():
        path = tmp_path / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >>{tmp_path}/calls\n{text}\n')
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return tmp_path


def run(host: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PATH": f"{host}:{os.environ['PATH']}"}
    return subprocess.run(["sh", SCRIPT, *arguments], env=env, capture_output=True, text=True, check=False)


def test_a_dry_run_names_what_would_be_installed_built_and_loaded(host: Path) -> None:
    done = run(host, "--dry-run")
    assert (done.returncode, done.stderr) == (0, "")
    would = [line for line in done.stdout.splitlines() if line.startswith("would ")]
    assert "linux-headers-6.1.0-56-amd64" in would[-4]
    assert "linux-source-6.1" in would[-4] or Path("/usr/src/linux-source-6.1.tar.xz").exists()
    assert would[-3:] == [
        "would build siw.ko of /usr/src/linux-source-6.1.tar.xz for 6.1.0-56-amd64",
        "would run: modprobe -a siw rpcrdma",
        "would run: rdma link add siw_lo type siw netdev lo",
    ]
    assert not [line for line in (host / "calls").read_text().splitlines() if line.startswith("apt-get")]


def test_nothing_is_built_where_the_kernel_has_siw(host: Path) -> None:
    (host / "modprobe").write_text("#!/bin/sh\n")
    done = run(host, "--dry-run", "lo")
    assert "has siw" in done.stdout
    assert "build" not in done.stdout


@pytest.mark.parametrize(
    ("command", "arguments", "said"),
    [
        ("id", ("lo",), "run it as root"),
        ("ip", ("--dry-run",), "there is no default route: name the network interface"),
        ("uname", ("--dry-run", "nosuch0"), "there is no network interface nosuch0; there are: "),
    ],
)
def test_what_keeps_it_from_working_is_said(host: Path, command: str, arguments: tuple[str, ...], said: str) -> None:
    (host / command).write_text("#!/bin/sh\n[ $0 != id ] || echo 1000\n")
    done = run(host, *arguments)
    assert done.returncode == 1
    assert said in done.stderr


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_what_it_runs_does_not_read_the_script_that_comes_on_standard_input(host: Path, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell}")
    for name in ("apt-get", "modprobe", "rdma"):  # as programs do that ask, or that look whether somebody types
        (host / name).write_text(f'#!/bin/sh\necho "{name} $*" >>{host}/calls\n[ "$1" = -n ] || cat >/dev/null\n')
        (host / name).chmod(0o755)
    env = {**os.environ, "PATH": f"{host}:{os.environ['PATH']}"}
    # As for a client that has no rdma-nfsd: ssh root@CLIENT sh -s
    done = subprocess.run(
        [shell, "-s", "--", "lo"], input=SCRIPT.read_text(), env=env, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    calls = (host / "calls").read_text().splitlines()
    assert "modprobe -a siw rpcrdma" in calls
    assert "rdma link add siw_lo type siw netdev lo" in calls, "the rest of the script was swallowed"
    assert "client-setup: done: " in done.stdout


def test_the_command_prints_the_script_for_other_hosts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["client-setup", "--print"]) == 0
    assert capsys.readouterr().out == SCRIPT.read_text()
    command = [sys.executable, "-c", "import sys; from nfsd.cli import main; sys.exit(main())"]
    done = subprocess.run(
        [*command, "client-setup", "--dry-run", "nosuch0"], cwd=REPO, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "no network interface nosuch0" in done.stderr


@pytest.mark.parametrize(("device", "made"), [("lo.100", True), ("lo", False)])
def test_the_device_of_a_vlan_is_not_that_of_the_interface_below_it(host: Path, device: str, made: bool) -> None:
    shows = f"echo 'link siw0/1 state ACTIVE physical_state LINK_UP netdev {device} '"
    (host / "rdma").write_text(f'#!/bin/sh\necho "rdma $*" >>{host}/calls\n{shows}\n')
    (host / "mount.nfs").write_text("#!/bin/sh\n")
    (host / "modprobe").write_text("#!/bin/sh\n")
    for name in ("rdma", "mount.nfs", "modprobe"):
        (host / name).chmod(0o755)
    done = run(host, "lo")
    assert (done.returncode, done.stderr) == (0, "")
    assert ("rdma link add siw_lo type siw netdev lo" in (host / "calls").read_text().splitlines()) is made
