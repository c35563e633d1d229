"""Two Linux clients over proto=rdma: files that are unlinked or replaced while open, races, and large directories."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest

from tests.vm.build import HERE
from tests.vm.file_shell import FileShell
from tests.vm.guest import Guest
from tests.vm.kernel_server import KernelServer
from tests.vm.marks import ANY_V4
from tests.vm.mounts import complaints, mount
from tests.vm.network import Network
from tests.vm.pair import Pair, eventually, two_guests
from tests.vm.server import Server

RIVALS = f"python3 {HERE / 'inside' / 'rivals.py'}"
NAMES = 20_000


@pytest.fixture(scope="module")
def pair(network: Network, server: Server | KernelServer) -> Iterator[Pair]:
    with two_guests(network, server) as made:
        yield made


@pytest.fixture(scope="module")
def shells(pair: Pair) -> list[FileShell]:
    return [FileShell(pair.one), FileShell(pair.two)]


def operations(guest: Guest, point: str) -> dict[str, int]:
    """How often the client has sent each operation."""
    stats = guest.run("cat /proc/self/mountstats", label="mountstats").output.partition(f"mounted on {point} ")[2]
    return {
        name: int(count)
        for name, count in re.findall(r"^\s+([A-Z_]+): (\d+) ", stats.partition("\ndevice ")[0], re.MULTILINE)
    }


@pytest.mark.parametrize("version", ANY_V4)
def test_files_that_go_while_they_are_open(pair: Pair, shells: list[FileShell], version: str) -> None:
    assert isinstance(pair.server, Server)
    work = f"{pair.mount(version)}/gone-{version}"
    on_server = pair.server.export / f"gone-{version}"
    one, two = shells
    pair.one.run(
        f"mkdir {work} && cd {work} && echo mine >mine && echo theirs >theirs && echo old >old && echo new >new"
    )
    eventually(pair.two, f"test -e {work}/new")

    # Unlinked by the client that has it open: renamed out of sight until the last close.
    one.must(f"open f {work}/mine rw")
    pair.one.run(f"rm {work}/mine")
    (hidden,) = [name for name in on_server.iterdir() if name.name.startswith(".nfs")]
    assert two.do(f"open g {work}/mine rd") == "error ENOENT"
    one.must("write f 0 MINE")
    assert one.do("read f 0 4") == "ok MINE"
    assert hidden.read_text() == "MINE\n"
    one.must("close f")
    eventually(pair.one, f"test $(ls -A {work} | grep -c nfs) = 0")
    assert not hidden.exists()

    # Unlinked by the other client: whoever has it open goes on reading and writing, by a handle without a name.
    one.must(f"open f {work}/theirs rw")
    assert one.do("read f 0 6") == "ok theirs"
    pair.two.run(f"rm {work}/theirs")
    assert not (on_server / "theirs").exists()
    one.must("write f 0 still")
    pair.one.run("echo 3 >/proc/sys/vm/drop_caches")
    assert one.do("read f 0 5") == "ok still"
    one.must("close f")
    assert one.do(f"open f {work}/theirs rd") == "error ENOENT"

    # Replaced by the other client: the open file is the old one, the name leads to the new one.
    one.must(f"open f {work}/old rw")
    pair.two.run(f"mv {work}/new {work}/old")
    time.sleep(1.5)  # a name may be cached that long (CACHING)
    one.must(f"open g {work}/old rd")
    pair.one.run("echo 3 >/proc/sys/vm/drop_caches")
    assert one.do("read f 0 3") == "ok old"
    assert one.do("read g 0 3") == "ok new"
    one.must("write f 0 OLD", "close f", "close g")
    assert (on_server / "old").read_text() == "new\n"

    # A directory that is gone is gone for those in it too, and what was in a cache is not believed.
    pair.one.run(f"mkdir {work}/dir && echo cached >{work}/file && cat {work}/file; mkfifo /tmp/go-{version}")
    eventually(pair.two, f"test -d {work}/dir")
    inside = pair.one.start(f"cd {work}/dir && echo there && read -r </tmp/go-{version}; echo x >name; ls", 120)
    inside.wait_for("there\n")
    pair.two.run(f"rmdir {work}/dir && rm {work}/file")
    pair.one.run(f"sleep 1.2; echo >/tmp/go-{version}")
    told = inside.wait(check=False).output
    assert re.search("Stale file handle|No such file or directory", told), told
    assert "No such file" in pair.one.run(f"cat {work}/file 2>&1", check=False).output


@pytest.mark.parametrize("version", ANY_V4)
def test_close_to_open(pair: Pair, shells: list[FileShell], version: str) -> None:
    path = f"{pair.mount(version)}/close-to-open-{version}"
    one, two = shells
    one.must(f"open f {path} rw creat", "write f 0 0", "close f")
    for turn in range(1, 5):
        for writer, reader in ((one, two), (two, one)):
            text = f"{turn}-{writer.guest.name}"
            writer.must(f"open f {path} rw trunc", f"write f 0 {text}", "close f")
            reader.must(f"open f {path} rd")
            assert reader.do("read f 0 100") == f"ok {text}"
            reader.must("close f")


@pytest.mark.parametrize("version", ANY_V4)
def test_races_have_one_winner(pair: Pair, version: str) -> None:
    assert isinstance(pair.server, Server)
    work = f"{pair.mount(version)}/races-{version}"
    pair.one.run(f"mkdir {work}")
    eventually(pair.two, f"test -d {work}")
    guests = (pair.one, pair.two)
    jobs = [guest.start(f"{RIVALS} exclusive {work} 200", 120) for guest in guests]
    won = [[int(number) for number in job.wait().output.split()[1:]] for job in jobs]
    assert sorted(won[0] + won[1]) == list(range(200)), "a name that both or neither created"
    jobs = [guest.start(f"{RIVALS} append {work}/log {guest.name} 40", 240) for guest in guests]
    for job in jobs:
        job.wait()
    lines = (pair.server.export / f"races-{version}" / "log").read_text().splitlines()
    for guest in guests:
        assert [line for line in lines if line.startswith(guest.name)] == [f"{guest.name} {n}" for n in range(40)]
    assert len(lines) == 80


@pytest.mark.parametrize("version", ANY_V4)
def test_large_directories(pair: Pair, version: str) -> None:
    """20,000 names, listed while another client creates and unlinks others there."""
    assert isinstance(pair.server, Server)
    point = f"/mnt/many-{version}"
    # What comes with the names must live until ls asks for it: in an emulated guest 20,000 names take seconds.
    mount(pair.one, pair.server, version, point, extra="acregmin=60")
    theirs = pair.mount(version)
    directory = pair.server.export / "many"
    if not directory.exists():
        directory.mkdir(mode=0o777)
        for number in range(NAMES):
            (directory / f"file number {number:05}").touch()
    before = operations(pair.one, point)
    took = pair.one.run(
        f"exec 2>&1; time -p ls -l {point}/many >/tmp/listing; grep -c 'file number' /tmp/listing", timeout=240
    ).output
    after = operations(pair.one, point)
    assert f"\n{NAMES}\n" in f"\n{took}"
    calls = {name: after.get(name, 0) - before.get(name, 0) for name in ("READDIR", "GETATTR", "LOOKUP")}
    print(f"NFSv{version}: ls -l of {NAMES} files: {calls}; {' '.join(took.split())}")
    assert calls["GETATTR"] + calls["LOOKUP"] < NAMES / 100, "the attributes come with the names"
    churn = pair.two.start(f"{RIVALS} churn {theirs}/many 8", 120)
    scans = pair.one.run(f"sleep 0.5; {RIVALS} scan {point}/many 4", timeout=240).output
    churn.wait()
    print(f"NFSv{version}: {scans}")
    found = re.findall(r"scan (\d+) names (\d+) twice", scans)
    assert found == [(str(NAMES), "0")] * 4
    pair.two.run(f"cd {theirs}/many && find . -name 'churn*' -delete", timeout=120)


def test_the_kernels_never_complained(pair: Pair) -> None:
    assert complaints(pair.one) == []
    assert complaints(pair.two) == []
    pair.server.assert_running()
