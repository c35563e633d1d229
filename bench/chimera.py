"""Chimera NAS, a server in C, which somebody has built here: docs/measuring.md says how.

Owns :class:`Chimera`, which is in a network namespace of its own; imports :mod:`bench.servers`.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Collection
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar

from bench.namespaces import Inside
from bench.servers import LocalServer, NotStarted, listens

PROGRAM = Path("/var/tmp/chimera/build/src/daemon/chimera")
"""Where it is, unless somebody says otherwise."""
MOUNTD = 20048
"""Its port for MOUNT. Nobody can choose that one, nor those of its rpcbind and of its other protocols."""
DURABILITY = (
    "Chimera flushes what COMMIT and stable WRITEs ask for. It does not flush new, changed and removed names before "
    "it answers; rdma-nfsd does (RFC 1813 section 1.2). Its replies to READ and WRITE have no attributes."
)
_IN_NAMESPACE = 'ip link set lo up && exec "$@"'


class Chimera(LocalServer):
    """Over TCP, with the module that makes the system calls in the thread that has the call. Several would want the
    same ports, so each has a network namespace, which only root can make."""

    name = "chimera"
    module: ClassVar[str] = "linux"
    program: ClassVar[Path] = PROGRAM

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.mountd = MOUNTD
        configuration, log = directory / "config.json", directory / "log"
        (directory / "state").mkdir()
        configuration.write_text(
            json.dumps(settings(self.module, self.export, self.tcp, directory / "state"), indent=1)
        )
        command = ["unshare", "--net", "sh", "-c", _IN_NAMESPACE, "sh", str(self.program), "-c", str(configuration)]
        with log.open("w") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, text=True)
        if not self.is_ready():
            self.stop()
            raise NotStarted(f"{self.name} did not start; the end of its log:\n{log.read_text()[-2000:]}")

    def network(self) -> AbstractContextManager[None]:
        return Inside(Path(f"/proc/{self.process.pid}/ns/net"))

    def is_ready(self, seconds: float = 20.0) -> bool:
        """Wait until it accepts connections. Whether it did in so many seconds, and has not ended."""
        until = time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < until:
            with self.network():  # entered anew each time: at first it is the one that we are in
                if listens(self.tcp) and listens(self.mountd):
                    return True
            time.sleep(0.1)
        return False


class ChimeraUring(Chimera):
    """The same with io_uring for files. (Over io_uring for TCP it polls, and takes many times as much CPU.)"""

    name = "chimera-io-uring"
    module = "io_uring"


KINDS: dict[str, type[Chimera]] = {kind.name: kind for kind in (Chimera, ChimeraUring)}


def settings(module: str, export: Path, port: int, state: Path) -> dict[str, Any]:
    """Its configuration, with two threads. By itself it hands each call to another thread (``sync_delegation``): slow
    disks hold up fewer calls then, and a call takes up to half as much CPU again."""
    return {
        "server": {"threads": 2, "sync_delegation": False, "nfs_port": port, "state_dir": str(state)},
        "mounts": {"share": {"module": module, "path": str(export)}},
        "exports": {"/export": {"path": "/share"}},
    }


def built(name: str, program: Path, only: Collection[str] = ()) -> type[Chimera]:
    """The one of KINDS that is this program, for these scenarios (nothing: for all). Raises SystemExit where it is not
    there."""
    if not program.is_file() or not os.access(program, os.X_OK):
        raise SystemExit(f"no Chimera at {program}: docs/measuring.md says how to build it; --chimera says where it is")
    kind = KINDS[name]
    return type(kind.__name__, (kind,), {"program": program.resolve(), "only": frozenset(only)})
