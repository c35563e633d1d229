"""A client of ours that speaks TLS with a server in a guest: ``python -m tests.support.tls_peer HOST PORT ROOTS``.

It writes files of every size to /export and reads them back. Then it asks for new keys by hand and makes a call. It
says as JSON how many octets it has read, and how the call ended: ``answered`` or an alert's name.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import ssl
import sys

from nfsd.client import Options, connect
from nfsd.client.url import parse
from tests.hostile.attacks.tls import Secured, context
from tests.hostile.peer import NULL3, Tcp, record
from tests.support.tls import DATA, HANDSHAKE, KEY_UPDATE

SIZES = (1, 100, 16380, 16384, 16385, 65536, 300001, (1 << 20) + 200, 9000001)


async def files(url: str, roots: str) -> None:
    """Contents are what they were."""
    async with connect(parse(url), Options(nfs_version="4.1", tls_roots=roots)) as there:
        for size in SIZES:
            octets = os.urandom(size)
            await there.write_bytes(f"of-{size}", octets)
            assert await there.read_bytes(f"of-{size}") == octets, size


def new_keys(host: str, port: int) -> str:
    """Ask for them, and for something that is enciphered with them."""
    made, log = context()
    with contextlib.closing(log), Tcp((host, port), "", patience=60) as way:
        secured = Secured(way, made, log)
        for _ in range(3):
            way.send(secured.forged.seal(HANDSHAKE, KEY_UPDATE + b"\1"))
            secured.forged.update()
            way.send(secured.forged.seal(DATA, record(NULL3)))
            try:
                assert len(secured.read()) >= 28
            except ssl.SSLError as error:
                return error.reason or "?"
    return "answered"


def main() -> None:
    """Entry point."""
    host, port, roots = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    asyncio.run(files(f"tls://{host}:{port}/export/", roots))
    print(json.dumps({"octets": sum(SIZES), "new keys": new_keys(host, port)}))


if __name__ == "__main__":
    main()
