"""``rdma-nfsd serve DIR``: no file is needed, and what it serves keeps its handles."""

from pathlib import Path

import pytest

from nfsd.cli import main
from nfsd.command_line import build_parser
from nfsd.config import Config
from nfsd.without_file import configuration
from tests.support.installed import own_command, run, serving


@pytest.fixture
def program(tmp_path: Path) -> Path:
    return own_command(tmp_path)


def told(*arguments: str) -> Config:
    return configuration(build_parser().parse_args(["serve", *arguments]))


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "kept"))


def test_each_directory_is_an_export_of_its_own_name(tmp_path: Path) -> None:
    for name in ("data", "more"):
        (tmp_path / name).mkdir()
    config = told(str(tmp_path / "data"), str(tmp_path / "more") + "/")
    assert [(export.pseudo, export.path) for export in config.exports] == [
        ("/data", str(tmp_path / "data")),
        ("/more", str(tmp_path / "more")),
    ]
    assert {export.squash for export in config.exports} == {"root"}
    assert not any(export.read_only for export in config.exports)
    assert {str(entry.address).rpartition(":")[0] for entry in config.server.listen} == {
        "rdma://127.0.0.1",
        "tcp://127.0.0.1",
    }, "only this host, unless more is asked for"


def test_the_options_are_those_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    options = [
        "--listen=tcp://0.0.0.0:2050",
        "--client=10.0.0.0/8",
        "--client=host.example",
        "--read-only",
        "--squash=all",
    ]
    config = told(str(tmp_path / "data"), *options, "--state-dir", str(tmp_path / "state"))
    (export,) = config.exports
    assert (export.read_only, export.squash, export.clients) == (True, "all", ("10.0.0.0/8", "host.example"))
    assert [str(entry.address) for entry in config.server.listen] == ["tcp://0.0.0.0:2050"]
    assert config.server.state_dir == str(tmp_path / "state")


def test_the_same_directories_have_the_same_state_and_others_have_another(tmp_path: Path) -> None:
    for name in ("data", "more"):
        (tmp_path / name).mkdir()
    data, more = str(tmp_path / "data"), str(tmp_path / "more")
    states = [told(*names).server.state_dir for names in ((data,), (more,), (data, more), (more, data))]
    assert states[2] == states[3]
    assert len(set(states)) == 3
    (tmp_path / "link").symlink_to(data)
    assert told(str(tmp_path / "link")).server.state_dir == states[0]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "one of the two"),
        (["--config", "file", "data"], "one of the two"),
        (["--config", "file", "--read-only"], "go with DIR"),
    ],
)
def test_contradictions_are_said(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["serve", *arguments])
    assert caught.value.code == 2
    assert said in capsys.readouterr().err


def test_what_is_wrong_is_said_without_lines_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", str(tmp_path / "nowhere"), "--listen", "udp://127.0.0.1:1"]) == 2
    said = capsys.readouterr().err
    assert "command line: server.listen[0]" in said
    assert f"command line: exports[0].path: {tmp_path}/nowhere does not exist" in said


def test_it_serves_and_the_handles_are_good_for_the_next_server(program: Path, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/hello.txt").write_text("hello\n")
    keys = []
    for _ in range(2):
        with serving(program, tmp_path / "data", "--listen", "tcp://127.0.0.1:0", "--read-only") as (url, *_):
            assert run([program, "cat", f"{url}/data/hello.txt"], cwd=tmp_path) == "hello\n"
            keys.append((tmp_path / "state/handle.key").read_bytes())
    assert keys[0] == keys[1]
