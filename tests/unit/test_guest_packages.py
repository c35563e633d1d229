"""apt downloads the guest's packages as its own user, wherever that one can go."""

import os
import stat
import subprocess
from pathlib import Path

import pytest

from tests.support.machine import open_the_way
from tests.vm import packages
from tests.vm.kernels import OWN_DEV
from tests.vm.packages import Suite

UNSANDBOXED = "APT::Sandbox::User=root"


@pytest.mark.parametrize("name", ["", "bookworm"])
def test_root_downloads_as_apts_user_where_that_one_may_go(tmp_path: Path, name: str) -> None:
    open_the_way(tmp_path)
    lab = tmp_path / "lab"
    assert UNSANDBOXED not in Suite(lab, name).options
    lab.mkdir(exist_ok=True)
    lab.chmod(0o700)
    assert UNSANDBOXED in Suite(lab, name).options


def test_apts_user_may_write_where_it_downloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_the_way(tmp_path)
    ran: list[tuple[str, ...]] = []

    def apt(*argv: str | Path, cwd: Path) -> str:
        ran.append(tuple(map(str, argv)))
        assert cwd.owner() == packages.DOWNLOADER
        (cwd / "hello_1_amd64.deb").touch()
        return ""

    monkeypatch.setattr(packages, "run", apt)
    assert [file.name for file in Suite(tmp_path).download(["hello"])] == ["hello_1_amd64.deb"]
    assert [words[-2:] for words in ran] == [("download", "hello")]


HOST_PACKAGES = Path(packages.__file__).with_name("host-packages.sh")
REMEDY = "mknod -m 666 {} c 1 3"


def devices(directory: Path) -> dict[str, Path]:
    """Things that could stand for /dev/null, by what is wrong with them; the empty name is that of the good one."""
    found = {name: directory / f"null{number}" for number, name in enumerate(("", "0600", "is not the", "exist"))}
    for name, mode, device in (("", 0o666, 3), ("0600", 0o600, 3)):
        try:
            os.mknod(found[name], stat.S_IFCHR, os.makedev(1, device))
        except PermissionError:
            pytest.skip("no device can be made here")
        found[name].chmod(mode)
    found["is not the"].touch()
    return found


def test_a_null_device_that_is_none_is_told_and_apt_runs_as_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    open_the_way(tmp_path)
    for wrong, null in devices(tmp_path).items():
        monkeypatch.setattr(packages, "NULL", null)
        for user in (0, 1000):
            monkeypatch.setattr(os, "geteuid", lambda user=user: user)
            if wrong and user:
                with pytest.raises(packages.BuildError, match=wrong):
                    _ = Suite(tmp_path).options
                continue
            assert (UNSANDBOXED in Suite(tmp_path).options) == bool(wrong)
            said = capsys.readouterr().out
            assert (wrong in said and REMEDY.format(null) in said) if wrong else not said


def test_host_packages_tells_of_such_a_device(tmp_path: Path) -> None:
    for wrong, null in devices(tmp_path).items():
        done = subprocess.run(
            ["sh", HOST_PACKAGES],
            check=False,
            env={**os.environ, "HOST_PACKAGES_NULL": str(null)},
            capture_output=True,
            text=True,
        )
        assert (REMEDY.format(null) in done.stderr) == bool(wrong), done.stderr
        assert done.returncode == (1 if wrong and os.geteuid() else 0)


def test_a_root_has_devices_of_its_own(tmp_path: Path) -> None:
    """chmod, rm and mv there do nothing to those outside, which are in this test not the machine's, either."""
    if subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True).returncode:
        pytest.skip("no mounts can be made here")
    (tmp_path / "outer").mkdir()
    (tmp_path / "inner").mkdir()
    script = """
        machines=$(stat -c %d:%i /dev/null)
        "$1" "$2/outer" && mount --rbind "$2/outer/dev" /dev
        outer=$(stat -c %d:%i /dev/null)
        [ "$outer" != "$machines" ] || exit 1
        unshare $3 --mount --propagation private sh -uc '
            "$1" "$2/inner" || exit 1
            cd "$2/inner/dev" && echo text >null && [ -e fd/1 ] && [ -c ptmx ] && [ -d shm ] || exit 1
            chmod 600 null; touch file; mv file null; rm -f null; true' sh "$1" "$2" || exit 1
        stat -c "%d:%i %a" /dev/null | grep -qx "$outer 666" && echo "as it was"
    """
    for namespace in ("", "--map-root-user"):
        done = subprocess.run(
            ["unshare", "--mount", "--propagation", "private", "sh", "-uc", script, "sh", OWN_DEV, tmp_path, namespace],
            check=False,
            capture_output=True,
            text=True,
        )
        assert done.stdout == "as it was\n", (namespace, done.stderr)
