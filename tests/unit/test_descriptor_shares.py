"""One host writes to ever more files, and the disk is slow: its descriptors are bounded, and others get in at once.

The server is a process of its own, which may have few descriptors and whose every fsync takes a tenth of a second. The
crowd comes from one address of the loopback network and the honest client from another.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from nfsd.protocol.nfs3 import (
    COMMIT3args,
    CREATE3args,
    LOOKUP3args,
    WRITE3args,
    createhow3,
    createmode3,
    diropargs3,
    nfsstat3,
    stable_how,
)
from tests.hostile.server import _READY
from tests.nfs3_client import Nfs3Client, attributes, auth_sys

REPO = Path(__file__).parents[2]
DESCRIPTORS = 512
FILES = 600
WRITERS = 32
ROUNDS = 6
HONEST, CROWD = "127.0.0.3", "127.0.0.2"

SERVER = """
import resource, struct, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (%(descriptors)d,) * 2)
from nfsd.vfs import stable
from nfsd.vfs.executor import Chain
from nfsd.vfs.syscalls import SYS_FSYNC

class SlowDisk(Chain):
    def add(self, number, *arguments, **flags):
        if number == SYS_FSYNC:
            super().add(35, struct.pack("qq", 0, 100_000_000), None, keep_going=True)  # nanosleep(2)
        return super().add(number, *arguments, **flags)

stable.Chain = SlowDisk
stable._FSYNCS_PER_CHAIN = 4
sys.argv = ["rdma-nfsd", "serve", "--config", sys.argv[1]]
from nfsd.cli import main
sys.exit(main())
"""

CONFIG = """
server:
  listen: ["rdma://127.0.0.1:0", "tcp://127.0.0.1:0"]
  mountd_port: 0
  rpcbind: false
  nlm: false
  state_dir: {base}/state
  nfs4: {{grace_time: 0}}
exports:
  - {{path: {base}/export, pseudo: /export, squash: none}}
"""


class Site:
    """The server and ways to it."""

    def __init__(self, base):
        self.base = base
        self.export = base / "export"
        self.log = base / "log"
        self.most = 0
        """Descriptors that the server was seen to have."""

    def __enter__(self):
        self.export.mkdir(mode=0o777)
        for number in range(FILES):
            (self.export / f"f{number}").touch()
        config = self.base / "exports.yaml"
        config.write_text(CONFIG.format(base=self.base))
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVER % {"descriptors": DESCRIPTORS}, str(config)],
            stdout=subprocess.PIPE,
            stderr=self.log.open("wb"),
            text=True,
            env=os.environ | {"PYTHONPATH": str(REPO)},
        )
        line = self.process.stdout.readline()
        found = _READY.search(line)
        assert found, line + self.log.read_text()
        self.port, self.mountd = int(found[2]), int(found[3])
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(60)
        finally:
            self.process.kill()
            self.process.wait()
            self.process.stdout.close()

    @contextlib.asynccontextmanager
    async def client(self, address, port=None):
        reader, writer = await asyncio.open_connection("127.0.0.1", port or self.port, local_addr=(address, 0))
        async with Nfs3Client(reader, writer, auth_sys(0, 0)) as client:
            yield client

    async def root(self, address):
        async with self.client(address, self.mountd) as client:
            return await client.mount(b"/export")

    @staticmethod
    async def until(condition):
        for _ in range(6000):
            if condition():
                return
            await asyncio.sleep(0.02)
        pytest.fail("it does not happen")

    async def watch(self):
        """Count the server's descriptors until cancelled."""
        while True:
            self.most = max(self.most, len(os.listdir(f"/proc/{self.process.pid}/fd")))
            await asyncio.sleep(0.02)


@pytest.fixture
def site(tmp_path):
    with Site(tmp_path) as site:
        yield site


def is_there(result):
    assert result.status == nfsstat3.NFS3_OK, result.status
    return result.resok


async def write_a_file(client, root, name):
    """As cp does: create, write, commit."""
    how = createhow3(createmode3.UNCHECKED, obj_attributes=attributes(mode=0o600))
    file = is_there(await client.nfs("CREATE", CREATE3args(diropargs3(root, name), how))).obj
    arguments = WRITE3args(file, 0, 4, stable_how.UNSTABLE, memoryview(b"data"))
    written = is_there(await client.nfs("WRITE", arguments))
    assert is_there(await client.nfs("COMMIT", COMMIT3args(file, 0, 0))).verf == written.verf


async def patiently(client, procedure, arguments, told):
    """Make a call until it is carried out; ``told``: the statuses."""
    while True:
        result = await client.nfs(procedure, arguments)
        told.append(result.status)
        if result.status != nfsstat3.NFS3ERR_JUKEBOX:
            return is_there(result)
        await asyncio.sleep(0.05)


async def flood(site, root, numbers, told):
    """Write to one file after the other, and never commit."""
    async with site.client(CROWD) as client:
        for number in numbers:
            where = LOOKUP3args(diropargs3(root, b"f%d" % number))
            file = (await patiently(client, "LOOKUP", where, told)).object
            arguments = WRITE3args(file, 0, 4, stable_how.UNSTABLE, memoryview(b"data"))
            await patiently(client, "WRITE", arguments, told)


def test_a_small_call_gets_in_while_a_host_has_used_up_its_descriptors(site):
    told = []

    async def main():
        root = await site.root(HONEST)
        watching = asyncio.create_task(site.watch())
        crowd = [
            asyncio.create_task(flood(site, root, range(writer, FILES, WRITERS), told)) for writer in range(WRITERS)
        ]
        await site.until(lambda: told.count(nfsstat3.NFS3_OK) >= FILES // 2)  # by then it has all that it gets
        for number in range(ROUNDS):
            async with site.client(HONEST) as client:
                await write_a_file(client, root, b"honest%d" % number)
        assert not any(task.done() for task in crowd)
        watching.cancel()
        for task in crowd:
            task.cancel()
        await asyncio.gather(*crowd, return_exceptions=True)

    asyncio.run(asyncio.wait_for(main(), 300))
    assert site.most < DESCRIPTORS - 16
    assert nfsstat3.NFS3ERR_JUKEBOX not in told  # it waited its turn, as long as it makes headway
