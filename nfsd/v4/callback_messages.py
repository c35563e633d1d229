"""Callbacks as octets: CB_NULL and CB_COMPOUND calls put together, their replies taken apart.

Owns the RPC header of calls that this server makes, and :class:`CallbackError`. Imports declarations only;
sends nothing.
RFC 7530 section 15.3 and 17, RFC 8881 section 20, RFC 5531 section 9.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from nfsd.protocol import nfs4 as p
from nfsd.state.types import CallbackCredential
from rpcrdma.rpc.messages import (
    MAX_MACHINE_NAME,
    NULL_AUTH,
    RPC_VERSION,
    accept_stat,
    authsys_parms,
    call_body,
    msg_type,
    opaque_auth,
    rpc_body,
    rpc_msg,
)
from rpcrdma.rpc.program import AUTH_SYS
from rpcrdma.xdr import Decoder, Encoder, XdrError

_TAG_LIMIT = 1024

Operation = tuple[int, Any]
"""A callback operation: its number and its arguments, as the protocol declares them."""


class CallbackError(Exception):
    """A callback that brought no answer to its operations. ``reason`` is one word, for metrics and for callers."""

    def __init__(self, reason: str, text: str = "") -> None:
        super().__init__(text or reason)
        self.reason = reason


class CompoundReply(NamedTuple):
    """CB_COMPOUND4res taken apart."""

    status: int
    """nfsstat4 of the last operation that ran, or of the whole."""
    results: list[Any]
    """One object per operation that ran, CB_SEQUENCE's included."""
    numbers: list[int]


def encoded(operations: Sequence[Operation]) -> bytes:
    """The operations of a CB_COMPOUND as octets. Raises ValueError for one that is no callback operation."""
    e = Encoder()
    for number, arguments in operations:
        declared = p.CALLBACK_OPERATIONS.get(number)
        if declared is None or declared.arguments is None:
            raise ValueError(f"{number} is no callback operation")
        e.uint32(number)
        e.encode(declared.arguments, arguments)
    return e.getvalue()


def whole_call(xid: int, program: int, procedure: int, credential: CallbackCredential, arguments: bytes) -> bytes:
    """A whole call."""
    e = _header(xid, program, procedure, credential)
    e.append(arguments)
    return e.getvalue()


def compound_arguments(*, minor: int, ident: int, count: int, operations: Sequence[bytes]) -> bytes:
    """CB_COMPOUND4args of ``count`` operations, given as octets in order."""
    e = Encoder()
    e.opaque(b"")
    e.uint32(minor)
    e.uint32(ident)
    e.uint32(count)
    for octets in operations:
        e.append(octets)
    return e.getvalue()


def _header(xid: int, program: int, procedure: int, credential: CallbackCredential) -> Encoder:
    e = Encoder()
    cred = NULL_AUTH
    if credential.flavor == AUTH_SYS:
        machine = credential.machine.encode()[:MAX_MACHINE_NAME]
        body = Encoder()
        body.encode(authsys_parms, authsys_parms(0, machine, credential.uid, credential.gid, list(credential.gids)))
        cred = opaque_auth(AUTH_SYS, body.getvalue())
    # Version 1, as the XDR descriptions of all minor versions and every implementation have it; the prose of RFC 8881
    # section 18.36.3 says 4.
    call = call_body(RPC_VERSION, program, p.NFS_CB, procedure, cred, NULL_AUTH)
    e.encode(rpc_msg, rpc_msg(xid, rpc_body(msg_type.CALL, cbody=call)))
    return e


def accepted(reply: bytes | memoryview) -> Decoder:
    """The results of an RPC reply. Raises CallbackError when the client did not take the call."""
    d = Decoder(reply)
    try:
        body = d.decode(rpc_msg).body.rbody
    except XdrError as error:
        raise CallbackError("garbage", f"the reply is none: {error}") from None
    if body is None:
        raise CallbackError("garbage", "a call where a reply was due")
    if body.areply is None:
        raise CallbackError("denied", f"the client denies callbacks: {body.rreply}")
    if body.areply.reply_data.stat != accept_stat.SUCCESS:
        raise CallbackError("refused", f"the client refuses callbacks: {body.areply.reply_data.stat!r}")
    return d


def compound_results(d: Decoder, asked: int) -> CompoundReply:
    """CB_COMPOUND4res, to ``asked`` operations. Raises CallbackError."""
    results: list[Any] = []
    numbers: list[int] = []
    try:
        status = d.uint32()
        d.opaque(_TAG_LIMIT)
        count = d.uint32()
        if count > asked:
            raise CallbackError("garbage", f"{count} results of {asked} operations")
        for _ in range(count):
            number = d.uint32()
            declared = p.CALLBACK_OPERATIONS.get(number)
            if declared is None:
                raise CallbackError("garbage", f"the result of an operation {number}")
            numbers.append(number)
            results.append(d.decode(declared.results))
    except XdrError as error:
        raise CallbackError("garbage", f"the result does not decode: {error}") from None
    if not count and not status:
        raise CallbackError("garbage", "no results and no error")
    return CompoundReply(status, results, numbers)
