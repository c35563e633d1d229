"""RPC calls as they are sent and replies as they are read (RFC 5531 sections 8 and 9).

Owns the credentials of callers, the encoding of a call, and :class:`Reply`. Imports the RPC vocabulary and the codec.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import Any, TypeVar, overload

from rpcrdma.client.errors import BadReply, Denied, Refused
from rpcrdma.rpc.messages import (
    MAX_GIDS,
    MAX_MACHINE_NAME,
    NULL_AUTH,
    RPC_VERSION,
    accept_stat,
    auth_flavor,
    authsys_parms,
    call_body,
    msg_type,
    opaque_auth,
    reject_stat,
    rpc_body,
    rpc_msg,
)
from rpcrdma.rpc.program import RpcReply
from rpcrdma.xdr import Decoder, Encoder, ResultDecoder, XdrError, pack

T = TypeVar("T")

AUTH_NONE = NULL_AUTH
"""The credential of nobody."""


def auth_sys(uid: int, gid: int, gids: Sequence[int] = (), *, machine: str | None = None) -> opaque_auth:
    """An AUTH_SYS credential (RFC 5531 appendix A). No more than sixteen groups fit; the rest is left out."""
    name = (socket.gethostname() if machine is None else machine).encode()[:MAX_MACHINE_NAME]
    parameters = authsys_parms(0, name, uid, gid, list(gids[:MAX_GIDS]))
    return opaque_auth(auth_flavor.AUTH_SYS, pack(authsys_parms, parameters))


def own_credential() -> opaque_auth:
    """AUTH_SYS with this process's effective user and its groups."""
    return auth_sys(os.geteuid(), os.getegid(), os.getgroups())


class Message(RpcReply):
    """An RPC message that its maker may need again: what sends it must not release its payloads."""

    __slots__ = ()

    def release(self) -> None:
        """Do nothing."""


def encode_call(
    xid: int, program: int, version: int, procedure: int, credential: opaque_auth, arguments: Encoder | bytes
) -> Message:
    """The message of a call."""
    body = call_body(RPC_VERSION, program, version, procedure, credential, NULL_AUTH)
    header = pack(rpc_msg, rpc_msg(xid, rpc_body(msg_type.CALL, cbody=body)))
    if isinstance(arguments, Encoder):
        payloads = [(len(header) + offset, payload) for offset, payload in arguments.payloads]
        return Message(xid, header + arguments.getvalue(), payloads)
    return Message(xid, header + arguments, [])


class Reply:
    """The reply to a call that was accepted and executed. Nothing in it depends on the connection's memory."""

    __slots__ = ("_places", "_start", "message")

    def __init__(self, message: bytes, start: int, places: Sequence[tuple[memoryview, int]]) -> None:
        self.message = message
        """The RPC reply as it was received, without what the server put into ``into`` itself."""
        self._start = start
        self._places = places

    @property
    def placed(self) -> list[int]:
        """Octets that the server itself has put into each of ``into``; 0 where it did not, or could not (TCP)."""
        return [there for _, there in self._places]

    @property
    def results(self) -> memoryview:
        """The results as they stand in :attr:`message`."""
        return memoryview(self.message)[self._start :]

    def decoder(self) -> Decoder:
        """A decoder at the results. ``bulk`` yields the n-th DDP-eligible item as the beginning of the n-th ``into``,
        wherever the server has put it; an item for which there is no ``into``, or one too small, as a view of the
        message."""
        decoder = ResultDecoder(self.message, (), self._start)
        decoder.places = list(self._places)
        return decoder

    @overload
    def decode(self, kind: type[T]) -> T: ...
    @overload
    def decode(self, kind: Any) -> Any: ...
    def decode(self, kind: Any) -> Any:
        """The results, which are of the declared type ``kind`` (None: void) and nothing else. Raises BadReply."""
        decoder = self.decoder()
        try:
            value = decoder.decode(kind)
            decoder.finish(strict=True)
        except XdrError as error:
            raise BadReply(f"the results do not decode: {error}") from error
        return value


def decode_reply(message: bytes, places: Sequence[tuple[memoryview, int]] = ()) -> Reply:
    """The reply in a whole RPC message, whose XID has been looked at. Raises Denied, Refused, BadReply."""
    decoder = Decoder(message)
    try:
        body = decoder.decode(rpc_msg).body.rbody
    except XdrError as error:
        raise BadReply(f"the reply does not decode: {error}") from error
    if body is None:
        raise BadReply("a call instead of a reply")
    if body.rreply is not None:
        rejected = body.rreply
        if rejected.stat == reject_stat.AUTH_ERROR:
            assert rejected.auth_stat is not None
            raise Denied(rejected.stat, rejected.auth_stat)
        assert rejected.mismatch_info is not None
        raise Denied(rejected.stat, (rejected.mismatch_info.low, rejected.mismatch_info.high))
    assert body.areply is not None
    data = body.areply.reply_data
    if data.stat != accept_stat.SUCCESS:
        if not isinstance(data.stat, accept_stat):
            raise BadReply(f"{data.stat} is no accept_stat")
        mismatch = data.mismatch_info
        raise Refused(data.stat, None if mismatch is None else (mismatch.low, mismatch.high))
    return Reply(message, decoder.position, places)
