"""Replies without results: to calls that are not executed, or have failed (RFC 5531 section 9), and to AUTH_TLS.

Owns their octets; imports the vocabulary of messages and of programs.
"""

from __future__ import annotations

import struct

from rpcrdma.rpc.call_header import CallHeader, Flaw
from rpcrdma.rpc.messages import RPC_VERSION, accept_stat, auth_stat, msg_type, reject_stat, reply_stat
from rpcrdma.rpc.program import AUTH_NONE, RpcReply

_REPLY = int(msg_type.REPLY)
_ACCEPTED, _DENIED = int(reply_stat.MSG_ACCEPTED), int(reply_stat.MSG_DENIED)


def to_flawed(header: CallHeader) -> RpcReply | None:
    """The answer to a call whose header has a flaw; None: the connection is to be closed."""
    if header.flaw == Flaw.NO_CALL:
        return None
    if header.flaw == Flaw.OTHER_VERSION:
        return denied(header.xid, reject_stat.RPC_MISMATCH, RPC_VERSION, RPC_VERSION)
    if header.flaw == Flaw.LONG_CREDENTIAL:
        return denied(header.xid, reject_stat.AUTH_ERROR, auth_stat.AUTH_BADCRED)
    return accepted(header.xid, accept_stat.GARBAGE_ARGS)


def accepted(xid: int, status: accept_stat, *more: int) -> RpcReply:
    """An accepted reply without results; ``more`` is the body of PROG_MISMATCH."""
    return RpcReply(xid, struct.pack(f">{6 + len(more)}I", xid, _REPLY, _ACCEPTED, 0, 0, status, *more), [])


def denied(xid: int, reason: int, *more: int) -> RpcReply:
    """A denied reply (RFC 5531 section 9: rejected_reply)."""
    return RpcReply(xid, struct.pack(f">{4 + len(more)}I", xid, _REPLY, _DENIED, reason, *more), [])


def starttls(xid: int) -> RpcReply:
    """The reply to NULL with AUTH_TLS that lets the peer begin TLS (RFC 9289 section 4.1)."""
    return RpcReply(
        xid, struct.pack(">5I8sI", xid, _REPLY, _ACCEPTED, AUTH_NONE, 8, b"STARTTLS", accept_stat.SUCCESS), []
    )
