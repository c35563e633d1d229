"""What the holder of a write delegation tells of its file: change, size, and the times that it was delegated.

Owns what CB_GETATTR asks about and how its answer is read, and what a time is worth that a client tells (RFC 8881
section 10.4.3; RFC 9754 section 5). Imports the bitmaps of attributes, the file service and records.

The change time follows the server's clock, as everything does that Linux lets no process set. So an access time that
comes alone is taken and not set: it must not move the change time, and the kernel has noted what the client has READ.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from nfsd.protocol import nfs4 as p
from nfsd.state.records import Delegation
from nfsd.v4.attributes import DELEGATED_TIMES, mask_of
from nfsd.vfs.service import FileService, Node
from nfsd.vfs.types import Time
from rpcrdma.xdr import Decoder, XdrError

_CHANGE_AND_SIZE: int = 1 << p.FATTR4_CHANGE | 1 << p.FATTR4_SIZE


class Times(NamedTuple):
    """A file's times as the holder of a delegation tells them; None: it does not."""

    access: Time | None = None
    modify: Time | None = None


UNTOLD = Times()
FORGOTTEN = (Time(-(2**63), 0), Time(-(2**63), 0))
"""Original times where nobody knows them any more: no time is before them."""


class Told(NamedTuple):
    """The answer to CB_GETATTR."""

    change: int
    size: int
    times: Times


def asked_of(holder: Delegation) -> int:
    """The attributes that only the holder knows."""
    return _CHANGE_AND_SIZE | (DELEGATED_TIMES if holder.times is not None else 0)


def told_in(answer: p.fattr4) -> Told | None:
    """What a client has answered, or None: not change and size, or values that are none."""
    mask = mask_of(answer.attrmask)
    if mask % (2 << p.FATTR4_SIZE) != _CHANGE_AND_SIZE:
        return None  # not both of them, or others before them
    decoder = Decoder(memoryview(answer.attr_vals))
    try:
        change, size = decoder.uint64(), decoder.uint64()
        times = _times(decoder, mask) if not mask & ~_CHANGE_AND_SIZE & ~DELEGATED_TIMES else UNTOLD
    except XdrError:
        return None
    return Told(change, size, times)


def _times(decoder: Decoder, mask: int) -> Times:
    """Raises XdrError."""
    return Times(
        *(
            _time(decoder.decode(p.nfstime4)) if mask >> number & 1 else None
            for number in (p.FATTR4_TIME_DELEG_ACCESS, p.FATTR4_TIME_DELEG_MODIFY)
        )
    )


def _time(told: p.nfstime4) -> Time:
    # RFC 8881 section 3.3.1. The kernel takes no other, and it is another client's call that would fail.
    if told.nseconds >= 1_000_000_000:
        raise XdrError("nanoseconds of more than a second")
    return Time(told.seconds, told.nseconds)


def vetted(holder: Delegation, told: Times) -> Times:
    """What these times are worth: one before the original is ignored, and one in the future is now."""
    if holder.times is None:
        return UNTOLD
    now = Time(*divmod(time.time_ns(), 1_000_000_000))
    access, modify = (
        min(one, now) if one is not None and one >= original else None
        for one, original in zip(told, holder.times, strict=True)
    )
    return Times(access, modify)


async def settle(service: FileService, node: Node, holder: Delegation, told: Times) -> None:
    """Give the file the times that its holder tells, by SETATTR."""
    times = vetted(holder, told)
    if times.modify is not None and times.modify != (await service.attributes(node)).mtime:
        await service.touch(node, access=times.access, modify=times.modify)
