"""The package as somebody else has it: a copy of the clone's tracked files, an environment of its own, its command."""

import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

REPO = Path(__file__).parents[2]


def tracked() -> list[str]:
    """The files of the clone, without what was built: names relative to it."""
    command = ["git", "-C", str(REPO), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\0")
    return [name for name in names if name and (REPO / name).is_file()]


def copy_clone(target: Path) -> Path:
    """Copy the tracked files to ``target``; returns it."""
    for name in tracked():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPO / name, target / name)
    return target


def own_command(directory: Path) -> Path:
    """The clone's own ``rdma-nfsd``, put into a directory."""
    path = directory / "rdma-nfsd"
    path.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(REPO)!r})\n"
        "from nfsd.cli import main\nsys.exit(main())\n"
    )
    path.chmod(0o755)
    return path


def environment() -> dict[str, str]:
    """This process's, without what leads to the clone's packages."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}


def run(command: Sequence[str | Path], cwd: Path, **more: str) -> str:
    """Run a command; its standard output. Fails with all that it wrote."""
    env = {**environment(), **more}
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    return done.stdout


def install(package: Path, directory: Path) -> Path:
    """Install a wheel or a source distribution in an empty environment; returns the ``rdma-nfsd`` of it."""
    venv.create(directory / "venv", with_pip=True, symlinks=True)
    run([directory / "venv/bin/python", "-m", "pip", "install", "--quiet", package], cwd=directory)
    return directory / "venv/bin/rdma-nfsd"


@contextmanager
def serving(program: Path, directory: Path, *arguments: str) -> Iterator[list[str]]:
    """``rdma-nfsd serve`` of a directory, until the block ends; gives the URLs of its listeners."""
    command = [str(program), "serve", str(directory), "--state-dir", str(directory.parent / "state"), *arguments]
    server = subprocess.Popen(command, cwd=directory.parent, env=environment(), stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        ready = server.stdout.readline()
        assert ready.startswith("rdma-nfsd ready: "), ready
        yield [word for word in ready.split() if "://127.0.0.1:" in word]
        server.terminate()
        assert server.wait(60) == 0
    finally:
        server.kill()
        server.wait()
        server.stdout.close()


def use(program: Path, directory: Path) -> None:
    """Serve a directory with the program, and list it and copy from it and to it over RDMA and TCP."""
    (directory / "data").mkdir()
    (directory / "data/hello.txt").write_text("hello\n")
    listen = ("--listen", "rdma://127.0.0.1:0", "--listen", "tcp://127.0.0.1:0", "--squash", "none")
    with serving(program, directory / "data", *listen) as urls:
        rdma, tcp = urls[:2]
        assert (rdma[:7], tcp[:6]) == ("rdma://", "tcp://")
        for number, url in enumerate((rdma, tcp)):
            assert "hello.txt" in run([program, "ls", f"{url}/data"], cwd=directory).split()
            run([program, "cp", f"{url}/data/hello.txt", f"{url}/data/copy{number}"], cwd=directory)
            run([program, "cp", f"{url}/data/copy{number}", "."], cwd=directory)
            assert (directory / f"copy{number}").read_text() == "hello\n"
