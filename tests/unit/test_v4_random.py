"""Operations with arguments nobody would send, in random order: the server answers each, and is never at fault."""

import logging
import os
import random

import pytest

from nfsd.protocol import nfs4 as p
from rpcrdma.xdr import node_of, schema
from tests.support.nfs4 import mode, with_client

MINORS = [0, 1, 2]
NUMBERS = (0, 1, 2, 3, 9, 100, 4096, 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1)
LONG_NUMBERS = (0, 1, 9, 100, 4096, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1)
"""None between: ALLOCATE would fill the disk."""
NAMES = (b"f", b"d", b"l", b"p", b"new", b"", b".", b"..", b"a/b", b"\0", b"\xff\xfe", b"n" * 255, b"n" * 256, b"0")
LEFT_ALONE = {
    p.OP_SEQUENCE, p.OP_DESTROY_SESSION, p.OP_DESTROY_CLIENTID, p.OP_EXCHANGE_ID, p.OP_CREATE_SESSION,
    p.OP_SETCLIENTID, p.OP_SETCLIENTID_CONFIRM, p.OP_BACKCHANNEL_CTL, p.OP_BIND_CONN_TO_SESSION,
}  # fmt: skip
"""What would end the client that asks; they have tests of their own."""


class Arguments:
    """Random values of declared types, likely ones among them."""

    def __init__(self, rng, client, stateids):
        self.rng = rng
        self.client = client
        self.stateids = stateids

    def of(self, node):
        rng, kind = self.rng, node.kind
        if kind in (schema.UINT32, schema.INT32):
            number = rng.choice(NUMBERS)
            return number if kind == schema.UINT32 else min(number, 2**31 - 1)
        if kind in (schema.UINT64, schema.INT64):
            number = rng.choice((*LONG_NUMBERS, self.client.clientid))
            return number if kind == schema.UINT64 else min(number, 2**63 - 1)
        if kind == schema.BOOL:
            return rng.random() < 0.5
        if kind == schema.ENUM:
            return rng.choice(sorted(node.members.values()))
        if kind == schema.VOID:
            return None
        if kind == schema.FIXED:
            return rng.choice((bytes(node.size), rng.randbytes(node.size)))
        if kind in (schema.OPAQUE, schema.BULK):
            return rng.choice((*NAMES, rng.randbytes(rng.randrange(40))))[: node.size]
        if kind == schema.OPTIONAL:
            return None if rng.random() < 0.5 else self.of(node.element)
        if kind in (schema.ARRAY, schema.FIXED_ARRAY, schema.CHAIN):
            count = node.size if kind == schema.FIXED_ARRAY else min(node.size, rng.randrange(4))
            return [self.of(node.element) for _ in range(count)]
        return self.structure(node)

    def structure(self, node):
        if node.cls is p.stateid4 and self.rng.random() < 0.8:
            return self.rng.choice(self.stateids)
        if node.cls is p.fattr4 and self.rng.random() < 0.5:
            return self.rng.choice((mode(0o755), mode(0o644, size=9), p.fattr4([], b"")))
        if node.kind == schema.STRUCT:
            return node.cls(*(self.of(part) for _, part in node.fields))
        name, discriminant = node.fields[0]
        selected = self.rng.choice(sorted(node.arms)) if node.arms else self.of(discriminant)
        arm = node.arms.get(selected, node.default)
        chosen = {name: selected}
        if arm:
            chosen[node.fields[arm][0]] = self.of(node.fields[arm][1])
        return node.cls(**chosen)


async def prepare(client, export):
    """A file of every kind with handles, and stateids of every kind."""
    (export / "f").write_bytes(b"content" * 100)
    (export / "d").mkdir()
    (export / "l").symlink_to("f")
    os.mkfifo(export / "p")
    handles = []
    for path in ("/", "/0", "/0/f", "/0/d", "/0/l", "/0/p"):
        *_, found = await client.run(*client.path(path), p.OP_GETFH)
        handles.append(found.resok4.object)
    opened, _ = await client.open("/0", b"f", access=3)
    seqid = 0 if client.minor else client.seqid(b"owner")
    new = p.open_to_lock_owner4(seqid, opened, 0, p.lock_owner4(client.clientid, b"locker"))
    locking = p.LOCK4args(p.nfs_lock_type4.WRITE_LT, False, 0, 10, p.locker4(True, open_owner=new))
    (locked,) = await client.on(handles[2], (p.OP_LOCK, locking))
    stateids = [
        opened,
        locked.resok4.lock_stateid,
        p.stateid4(0, bytes(12)),
        p.stateid4(2**32 - 1, b"\xff" * 12),
        p.stateid4(1, bytes(12)),
        p.stateid4(0, opened.other),
        p.stateid4(opened.seqid + 1, opened.other),
    ]
    return handles, stateids


@pytest.mark.parametrize("minor", MINORS)
@pytest.mark.parametrize("uid", [0, 1000])
def test_the_server_is_never_at_fault(tmp_path, minor, uid, caplog):
    seed = minor * 10000 + uid

    async def test(client, export, server):
        rng = random.Random(seed)
        handles, stateids = await prepare(client, export)
        client.credential = (uid, uid, ())
        arguments = Arguments(rng, client, stateids)
        numbers = [number for number, row in p.OPERATIONS.items() if minor in row.minors and number not in LEFT_ALONE]
        statuses = set()
        for _ in range(300):
            operations = [(p.OP_PUTFH, p.PUTFH4args(rng.choice(handles)))]
            if rng.random() < 0.7:
                operations += [p.OP_SAVEFH, (p.OP_PUTFH, p.PUTFH4args(rng.choice(handles)))]
            for number in rng.choices(numbers, k=rng.randrange(1, 4)):
                declared = p.OPERATIONS[number].arguments
                operations.append((number, None if declared is None else arguments.of(node_of(declared))))
            status, results = await client.raw(*client.in_session(*operations))
            assert status not in (p.NFS4ERR_SERVERFAULT, p.NFS4ERR_BADSESSION), (operations, results)
            statuses.add(status)
        assert len(statuses) > 10
        assert not [record for record in caplog.records if record.levelno >= logging.WARNING]

    with_client(tmp_path, minor, test)
