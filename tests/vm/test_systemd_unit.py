"""systemd/rdma-nfsd.service as it is shipped, under a systemd that is the guest's process 1: nothing the server does is
missing for want of permission."""

from __future__ import annotations

import base64
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.vm.build import REPO
from tests.vm.guest import Guest
from tests.vm.guest_server import compile_here, load_devices
from tests.vm.inside.file_systems import HARD, SOFT, USER
from tests.vm.mounts import complaints, rdma_options, rdma_transports
from tests.vm.network import Network
from tests.vm.pair import eventually
from tests.vm.test_delegations import METRICS_PORT, operations

pytestmark = [pytest.mark.timeout(900), pytest.mark.long]

UNIT = "rdma-nfsd.service"
MOST_EXPOSED = 3.4
"""``systemd-analyze security`` of the unit may say this at most, from 0 (nothing left to take away) to 10."""
_RECALLS = (
    f"exec 3<>/dev/tcp/127.0.0.1/{METRICS_PORT}; printf 'GET /metrics HTTP/1.0\\r\\n\\r\\n' >&3; "
    "sed -n 's/^rdma_nfsd_delegation_events_total{event=\"recalled\"} \\([0-9]*\\).*/\\1/p' <&3"
)
OVER_TCP, OVER_RDMA = "/mnt/tcp", "/mnt/rdma"
FILE_SYSTEM = "/srv/files"
WATCHDOG = 15
"""Seconds; half of the unit's, which are enough to wait for."""
DROP_IN = f"""\
[Service]
# The clone stands for an installed package.
Environment=PYTHONPATH={REPO}
# An emulated machine takes its time.
TimeoutStartSec=600
WatchdogSec={WATCHDOG}
"""
DEADLY = """\
[Service]
# What the filter forbids does not merely fail. (The event loop tries this one, and goes on without it.)
SystemCallErrorNumber=kill
SystemCallFilter=~io_uring_setup:EPERM
"""


def put(guest: Guest, path: str, text: str) -> None:
    """Write a file in the guest."""
    packed = base64.b64encode(text.encode()).decode()
    guest.run(f"mkdir -p $(dirname {path}) && base64 -d <<<{packed} >{path}", label=f"write {path}")


def configure(guest: Guest, *names: str, **more: object) -> None:
    """Write the configuration: these directories of the file system are exported."""
    document = {
        "server": {
            "listen": ["tcp://*:2049", {"url": "rdma://*:20049", "provider": "verbs"}],
            "state_dir": "/var/lib/rdma-nfsd",
            "nfs4": {"grace_time": 0},
            "metrics": {"listen": f"127.0.0.1:{METRICS_PORT}"},
            **more,
        },
        "exports": [{"path": f"{FILE_SYSTEM}/{name}", "pseudo": f"/{name}", "squash": "none"} for name in names],
    }
    put(guest, "/etc/rdma-nfsd/exports.yaml", yaml.safe_dump(document))


def properties(guest: Guest, *names: str) -> dict[str, str]:
    """What systemd knows of the service."""
    shown = guest.run(f"systemctl show -p {','.join(names)} {UNIT}", label="systemctl show").output
    return dict(line.partition("=")[::2] for line in shown.splitlines() if line)


def journal(guest: Guest) -> str:
    """What the service has written."""
    return guest.run(f"journalctl -q -o cat -u {UNIT}", label="journal").output


def quotas(guest: Guest, *arguments: str) -> str:
    """Run tests/vm/inside/quota_attributes.py."""
    script = f"{REPO}/tests/vm/inside/quota_attributes.py"
    return guest.run(
        f"PYTHONPATH={REPO} {sys.executable} {script} {' '.join(arguments)}", label="quotas"
    ).output.strip()


@pytest.fixture(scope="module")
def guest(network: Network) -> Iterator[Guest]:
    """A guest with systemd, a file system with quotas, an RDMA device, and the unit running."""
    compile_here("tests")
    with Guest("systemd", network, memory=1536, time_limit=600, systemd="basic.target") as booted:
        eventually(booted, "systemctl is-active -q basic.target", 120)
        load_devices(booted, ("rxe",))
        booted.run(
            f"mkdir -p {FILE_SYSTEM} && truncate -s 64M /tmp/image && mkfs.ext4 -q -O quota /tmp/image && "
            f"mount -o loop,usrquota,grpquota /tmp/image {FILE_SYSTEM} && mkdir -m 777 {FILE_SYSTEM}/{{data,more}}"
        )
        quotas(booted, "set", FILE_SYSTEM)
        # As installed: the program where the unit has it, the unit among the administrator's.
        program = Path(sys.executable).with_name("rdma-nfsd")
        booted.run(f"ln -sf {program} /usr/local/bin/rdma-nfsd && cp {REPO}/systemd/{UNIT} /etc/systemd/system/")
        put(booted, f"/etc/systemd/system/{UNIT}.d/test.conf", DROP_IN)
        configure(booted, "data")
        booted.run(f"systemctl daemon-reload && systemctl start {UNIT}", timeout=200)
        yield booted
        print(journal(booted))


def mount(guest: Guest) -> None:
    """Mount over both transports, once."""
    for point, options in ((OVER_TCP, "vers=4.2"), (OVER_RDMA, rdma_options("3"))):
        guest.run(
            f"mkdir -p {point} && mountpoint -q {point} || mount -t nfs -o {options} {guest.address}:/data {point}",
            timeout=90,
        )


