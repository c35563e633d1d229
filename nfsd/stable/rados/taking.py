"""Having a server's records for this host, before the server starts here: also from a host that may still have them.

Imports the connection and the format of the records.

Two things make a server that runs elsewhere end, and neither needs its help. Its attribute ``holder`` is replaced: from
then on the cluster takes no record of it. Its lock is broken, and is this host's until the server has started here: so
no other host gets in between.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, NamedTuple

from nfsd.config_stable import RadosPool
from nfsd.stable.rados.connecting import connected, failure
from nfsd.stable.rados.records import HOLDER, LOCK, LOCK_SECONDS, cookie_of, host_of, object_of, place_of, same_holder

if TYPE_CHECKING:
    from nfsd.stable.rados.client import Cluster


class InUse(OSError):
    """Another host has the records, or may; nothing was changed."""


class Taken(NamedTuple):
    """What this host has now."""

    is_new: bool
    """No server of that name has been there yet."""
    former: str
    """The host that they were taken from, in words; '': nobody had them."""


def take(pool: RadosPool, name: str, directory: str, *, fence: bool) -> Taken:
    """Have the records of a server. ``directory``: its state directory here, which is locked. ``fence``: also if
    another host has them. Waits for the cluster. Raises InUse, OSError."""
    place = place_of(pool, name)
    cluster = connected(pool, place)
    try:
        return _take(cluster, object_of(name), cookie_of(directory), place, fence)
    except InUse:
        raise
    except OSError as error:
        if error.errno == errno.ECANCELED:
            raise InUse(errno.EBUSY, "another host has taken the records at the same time", place) from None
        raise failure(error, error.strerror or str(error), pool, place) from None
    finally:
        cluster.end()


def _take(cluster: Cluster, name: bytes, cookie: bytes, place: str, fence: bool) -> Taken:
    former = cluster.attribute(name, HOLDER)
    holders = cluster.lockers(name, LOCK)
    others = ", ".join(host_of(one) for one in holders if not same_holder(one.cookie, cookie))
    if others and not fence:
        why = f"is in use by the server on {others}, or was less than {LOCK_SECONDS} seconds ago"
        raise InUse(errno.EBUSY, why, place)
    if former:
        cluster.change(
            name, (HOLDER, former), {HOLDER: b"%s:takes over:%s" % (cookie, os.urandom(8).hex().encode())}, {}, []
        )
    for holder in holders:
        try:
            cluster.break_lock(name, LOCK, holder)
        except OSError as error:
            if error.errno != errno.ENOENT:  # it has lapsed, or was given back
                raise
    cluster.lock(name, LOCK, cookie, b"rdma-nfsd takeover", LOCK_SECONDS)
    return Taken(not former, others)
