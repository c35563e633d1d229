"""The cost of one operation when there are many names in a directory, open files, locks, or handles in use."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import resource
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bench.calls import Files, rpc
from bench.generator import Generator
from bench.nfs3_client import Nfs3Client
from bench.nfs4 import MARK, Session
from bench.scenarios import prepare
from bench.servers import RdmaNfsd
from bench.study import Row, Study, Terms, by, cost, markdown, medians, progress
from nfsd.protocol.nfs3 import READDIR3args, nfs_fh3
from nfsd.vfs.resources import FileLimits
from rpcrdma.xdr import pack

OUTSTANDING = 16
PAGE = 8192
"""Octets of one READDIRPLUS."""
PATIENCE = 180.0
"""Seconds that growing may take altogether."""
KEPT = 2000
"""Different calls of one measurement."""
CHUNK = 100_000
"""Marks that growing sends at a time."""
TOGETHER = 50
"""LOCKs of a call while their number grows."""


class Growth(Study):
    """One server; something grows, and at each size the same calls are measured. Derived from for each something."""

    sizes: tuple[int, ...]
    curve = ("size", "cpu_us", ("call",))
    why_not = f"within {PATIENCE:.0f} s"
    options: Mapping[str, Any] = {}
    """Of the server's configuration."""

    def possible(self) -> Sequence[int]:
        """The sizes that this machine allows."""
        return self.sizes

    async def begin(self, server: RdmaNfsd, files: Files) -> None:
        """Before there is anything."""

    def grow(self, server: RdmaNfsd, files: Files, size: int, until: float) -> Iterator[Row]:
        """Make it ``size``; the rows say what that has cost. Stops at the time ``until``."""
        raise NotImplementedError

    def calls(self, files: Files, size: int) -> dict[str, tuple[list[bytes], int]]:
        """What is measured: calls, and where they have their SEQUENCE."""
        raise NotImplementedError

    def run(self, terms: Terms) -> list[Row]:
        """Over TCP, which says the same as RDMA about this."""
        server = RdmaNfsd(terms.directory, options=self.options)
        rows: list[Row] = []
        until = time.monotonic() + PATIENCE
        try:
            files = asyncio.run(prepare(server, terms.uid))
            asyncio.run(self.begin(server, files))
            for size in self.possible():
                progress(f"{self.name}: {size:,}")
                rows += self.grow(server, files, size, until)
                if time.monotonic() > until:
                    break
                rounds: list[list[Row]] = []
                for number in range(terms.rounds):
                    rounds.append([])
                    for call, (calls, at) in self.calls(files, size).items():
                        progress(f"{self.name}: {size:,}, {call}, round {number + 1}")
                        with server.connect("tcp") as sock:
                            load = Generator(sock.fileno(), calls, OUTSTANDING, sequence_at=at)
                            rounds[-1].append({"call": call, "size": size} | cost(server, load, terms.seconds))
                rows += medians(rounds, ("call", "size"))
        finally:
            server.stop()
        return rows

    def table(self, rows: Sequence[Row], bounds: Mapping[str, float]) -> list[str]:
        """CPU per call by size, and how much more it is at the largest."""
        sizes = sorted({row["size"] for row in rows})
        lines = []
        for (call,), same in by(rows, "call").items():
            found = {row["size"]: row["cpu_us"] for row in same}
            times = found[max(found)] / found[min(found)]
            lines.append([call, *(f"{found[n]:.1f}" if n in found else "" for n in sizes), f"{times:.2f}"])
        heads = ["CPU µs per call", *(f"{size:,}" for size in sizes), "the last, times the first"]
        lines_of_it = markdown(heads, lines)
        if sizes[-1] < self.sizes[-1]:
            lines_of_it += ["", f"More than {sizes[-1]:,}: not {self.why_not}."]
        return lines_of_it

    def watched(self, rows: Sequence[Row], bounds: Mapping[str, float]) -> dict[str, float]:
        """What a call costs at the smallest size in round trips, and how many times that at each larger one."""
        found = {}
        for (call,), same in by(rows, "call").items():
            first = min(same, key=lambda row: row["size"])
            for row in same:
                unit = bounds["round_trip_us"] if row is first else first["cpu_us"]
                found[f"{call} at {row['size']:,}"] = row["cpu_us"] / unit
        return found


