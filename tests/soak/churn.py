"""A process beside the clients: it makes connections and drops them, and keeps calls of the native generator under way.

    python -m tests.soak.churn TCP_PORT RDMA_PORT MOUNTD_PORT RATE

Each second it prints a JSON list: connections made and dropped so far, and calls answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import struct
import sys
import threading
import time

from bench.generator import CallFailed, Generator
from nfsd.protocol import nfs3
from tests.hostile.peer import NULL3, nfs3_call, record
from tests.nfs3_client import Nfs3Client, Nfs3Failure
from tests.unit.softiwarp_support import CLIENT_REQUEST

SOURCE = "127.0.0.200"
DEPTH = 4


class Churn:
    """Counts of both."""

    def __init__(self) -> None:
        self.connections = 0
        self.calls = 0

    async def one(self, port: int, chance: random.Random, *, rdma: bool) -> None:
        """Connect, perhaps say something and hear the answer, and go: by FIN, by RST, or in the middle of a record."""
        with contextlib.suppress(OSError, EOFError, TimeoutError):
            async with asyncio.timeout(10):
                reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(SOURCE, 0))
                try:
                    words = CLIENT_REQUEST if rdma else record(NULL3)
                    how = chance.randrange(4)
                    if how:
                        writer.write(words[: len(words) // 2] if how == 1 else words)
                        await writer.drain()
                    if how == 3:
                        await reader.readexactly(4)
                    self.connections += 1
                finally:
                    if chance.random() < 0.5:
                        writer.transport.abort()
                    else:
                        writer.close()

    def load(self, tcp: int, mountd: int) -> None:
        """GETATTRs and READs without end, in a thread."""
        while True:
            try:
                root = asyncio.run(self._root(mountd))
                calls = [
                    nfs3_call("GETATTR", nfs3.GETATTR3args(root)),
                    nfs3_call("ACCESS", nfs3.ACCESS3args(root, 0x3F)),
                    nfs3_call("FSSTAT", nfs3.FSSTAT3args(root)),
                ]
                with socket.create_connection(("127.0.0.1", tcp), 10, (SOURCE, 0)) as sock:
                    sock.settimeout(None)  # the generator waits in the kernel, and no longer than this
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 10, 0))
                    generator = Generator(sock.fileno(), calls, DEPTH)
                    while True:
                        self.calls += generator.run(1.0, 200)[0]
                        time.sleep(0.3)
            except (OSError, CallFailed, RuntimeError, Nfs3Failure):
                time.sleep(0.3)

    @staticmethod
    async def _root(mountd: int) -> nfs3.nfs_fh3:
        async with asyncio.timeout(10), await Nfs3Client.connect("127.0.0.1", mountd) as client:
            return await client.mount("/soak")


async def main(tcp: int, rdma: int, mountd: int, rate: float) -> None:
    """Until killed."""
    churn, chance = Churn(), random.Random(1)
    threading.Thread(target=churn.load, args=(tcp, mountd), daemon=True).start()
    tasks: set[asyncio.Task[None]] = set()
    told = due = time.monotonic()
    while True:
        now = time.monotonic()
        while due < now:
            due += 1 / rate
            if len(tasks) < 64:
                over_rdma = chance.random() < 0.25
                task = asyncio.ensure_future(churn.one(rdma if over_rdma else tcp, chance, rdma=over_rdma))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
        if now - told > 1:
            told = now
            print(json.dumps([churn.connections, churn.calls]), flush=True)
        await asyncio.sleep(0.02)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])))
