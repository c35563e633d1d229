"""Target ``callers``: as whom the kernel sees callers, whatever their credentials say and whoever called before.

Two running servers (:class:`tests.support.callers.Served`), of a directory on a disk and of one in memory, get calls of
NFSv3 and of all minor versions of NFSv4, which are answered natively, at once by the general path, and on workers. An
input is a few of them, good and bad callers mixed; the octets of some NFSv3 credentials are damaged.

What must hold
    The caller is the one that a model of squash predicts. The owner of new files shows that, and what the caller may
    read, make and look up. A second decoder says what is no AUTH_SYS credential. Such a call is refused with
    AUTH_BADCRED, and the server does nothing for it.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from dataclasses import replace

from rpcrdma.rpc.messages import auth_stat, authsys_parms, reject_stat
from rpcrdma.xdr import pack
from tests.fuzz.iwarp_fakes import Errors
from tests.fuzz.nfs3_calls import Input
from tests.nfs3_client import RpcFailure
from tests.support.callers import ACTIONS, EDGES, SHARED, SQUASHES, VERSIONS, Served, Step

MOST_STEPS = 8
LARGEST_CREDENTIAL = 400


def number(source: Input) -> int:
    """An id, most often one at an edge."""
    choice = source.octet()
    return EDGES[choice % len(EDGES)] if choice < 240 else source.number() << 16 | source.number()


def step_of(source: Input) -> Step:
    """The input's next call."""
    squash, version = SQUASHES[source.octet() % 3], VERSIONS[source.octet() % 4]
    action, shared = ACTIONS[source.octet() % len(ACTIONS)], SHARED[source.octet() % len(SHARED)]
    uid, gid = number(source), number(source)
    gids = tuple(number(source) for _ in range(source.octet() % 17))
    return Step(squash, version, action, uid, gid, gids, shared)


def damaged(source: Input, credential: bytes) -> bytes:
    """The octets of a credential, changed as the input has it."""
    octets = bytearray(credential)
    for _ in range(source.octet() % 4):
        kind, value = source.octet(), source.octet()
        at = source.number() % (len(octets) + 1)
        match kind % 4:
            case 0:
                octets[at : at + 1] = bytes((value,))
            case 1:
                octets[at & ~3 : (at & ~3) + 4] = bytes((value,)) * 4
            case 2:
                del octets[at : at + value % 9]
            case 3:
                octets[at:at] = bytes(value % 9)
    return bytes(octets[:LARGEST_CREDENTIAL])


def ids_in(credential: bytes) -> tuple[int, int, tuple[int, ...]] | None:
    """The ids of authsys_parms (RFC 5531 appendix A); None for what is none."""
    if len(credential) < 8:
        return None
    name = int.from_bytes(credential[4:8], "big")
    rest = credential[8 + (name + 3) // 4 * 4 :]
    if name > 255 or len(rest) < 12 or len(rest) % 4:
        return None
    uid, gid, count, *gids = struct.unpack(f">{len(rest) // 4}I", rest)
    return (uid, gid, tuple(gids)) if count == len(gids) <= 16 else None


class Target:
    """Both servers."""

    def __init__(self) -> None:
        self.reached: dict[str, int] = {}
        self.errors = Errors()
        logging.getLogger().addHandler(self.errors)
        self.loop = asyncio.new_event_loop()
        self.served = [Served(memory) for memory in (False, True)]
        for served in self.served:
            self.loop.run_until_complete(served.__aenter__())

    def close(self) -> None:
        """Stop the servers and remove the files."""
        for served in self.served:
            self.loop.run_until_complete(served.__aexit__())
        self.loop.close()
        logging.getLogger().removeHandler(self.errors)

    def one(self, data: bytes) -> None:
        """Check one input. Raises AssertionError, or whatever the code under test should not have raised."""
        self.errors.records.clear()
        self.loop.run_until_complete(self.run(Input(data)))
        assert not self.errors.records, self.errors.records

    async def run(self, source: Input) -> None:
        served = self.served[source.octet() % 2]
        for _ in range(MOST_STEPS):
            if source.over:
                return
            step = step_of(source)
            if step.version == 30:
                parms = authsys_parms(0, b"fuzz", step.uid, step.gid, list(step.gids))
                credential = damaged(source, pack(authsys_parms, parms))
                ids = ids_in(credential)
                if ids is None:
                    await self.refused(served, replace(step, raw=credential))
                    continue
                step = replace(step, uid=ids[0], gid=ids[1], gids=ids[2], raw=credential)
            self.note(step.action)
            await served.check(step)

    async def refused(self, served: Served, step: Step) -> None:
        """See that a credential that is none is refused, and nothing done."""
        self.note("refused")
        try:
            outcome = await served.outcome(step)
        except RpcFailure as failure:
            (reply,) = failure.args
            assert reply.rreply.stat == reject_stat.AUTH_ERROR
            assert reply.rreply.auth_stat == auth_stat.AUTH_BADCRED
        else:
            raise AssertionError((step, outcome))

    def note(self, what: str) -> None:
        self.reached[what] = self.reached.get(what, 0) + 1