def growing(
    server: RdmaNfsd, session: Session, template: bytes, marks: Sequence[bytes], call: str, size: int, until: float
) -> Iterator[Row]:
    """Send the call with as many marks at a time as it has room for, once with each. The row is what each of the last
    of them has cost."""
    used, calls, each = 0.0, 0.0, 1
    for start in range(0, len(marks), CHUNK):
        session.renew()
        parts = session.with_session(template).split(MARK)
        each = len(parts) - 1
        chunk = [_filled(parts, marks[at : at + each]) for at in range(start, min(start + CHUNK, len(marks)), each)]
        with server.connect("tcp") as sock:
            load = Generator(sock.fileno(), chunk, OUTSTANDING, sequence_at=session.sequence_at)
            before = server.cpu_seconds()
            calls, _ = load.run(max(until - time.monotonic(), 0.1), len(chunk))
            used = server.cpu_seconds() - before
        if calls < len(chunk):
            return
        progress(f"{call}: {min(start + CHUNK, len(marks)):,} more on the way to {size:,}")
    yield {"call": call, "size": size, "cpu_us": used / (calls * each) * 1e6}


def _filled(parts: Sequence[bytes], marks: Sequence[bytes]) -> bytes:
    """A call with marks in its places, of which it must have as many."""
    between = itertools.chain.from_iterable(zip(parts[:-1], marks, strict=True))
    return b"".join(itertools.chain(between, parts[-1:]))


