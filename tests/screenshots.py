"""The pictures of docs/watching.md: ``python -m tests.screenshots DIR`` draws them of a server under load.

``top.svg`` is what ``rdma-nfsd top`` shows, ``page.png`` is the page on the metrics' port, in chromium. The server and
its clients are processes in a network of their own, where each client has an address: one that moves large files over
RDMA, others with small files over RDMA and TCP, NFSv3 and 4.1, one on a file system that does not answer for a while
(it is frozen), and one that no export is for. Needs root.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import yaml
from rich.console import Console

from nfsd.admin.asking import ask
from nfsd.admin.screen import Screen
from nfsd.client import FileSystem, Options, connect
from nfsd.client.url import parse
from tests.support.browser import browser

COLUMNS, LINES = 132, 50
SECONDS: Final = 75.0
"""As long as the page's charts show something of."""
FROZEN: Final = 4.0
INSIDE: Final = "inside"
_CLIENTS: Final = (
    # address, transport, version, export, size of a file, pause between files
    ("10.7.0.11", "rdma", "4.1", "scratch", 16 << 20, 0.05),
    ("10.7.0.12", "rdma", "3", "home", 40_000, 0.05),
    ("10.7.0.13", "tcp", "4.1", "home", 4096, 0.05),
    ("10.7.0.14", "tcp", "3", "home", 200_000, 0.2),
    ("10.7.0.15", "tcp", "4.1", "backup", 100_000, 0.1),
)
_STRANGER: Final = "10.7.0.66"


def draw_top(state_dir: str, seconds: float = 1.0) -> str:
    """A picture of the live screen."""
    screen = Screen()
    screen.look(ask(state_dir, "stats"))
    time.sleep(seconds)
    screen.look(ask(state_dir, "stats"))
    console = Console(width=COLUMNS, height=LINES, record=True, file=io.StringIO(), force_terminal=True)
    console.print(screen.draw(LINES))
    # Without the fonts that would be fetched from elsewhere.
    return re.sub(r"@font-face {.*?}\s*", "", console.export_svg(title="rdma-nfsd top"), flags=re.DOTALL)


async def work(address: str, transport: str, version: str, export: str, size: int, pause: float) -> None:
    """A client's work, until it is ended: files are written, read, looked at and removed."""
    port = 20049 if transport == "rdma" else 2049
    options = Options(nfs_version="3" if version == "3" else "4.1", mount_port=20048, patience=600)
    data, number = os.urandom(size), 0
    async with connect(parse(f"{transport}://{address}:{port}/{export}"), options) as files:
        if export == "backup":
            await keep_writing(files, address, data, pause)
        while True:
            number += 1
            await once(files, f"{address}-{number % 10}", data, remove=number % 10 == 0)
            await asyncio.sleep(pause)


async def keep_writing(files: FileSystem, name: str, data: bytes, pause: float) -> None:
    """A client that writes to one file."""
    async with files.open(name, "w") as file:
        while True:
            for _ in range(100):
                await file.write(data)
                await asyncio.sleep(pause)
            file.seek(0)


async def once(files: FileSystem, name: str, data: bytes, *, remove: bool) -> None:
    """One file's part of it."""
    await files.write_bytes(name, data)
    await files.read_bytes(name)
    await files.stat(name)
    await files.exists(f"{name}.lock")
    if remove:
        await files.remove(name)


async def knock() -> None:
    """A host that no export is for tries again and again."""
    while True:
        with contextlib.suppress(Exception):
            async with connect(
                parse(f"rdma://{_STRANGER}:20049/home"), Options(nfs_version="4.1", patience=5)
            ) as files:
                await files.stat("")
        await asyncio.sleep(1.0)


@contextlib.contextmanager
def served(base: Path) -> Iterator[str]:
    """A server whose export ``backup`` is a file system of its own; gives its state directory."""
    for name in ("scratch", "home", "backup"):
        (base / name).mkdir()
    image = base / "image"
    with image.open("wb") as file:
        file.truncate(256 << 20)
    shell("mkfs.ext4", "-q", "-F", str(image))
    shell("mount", "-o", "loop", str(image), str(base / "backup"))
    known = [address for address, *_ in _CLIENTS]
    exports = [
        {"path": str(base / name), "pseudo": f"/{name}", "squash": "none", "clients": known}
        for name in ("scratch", "home", "backup")
    ]
    server = {
        "listen": ["rdma://0.0.0.0:20049", "tcp://0.0.0.0:2049"], "mountd_port": 20048, "rpcbind": False,
        "state_dir": str(base / "state"), "metrics": {"listen": "127.0.0.1:9587"}, "nfs4": {"grace_time": 0},
    }  # fmt: skip
    (base / "exports.yaml").write_text(yaml.safe_dump({"server": server, "exports": exports}))
    command = [sys.executable, "-m", "nfsd.cli", "serve", "--config", str(base / "exports.yaml")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"rdma-nfsd ready")
        yield str(base / "state")
    finally:
        process.terminate()
        process.wait()
        shell("umount", "--lazy", str(base / "backup"))


def until_all_work(state: str) -> None:
    """Wait until every client has moved data."""
    deadline = time.monotonic() + 120
    while sum(one["written"] > 0 for one in ask(state, "stats")["clients"].values()) < len(_CLIENTS):
        assert time.monotonic() < deadline, "a client does nothing"
        time.sleep(0.5)


def shell(*words: str) -> None:
    """Run a command that must succeed."""
    subprocess.run(words, check=True)


@contextlib.contextmanager
def frozen(directory: Path) -> Iterator[None]:
    """Nothing is written to its file system meanwhile."""
    shell("fsfreeze", "--freeze", str(directory))
    try:
        yield
    finally:
        shell("fsfreeze", "--unfreeze", str(directory))


def draw(target: Path) -> None:
    """Draw them, in a network of this process's own."""
    shell("ip", "link", "set", "lo", "up")
    for address in (*(one[0] for one in _CLIENTS), _STRANGER):
        shell("ip", "address", "add", f"{address}/32", "dev", "lo")
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as place,
        served(Path(place)) as state,
        contextlib.ExitStack() as ends,
    ):
        for which in range(len(_CLIENTS) + 1):
            client = subprocess.Popen([sys.executable, "-m", "tests.screenshots", "client", str(which)])
            ends.callback(client.wait)
            ends.callback(client.kill)
        until_all_work(state)
        with browser(1180, 1240) as page:
            page.open("http://127.0.0.1:9587/")
            time.sleep(SECONDS)
            with frozen(Path(place) / "backup"):
                time.sleep(FROZEN)
                (target / "top.svg").write_text(draw_top(state))
                (target / "page.png").write_bytes(page.picture())


def main(words: list[str]) -> None:
    """Run from the command line."""
    if words[0] == "client":
        which = int(words[1])
        asyncio.run(work(*_CLIENTS[which]) if which < len(_CLIENTS) else knock())
    elif words[0] == INSIDE:
        draw(Path(words[1]))
    else:
        shell("unshare", "--net", "--mount", sys.executable, "-m", "tests.screenshots", INSIDE, words[0])


if __name__ == "__main__":
    main(sys.argv[1:])
