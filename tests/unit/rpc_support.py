"""A transport in memory and calls to send on it, for the tests of the RPC layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rpcrdma.memory import Lease, Pool
from rpcrdma.rpc.messages import (
    auth_flavor,
    authsys_parms,
    call_body,
    msg_type,
    opaque_auth,
    rpc_body,
    rpc_msg,
)
from rpcrdma.rpc.program import RpcReply
from rpcrdma.xdr import Decoder, pack

NONE = opaque_auth(auth_flavor.AUTH_NONE, b"")


class FakeTransport:
    netid = "tcp"
    peer_port = 700
    local_address = "127.0.0.1"
    max_backchannel_size = 0

    security = "none"
    certified = ""

    def begin_tls(self) -> bool:
        return False

    def __init__(self, peer_address: str = "192.0.2.1") -> None:
        self.peer_address = peer_address
        self.closed = False
        self.pool = Pool(1 << 20)

    def on_close(self, callback: Callable[[], None]) -> None:
        raise NotImplementedError

    async def lease(self, size: int) -> Lease:
        return self.pool.account(1 << 20).lease(size)

    async def call_back(self, message: bytes | memoryview) -> memoryview:
        raise ConnectionError

    def close(self) -> None:
        self.closed = True


class Replies:
    """Stands for a transport's end of ``dispatch``: decoded replies in the order they came."""

    def __init__(self) -> None:
        self.all: list[RpcReply | None] = []

    def __call__(self, reply: RpcReply | None) -> None:
        self.all.append(reply)

    def header(self, index: int = -1) -> tuple[rpc_msg, Decoder]:
        """A reply's header, and the decoder standing at its results."""
        reply = self.all[index]
        assert reply is not None
        decoder = Decoder(bytes(reply.head))
        return decoder.decode(rpc_msg), decoder


def auth_sys(
    uid: int = 1000, gid: int = 100, gids: Any = (), *, stamp: int = 0, machine: bytes = b"host"
) -> opaque_auth:
    body = authsys_parms(stamp, machine, uid, gid, list(gids))
    return opaque_auth(auth_flavor.AUTH_SYS, pack(authsys_parms, body))


def call(
    procedure: int,
    arguments: bytes = b"",
    *,
    xid: int = 1,
    program: int = 400000,
    version: int = 3,
    credential: opaque_auth = NONE,
    verifier: opaque_auth = NONE,
    rpc_version: int = 2,
) -> memoryview:
    body = call_body(rpc_version, program, version, procedure, credential, verifier)
    return memoryview(pack(rpc_msg, rpc_msg(xid, rpc_body(msg_type.CALL, cbody=body))) + arguments)