class Directory(Growth):
    """Names in one directory."""

    name = "directory"
    summary = "LOOKUP and a page of READDIRPLUS against the names in a directory"
    sizes = (100, 1_000, 10_000, 100_000)

    def grow(self, server: RdmaNfsd, files: Files, size: int, until: float) -> Iterator[Row]:
        """A directory of its own for each size, made without the server."""
        path = server.export / f"of {size}"
        path.mkdir()
        for number in range(size):
            os.close(os.open(path / f"name {number:07}", os.O_CREAT | os.O_WRONLY, 0o644))
        self._handle, self._cookies = asyncio.run(_places(server, files, path.name.encode()))
        return iter(())

    def calls(self, files: Files, size: int) -> dict[str, tuple[list[bytes], int]]:
        """LOOKUPs of random names; READDIRPLUS of full pages from anywhere."""
        place = pack(nfs_fh3, self._handle)
        numbers = [random.randrange(size) for _ in range(KEPT)]
        full = self._cookies[: -(PAGE // 100)]
        pages = [random.choice(full) for _ in range(KEPT // 4)]
        return {
            "lookup": ([rpc(files, 3, place + struct.pack(">I12s", 12, b"name %07d" % n)) for n in numbers], 0),
            "readdirplus": (
                [rpc(files, 17, place + struct.pack(">Q8sII", at, bytes(8), PAGE, PAGE)) for at in pages],
                0,
            ),
        }


async def _places(server: RdmaNfsd, files: Files, name: bytes) -> tuple[nfs_fh3, list[int]]:
    """A directory's handle and the cookies of its entries."""
    async with await Nfs3Client.connect("127.0.0.1", server.tcp) as nfs:
        handle = await nfs.lookup(files.root, name)
        cookies = [0]
        while True:
            done = (await nfs.nfs("READDIR", READDIR3args(handle, cookies[-1], bytes(8), 65536))).resok
            cookies += [entry.cookie for entry in done.reply.entries]
            if done.reply.eof:
                return handle, cookies


class Handles(Growth):
    """Files in use."""

    name = "handles"
    summary = "GETATTR against the number of files that are asked for in turn"
    sizes = (100, 1_000, 10_000, 100_000)

    async def begin(self, server: RdmaNfsd, files: Files) -> None:
        """As many files as there may be, and their handles."""
        path = server.export / "many"
        path.mkdir()
        for number in range(self.sizes[-1]):
            os.close(os.open(path / f"name {number:07}", os.O_CREAT | os.O_WRONLY, 0o644))
        async with await Nfs3Client.connect("127.0.0.1", server.tcp) as nfs:
            entries = await nfs.listing(await nfs.lookup(files.root, b"many"))
        self._handles = [e.name_handle for e in entries if e.name_handle is not None and e.name[:1] != b"."]
        random.shuffle(self._handles)

    def grow(self, server: RdmaNfsd, files: Files, size: int, until: float) -> Iterator[Row]:
        """Nothing: asking is what grows."""
        return iter(())

    def calls(self, files: Files, size: int) -> dict[str, tuple[list[bytes], int]]:
        """GETATTR of each file in turn."""
        return {"getattr": ([rpc(files, 1, pack(nfs_fh3, handle)) for handle in self._handles[:size]], 0)}


class Opens(Growth):
    """Files open, by one client."""

    name = "open-files"
    summary = "OPEN and GETATTR against the files that a client has open"
    sizes = (100, 1_000, 3_000, 50_000)
    why_not = "with the descriptors that a process may have here"

    def possible(self) -> Sequence[int]:
        """Those for which one client may have descriptors."""
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        return [size for size in self.sizes if size < FileLimits.of(most).host_open_files]

    async def begin(self, server: RdmaNfsd, files: Files) -> None:
        """The files."""
        for number in range(self.sizes[-1]):
            os.close(os.open(server.export / f"o{number:07}", os.O_CREAT | os.O_WRONLY, 0o644))
        self._have = 0

    def grow(self, server: RdmaNfsd, files: Files, size: int, until: float) -> Iterator[Row]:
        """OPEN of files that are not open yet."""
        if not self._have:
            self._session = Session(server, OUTSTANDING, files.uid)
        marks = [b"o%07d" % number for number in range(self._have, size)]
        self._have = size
        return growing(server, self._session, self._session.open(MARK), marks, "open of another", size, until)

    def calls(self, files: Files, size: int) -> dict[str, tuple[list[bytes], int]]:
        """OPEN of files that are open."""
        session, at = self._session, self._session.sequence_at
        session.renew()
        template = session.open(MARK)
        again = [template.replace(MARK, b"o%07d" % random.randrange(size)) for _ in range(KEPT)]
        return {"open of one of them": (again, at)}


class Locks(Growth):
    """Ranges of one file locked, by one owner."""

    name = "locks"
    summary = "LOCK and LOCKU against the ranges of a file that are locked"
    sizes = (100, 1_000, 10_000, 100_000, 1_000_000)
    options = {"nfs4": {"limits": {"locks": 2_000_000}}}

    async def begin(self, server: RdmaNfsd, files: Files) -> None:
        """Nothing yet."""
        self._have = 0

    def grow(self, server: RdmaNfsd, files: Files, size: int, until: float) -> Iterator[Row]:
        """LOCKs of single octets with gaps between them, in no order."""
        if not self._have:
            self._session = Session(server, OUTSTANDING, files.uid)
            self._session.begin_locking()
        marks = [struct.pack(">Q", 2 * number) for number in range(self._have, size)]
        random.shuffle(marks)
        self._have = size
        template = self._session.lock(*[MARK] * TOGETHER)
        return growing(server, self._session, template, marks, f"lock, {TOGETHER} to a call", size, until)

    def calls(self, files: Files, size: int) -> dict[str, tuple[list[bytes], int]]:
        """LOCKs and LOCKUs of other ranges in turn, in the gaps."""
        session, at = self._session, self._session.sequence_at
        session.renew()
        marks = [struct.pack(">Q", 1 << 32 | random.randrange(1 << 20) * 2) for _ in range(KEPT)]
        lock, unlock = session.lock(MARK), session.unlock(MARK)
        both = [call.replace(MARK, mark) for mark in marks for call in (lock, unlock)]
        return {"lock or unlock": (both, at)}
