"""The command itself: `rdma-nfsd serve`, mounted and used over NFSv3, and ended by SIGTERM."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nfsd.protocol.nfs3 import stable_how
from tests.nfs3_client import Nfs3Client

CONFIG = """
server:
  listen: ["tcp://127.0.0.1:0"]
  mountd_port: 0
  rpcbind: false
exports:
  - path: ./export
    squash: none
"""


@contextmanager
def serve(base: Path) -> Iterator[dict[str, int]]:
    """The command, running; gives the ports of ``tcp`` and ``mountd``."""
    (base / "export").mkdir(exist_ok=True)
    (base / "exports.yaml").write_text(CONFIG)
    process = subprocess.Popen(
        [sys.executable, "-m", "nfsd.cli", "serve", "--config", str(base / "exports.yaml")],
        stdout=subprocess.PIPE,
        stderr=(base / "log").open("ab"),
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("rdma-nfsd ready: "), (base / "log").read_text()
        found = re.search(r" tcp://127\.0\.0\.1:(\d+)\b.* mountd tcp://127\.0\.0\.1:(\d+)", line)
        assert found is not None, line
        yield {"tcp": int(found[1]), "mountd": int(found[2])}
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0, (base / "log").read_text()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()  # type: ignore[union-attr]


def test_a_session_and_a_restart(tmp_path: Path) -> None:
    async def first(ports: dict[str, int]) -> bytes:
        async with await Nfs3Client.connect("127.0.0.1", ports["mountd"], uid=os.getuid(), gid=os.getgid()) as mountd:
            root = await mountd.mount("/export")
            assert await mountd.exports() == [(b"/export", [b"*"])]
        async with await Nfs3Client.connect("127.0.0.1", ports["tcp"], uid=os.getuid(), gid=os.getgid()) as client:
            file = await client.create(root, b"file")
            await client.write(file, 0, b"unstable")
            await client.commit(file)
            await client.write(file, 8, b" and stable", stable_how.FILE_SYNC)
            assert bytes((await client.read(file, 0, 100)).data) == b"unstable and stable"
            directory = await client.mkdir(root, b"many")
            await asyncio.gather(*[client.create(directory, b"%d" % number) for number in range(30)])
            assert len(await client.listing(directory)) == 32
            await client.rename(root, b"file", directory, b"moved")
            await asyncio.gather(*[client.remove(directory, b"%d" % number) for number in range(30)])
        return file.data

    async def second(ports: dict[str, int], handle: bytes) -> None:
        async with await Nfs3Client.connect("127.0.0.1", ports["mountd"], uid=os.getuid(), gid=os.getgid()) as mountd:
            root = await mountd.mount("/export/many")
        async with await Nfs3Client.connect("127.0.0.1", ports["tcp"], uid=os.getuid(), gid=os.getgid()) as client:
            moved = await client.lookup(root, b"moved")
            assert moved.data == handle
            assert bytes((await client.read(moved, 0, 100)).data) == b"unstable and stable"
            await client.remove(root, b"moved")

    with serve(tmp_path) as ports:
        handle = asyncio.run(first(ports))
    assert os.listdir(tmp_path / "export" / "many") == ["moved"]
    with serve(tmp_path) as ports:
        asyncio.run(second(ports, handle))
    assert os.listdir(tmp_path / "export" / "many") == []
