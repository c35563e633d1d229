"""Mounting in a guest, and reading what the client says of a mount."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

from tests.vm.guest import Guest
from tests.vm.server import MOUNTD_PORT, RDMA_PORT

VERSIONS = ("3", "4.0", "4.1", "4.2")

# Said by every guest, whoever serves.
_HARMLESS = re.compile(
    r"siw: (loading out-of-tree|module verification)|SoftiWARP attached|speed is unknown|signature and/or required key"
)
# What a kernel says when something went wrong: NFS, RPC, RDMA, and its own complaints about itself.
_COMPLAINT = re.compile(
    r"\b(nfs|nfs4|nfsv4|lockd|rpc|rpcrdma|sunrpc|siw|iwcm|ib_\w+|infiniband)\b.*"
    r"(err|fail|bad|unknown|timed out|not responding|invalid|unexpected|refus|lost|corrupt|mismatch|warn)"
    r"|not responding|BUG:|WARNING:|\bOops\b|Call Trace|hung_task|blocked for more than|general protection|RPC: .*bad",
    re.IGNORECASE,
)


class Served(Protocol):
    """A server as its clients see it: an address, and the export's name there."""

    @property
    def address(self) -> str:
        """Where it listens."""
        ...

    def export_name(self, version: str) -> str:
        """What stands behind the colon in a mount command."""
        ...


def rdma_options(version: str, extra: str = "", port: int = RDMA_PORT) -> str:
    """The options of ``mount -t nfs`` for one version over RDMA."""
    options = f"rdma,port={port},vers={version}"
    if version == "3":
        options += f",nolock,mountproto=tcp,mountport={MOUNTD_PORT},mountvers=3"
        if extra != "acl":
            options += ",noacl"  # copying a tree is several calls per file more with ACLs, and emulation is slow
    return f"{options},{extra}" if extra else options


def load_siw(guest: Guest, netdev: str = "eth0") -> None:
    """Give the guest a software iWARP device on ``netdev``."""
    guest.run(
        f"modprobe siw && rdma link add siw0 type siw netdev {netdev} && modprobe rpcrdma && rdma link show", timeout=60
    )


def mount(
    guest: Guest,
    server: Served,
    version: str,
    point: str = "/mnt/nfs",
    extra: str = "",
    port: int = RDMA_PORT,
) -> str:
    """Mount the export over RDMA; return the command, as a user would type it."""
    options = rdma_options(version, extra, port)
    command = f"mount -t nfs -o {options} {server.address}:{server.export_name(version)} {point}"
    guest.run(f"mkdir -p {point} && {command}", timeout=90, label=command)
    return command


def umount(guest: Guest, point: str = "/mnt/nfs") -> None:
    """Unmount; an error is the test's."""
    guest.run(f"umount {point}", timeout=60)


@dataclass(frozen=True)
class RdmaTransport:
    """The counters of one "xprt: rdma" line of /proc/self/mountstats (xprt_rdma_print_stats in the kernel)."""

    line: str
    sends: int
    receives: int
    bad_xids: int
    read_chunks: int
    write_chunks: int
    reply_chunks: int
    bad_replies: int
    nomsg_calls: int
    local_inv_needed: int


def rdma_transports(guest: Guest, point: str = "/mnt/nfs") -> list[RdmaTransport]:
    """The RDMA transports of the mount on ``point``, one per connection; none when it is not on RDMA."""
    stats = guest.run("grep -E '^device|xprt:' /proc/self/mountstats", label=f"mountstats of {point}").output
    transports = []
    for device in re.split(r"^device ", stats, flags=re.MULTILINE):
        if f" mounted on {point} with fstype nfs" not in device:
            continue
        for line in re.findall(r"xprt:\s+rdma .*", device):
            numbers = [int(word) for word in line.split()[2:]]
            assert len(numbers) == 27, f"unknown form of the xprt line: {line}"
            transports.append(
                RdmaTransport(
                    line,
                    sends=numbers[5],
                    receives=numbers[6],
                    bad_xids=numbers[7],
                    read_chunks=numbers[10],
                    write_chunks=numbers[11],
                    reply_chunks=numbers[12],
                    bad_replies=numbers[19],
                    nomsg_calls=numbers[20],
                    local_inv_needed=numbers[24],
                )
            )
    return transports


def complaints(guest: Guest, allow: str = r"(?!)") -> list[str]:
    """The lines of the guest's kernel log that complain; ``allow`` is a pattern for what this test provokes itself."""
    log = guest.run("dmesg", label="dmesg").output.splitlines()
    return [
        line for line in log if _COMPLAINT.search(line) and not _HARMLESS.search(line) and not re.search(allow, line)
    ]
