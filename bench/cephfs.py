"""What calls cost a gateway over CephFS, beside NFS-Ganesha with FSAL_CEPH on the same cluster.

The cluster is that of the tests, which only a clone has: one node, with its OSD on a file. Both servers have Ceph's
client library in their process, so their CPU is counted with what that takes. :mod:`bench.cephfs_floor` says how much
that is by itself, and with a socket that takes the data. Each has a directory of its own, so that they do not take each
other's capabilities. Imports :mod:`bench.ganesha`.
"""

from __future__ import annotations

import asyncio
import importlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from bench.calls import DATA, FILE_SIZE, Files
from bench.cephfs_floor import FLOORS, SIZES, floors, measured
from bench.ganesha import Ganesha
from bench.running import Impossible
from bench.scenarios import BY_NAME, prepare
from bench.servers import LocalServer, RdmaNfsd
from bench.study import Row, Study, Terms, by, cost, markdown, medians, progress

CALLS: Final = ("read-4k-32", "write-4k-32", "read-1m-4", "write-1m-4", "create-stat-unlink")
CROWD: Final = 8
"""Connections, for calls that may run on several: those that change names would change the same."""
ASKED: Final = [(call, count) for call in CALLS for count in ((1, CROWD) if call in SIZES else (1,))]
"""Calls, and on how many connections."""
ASYNC: Final = "create-stat-unlink, async"
"""What a row is called in which names are as durable as Ganesha's, which flushes none."""
PART: Final = 0.6
"""Of Ganesha's CPU, what a call is to take at most."""
_ROOTS: Final = {
    "rdma-nfsd": "/ours",
    "rdma-nfsd-async": "/async",
    "ganesha": "/theirs",
    "ganesha without notes": "/calm",
    "library": "/alone",
}


@contextmanager
def cluster(directory: Path) -> Iterator[Path]:
    """Its configuration, with a directory for each server. Raises Impossible."""
    try:
        tests = importlib.import_module("tests.ceph.cluster")
        installed = importlib.import_module("tests.ceph.installed")
    except ImportError as error:
        raise Impossible(f"it takes a clone, whose tests have a cluster of Ceph: {error}") from None
    if lacking := installed.why_not():
        raise Impossible(lacking)
    made = tests.Cluster(directory / "cluster")
    try:
        made.start()
        with mounted(made.conf, "/") as (client, root):
            for name in _ROOTS.values():
                client.make(None, root, name[1:].encode(), 0o40777, None, (0, 0))
        yield made.conf
    finally:
        made.stop()


@contextmanager
def mounted(conf: Path, root: str) -> Iterator[tuple[Any, bytes]]:
    """A client of the cluster, and the key of a directory there."""
    mounting = importlib.import_module("nfsd.backends.cephfs.mounting")
    client = mounting.mounted(mounting.Settings(config=str(conf), root=root))
    try:
        yield client, client.root()[0]
    finally:
        client.end()


def fill(conf: Path, root: str, size: int) -> None:
    """Make the file of data."""
    with mounted(conf, root) as (client, key):
        *_, file, _ = client.make(None, key, b"data", 0o100666, None, (0, 0))
        opened = client.open(None, file, 2)
        for offset in range(0, size, len(DATA)):
            client.write(opened, offset, memoryview(DATA))
        client.sync(file, [opened])
        opened.close()


class Ours(RdmaNfsd):
    """rdma-nfsd over CephFS."""

    def __init__(self, directory: Path, conf: Path) -> None:
        self.conf = conf
        super().__init__(directory)

    def store(self, path: Path) -> dict[str, Any]:
        return {"backend": "cephfs", "options": {"config": str(self.conf), "root": _ROOTS[self.name]}}

    def lay_out(self, size: int) -> None:
        fill(self.conf, _ROOTS[self.name], size)


class Theirs(Ganesha):
    """Ganesha with FSAL_CEPH."""

    fsal = "ceph"

    def __init__(self, directory: Path, conf: Path) -> None:
        self.conf = conf
        super().__init__(directory)

    def store(self, place: Path) -> str:
        export = f'Path = "{_ROOTS[self.name]}"; FSAL {{ Name = CEPH; User_Id = "admin"; }}'
        return f'{export} }} CEPH {{ Ceph_Conf = "{self.conf}";'

    def lay_out(self, size: int) -> None:
        fill(self.conf, _ROOTS[self.name], size)


class OursAsync(Ours):
    """The same with ``async``."""

    name = "rdma-nfsd-async"
    export_options = {"async": True}


