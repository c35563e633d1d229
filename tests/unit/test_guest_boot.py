"""A guest that does not boot is started once more, and says why."""

import sys
from pathlib import Path

import pytest

from tests.vm import guest
from tests.vm.build import Lab

FAKE = """\
#!{python}
# Stands for qemu: fails as often as {failures} says, then connects as the guest's agents do.
import pathlib, socket, sys, time
tried = pathlib.Path({directory!r}, "tried")
tried.write_text(tried.read_text() + "x" if tried.exists() else "x")
chardevs = [word.partition("path=")[2] for word in sys.argv if word.startswith("socket,")]
if len(tried.read_text()) <= {failures}:
    pathlib.Path(chardevs[0]).with_name("console").write_text("Kernel panic - not syncing")
    sys.exit("no machine today")
agents = []
for path in chardevs:
    agents.append(socket.socket(socket.AF_UNIX))
    agents[-1].connect(path)
    agents[-1].sendall(b"ready\\n")
time.sleep(60)
"""


@pytest.fixture
def qemu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory first on the PATH; a lab in which there is nothing."""
    lab = Lab("6.1", "/vmlinux", "/initrd", "/pkgs")
    monkeypatch.setattr(guest, "_lab", lambda _kernel: lab)
    monkeypatch.setattr(guest, "accelerator", lambda: "tcg")
    monkeypatch.setattr(guest, "lab_dir", lambda: tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return tmp_path / "qemu-system-x86_64"


def fails(qemu: Path, failures: int) -> None:
    qemu.write_text(FAKE.format(python=sys.executable, directory=str(qemu.parent), failures=failures))
    qemu.chmod(0o755)


def test_the_second_start_is_the_guest(qemu: Path) -> None:
    fails(qemu, 1)
    with pytest.warns(UserWarning, match=r"started once more: guest: did not boot: qemu ended, status 1") as warned:
        booted = guest.Guest(quiet=True)
    with booted:
        assert booted.alive()
        assert (qemu.parent / "tried").read_text() == "xx"
    assert "no machine today" in str(warned[0].message)
    assert "Kernel panic" in str(warned[0].message)
    assert not booted.alive()


def test_the_third_is_not_tried(qemu: Path) -> None:
    fails(qemu, 5)
    failure = pytest.raises(guest.GuestError, match=r"(?s)status 1.*no machine today.*panic")
    with pytest.warns(UserWarning, match="started once more"), failure:
        guest.Guest(quiet=True)
    assert (qemu.parent / "tried").read_text() == "xx"


def test_one_that_never_answers_is_started_again(qemu: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fails(qemu, 1)
    qemu.write_text(qemu.read_text().replace('sys.exit("no machine today")', "time.sleep(600)"))
    monkeypatch.setattr(guest, "FIRST_BOOT", 1)
    with pytest.warns(UserWarning, match="no sign of its agents in 3 s"), guest.Guest(quiet=True) as booted:
        assert booted.alive()


@pytest.mark.parametrize(
    ("flags", "best"),
    [("fpu vmx cx16", "kvm"), ("fpu svm", "kvm"), ("fpu cx16 hypervisor", "tcg,thread=multi,tb-size=512")],
)
def test_kvm_is_taken_where_the_processor_virtualises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: str, best: str
) -> None:
    """Without that the device may be there, make a machine, and fail at one of a kernel's first instructions."""
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nflags\t\t: {flags}\nvmx flags\t: none\n")
    (tmp_path / "qemu-system-x86_64").write_text("#!/bin/sh\n")
    (tmp_path / "qemu-system-x86_64").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(guest, "DEVICE", tmp_path)
    monkeypatch.setattr(guest, "PROCESSORS", tmp_path / "cpuinfo")
    assert guest.accelerator.__wrapped__() == best
