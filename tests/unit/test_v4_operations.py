"""Every operation of every minor version: what the table in the documents says is what the server does."""

import asyncio
import re
from pathlib import Path

import pytest

import nfsd.v4.program  # noqa: F401 - fills the table
from nfsd.protocol import nfs4 as p
from nfsd.protocol.nfs4_ops import OPERATIONS
from nfsd.v4.operations import TABLE
from tests.support.nfs4 import Client4, serving

DOCUMENT = Path(__file__).parents[2] / "docs" / "nfsv4-operations.md"
MINORS = (0, 1, 2)
LAST = {0: p.OP_RELEASE_LOCKOWNER, 1: p.OP_RECLAIM_COMPLETE, 2: p.OP_REMOVEXATTR}
"""The last operation of each minor version (RFC 7530 section 16, RFC 8881 section 18, RFC 8276 section 8.6)."""


def documented():
    """Number to (name, what is said of each minor version)."""
    rows = {}
    for line in DOCUMENT.read_text().splitlines():
        row = re.fullmatch(r"\| ([A-Z_]+) \| (\d+) \| [^|]+ \| ([^|]+) \| ([^|]+) \| ([^|]+) \|[^|]*\|", line)
        if row:
            assert int(row[2]) not in rows
            rows[int(row[2])] = (row[1], row[3], row[4], row[5])
    return rows


def expected(number, minor):
    if not 3 <= number <= LAST[minor]:
        return "OP_ILLEGAL"
    implemented = number in TABLE and minor in TABLE[number].minors
    return "yes" if implemented else "NOTSUPP"


def test_the_document_lists_every_operation_and_what_becomes_of_it():
    declared = {number for number in OPERATIONS if number != p.OP_ILLEGAL}
    assert declared == set(range(3, LAST[2] + 1))
    assert documented() == {
        number: (OPERATIONS[number].name, *(expected(number, minor) for minor in MINORS)) for number in declared
    }


def ending_with(client, number):
    """A COMPOUND of PUTROOTFH and an operation, with nothing where its arguments would be."""
    message = client.message(*client.in_session(p.OP_PUTROOTFH, p.OP_GETFH))
    assert message[-4:] == p.OP_GETFH.to_bytes(4, "big")
    return message[:-4] + number.to_bytes(4, "big")


@pytest.mark.parametrize("minor", MINORS)
def test_what_is_not_implemented_is_answered_as_the_document_says(tmp_path, minor):
    async def main():
        async with serving(tmp_path, state_dir=tmp_path) as server:
            client = await Client4(server, minor).connect()
            seen = set()
            for number in (0, 1, 2, *documented(), LAST[2] + 1, p.OP_ILLEGAL, 2**32 - 1):
                said = expected(number, minor)
                seen.add(said)
                if said == "yes":
                    continue
                message = ending_with(client, number)
                status, results = client.parse(await server.call(client.transport, message))
                if said == "OP_ILLEGAL":
                    assert (status, results[-1][0]) == (p.NFS4ERR_OP_ILLEGAL, p.OP_ILLEGAL), number
                else:
                    assert (status, results[-1][0]) == (p.NFS4ERR_NOTSUPP, number), number
            assert seen == {"yes", "NOTSUPP", "OP_ILLEGAL"}
            # Whatever was sent, the client can go on.
            assert await client.status(p.OP_PUTROOTFH, p.OP_GETFH) == p.NFS4_OK

    asyncio.run(main())
