"""Linux clients over RDMA of gateways over CephFS: ordinary work, locks between clients of two gateways, and a gateway
that is killed and taken over under load (make test-ceph-guest)."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ceph import installed
from tests.ceph.linux import Site, site, why_not
from tests.vm import work
from tests.vm.build import HERE
from tests.vm.locking import LockHolder, try_lock
from tests.vm.mounts import VERSIONS, complaints
from tests.vm.work import Client

pytestmark = [pytest.mark.ceph, pytest.mark.guest, pytest.mark.timeout(3000)]
KEEPERS = HERE / "inside" / "keepers.py"
FIO_JOBS = (("write", "1m", "32m", 4), ("randrw", "4k", "4m", 8))
LOAD = (
    "fio --rw=randrw --bs=16k --size=12m --ioengine=libaio --iodepth=4 --direct=0 --fsync=16 --rate_iops=15,15 "
    "--verify=crc32c --verify_fatal=1 --verify_state_save=0 --end_fsync=1 {jobs} >/tmp/load 2>&1 || "
    "{{ cat /tmp/load; exit 1; }}"
)


@pytest.fixture(scope="module")
def place() -> Iterator[Site]:
    lacking = installed.why_not() or why_not()
    if lacking:
        pytest.skip(lacking)
    directory = Path(tempfile.mkdtemp(prefix="ceph-linux-", dir="/var/tmp"))
    try:
        with site(directory) as made:
            yield made
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@pytest.mark.parametrize("version", VERSIONS)
def test_ordinary_work(place: Site, version: str) -> None:
    """A tree, a program that is built, and fio; what that wrote is the same at the other gateway."""
    client = Client(place.one, place.first, version, place.shared)
    client.mount()
    work.tree_of_files(client, 300)
    work.program_built(client)
    for direct in (1, 0):
        work.fio_verified(client, direct, FIO_JOBS)
    work.nothing_wrong_on_the_transport(client)
    client.umount()
    assert complaints(place.one) == []
    place.first.assert_running()


@pytest.mark.parametrize(("here", "there"), list(zip(VERSIONS, VERSIONS[1:] + VERSIONS[:1], strict=True)))
def test_locks_exclude_clients_of_the_other_gateway(place: Site, here: str, there: str) -> None:
    """And what one has written under its lock is what the other one reads under its own."""
    name = f"locks-{here}-{there}"
    mine, theirs = f"{place.mount(here)}/{name}", f"{place.mount(there)}/{name}"
    holder = LockHolder(place.one, mine)
    place.two.run(f"for i in $(seq 100); do test -e {theirs} && exit; sleep 0.2; done; exit 1")
    assert not try_lock(place.two, theirs)
    assert try_lock(place.two, theirs, 100, 100)
    holder.check()
    holder.unlock()
    other = LockHolder(place.two, theirs)
    assert place.two.run(f"head -c 8 {theirs}").output == "00000001"
    assert not try_lock(place.one, mine)
    other.quit()
    assert try_lock(place.one, mine)
    holder.quit()


def test_the_store_is_restarted_under_load(place: Site) -> None:
    """Its metadata server and its OSD are killed, and started again. Every version's client goes on, and reads what it
    has written; the other gateway's reads the same."""
    paths = [f"{place.mount(version)}/restarts-{version}" for version in VERSIONS]
    place.one.run(f"mkdir {' '.join(paths)}")
    jobs = " ".join(f"--name=v{number} --directory={path}" for number, path in enumerate(paths))
    load = place.one.start(LOAD.format(jobs=jobs), 900, "fio with verification")
    for kind in ("mds", "osd"):
        time.sleep(8)
        assert not load.done()
        began = time.monotonic()
        place.cluster.restart(kind)
        print(f"{kind} serves again after {time.monotonic() - began:.1f} s")
    load.wait()
    line = f"cat {' '.join(f'{path}/*' for path in paths)} | sha256sum"
    place.one.run("sync; echo 3 >/proc/sys/vm/drop_caches")
    assert place.one.run(line, timeout=300).output == place.two.run(line, timeout=300).output
    for guest in (place.one, place.two):
        assert complaints(guest, allow="not responding|server .* OK") == []
    place.first.assert_running()
    place.second.assert_running()


def test_a_killed_gateway_is_taken_over_under_load(place: Site) -> None:
    """In every version a client writes, keeps a lock and verifies what it reads; the other gateway's client would take
    the lock all the while. The gateway's other host goes on."""
    one, two = place.one, place.two
    points = {version: place.mount(version) for version in VERSIONS}
    kept = [f"{point}/taken-{version}" for version, point in points.items()]
    one.run(f"mkdir {' '.join(kept)}")
    keeping = one.start(f"python3 {KEEPERS} keep {' '.join(kept)}", 900, "keep a lock and write")
    keeping.wait_for("all keep\n", 120)
    jobs = " ".join(f"--name={version} --directory={path}" for version, path in zip(VERSIONS, kept, strict=True))
    load = one.start(LOAD.format(jobs=jobs), 900, "fio with verification")
    coveting = two.start(f"python3 {KEEPERS} covet {' '.join(kept)}", 900, "try to lock")
    time.sleep(10)
    place.first.kill()
    began = time.monotonic()
    place.spare.take_over()
    print(f"serves again after {time.monotonic() - began:.1f} s")
    one.run("touch /tmp/enough")
    keeping.wait_until(lambda output: "}" in output, "that it goes on", 300)
    seen = json.loads(keeping.output().splitlines()[-1])
    print("| " + " | ".join(f"{seen[path][1]}" for path in kept) + " |")
    assert [seen[path][2] for path in kept] == [""] * len(kept)
    load.wait()
    # New opens are granted again: the grace period is over, and every lock is kept.
    one.run(" && ".join(f"touch {path}/new" for path in kept), timeout=300)
    for path in kept:
        assert not try_lock(two, f"{path}/locked")
    two.run("touch /tmp/stop")
    coveted = json.loads(coveting.wait().output.splitlines()[-1])
    print(coveted)
    for path in kept:
        refused, granted = coveted[path]
        assert (refused > 0, granted) == (True, 0)
        two.run(f"python3 {KEEPERS} check {path} {seen[path][0]}")
    one.run("touch /tmp/release")
    keeping.wait()
    for path in kept:
        assert try_lock(two, f"{path}/locked")
    for guest in (one, two):
        assert complaints(guest, allow="not responding|server .* OK") == []
    place.second.assert_running()
    place.spare.assert_running()
