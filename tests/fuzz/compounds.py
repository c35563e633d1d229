"""Target ``compounds``: COMPOUNDs of NFSv4.2 and 4.0 from the wire, answered natively and by the general path.

One NFSv4 server stands behind two ports (:mod:`tests.support.nfs4_native`), of which one answers natively what it can
(``nfsd/v4/procedures``). An input is a few COMPOUNDs: SEQUENCE (except in 4.0), operations of the input's choice, and
damage to the octets behind SEQUENCE. Both ports get the same octets, except for their XID and slot.

What must hold
    Both replies are the same, octet for octet, and both slots are left in the same state. The sanitizer watches the
    native code.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import tempfile
from pathlib import Path
from typing import Any

from nfsd.protocol import nfs4 as p
from nfsd.protocol.nfs4_ops import OPERATIONS
from rpcrdma.xdr import XdrError, native
from tests.fuzz.iwarp_fakes import Errors
from tests.fuzz.nfs3_calls import COUNTS, NAMES, OFFSETS, Input
from tests.support.nfs4 import serving, wanted
from tests.support.nfs4_native import Both, comparable, handle_of
from tests.unit import vfs_support

MOST_COMPOUNDS, MOST_OPERATIONS = 4, 8
PATIENCE = 60
WANTED = (
    wanted(1, 3, 4, 8, 20, 33, 35, 36, 37, 41, 45, 47, 52, 53, 55),
    wanted(3, 4, 45, 52, 53),
    wanted(0, 1, 2, 10, 19),
    wanted(),
    wanted(*range(2, 12)),
    wanted(75, 80, 88),
)
PLAIN = (p.OP_GETFH, p.OP_SAVEFH, p.OP_RESTOREFH, p.OP_PUTROOTFH, p.OP_READLINK, p.OP_LOOKUPP, 9999)
HARMLESS = {
    *PLAIN, p.OP_PUTFH, p.OP_GETATTR, p.OP_LOOKUP, p.OP_ACCESS, p.OP_READ, p.OP_COMMIT, p.OP_WRITE, p.OP_NVERIFY,
    p.OP_VERIFY,
}  # fmt: skip
"""What may be called: nothing of which the second port would find that the first has done it already."""


class Target:
    """Both ports, and files with open state."""

    def __init__(self) -> None:
        self.reached: dict[str, int] = {}
        self.errors = Errors()
        logging.getLogger().addHandler(self.errors)
        self.loop = asyncio.new_event_loop()
        self.stack = contextlib.ExitStack()
        self.path = Path(self.stack.enter_context(vfs_support.directory_on("memory", "")))
        self.state = Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        self.inputs = 0
        self.loop.run_until_complete(self.start())

    async def start(self) -> None:
        self.serving = serving(self.path, state_dir=self.state)
        server = await self.serving.__aenter__()
        self.ways = [Both(server, self.path, minor) for minor in (2, 0)]
        self.handles = [b"", b"no handle", b"x" * 128]
        special = (
            p.stateid4(0, bytes(12)), p.stateid4(2**32 - 1, b"\xff" * 12), p.stateid4(1, bytes(12)),
            p.stateid4(1, b"none of ours"),
        )  # fmt: skip
        self.stateids = [list(special) for _ in self.ways]
        for both in self.ways:
            await both.connect()
        for name, size in ((b"empty", 0), (b"large", 70_000), (b"written", 5000)):
            path = self.path / os.fsdecode(name)
            path.write_bytes(bytes(index * 3 & 0xFF for index in range(size)))
            path.chmod(0o666)
            for both, stateids in zip(self.ways, self.stateids, strict=True):
                stateid, _ = await both.client.open("/0", name, access=3, owner=b"one")
                stateids += [stateid, p.stateid4(0, stateid.other), p.stateid4(stateid.seqid + 1, stateid.other)]
            self.handles.append(await handle_of(both, name))
            os.utime(path, (2_000_000_000, 1_600_000_000))
        (self.path / "sub").mkdir()
        (self.path / "link").symlink_to("large")
        for name in (b"", b"sub", b"link"):
            self.handles.append(await handle_of(both, name))

    def close(self) -> None:
        """Stop the server and remove the files."""

        async def stop() -> None:
            for both in self.ways:
                await both.close()
            await self.serving.__aexit__(None, None, None)

        self.loop.run_until_complete(stop())
        self.loop.close()
        self.stack.close()
        logging.getLogger().removeHandler(self.errors)

    def one(self, data: bytes) -> None:
        """Check one input. Raises AssertionError, or whatever the code under test should not have raised."""
        self.errors.records.clear()
        self.inputs += 1
        if self.inputs % 50 == 0:
            os.truncate(self.path / "written", 5000)
        self.loop.run_until_complete(self.run(data))
        assert not self.errors.records, self.errors.records

    async def run(self, data: bytes) -> None:
        source = Input(data)
        for _ in range(MOST_COMPOUNDS):
            if source.over:
                return
            await self.compound(source)

    def operation(self, source: Input, stateids: list[p.stateid4]) -> Any:
        """One operation of the input's choice."""
        match source.octet() % 10:
            case 0:
                return (p.OP_PUTFH, p.PUTFH4args(self.handles[source.octet() % len(self.handles)]))
            case 1:
                return (p.OP_GETATTR, WANTED[source.octet() % len(WANTED)])
            case 2:
                return (p.OP_LOOKUP, p.LOOKUP4args(NAMES[source.octet() % len(NAMES)]))
            case 3:
                return (p.OP_ACCESS, p.ACCESS4args(source.number()))
            case 4 | 5:
                stateid = stateids[source.octet() % len(stateids)]
                offset, count = OFFSETS[source.octet() % len(OFFSETS)], COUNTS[source.octet() % len(COUNTS)]
                return (p.OP_READ, p.READ4args(stateid, offset, count))
            case 6:
                stateid = stateids[source.octet() % len(stateids)]
                written = bytes(source.octet() * 9)
                return (p.OP_WRITE, p.WRITE4args(stateid, source.number(), source.octet() % 3, written))
            case 7:
                return (p.OP_COMMIT, p.COMMIT4args(OFFSETS[source.octet() % len(OFFSETS)], source.octet() % 2))
            case _:
                return PLAIN[source.octet() % len(PLAIN)]

    async def compound(self, source: Input) -> None:
        """One COMPOUND to both ports."""
        first = source.octet()
        both, stateids = self.ways[first >> 7], self.stateids[first >> 7]
        operations = [self.operation(source, stateids) for _ in range(first % MOST_OPERATIONS)]
        damage = [(source.octet(), source.number(), source.octet()) for _ in range(source.octet() % 4)]
        cache = source.octet() == 1
        for slot in (1, 2) if both.minor else ():
            both.sequences[slot] = both.session.slots[slot].seqid
        messages = [both.message(slot, *operations, cache=cache) for slot in (1, 0)]
        start = self.start_of(messages[0], both.minor)
        messages = [self.damaged(message, damage, start) for message in messages]
        if not self.harmless(messages[0], start):
            return
        answered = both.answered
        async with asyncio.timeout(PATIENCE):
            general = await both.general.call(None, messages[0])
            native = await both.native.call(None, messages[1])
        for name in ("answered", "general"):
            if (name == "answered") == (both.answered > answered):
                self.reached[name] = self.reached.get(name, 0) + 1
        assert comparable(native) == comparable(general)
        both.same_slots()

    @staticmethod
    def start_of(message: bytes, minor: int) -> int:
        """Where the first operation behind SEQUENCE stands."""
        credential = int.from_bytes(message[28:32], "big")
        return 32 + credential + 8 + 4 + 4 + 4 + (4 + 32 if minor else 0)

    @staticmethod
    def damaged(message: bytes, damage: list[tuple[int, int, int]], start: int) -> bytes:
        octets = bytearray(message)
        for kind, where, value in damage:
            at = start + where % (len(octets) - start + 1)
            match kind % 5:
                case 0:
                    octets[at : at + 1] = bytes((value,))
                case 1:
                    word = value if value < 240 else value - 256 & 0xFFFFFFFF
                    octets[at & ~3 : (at & ~3) + 4] = word.to_bytes(4, "big")
                case 2:
                    del octets[at:]
                case 3:
                    octets += bytes(value % 9)
                case 4:
                    del octets[at : at + value % 9]
        return bytes(octets)

    @staticmethod
    def harmless(message: bytes, start: int) -> bool:
        """Whether every operation that can be read from the message changes nothing that the other port would see."""
        decoder = native.Decoder(message, (), start)
        written = looked = False
        try:
            for _ in range(MOST_OPERATIONS * 2):
                number = decoder.uint32()
                if number in OPERATIONS and number not in HARMLESS:
                    return False
                written = written or number in (p.OP_WRITE, p.OP_COMMIT)
                looked = looked or number in (p.OP_READ, p.OP_GETATTR, p.OP_VERIFY, p.OP_NVERIFY)
                if written and looked:
                    return False
                if number not in OPERATIONS:
                    return True
                kind = OPERATIONS[number].arguments
                if kind is not None:
                    decoder.decode(kind)
        except XdrError:
            pass
        return True
