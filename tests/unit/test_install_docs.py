"""The transcripts of README.md and docs/install.md are true: their commands are run, and what they say is compared."""

import re
import shlex
import socket
import subprocess
from pathlib import Path

import pytest

from tests.support.installed import REPO, environment, own_command, serving

INSTALL = REPO / "docs/install.md"
README = REPO / "README.md"
PORTS = re.compile(r"(?<=127\.0\.0\.1):\d+")


def consoles(text: str) -> list[list[tuple[str, str]]]:
    """The transcripts: for each block, its commands with what they print."""
    blocks = []
    for block in re.findall(r"^```console\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        commands = re.split(r"^\$ ", block, flags=re.MULTILINE)
        assert not commands[0]
        blocks.append([(each.partition("\n")[0], each.partition("\n")[2]) for each in commands[1:]])
    return blocks


@pytest.fixture
def program(tmp_path: Path) -> Path:
    return own_command(tmp_path)


def test_what_install_md_shows_is_what_happens(program: Path, tmp_path: Path) -> None:
    (served,), used = consoles(INSTALL.read_text())
    command = shlex.split(served[0])
    assert command[:3] == ["rdma-nfsd", "serve", "data"]
    (tmp_path / "data").mkdir()
    (tmp_path / "data/hello.txt").write_text("Hello over NFS.\n")
    listen = ("--listen", "rdma://127.0.0.1:0", "--listen", "tcp://127.0.0.1:0")
    env = {**environment(), "PATH": f"{tmp_path}:{environment()['PATH']}"}
    with serving(program, tmp_path / "data", *command[3:], *listen) as urls:
        shown = served[1].split()
        if not any(url.endswith(":20048") for url in urls):  # then another server of this machine has mountd's port
            socket.create_connection(("127.0.0.1", 20048), 60).close()
            del shown[shown.index("mountd") : shown.index("nlm")]
        assert [PORTS.sub("", url) for url in urls] == [PORTS.sub("", word) for word in shown if "://" in word]
        for line, printed in used:
            here = line.replace("rdma://127.0.0.1/", f"{urls[0]}/")
            done = subprocess.run(
                ["sh", "-c", here], cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                check=False,
            )  # fmt: skip
            assert PORTS.sub("", done.stdout) == printed, line


def test_the_steps_of_make_run_are_those_of_the_makefile() -> None:
    (block,) = re.findall(r"^# make run\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)
    said = [line.partition("] ")[2] for line in block.splitlines() if line.startswith("[")]
    makefile = (REPO / "Makefile").read_text().replace("$(VENV)", ".venv").replace("$(BIN)", ".venv/bin")
    wanted = makefile.partition("setup: ")[2].partition("\n$(STAMPS)/development:")[0]
    steps = re.findall(r'\$\(SAY\) "(.*)"$', wanted, re.MULTILINE)
    scripts = re.findall(r'step "([^$"]*)', (REPO / "tests/vm/host-packages.sh").read_text())
    assert said[-len(steps) :] == steps
    for line in said[: -len(steps)]:
        assert any(line.startswith(script.strip()) for script in scripts), line
    assert "exec .venv/bin/rdma-nfsd serve --config exports.yaml\n" in block
    assert "\texec $(BIN)/rdma-nfsd serve --config exports.yaml\n" in (REPO / "Makefile").read_text()
