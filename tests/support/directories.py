"""Clients that ask for directories to be delegated, and every change of one that must recall them."""

from __future__ import annotations

import os

from nfsd.protocol import nfs4 as p
from tests.support.delegations import until
from tests.support.nfs4 import mode

ANONYMOUS = p.stateid4(0, bytes(12))
ASKING = (
    p.OP_GET_DIR_DELEGATION,
    p.GET_DIR_DELEGATION4args(False, [0b111111], p.nfstime4(0, 0), p.nfstime4(0, 0), [0], [0]),
)


async def asked(client, path="/0/d"):
    """GET_DIR_DELEGATION: its result, the directory's handle in ``client.handles``."""
    *_, found, answer = await client.run(*client.path(path), p.OP_GETFH, ASKING)
    client.handles[path] = found.resok4.object
    return answer.gddr_res_non_fatal4


async def given(client, path="/0/d"):
    """The stateid of a directory's delegation."""
    answer = await asked(client, path)
    assert answer.gddrnf_status == p.gddrnf4_status.GDD4_OK
    resok = answer.gddrnf_resok4
    # Of the notifications that were asked for none is promised: what happens is told by a recall.
    assert not any(resok.gddr_notification + resok.gddr_child_attributes + resok.gddr_dir_attributes)
    return resok.gddr_stateid


async def refused(client, path="/0/d"):
    """Whether there is no delegation."""
    answer = await asked(client, path)
    assert answer.gddrnf_status == p.gddrnf4_status.GDD4_OK or answer.gddrnf_will_signal_deleg_avail is False
    return answer.gddrnf_status == p.gddrnf4_status.GDD4_UNAVAIL


async def back(client, stateid, path="/0/d"):
    """DELEGRETURN."""
    await client.on(client.handles[path], (p.OP_DELEGRETURN, p.DELEGRETURN4args(stateid)))


async def carried_out(client, *operations):
    """Run operations, again as long as they are answered DELAY: on a busy machine a delegation may be late."""

    async def done():
        status = await client.status(*operations)
        assert status in (p.NFS4_OK, p.NFS4ERR_DELAY)
        return status == p.NFS4_OK

    await until(done)


def populated(test):
    """The test with directories ``d``, ``e`` and ``d/sub``, a file ``d/f`` and one outside, ``g``."""

    async def run(server, export, one, two):
        for name in ("d", "d/sub", "e"):
            (export / name).mkdir()
            (export / name).chmod(0o777)
        for name in ("d/f", "g"):
            (export / name).write_bytes(b"content")
            (export / name).chmod(0o666)
        await test(server, export, one, two)

    return run


def created(client, kind, name, **what):
    return (
        *client.path("/0/d"),
        (p.OP_CREATE, p.CREATE4args(p.createtype4(kind, **what), name, mode(0o755))),
    )


def in_two(client, saved, current, operation):
    return (*client.path(saved), p.OP_SAVEFH, *client.path(current), operation)


KINDS = p.nfs_ftype4
CHANGES = {
    "OPEN that creates": lambda c: (*c.path("/0/d"), (p.OP_OPEN, c.open_args(b"new", create=mode(0o644)))),
    "OPEN that creates exclusively": lambda c: (
        *c.path("/0/d"),
        (p.OP_OPEN, c.open_args(b"new", how=p.createhow4(p.createmode4.EXCLUSIVE4, createverf=b"verifier"))),
    ),
    "CREATE of a directory": lambda c: created(c, KINDS.NF4DIR, b"new"),
    "CREATE of a link": lambda c: created(c, KINDS.NF4LNK, b"new", linkdata=b"f"),
    "CREATE of a FIFO": lambda c: created(c, KINDS.NF4FIFO, b"new"),
    "REMOVE": lambda c: (*c.path("/0/d"), (p.OP_REMOVE, p.REMOVE4args(b"f"))),
    "REMOVE of a directory": lambda c: (*c.path("/0/d"), (p.OP_REMOVE, p.REMOVE4args(b"sub"))),
    "RENAME within": lambda c: in_two(c, "/0/d", "/0/d", (p.OP_RENAME, p.RENAME4args(b"f", b"new"))),
    "RENAME into": lambda c: in_two(c, "/0", "/0/d", (p.OP_RENAME, p.RENAME4args(b"g", b"new"))),
    "RENAME onto": lambda c: in_two(c, "/0", "/0/d", (p.OP_RENAME, p.RENAME4args(b"g", b"f"))),
    "RENAME out of": lambda c: in_two(c, "/0/d", "/0", (p.OP_RENAME, p.RENAME4args(b"f", b"new"))),
    "LINK": lambda c: in_two(c, "/0/g", "/0/d", (p.OP_LINK, p.LINK4args(b"new"))),
    "SETATTR": lambda c: (*c.path("/0/d"), (p.OP_SETATTR, p.SETATTR4args(ANONYMOUS, mode(0o775)))),
    "its own RENAME": lambda c: in_two(c, "/0", "/0", (p.OP_RENAME, p.RENAME4args(b"d", b"new"))),
}  # fmt: skip


def picture(directory):
    """What a directory looks like."""
    found = directory.stat()
    return sorted(os.listdir(directory)), found.st_ctime_ns, found.st_mode