def recalled_by(guest: Guest, name: str, change: str) -> None:
    """A file that the client has under a delegation is given back when a local process changes it."""
    path = f"{OVER_TCP}/{name}"
    guest.run(f"echo text >{FILE_SYSTEM}/data/{name}; chmod 644 {FILE_SYSTEM}/data/{name}")
    for _ in range(20):
        before = operations(guest, OVER_TCP)
        guest.run(f"cat {path} {path} {path} >/dev/null")
        after = operations(guest, OVER_TCP)
        if all(after[name] == before[name] for name in ("OPEN", "OPEN_NOATTR")):
            break
    else:
        raise AssertionError(f"{path} is not delegated")
    # Not what the client has returned: it does so by itself with what it has not used for a while.
    before_change = recalls(guest)
    guest.run(change)
    eventually(guest, f"[ $({_RECALLS}) -gt {before_change} ]", 20)


def recalls(guest: Guest) -> int:
    """How many delegations the server has asked for."""
    return int(guest.run(_RECALLS, label="metrics").output)


def work(guest: Guest, turn: str) -> None:
    """What a server is for, and all that its unit once forbade."""
    mount(guest)
    guest.run(
        f"set -e; cd {OVER_RDMA}; dd if=/dev/urandom of=copied bs=64k count=6 conv=fsync; cp copied again\n"
        f"cmp again {OVER_TCP}/copied; mkdir -p dir; mv again dir/{turn}; ln -s dir link{turn}; mkfifo pipe{turn}\n"
        f"mknod null{turn} c 1 3; chown {USER} copied; ls -l dir; stat -f .; cd {OVER_TCP}\n"
        f"setfattr -n user.test -v {turn} copied; flock copied true; fallocate -l 1M space\n"
        f"fallocate -p -l 4096 space; rm -r dir space",
        label="work over RDMA",
    )
    assert len(rdma_transports(guest, OVER_RDMA)) == 1
    local = f"{FILE_SYSTEM}/data"
    recalled_by(guest, f"renamed-{turn}", f"mv {local}/renamed-{turn} {local}/moved-{turn}")
    recalled_by(guest, f"guarded-{turn}", f"chmod 600 {local}/guarded-{turn}")
    hard, soft, used = map(int, quotas(guest, "ask", "2049", "/data/copied").split())
    assert used >= 6 << 16
    assert (hard, soft) == (HARD - used, SOFT - used)


def test_the_unit_leaves_little_to_take_away(guest: Guest) -> None:
    told = guest.run(f"systemd-analyze security --no-pager {UNIT}", timeout=60).output
    found = re.search(r"exposure level for \S+: (\d+\.\d)", told)
    assert found, told
    assert float(found[1]) <= MOST_EXPOSED


def test_all_that_the_server_does_works_under_the_unit(guest: Guest) -> None:
    before = properties(guest, "MainPID", "ActiveState", "SubState", "StatusText", "Type")
    assert (before["Type"], before["ActiveState"], before["SubState"]) == ("notify", "active", "running")
    assert "tcp://" in before["StatusText"], "the state was not told by the server itself"
    work(guest, "shipped")
    assert "not permitted" not in journal(guest)
    assert properties(guest, "MainPID")["MainPID"] == before["MainPID"]


def test_exports_change_by_a_reload(guest: Guest) -> None:
    before = properties(guest, "MainPID")
    configure(guest, "data", "more")
    guest.run(f"systemctl reload {UNIT}", timeout=120)
    eventually(guest, f"journalctl -q -o cat -u {UNIT} | grep -q 'now exported: /more'", 60)
    guest.run(f"mkdir -p /mnt/more && mount -t nfs -o vers=4.2 {guest.address}:/more /mnt/more && umount /mnt/more")
    configure(guest, "data", "more", squeeze=True)
    assert guest.run(f"systemctl reload {UNIT}", timeout=120, check=False).rc, "a wrong file is not read"
    assert properties(guest, "MainPID", "ActiveState") == {**before, "ActiveState": "active"}
    configure(guest, "data")


def test_a_server_that_hangs_is_started_again_and_nothing_forbidden_is_called(guest: Guest) -> None:
    """From here on a forbidden system call is the end of the server."""
    put(guest, f"/etc/systemd/system/{UNIT}.d/deadly.conf", DEADLY)
    guest.run("systemctl daemon-reload", timeout=60)
    pid = properties(guest, "MainPID")["MainPID"]
    guest.run(f"kill -STOP {pid}")
    eventually(guest, f"[ $(systemctl show --value -p NRestarts {UNIT}) = 1 ] && systemctl is-active -q {UNIT}", 150)
    assert "Watchdog timeout" in guest.run(f"journalctl -q -o cat -u {UNIT} _PID=1").output
    started = properties(guest, "MainPID")["MainPID"]
    assert started != pid
    work(guest, "deadly")
    assert properties(guest, "MainPID", "NRestarts") == {"MainPID": started, "NRestarts": "1"}


def test_stopping_is_orderly_and_a_wrong_configuration_is_not_tried_again(guest: Guest) -> None:
    guest.run(f"umount {OVER_TCP} {OVER_RDMA} && systemctl stop {UNIT}", timeout=120)
    assert properties(guest, "Result", "ExecMainStatus") == {"Result": "success", "ExecMainStatus": "0"}
    assert "nfsd.serving: stopped" in journal(guest)
    configure(guest, "data", squeeze=True)
    assert guest.run(f"systemctl start {UNIT}", timeout=120, check=False).rc
    eventually(guest, f"systemctl is-failed -q {UNIT}", 10)
    assert properties(guest, "ExecMainStatus", "SubState") == {"ExecMainStatus": "2", "SubState": "failed"}
    assert "unknown key" in journal(guest)
    assert complaints(guest) == []
