"""Benchmarks on several file systems: where they are, what is cached there, and how servers are shown side by side."""

import os
import subprocess

import pytest

from bench import fixtures, ganesha, machine, places, report, sides
from bench.__main__ import why_absent
from bench.scenarios import SCENARIOS, TODAY, local
from bench.servers import LocalServer, NotStarted
from tests.nfs3_client import Nfs3Failure

MOUNTS = """\
21 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
22 21 0:20 / /dev/shm rw - tmpfs tmpfs rw
23 21 7:1 / /mnt/a\\040disk rw - xfs /dev/loop1 rw
24 21 0:40 / /mnt rw - tmpfs none rw
25 24 7:2 / /mnt/b rw - ext4 /dev/loop2 rw
"""


def test_the_file_system_of_a_path_is_that_of_the_innermost_mount():
    assert places.mount_of("/var/tmp", MOUNTS) == ("ext4", "/dev/vda")
    assert places.mount_of("/dev/shm/x", MOUNTS) == ("tmpfs", "tmpfs")
    assert places.mount_of("/mnt/a disk/x", MOUNTS) == ("xfs", "/dev/loop1")
    assert places.mount_of("/mnt/b", MOUNTS) == ("ext4", "/dev/loop2")
    assert places.mount_of("/mnt/bb", MOUNTS) == ("tmpfs", "none")


def test_a_disks_kernel_threads_are_known_by_their_names():
    assert places.named_for("jbd2/loop1-8", "loop1")
    assert places.named_for("xfsaild/loop1", "loop1")
    assert not places.named_for("jbd2/loop10-8", "loop1")
    assert not places.named_for("kworker/1:0", "1:0-events")
    assert not places.named_for("loop1", "loop1"), "the image's reads and writes are the disk, not the file system"


def test_a_directory_is_a_place_beside_memory(tmp_path):
    with places.places([str(tmp_path)]) as (memory, disk):
        assert (memory.name, memory.device, memory.flushes()) == ("tmpfs", "", 0)
        assert disk.path.parent == tmp_path
        assert disk.kernel_seconds() == 0.0, "others use it as well"
        if disk.device:
            before = disk.flushes()
            fixtures.file_of(4096)(disk.path / "file")
            assert disk.flushes() > before
    assert not list(tmp_path.iterdir())
    assert not memory.path.exists()


def test_an_ext4_without_a_journal_is_not_taken_for_ext4(monkeypatch, tmp_path):
    without, with_one = tmp_path / "without", tmp_path / "with"
    for path, task in ((without, "none\n"), (with_one, "83\n")):
        path.mkdir()
        (path / "journal_task").write_text(task)
    devices = {"/a": ("ext4", "without"), "/b": ("ext4", "with"), "/c": ("xfs", "without"), "/d": ("ext4", "gone")}
    monkeypatch.setattr(places, "file_system", lambda path: devices[str(path)])
    monkeypatch.setattr(places, "Path", lambda text: tmp_path / str(text).removeprefix("/sys/fs/ext4/"))
    assert [places.suits("ext4", path) for path in devices] == [False, True, False, False]
    assert [places.suits("xfs", path) for path in devices] == [False, False, True, False]


