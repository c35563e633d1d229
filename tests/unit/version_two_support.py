"""Helpers for the tests of version Two."""

from __future__ import annotations

from tests.peer import ECHO, MSG, NULL, header_two, rpc_call

XID = 0x2A0B0C0D


def null(xid: int = XID, **fields) -> bytes:
    return header_two(xid, **fields) + rpc_call(xid, procedure=NULL)


def call(arguments, xid: int = XID, *, procedure: int = ECHO, **fields) -> bytes:
    return header_two(xid, **fields) + rpc_call(xid, arguments.octets, procedure)


async def negotiated(peer):
    """Get the first message over with."""
    reply = await peer.call(null(1))
    assert (reply.xid, reply.version, reply.procedure, reply.error) == (1, 2, MSG, 0)
    return peer
