"""A power cut: what the server acknowledged as stable is on its disk.

The server runs in a guest, on an ext4 of its own, on a disk with a volatile cache (tests.vm.volatile_disk); the
kernel's NFS client in the same guest works on it and reports each acknowledged operation over virtio-serial. Then qemu
is killed and the disk loses its power: the guest's page cache is gone, and a random part of what the disk had not
flushed. A second guest mounts the disk, which replays ext4's journal, and hands over what it found.

The kernel's own server runs through the same, once as it should be and once exported ``async``, which acknowledges
what is not on the disk: the second must be caught, or these tests would prove nothing.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from tests.vm.build import HERE, REPO
from tests.vm.file_model import FileModel
from tests.vm.guest import Guest, Job
from tests.vm.kernel_server import start_kernel_server
from tests.vm.mounts import load_siw, rdma_options
from tests.vm.network import Slirp
from tests.vm.server import MOUNTD_PORT, RDMA_PORT, command
from tests.vm.volatile_disk import VolatileDisk

SIZE = 256 << 20
OPERATIONS = 150
"""Acknowledged operations of each client before the power goes."""
RECORDER = HERE / "inside" / "recorder.py"

# Nothing reaches the disk unless somebody asks: no periodic commit, no background write-back.
MAKE_DISK = """
set -e
modprobe virtio_blk
modprobe ext4
mkfs.ext4 -q -F /dev/vda
mkdir -p /disk
mount -o commit=300 /dev/vda /disk
mkdir /disk/export /disk/state
sync
echo 90 >/proc/sys/vm/dirty_ratio; echo 80 >/proc/sys/vm/dirty_background_ratio
echo 60000 >/proc/sys/vm/dirty_writeback_centisecs; echo 60000 >/proc/sys/vm/dirty_expire_centisecs
"""


def run_until_cut(directory: Path, guest: Guest, disk: VolatileDisk, points: Sequence[str], seed: int) -> list[str]:
    """A recorder on each mount, a power cut, a look at the disk; return what acknowledged operations lost."""
    jobs: list[Job] = []
    for number, point in enumerate(points):
        guest.run(f"mkdir {point}/c{number}")
        jobs.append(guest.start(f"python3 {RECORDER} {point}/c{number} {seed + number}", 240, f"record on {point}"))
    for job in jobs:
        job.wait_until(lambda output: output.count("\nack\n") >= OPERATIONS, f"{OPERATIONS} operations", 200)
    # From here on nothing reaches the disk; whatever the guest still acknowledges cannot be in the recording yet unless
    # its flush, if it asked for one, came before.
    kept, lost = disk.power_cut(seed)
    guest.kill()
    recordings = [job.output() for job in jobs]
    print(f"power cut after {disk.flushes} flushes: of the disk's cache {kept} pieces kept, {lost} lost")
    image = directory / "disk.img"
    with Guest("inspector", Slirp(), memory=1024, shares=[directory], disk=image, time_limit=120) as two:
        two.run("modprobe virtio_blk && modprobe ext4 && mkdir /disk && mount /dev/vda /disk")
        problems = []
        for number, recording in enumerate(recordings):
            two.run(f"mkdir -p /disk/export/c{number}")  # even that may be lost
            two.run(f"tar -cf {directory}/c{number}.tar -C /disk/export c{number}")
            expected = FileModel.replay(recording)
            found = FileModel.from_tar(directory / f"c{number}.tar", f"c{number}")
            assert expected.acknowledged >= OPERATIONS
            print(f"client {number}: {expected.acknowledged} operations acknowledged, {len(found.nodes)} names found")
            problems += expected.differences(found)
    return problems


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.long)])
def test_what_is_acknowledged_is_on_the_disk(directory: Path, seed: int) -> None:
    """rdma-nfsd, with an NFSv3 and an NFSv4.1 client over proto=rdma."""
    work = directory / f"cut{seed}"
    work.mkdir()
    disk = VolatileDisk(work / "disk.img", SIZE, work / "nbd")
    with Guest("server", Slirp(), shares=[work], disk=disk.uri, time_limit=420) as guest:
        guest.run(MAKE_DISK)
        load_siw(guest)
        # The guest's own address, not 127.0.0.1: RDMA addresses are resolved to devices, and siw serves none on lo.
        address = guest.address
        config = {
            "server": {
                "listen": [f"rdma://{address}:{RDMA_PORT}", f"tcp://{address}:2049"],
                "mountd_port": MOUNTD_PORT,
                "state_dir": "/disk/state",
            },
            "exports": [{"path": "/disk/export", "pseudo": "/export", "squash": "none", "clients": ["*"]}],
        }
        (work / "exports.yaml").write_text(yaml.safe_dump(config))
        program = " ".join(f"'{word}'" for word in [*command(), "serve", "--config", f"{work}/exports.yaml"])
        guest.start(f"cd /disk && PYTHONPATH={REPO} exec {program}", 400, "rdma-nfsd").wait_for("rdma-nfsd ready:", 90)
        points = []
        for version in ("3", "4.1"):
            points.append(f"/mnt/v{version}")
            options = rdma_options(version)
            guest.run(f"mkdir {points[-1]} && mount -t nfs -o {options} {address}:/export {points[-1]}", timeout=90)
        assert run_until_cut(work, guest, disk, points, 10 * seed) == []


@pytest.mark.long
@pytest.mark.parametrize("export", ["sync", "async"])
def test_the_rig_tells_a_server_that_lies(directory: Path, export: str) -> None:
    """The kernel's server: nothing is lost when exported sync; when async, acknowledged first, the loss is seen."""
    work = directory / f"kernel-{export}"
    work.mkdir()
    disk = VolatileDisk(work / "disk.img", SIZE, work / "nbd")
    with Guest("knfsd", Slirp(), shares=[work], disk=disk.uri, time_limit=300) as guest:
        guest.run(MAKE_DISK)
        guest.run("mkdir /export && mount --bind /disk/export /export")
        load_siw(guest)
        start_kernel_server(guest, export)
        guest.run("mkdir /mnt/v4.2 && mount -t nfs -o vers=4.2 127.0.0.1:/ /mnt/v4.2", timeout=90)
        problems = run_until_cut(work, guest, disk, ["/mnt/v4.2"], 5)
    if export == "sync":
        assert problems == []
    else:
        assert problems, "a server that acknowledges what is not on the disk went unnoticed"
    assert os.path.getsize(work / "disk.img") == SIZE