def cached(path):
    """Octets of a file that are cached."""
    command = ["fincore", "--bytes", "--noheadings", "--output", "RES", str(path)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def test_half_a_file_is_cached(tmp_path):
    if places.file_system(tmp_path)[0] not in ("ext4", "xfs"):
        pytest.skip("files in memory are all cached")
    path = tmp_path / "half"
    fixtures.file_of(8 << 20)(path)
    assert cached(path) == 8 << 20
    fixtures.uncache_half(path)
    assert cached(path) == 4 << 20
    fixtures.uncache(path)
    assert cached(path) == 0


def test_what_is_only_read_is_there_once_for_all_servers(tmp_path, monkeypatch):
    monkeypatch.setattr(fixtures, "MAKE", dict.fromkeys(fixtures.MAKE, fixtures.file_of(1 << 20)))
    exports = [tmp_path / name for name in ("one", "other")]
    for export in exports:
        export.mkdir()
        for need in (fixtures.COLD, fixtures.HALF):
            fixtures.provide(need, export, tmp_path)
    assert exports[0].joinpath(fixtures.COLD).samefile(exports[1] / fixtures.COLD)
    assert not exports[0].joinpath(fixtures.HALF).samefile(exports[1] / fixtures.HALF)


def test_ganeshas_release_is_read_from_dpkg(tmp_path):
    status = "Package: nfs-ganesha-vfs\nStatus: install ok installed\nVersion: 1-1\n\n"
    ours = "Package: nfs-ganesha\nStatus: {}\nDescription: a server\n Version: 9-9\nVersion: {}\n\n"
    assert ganesha.release(status + ours.format("install ok installed", "4.3-2")) == "4.3"
    assert ganesha.release(ours.format("install ok installed", "1:15.2-3+b1")) == "15.2"
    assert ganesha.release(ours.format("deinstall ok config-files", "4.3-2") + status) == ""
    with pytest.raises(SystemExit, match=r"no Ganesha in .*: python -m bench\.ganesha"):
        ganesha.in_root(tmp_path)
    (tmp_path / "var/lib/dpkg").mkdir(parents=True)
    (tmp_path / "var/lib/dpkg/status").write_text(ours.format("install ok installed", "6.5-1"))
    found = ganesha.in_root(tmp_path)
    assert (found.name, found.root) == ("ganesha-6.5", tmp_path)


def test_a_crowded_machine_is_refused_unless_asked_for(monkeypatch):
    def busy(part):
        stats = iter([f"cpu {1000 * part * n:.0f} 0 0 {1000 * (1 - part) * n:.0f} 0 0 0 0 0 0\n" for n in (1, 2)])
        monkeypatch.setattr(machine.Path, "read_text", lambda path: next(stats))

    busy(0.1)
    assert machine.crowd(False, 0.0) == {"busy": pytest.approx(0.1)}
    busy(0.9)
    with pytest.raises(SystemExit, match=r"others use 90% .* --crowded"):
        machine.crowd(False, 0.0)
    busy(0.9)
    assert machine.crowd(True, 0.0)["busy"] == pytest.approx(0.9)
    assert machine.processors("cpu 1 2 3 40 5 6 7 8 9 9\n") == (27, 72)


class Nowhere(LocalServer):
    name = "nobody"
    transports = ("tcp", "rdma")


def test_disks_are_measured_over_tcp_and_what_is_about_disks_only_there(tmp_path):
    server = Nowhere(tmp_path)
    both = ("tcp", "rdma")
    assert server.takes(both, "rdma", disks=False)
    assert not server.takes(("tcp",), "rdma", disks=False)
    assert not server.takes(both, "tcp", disks=True)
    assert server.events() == {}
    server.place = places.Place("xfs", tmp_path, "no-such-device")
    assert server.label == "nobody on xfs"
    assert server.takes(both, "tcp", disks=True)
    assert not server.takes(both, "rdma", disks=False)


def measured(cpu, rate=1000.0, **more):
    return {"cpu_us": cpu, "calls_per_s": rate} | more


def result():
    """What a run finds in memory and on one disk, made up."""
    found = {
        "rdma-nfsd": {"scenarios": {"getattr tcp": measured(1.0), "getattr rdma": measured(2.0)}, "failures": {}},
        "ganesha": {"scenarios": {"getattr tcp": measured(10.0)}, "failures": {}},
        "rdma-nfsd on ext4": {
            "scenarios": {"getattr tcp": measured(2.0, flushes=0.0), "untar tcp": measured(120.4, flushes=2.5)},
            "failures": {},
        },
        "ganesha on ext4": {
            "scenarios": {"untar tcp": measured(99.0, flushes=0.001)},
            "failures": {"getattr tcp": ["X"]},
        },
    }
    memory, disks = sides.split(found, ["ext4"])
    told = {
        "tmpfs": {"told": "tmpfs in memory"},
        "ext4": {"told": "ext4 on vda", "pread_us": 1.0, "pwrite_us": 17.0, "fio_per_s": 1e4},
    }
    facts = {"busy": 0.04, "load": 0.5}
    return {"machine": facts, "servers": memory, "disks": disks, "places": told, "absent": {"x on tmpfs": "no"}}


def test_servers_are_side_by_side_in_every_place():
    assert sides.peers(result(), "ganesha") == ["ganesha"]
    assert sides.peers(result(), "chimera") == []
    lines = sides.beside(result())
    assert lines[0] == "| scenario | rdma-nfsd, tmpfs | ganesha, tmpfs | rdma-nfsd, ext4 | ganesha, ext4 |"
    assert lines[2] == "| getattr | 1.00 (1,000/s) | 10.0 (1,000/s) | 2.00 (1,000/s) | failed: X |"
    assert lines[3] == "| untar, per file | - | - | 120 (1,000/s) | 99.0 (1,000/s) |"
    assert sides.flushes(result())[2:] == ["| untar, per file | 2.50 | 0.00 |"]


def test_the_head_says_how_busy_the_machine_was_and_who_does_not_flush():
    text = "\n".join(report.in_places(result()))
    assert "used 4% of the processors; the load average was 0.5." in text
    assert "- ext4 on vda: pread 1.00 µs, pwrite 17.00 µs of CPU, fio's READs of what is not cached 10,000/s." in text
    assert "- x on tmpfs: not measured: no." in text
    assert sides.crowd({"machine": {"load": 1.0}}) == [], "an earlier result"
    assert ganesha.DURABILITY in text


def test_a_failure_on_a_disk_is_a_failure():
    found = result() | {"studies": {}, "limits": {}}
    assert not report.has_failed(found), "only Ganesha failed"
    assert report.has_failed(found | {"studies_failed": {"writers": "it did not start"}})
    found["disks"]["ext4"]["rdma-nfsd"]["failures"] = {"getattr tcp": ["Y"]}
    assert report.has_failed(found)


def test_a_place_that_others_use_is_left_as_it_was(tmp_path):
    (tmp_path / "theirs").write_text("theirs")
    with places.places([str(tmp_path)]) as found:
        (found[1].path / "ours").write_text("ours")
    assert os.listdir(tmp_path) == ["theirs"]


def test_what_a_server_does_not_export_is_said_in_a_few_words():
    assert why_absent(Nfs3Failure("MNT", "ACCES")) == "it does not export such a file system (MNT: 'ACCES')"
    assert why_absent(NotStarted("it did not start; the end\nof its log")) == "it did not start; the end"


def test_what_only_ours_can_do_is_not_asked_of_a_kernel():
    here_only = {scenario.name for scenario in SCENARIOS if local(scenario)}
    assert {"getattr-two", "untar", "read-4k-cold"} <= here_only
    assert not here_only & {scenario.name for scenario in TODAY}
