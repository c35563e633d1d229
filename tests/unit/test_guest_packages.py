"""apt downloads the guest's packages as its own user, wherever that one can go."""

from pathlib import Path

import pytest

from tests.support.machine import open_the_way
from tests.vm import packages
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
