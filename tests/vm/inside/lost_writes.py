"""Run in a guest: write to a server, have the disk lose it, and ask the server whether it is safe:
``lost_writes.py VERSION SERVER_PID FILE FAIL MEND``.

FILE, in an export of that name's directory, has room for 40 MiB. They are written, unstable, in NFS VERSION (3 or 4.1);
the shell command FAIL makes the disk fail; when the server has closed its descriptor, as it does some seconds after the
last use, everything is written back; MEND makes the disk well again, and the kernel is made to forget the file. Only
then the client commits. Prints JSON: the verifiers ``told`` by WRITE, and the one ``committed``, or null for an error.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time

from nfsd.protocol import nfs4 as p
from tests.nfs3_client import Nfs3Client, Nfs3Failure
from tests.support.nfs4 import Client4, Failed, LoopbackTransport
from tests.support.nfs4_native import Wire
from tests.vm.server import MOUNTD_PORT, TCP_PORT

PIECE, PIECES = 512 << 10, 80
HOST = "127.0.0.1"
PATIENCE = 120


class Three:
    """NFSv3."""

    async def connect(self, directory: str, name: str) -> None:
        """Find the file."""
        async with await Nfs3Client.connect(HOST, MOUNTD_PORT) as mountd:
            root = await mountd.mount(directory)
        self.client = await Nfs3Client.connect(HOST, TCP_PORT)
        self.handle = await self.client.lookup(root, name.encode())

    async def write(self, offset: int, data: bytes) -> bytes:
        """WRITE, unstable; its verifier."""
        return bytes((await self.client.write(self.handle, offset, data)).verf)

    async def close(self) -> None:
        """Nothing is open."""

    async def commit(self) -> bytes | None:
        """COMMIT; its verifier."""
        try:
            return bytes((await self.client.commit(self.handle)).verf)
        except Nfs3Failure:
            return None


class Four:
    """NFSv4.1."""

    async def connect(self, directory: str, name: str) -> None:
        """Open the file."""
        wire = Wire(*await asyncio.open_connection(HOST, TCP_PORT))
        made = Client4(wire, 1, name=os.urandom(8), transport=LoopbackTransport())
        self.client = await made.connect()
        self.stateid, self.handle = await self.client.open(directory, name.encode())

    async def write(self, offset: int, data: bytes) -> bytes:
        """WRITE, unstable; its verifier."""
        args = p.WRITE4args(self.stateid, offset, p.stable_how4.UNSTABLE4, data)  # type: ignore[arg-type]
        [written] = await self.client.on(self.handle, (p.OP_WRITE, args))
        return bytes(written.resok4.writeverf)

    async def close(self) -> None:
        """CLOSE."""
        await self.client.close(self.stateid, self.handle)

    async def commit(self) -> bytes | None:
        """COMMIT; its verifier."""
        try:
            [committed] = await self.client.on(self.handle, (p.OP_COMMIT, p.COMMIT4args(0, 0)))
        except Failed:
            return None
        return bytes(committed.resok4.writeverf)


def is_open(pid: str, path: str) -> bool:
    """Whether the server has the file open, other than by O_PATH."""
    for number in os.listdir(f"/proc/{pid}/fd"):
        try:
            with open(f"/proc/{pid}/fdinfo/{number}") as file:
                flags = int(next(line for line in file if line.startswith("flags:")).split()[1], 8)
            if os.readlink(f"/proc/{pid}/fd/{number}") == path and not flags & os.O_PATH:
                return True
        except OSError:
            continue
    return False


def forgotten(pid: str, path: str) -> None:
    """Have everything written back, and forgotten by the kernel once the server has."""
    deadline = time.monotonic() + PATIENCE
    while is_open(pid, path):
        assert time.monotonic() < deadline, "the server keeps the file open"
        time.sleep(0.2)
    for _ in range(3):
        os.sync()
    while any(path == _target(pid, number) for number in os.listdir(f"/proc/{pid}/fd")):
        assert time.monotonic() < deadline, "the server keeps the file in use"
        time.sleep(0.2)


def _target(pid: str, number: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/fd/{number}")
    except OSError:
        return ""


def shell(command: str) -> None:
    """Run a shell command, which must succeed."""
    subprocess.run(command, shell=True, check=True)


async def main(version: str, pid: str, path: str, fail: str, mend: str) -> None:
    """See above."""
    client = Three() if version == "3" else Four()
    await client.connect(*os.path.split(path))
    data = os.urandom(PIECE)
    told = [await client.write(number * PIECE, data) for number in range(PIECES)]
    shell(fail)
    await client.close()
    forgotten(pid, path)
    shell(mend)
    for _ in range(3):
        with open("/proc/sys/vm/drop_caches", "w") as file:
            file.write("3")
    verifier = await client.commit()
    kept = 0
    with open(path, "rb") as file:
        while piece := file.read(PIECE):
            kept += piece == data
    print(
        json.dumps(
            {
                "told": sorted({one.hex() for one in told}),
                "committed": None if verifier is None else verifier.hex(),
                "lost": PIECES - kept,
            }
        )
    )


asyncio.run(main(*sys.argv[1:]))
