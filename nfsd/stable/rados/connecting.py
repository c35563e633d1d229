"""A connection to the pool that a configuration names, and what is said when there is none, or it does not answer.

Imports the extension when it connects.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Final

from nfsd.config_stable import RadosPool
from nfsd.stable.rados import why_not

if TYPE_CHECKING:
    from nfsd.stable.rados.client import Cluster

TIMEOUT: Final = 15
"""Seconds that a request to the cluster may take."""


def connected(pool: RadosPool, place: str) -> Cluster:
    """Connect. ``place``: what is looked for there, for errors. Raises OSError."""
    missing = why_not()
    if missing:
        raise OSError(errno.ENODEV, missing, place)
    from nfsd.stable.rados.client import Cluster

    with open(pool.config, "rb"):
        pass  # the library does not say which file it is
    cluster = Cluster(os.fsencode(pool.user))
    try:
        cluster.read_configuration(os.fsencode(pool.config))
        for option in (b"client_mount_timeout", b"rados_mon_op_timeout", b"rados_osd_op_timeout"):
            cluster.configure(option, b"%d" % TIMEOUT)
        _connect(cluster, pool, place)
    except BaseException:
        cluster.end()
        raise
    return cluster


def failure(error: OSError, what: str, pool: RadosPool, place: str, timeout: str = "") -> OSError:
    """An error that says where it was. ``timeout``: what it means there that nobody has answered."""
    if error.errno == errno.ETIMEDOUT:
        # Not as ETIMEDOUT: asyncio makes a TimeoutError of its own of that, which says less.
        what = timeout or f"the cluster of {pool.config} has not answered for {TIMEOUT} seconds"
        return OSError(errno.EIO, what, place)
    return OSError(error.errno, what, place)


def _connect(cluster: Cluster, pool: RadosPool, place: str) -> None:
    try:
        cluster.connect()
    except OSError as error:
        nobody = f"no monitor of {pool.config} answers"
        raise failure(error, _why_no_cluster(error, pool), pool, place, nobody) from None
    try:
        cluster.open(os.fsencode(pool.pool), os.fsencode(pool.namespace))
    except OSError as error:
        raise failure(error, f"there is no pool {pool.pool!r} ({error.strerror})", pool, place) from None


def _why_no_cluster(error: OSError, pool: RadosPool) -> str:
    who = f"client.{pool.user}"
    if error.errno == errno.ENOENT:
        return f"there is no key of {who} where {pool.config} looks for it"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"the cluster does not take the key of {who}"
    return f"{pool.config} does not lead to a cluster ({error.strerror})"
