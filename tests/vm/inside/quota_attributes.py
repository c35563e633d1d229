"""NFSv4's quota attributes, asked of a running server over TCP; and the quota itself, set in the file system.

Usage: quota_attributes.py set DIRECTORY | quota_attributes.py ask PORT PATH
The second prints quota_avail_hard, quota_avail_soft and quota_used as a user sees them, or "none".
"""

import asyncio
import struct
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.nfs4 import Client4
from tests.vm.inside.file_systems import BLOCK_LIMITS, DQBLK, HARD, QUOTAS, SETQUOTA, SOFT, USER, get, quota


class OverTcp:
    """A server that :class:`Client4` can call."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def call(self, transport: Any, message: bytes, chunks: Sequence[Any] = ()) -> bytes:
        """One RPC on a connection of its own."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            writer.write(struct.pack(">I", 1 << 31 | len(message)) + message)
            (mark,) = struct.unpack(">I", await reader.readexactly(4))
            return await reader.readexactly(mark & 0x7FFFFFFF)
        finally:
            writer.close()


async def ask(port: int, path: str) -> None:
    """Print what the server says."""
    server: Any = OverTcp(port)
    mask, d = await get(Client4(server, 0, uid=USER, gid=USER), path, *QUOTAS)
    print(*[d.uint64() for _ in QUOTAS] if mask else ["none"])


if __name__ == "__main__":
    if sys.argv[1] == "set":
        quota(Path(sys.argv[2]), SETQUOTA, DQBLK.pack(HARD >> 10, SOFT >> 10, 0, 0, 0, 0, 0, 0, BLOCK_LIMITS))
    else:
        asyncio.run(ask(int(sys.argv[2]), sys.argv[3]))
