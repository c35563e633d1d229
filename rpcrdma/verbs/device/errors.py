"""What went wrong with a device, in words, with the remedy.

Owns :func:`failure`; imports nothing of the project.
"""

from __future__ import annotations

import errno
import os

MEMLOCK = (
    "memory for the device must be locked: set LimitMEMLOCK=infinity in the systemd unit (or raise 'ulimit -l'), "
    "or lower server.limits.memory"
)
_PERMISSION = "the server needs read and write permission on /dev/infiniband/*: run it as root or as group rdma"
_NO_MODULE = "load the kernel's modules: modprobe rdma_ucm; for software RDMA: rdma link add rxe0 type rxe netdev eth0"

_REMEDIES: dict[tuple[str, int], str] = {
    ("ibv_reg_mr", errno.ENOMEM): MEMLOCK,
    ("ibv_reg_mr", errno.EAGAIN): MEMLOCK,
    ("ibv_create_cq", errno.ENOMEM): MEMLOCK,
    ("rdma_create_qp", errno.ENOMEM): MEMLOCK
    + "; or the device has no queue pair left (lower server.limits.connections)",
    ("rdma_create_event_channel", errno.ENODEV): _NO_MODULE,
    ("rdma_create_event_channel", errno.ENOENT): _NO_MODULE,
    ("rdma_create_id", errno.ENODEV): _NO_MODULE,
    ("rdma_create_id", errno.ENOENT): _NO_MODULE,
    ("rdma_listen", errno.EADDRINUSE): "another RDMA service, or on iWARP a TCP service, has this port",
    ("rdma_bind_addr", errno.EADDRINUSE): "another RDMA service, or on iWARP a TCP service, has this port",
    ("rdma_bind_addr", errno.ENODEV): "no RDMA device has this address ('rdma link' shows each device's interface)",
    ("rdma_bind_addr", errno.EADDRNOTAVAIL): "no interface of this host has this address",
}

ABSENT = frozenset({errno.ENODEV, errno.ENOENT, errno.EADDRNOTAVAIL, errno.ENXIO})
"""What may pass when a device or an address appears."""


def failure(call: str, device: str, number: int) -> OSError:
    """An OSError for a library call that failed: its text names the device, the call, the reason and the remedy."""
    number = abs(number)
    remedy = _REMEDIES.get((call, number))
    if remedy is None and number in (errno.EACCES, errno.EPERM):
        remedy = _PERMISSION
    where = f"{device}: " if device else ""
    text = f"{where}{call}: {os.strerror(number) if number else 'failed without a reason'}"
    return OSError(number or errno.EIO, f"{text}; {remedy}" if remedy else text)


def missing_library(error: ImportError) -> str:
    """Why the extension cannot be imported, and what to install."""
    text = str(error)
    if ".so" in text:
        return f"{text}; install the libraries (Debian: ibverbs-providers librdmacm1)"
    return (
        "this build is without it: the headers of libibverbs and librdmacm were not there "
        "(Debian: apt-get install libibverbs-dev librdmacm-dev, then build again)"
    )
