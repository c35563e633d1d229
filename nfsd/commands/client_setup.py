"""``rdma-nfsd client-setup``: runs, or prints, the script that gives a Linux client a software RDMA device."""

from __future__ import annotations

import argparse
import subprocess
import sys
from importlib.resources import files

DESCRIPTION = """\
Give this Linux host, which has no RDMA device, one of its network interface, so that it can mount with "-o rdma". Linux
has a driver for that, siw (iWARP over an ordinary TCP socket); Debian does not build it. Where the kernel lacks it,
this takes its source from Debian's package of the kernel's source and builds it against the running kernel. Run it as
root, on the client, and again after an upgrade of the kernel.

It is a shell script, which needs nothing of rdma-nfsd. For a client that has no rdma-nfsd:
  rdma-nfsd client-setup --print | ssh root@CLIENT sh -s -- eth0
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    command.add_argument("netdev", nargs="?", metavar="NETDEV", help="the interface; by default the default route's")
    command.add_argument("--dry-run", action="store_true", help="say what would be done")
    command.add_argument("--print", action="store_true", help="print the script and do nothing")


def main(parsed: argparse.Namespace) -> int:
    """Run the command; returns the exit status."""
    script = files("nfsd.commands").joinpath("client_setup.sh").read_text()
    if parsed.print:
        sys.stdout.write(script)
        return 0
    arguments = [*(["--dry-run"] if parsed.dry_run else []), *([parsed.netdev] if parsed.netdev else [])]
    return subprocess.run(["sh", "-s", "--", *arguments], input=script, text=True, check=False).returncode
