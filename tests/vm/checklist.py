"""The checklist's questions put to Linux's own NFS server in a guest, and its answers written down:

    python -m tests.vm.checklist

The guest serves over siw; the questions (:mod:`tests.peer.checklist`) come from this host over the embedded iWARP. What
they find goes to tests/rfc/linux.json, from which docs/rfc-coverage.md gets its column.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.vm.build import REPO
from tests.vm.kernel_server import KernelServer
from tests.vm.network import Namespace
from tests.vm.server import MOUNTD_PORT, RDMA_PORT

FACTS = Path(REPO) / "tests" / "rfc" / "linux.json"


def ask_linux() -> dict[str, object]:
    """The kernel's release, and how its server differs, by item."""
    with Namespace() as network, KernelServer(network) as server:
        release = server.guest.run("uname -r", label="uname").output.strip()
        argv = [
            sys.executable,
            "-m",
            "tests.peer.checklist",
            server.address,
            str(RDMA_PORT),
            str(MOUNTD_PORT),
            "--root",
        ]
        done = subprocess.run(
            [*network.enter, *argv], cwd=REPO, stdout=subprocess.PIPE, text=True, check=True, timeout=900
        )
        server.assert_running()
    return {"kernel": release, "differs": json.loads(done.stdout)}


def main() -> None:
    """See the module."""
    found = ask_linux()
    FACTS.write_text(json.dumps(found, indent=1) + "\n")
    print(FACTS.read_text())


if __name__ == "__main__":
    main()
