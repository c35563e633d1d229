"""Latency of a small call beside bulk on the same disk: GETATTR while four clients write 1 MiB at a time, and while
that disk does not answer an fsync for two seconds.

The disk is an ext4 on a loop device whose file lies behind a FUSE file system (bindfs), which is stopped for as long
as the disk is to stall: :mod:`bench.disk`.
"""

from __future__ import annotations

import asyncio
import random
import struct
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from bench.calls import DATA, FILE_SIZE, Files, rpc
from bench.disk import stalling_disk
from bench.nfs3_client import Nfs3Client
from bench.scenarios import BY_NAME, Scenario, handles, prepare
from bench.servers import RdmaNfsd
from bench.study import Row, Study, Terms, by, markdown, medians, progress
from bench.trouble import GOAL, MESSAGE, Flood, client, probe, round_trips
from nfsd.protocol.nfs3 import nfs_fh3
from rpcrdma.xdr import pack

WRITERS = 4
BESIDE = f"{WRITERS} bulk writers"
STALL = 2.0
"""Seconds; no longer, or the kernel itself would wait for the disk before it takes more data."""
_SETTLING = 0.2
_SIZE = 512 << 20


def commit3(files: Files, size: int) -> list[bytes]:
    """WRITEs and COMMITs, so that an fsync is always under way."""
    where = pack(nfs_fh3, files.data)
    write = rpc(files, 7, where + struct.pack(">QIII", 0, size, 0, size) + DATA[:size])
    return [write, rpc(files, 21, where + bytes(12))]


BULK = replace(BY_NAME["write-1m-4"], name="bulk writer")
COMMITTING = Scenario("committing", commit3, 8, 4096)
CONTROL = Flood(MESSAGE + (1 << 20), MESSAGE, BULK.outstanding)
"""What comes closest to a bulk writer, without a server."""


class Writers(Study):
    """The same GETATTR, one at a time, in each situation."""

    name = "writers"
    summary = f"GETATTR of a file on a disk beside {WRITERS} clients that write to it, and while its fsync stalls"

    def run(self, terms: Terms) -> list[Row]:
        """One server; the idle situation first in every round."""
        terms.directory.mkdir()
        data = random.randbytes(1 << 20) * (FILE_SIZE >> 20)
        rounds = []
        with ExitStack() as ends:
            disk = ends.enter_context(stalling_disk(terms.directory / "stalling", data, _SIZE))
            for number in range(WRITERS):
                (disk.path / f"bulk {number}").touch()
            server = RdmaNfsd(terms.directory / "server", exports={"/disk": disk.path})
            ends.callback(server.stop)
            asyncio.run(prepare(server, terms.uid))
            root, data_there = asyncio.run(handles(server, "/disk"))
            files = Files(root, data_there, terms.uid)
            bulk = [replace(files, data=handle) for handle in asyncio.run(_bulk(server, root))]
            for number in range(terms.rounds):
                rows: list[Row] = []
                for over in terms.transports:

                    def measure(situation: str, seconds: float, over: str = over, rows: list[Row] = rows) -> None:
                        progress(f"writers: {situation}, GETATTR over {over}")
                        rows.append({"situation": situation, "over": over} | probe(server, files, over, seconds))

                    measure("idle", terms.seconds)
                    with ExitStack() as writing:
                        for each in bulk:
                            writing.enter_context(client(server, BULK, each, over))
                        measure(BESIDE, terms.seconds)
                    with client(server, COMMITTING, bulk[number % WRITERS], "tcp"), disk.stalled():
                        time.sleep(_SETTLING)
                        measure("a stalled fsync", STALL)
                        if not waiting(server.process.pid):
                            raise RuntimeError("nobody waited for the disk that stalled")
                idle, beside = (round_trips(terms.seconds, [CONTROL] * number) for number in (0, WRITERS))
                for row in rows:
                    if row["situation"] == "idle":
                        row["control_p99_us"] = idle["p99_us"]
                    elif row["situation"] == BESIDE:
                        row["control_p99_us"] = beside["p99_us"]
                rounds.append(rows)
        return medians(rounds, ("situation", "over"))

    def table(self, rows: Sequence[Row], bounds: Mapping[str, float]) -> list[str]:
        """One row per situation."""
        lines = []
        for (over,), same in by(rows, "over").items():
            for row in same:
                times, goal = f"{row['p99_us'] / same[0]['p99_us']:.1f}", "" if row is same[0] else f"≤ {GOAL:.0f}"
                control, machine = row.get("control_p99_us"), ["", ""]
                if control is not None:
                    machine = [f"{control:,.0f}", f"{control / same[0]['control_p99_us']:.1f}"]
                figures = [f"{row[part]:,.0f}" for part in _PARTS]
                lines.append([row["situation"], over, *figures, times, goal, *machine])
        heads = ["situation", "over", "p50 µs", "p99 µs", "p999 µs", "p99, times idle", "goal"]
        return markdown([*heads, "p99 µs without a server", "that, times idle"], lines)

    def watched(self, rows: Sequence[Row], bounds: Mapping[str, float]) -> dict[str, float]:
        """The 99th percentile in units of the idle server's."""
        return {
            f"{row['situation']} over {over}": row["p99_us"] / same[0]["p99_us"]
            for (over,), same in by(rows, "over").items()
            for row in same[1:]
        }


_PARTS = "p50_us", "p99_us", "p999_us"


def waiting(pid: int) -> bool:
    """Whether a thread of a process waits for a disk: it cannot be woken by a signal (proc_pid_stat(5), state D). The
    device itself does not tell: it does not count the command to make stable what it has."""
    states = (path.read_text().rpartition(")")[2].split()[0] for path in Path(f"/proc/{pid}/task").glob("*/stat"))
    return "D" in states


async def _bulk(server: RdmaNfsd, root: nfs_fh3) -> list[nfs_fh3]:
    """The files that are written to."""
    async with await Nfs3Client.connect(server.host, server.tcp) as nfs:
        return [await nfs.lookup(root, b"bulk %d" % number) for number in range(WRITERS)]
