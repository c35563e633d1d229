"""A 4.2 client and a directory on a chosen file system, for the tests of NFSv4.2's operations."""

import asyncio
import contextlib
import subprocess
import tempfile

from nfsd.protocol import nfs4 as p
from tests.support.callbacks import CallbackEnd
from tests.support.nfs4 import Client4, LoopbackTransport, serving
from tests.unit.vfs_support import directory_on

ANONYMOUS = p.stateid4(0, bytes(12))
CURRENT = p.stateid4(1, bytes(12))
MIB = 1 << 20


def offloads(client):
    """The arguments of every CB_OFFLOAD that the client has had."""
    return [args for number, args in client.transport.callbacks.executed if number == p.OP_CB_OFFLOAD]


def with_clients(place, state, test, *, uids=(0,), paths=(), backchannel=False, **how):
    """Run ``test(server, client…)`` over the directory ``place``, a 4.2 client for each uid; ``backchannel``: they have
    one, for CB_OFFLOAD."""

    async def main():
        async with serving(place, *paths, state_dir=state, **how) as server:
            clients = [
                await Client4(
                    server,
                    2,
                    uid=uid,
                    gid=uid,
                    name=b"client %d" % number,
                    transport=LoopbackTransport(callbacks=CallbackEnd()) if backchannel else None,
                ).connect()
                for number, uid in enumerate(uids)
            ]
            await test(server, *clients)

    asyncio.run(main())


@contextlib.contextmanager
def place_on(kind, tmp_path):
    """A world-writable directory on ``disk``, in ``memory``, or on an ``xfs`` or ``btrfs`` of its own (loop device)."""
    if kind in ("disk", "memory"):
        with directory_on(kind, tmp_path) as path:
            yield path
        return
    with tempfile.TemporaryDirectory() as above:
        image, path = f"{above}/image", f"{above}/mounted"
        subprocess.run(["truncate", "-s", "320M", image], check=True)
        subprocess.run([f"mkfs.{kind}", "-q", image], check=True, capture_output=True)
        subprocess.run(["mkdir", path], check=True)
        subprocess.run(["mount", "-o", "loop", image, path], check=True)
        try:
            subprocess.run(["chmod", "777", path], check=True)
            yield path
        finally:
            subprocess.run(["umount", "-l", path], check=True)


def content(path):
    """What a file has in it."""
    with open(path, "rb") as file:
        return file.read()


async def handle_of(client, path):
    """The filehandle of a path below the export."""
    *_, found = await client.run(*client.path("/0/" + path), p.OP_GETFH)
    return found.resok4.object


async def status_on(client, handle, *operations):
    """The status of operations on one file."""
    return await client.status((p.OP_PUTFH, p.PUTFH4args(handle)), *operations)


def two_files(source, target):
    """SAVEFH of the one and PUTFH of the other."""
    return (p.OP_PUTFH, p.PUTFH4args(source)), p.OP_SAVEFH, (p.OP_PUTFH, p.PUTFH4args(target))
