"""Connections of every kind, made, used and dropped one after the other, and what is left of them in the server.

    python -m tests.soak.drops --connections 100000

For each kind it says what the server's memory and descriptors were before and after, and the slope. Half of the
connections are closed, and half are reset. The first ones of each kind are not counted: they fill what is kept.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import socket
import ssl
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import trustme

from nfsd.protocol import nfs3
from nfsd.protocol import nfs4 as p
from tests.hostile.peer import Iwarp, Tcp, client4, dial, drive, mount
from tests.soak.server import HOST, Server
from tests.unit.test_tls import PROBE

SHARES = {
    "tcp": 35,
    "tcp, silent": 15,
    "tcp, sessions": 6,
    "tls": 5,
    "rdma": 25,
    "rdma, silent": 10,
    "rdma, sessions": 4,
}
"""Of a hundred connections."""
WARM = 300
SETTLES = 2.0
"""Seconds after the last connection: everything has been let go of."""
_numbers = itertools.count()


@dataclass
class Left:
    """What is left of one kind."""

    kind: str
    connections: int
    resident: tuple[int, int]
    """Octets before and after."""
    descriptors: tuple[int, int]

    @property
    def slope(self) -> float:
        """MiB in 100,000 connections."""
        return (self.resident[1] - self.resident[0]) / self.connections * 1e5 / 2**20

    def row(self) -> str:
        """Of a table in Markdown."""
        before, after = (octets / 2**20 for octets in self.resident)
        first, last = self.descriptors
        return (
            f"| {self.kind} | {self.connections:,} | {before:.2f} | {after:.2f} | {self.slope:+.2f} | {first}, {last} |"
        )


class Secured(Tcp):
    """A connection over TCP with TLS on it (RFC 9289)."""

    def __init__(self, address: tuple[str, int], source: str, roots: Path) -> None:
        self.socket = dial(address, source)
        self.send(PROBE)
        self.reply()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(str(roots))
        context.set_alpn_protocols(["sunrpc"])
        self.socket = context.wrap_socket(self.socket, server_hostname=address[0])


class Drops:
    """Makes connections to one server."""

    def __init__(self, server: Server, roots: Path) -> None:
        self.server, self.roots = server, roots
        self.chance = random.Random(1)
        self.root = mount((HOST, server.mountd), "127.0.0.200", b"/soak")

    def calls(self, way: Tcp | Iwarp) -> None:
        """One that is native, one that has data, one that is general."""
        way.nfs3("GETATTR", nfs3.GETATTR3args(self.root))
        way.nfs3("READDIRPLUS", nfs3.READDIRPLUS3args(self.root, 0, bytes(8), 1024, 2048))
        way.nfs3("FSINFO", nfs3.FSINFOargs(self.root))

    def session(self, way: Tcp | Iwarp, number: int) -> None:
        """A client that comes back with a new verifier, and wants callbacks here."""
        way.max_backchannel_size = 4096
        client = client4(way, name=b"drops %d" % (number % 32))
        drive(client.connect(self.chance.randbytes(8)))
        drive(client.run(p.OP_PUTROOTFH, p.OP_GETFH))

    def one(self, kind: str) -> None:
        """Connect, do what the kind is for, and go."""
        number = next(_numbers)
        source = f"127.0.0.{200 + number % 8}"
        transport, _, how = kind.partition(", ")
        way: Tcp | Iwarp
        if transport == "rdma":
            way = Iwarp((HOST, self.server.rdma), source)
        elif transport == "tls":
            way = Secured((HOST, self.server.tcp), source, self.roots)
        else:
            way = Tcp((HOST, self.server.tcp), source)
        with way:
            if how == "sessions":
                self.session(way, number)
            elif not how:
                self.calls(way)
            if number % 2:
                way.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def many(self, kind: str, count: int, say: Callable[[str], None]) -> Left:
        """So many of a kind."""
        for _ in range(min(WARM, count)):
            self.one(kind)
        time.sleep(SETTLES)
        before = self.server.use()
        for number in range(1, count + 1):
            self.one(kind)
            if number % 5000 == 0 and (now := self.server.use()) is not None:
                say(f"{kind}: {number:,} connections, {now.resident / 2**20:.2f} MiB, {now.descriptors} descriptors")
        time.sleep(SETTLES)
        after = self.server.use()
        if before is None or after is None:
            raise RuntimeError("the server has ended by itself")
        used = (before.resident, after.resident), (before.descriptors, after.descriptors)
        return Left(kind, count, *used)


def main() -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.drops", description=__doc__)
    parser.add_argument("--connections", type=int, default=100_000, help="of all kinds together")
    parser.add_argument("--kind", choices=SHARES, action="append", help="only that one; may be given again")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there")
    chosen = parser.parse_args()
    kinds = {kind: share for kind, share in SHARES.items() if not chosen.kind or kind in chosen.kind}
    with Server(secured=trustme.CA()) as server:
        drops = Drops(server, server.base / "roots.pem")
        found = [
            drops.many(
                kind, max(1, chosen.connections * share // sum(kinds.values())), lambda text: print(text, flush=True)
            )
            for kind, share in kinds.items()
        ]
    print("| Connections | | MiB before | MiB after | MiB in 100,000 | Descriptors |\n|---|---|---|---|---|---|")
    print("\n".join(left.row() for left in found))
    if chosen.json:
        chosen.json.write_text(json.dumps([asdict(left) for left in found], indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