class Calm(Theirs):
    """Ganesha, with a configuration by which the library takes no notes of what it does. Ours does that by itself."""

    name = "ganesha without notes"
    number = 2

    def __init__(self, directory: Path, conf: Path) -> None:
        talkative = importlib.import_module("nfsd.backends.cephfs.mounting").TALKATIVE
        calm = directory.parent / "calm.conf"
        calm.write_text(conf.read_text() + "[client]\n" + "".join(f"{name.decode()} = 0/0\n" for name in talkative))
        super().__init__(directory, calm)


RIVALS: Final = (Theirs.name, Calm.name)
Kind = type[Ours] | type[Theirs]


class CephStudy(Study):
    """Every call, every server, in turns."""

    name = "cephfs"
    summary = "CPU per call over CephFS, beside Ganesha's with FSAL_CEPH"

    def run(self, terms: Terms) -> list[Row]:
        """The servers in turns, with AUTH_SYS over TCP."""
        rounds = []
        kinds: list[Kind] = [Ours, OursAsync, *([Theirs, Calm] if Ganesha in terms.rivals else [])]
        with ExitStack() as ends:
            directory = Path(ends.enter_context(tempfile.TemporaryDirectory(dir="/var/tmp")))
            conf = ends.enter_context(cluster(directory))
            servers = [begin(kind, directory, conf, terms.uid, ends) for kind in kinds]
            fill(conf, _ROOTS["library"], FILE_SIZE)
            for number in range(terms.rounds):
                rows: list[Row] = []
                for call, connections in ASKED:
                    asked = {"call": call, "connections": connections}
                    for server, files in servers if number % 2 == 0 else reversed(servers):
                        if server.name == OursAsync.name and call in SIZES:
                            continue
                        progress(f"cephfs, round {number + 1}: {call} on {connections}, {server.name}")
                        with BY_NAME[call].load(server, files, "tcp", connections) as load:
                            found = cost(server, load, terms.seconds, events=False)
                        rows.append({"server": server.name} | asked | found)
                    for name in floors(call, connections):
                        progress(f"cephfs, round {number + 1}: {call} on {connections}, {name}")
                        alone = measured(conf, _ROOTS["library"], call, name, connections, terms.seconds)
                        rows.append({"server": name} | asked | alone)
                rounds.append(rows)
        return medians(rounds, ("server", "call", "connections"))

    def table(self, rows: Sequence[Row], bounds: Mapping[str, float]) -> list[str]:
        """A row for each call, and the parts that ours takes."""
        names = [name for name in (Ours.name, *RIVALS, *FLOORS) if any(row["server"] == name for row in rows)]
        rivals = [name for name in RIVALS if name in names]
        heads, lines = ["call", "connections", *(f"{name}, CPU µs (calls/s)" for name in names)], []
        heads += [f"part of {name} (goal ≤ {PART})" for name in rivals]
        for (call, connections), found in compared(rows).items():
            shown = (found.get(name) for name in names)
            cells = [call, str(connections)]
            cells += [f"{row['cpu_us']:.1f} ({row['calls_per_s']:,.0f})" if row else "" for row in shown]
            cells += [f"{found[Ours.name]['cpu_us'] / found[name]['cpu_us']:.2f}" for name in rivals]
            lines.append(cells)
        return markdown(heads, lines)

    def watched(self, rows: Sequence[Row], bounds: Mapping[str, float]) -> dict[str, float]:
        """Beside Ganesha, since a cluster on this machine takes from both alike."""
        return {
            f"{call} over CephFS, {connections} connections": found[Ours.name]["cpu_us"] / found[Theirs.name]["cpu_us"]
            for (call, connections), found in compared(rows).items()
            if Theirs.name in found
        }


def compared(rows: Sequence[Row]) -> dict[tuple[str, int], dict[str, Row]]:
    """What is beside each other: rows by server, by call and connections. What is done with ``async`` is compared with
    the same rows of the others."""
    calls: dict[tuple[str, int], dict[str, Row]] = {}
    for (call, connections), same in by(rows, "call", "connections").items():
        found = {row["server"]: row for row in same}
        loose = found.pop(OursAsync.name, None)
        calls[call, connections] = found
        if loose is not None:
            calls[ASYNC, connections] = {**found, Ours.name: loose}
    return calls


def begin(kind: Kind, directory: Path, conf: Path, uid: int, ends: ExitStack) -> tuple[LocalServer, Files]:
    """A server, with its files."""
    server = kind(directory / kind.name, conf)
    ends.callback(server.stop)
    return server, asyncio.run(prepare(server, uid))
