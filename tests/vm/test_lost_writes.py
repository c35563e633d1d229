"""A disk that fails after WRITE has been answered: COMMIT does not call lost data safe.

The server runs in a guest, on an ext4 on a disk that takes what is written and loses it when it is written back: a loop
device over a tmpfs that is full, or a device-mapper target that fails for a while. By the time the client commits, the
server has closed its descriptor and the kernel has forgotten the file, so that nothing is left that would tell of it
but what the server has noted itself.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.vm.build import HERE, REPO
from tests.vm.guest import Guest
from tests.vm.guest_server import compile_here
from tests.vm.network import Slirp
from tests.vm.server import MOUNTD_PORT, TCP_PORT, command

SCRIPT = HERE / "inside" / "lost_writes.py"

# Without a journal: an error in it would make everything read-only, and the data's own error would not be needed.
MAKE = "mkfs.ext4 -q -F -O ^has_journal -E lazy_itable_init=0"
# What is left of an earlier test's errors is told once.
FILE = "fallocate -l 40M {point}/f && chmod 666 {point}/f; sync -f {point} || sync -f {point}"
FULL = f"""
set -e
modprobe loop; modprobe ext4
mkdir /thin /full
mount -t tmpfs -o size=16m thin /thin
truncate -s 128M /thin/image
{MAKE} /thin/image
mount -o loop /thin/image /full
{FILE.format(point="/full")}
"""
FILL = "dd if=/dev/zero of=/thin/filler bs=64k 2>/dev/null || true"
EMPTY = "true"

TABLE = "0 262144 {target}"
FLAKY = f"""
set -e
modprobe loop; modprobe ext4; modprobe dm-mod; modprobe dm-flakey
mkdir /sound /flaky
mount -t tmpfs -o size=160m sound /sound
truncate -s 128M /sound/image
losetup /dev/loop7 /sound/image
echo '{TABLE.format(target="linear /dev/loop7 0")}' | dmsetup create --noudevsync flaky
dmsetup mknodes
{MAKE} /dev/mapper/flaky
mount /dev/mapper/flaky /flaky
{FILE.format(point="/flaky")}
"""
# Without lockfs: suspending would write everything back first.
SWITCH = (
    "dmsetup suspend --nolockfs --noflush --noudevsync flaky && echo '{table}' | dmsetup load flaky"
    " && dmsetup resume --noudevsync flaky"
)
BREAK = SWITCH.format(table=TABLE.format(target="flakey /dev/loop7 0 0 3600 1 error_writes"))
MEND = SWITCH.format(table=TABLE.format(target="linear /dev/loop7 0"))

DISKS = {"/full": (FULL, FILL, EMPTY), "/flaky": (FLAKY, BREAK, MEND)}


@pytest.fixture(scope="module")
def guest(directory: Path) -> Iterator[Guest]:
    """A guest with both disks, and the server on them."""
    compile_here("tests")
    work = directory / "lost"
    work.mkdir()
    with Guest("server", Slirp(), shares=[work], time_limit=900) as guest:
        for make, *_ in DISKS.values():
            guest.run(make, timeout=90)
        guest.run("mkdir -p /srv/state")
        config = {
            "server": {
                "listen": [f"tcp://127.0.0.1:{TCP_PORT}"],
                "mountd_port": MOUNTD_PORT,
                "state_dir": "/srv/state",
                "nfs4": {"grace_time": 0},
            },
            "exports": [{"path": point, "pseudo": point, "squash": "none"} for point in DISKS],
        }
        (work / "exports.yaml").write_text(yaml.safe_dump(config))
        program = " ".join(f"'{word}'" for word in [*command(), "serve", "--config", f"{work}/exports.yaml"])
        start = f"echo $$ >/run/server; cd / && PYTHONPATH={REPO} exec {program}"
        guest.start(start, 800, "rdma-nfsd").wait_for("rdma-nfsd ready:", 90)
        yield guest


@pytest.mark.long
@pytest.mark.parametrize("version", ["3", "4.1"])
@pytest.mark.parametrize("point", DISKS)
def test_lost_data_is_not_called_safe(guest: Guest, point: str, version: str) -> None:
    """40 MiB written, the descriptor closed, write-back failed, the inode evicted."""
    _, fail, mend = DISKS[point]
    guest.run(f"rm -f /thin/filler; {MEND}; {FILE.format(point=point)}", timeout=60, label="a disk that is well")
    python = sys.executable
    words = [python, str(SCRIPT), version, "$(cat /run/server)", f"{point}/f", f'"{fail}"', f'"{mend}"']
    run = guest.run(f"cd {REPO} && PYTHONPATH={REPO} {' '.join(words)}", timeout=300, label=f"lose writes on {point}")
    found = json.loads(run.output.strip().splitlines()[-1])
    print(found)
    assert found["lost"], "this disk keeps what it is given: nothing is shown"
    assert found["committed"] not in found["told"]
