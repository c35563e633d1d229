"""NFSv3 and MOUNT as whole RPC messages through the dispatcher: headers, replays, garbage, payloads."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nfsd.mount.program import mount3_program
from nfsd.protocol.nfs3 import (
    CREATE3args,
    CREATE3res,
    READ3args,
    READ3res,
    REMOVE3args,
    REMOVE3res,
    createhow3,
    createmode3,
    diropargs3,
    nfs_fh3,
    nfsstat3,
)
from nfsd.v3.procedures import Nfs3Procedures
from nfsd.v3.program import nfs3_procedures
from rpcrdma.rpc.dispatch import Dispatcher
from rpcrdma.rpc.messages import accept_stat
from rpcrdma.rpc.program import Program, RpcReply
from rpcrdma.xdr import Decoder, pack, uint32
from tests.nfs3_client import attributes as no_attributes
from tests.unit.listing_support import RealRig
from tests.unit.rpc_support import Replies, auth_sys, call

NFS, MOUNT, NFSACL = 100003, 100005, 100227


class Server:
    """A dispatcher with both programs, over a directory in memory; called without any transport's native path."""

    def __init__(self) -> None:
        self.rig = RealRig()
        nfs = Program(NFS, "nfs", {3: nfs3_procedures(self.rig.service, self.rig.service.exports)})
        mount = mount3_program(self.rig.service, self.rig.service.exports)
        self.dispatcher = Dispatcher([nfs, mount], natives={(NFS, 3): Nfs3Procedures(self.rig.service)})
        self.replies = Replies()

    def at(self, name: bytes) -> diropargs3:
        return diropargs3(self.rig.root, name)

    def send(self, message: bytes) -> tuple[accept_stat, Decoder]:
        async def run() -> None:
            self.dispatcher.dispatch(self.rig.transport, memoryview(message), [], [], self.replies)  # type: ignore[arg-type]
            await self.dispatcher.drain(5)

        self.rig.run(run())
        header, decoder = self.replies.header()
        assert header.body.rbody is not None
        assert header.body.rbody.areply is not None
        return header.body.rbody.areply.reply_data.stat, decoder

    def nfs(self, number: int, arguments: bytes = b"", **more: Any) -> tuple[accept_stat, Decoder]:
        more = {"program": NFS, "version": 3, "credential": auth_sys(0, 0)} | more
        return self.send(call(number, arguments, **more))

    @property
    def last(self) -> RpcReply:
        reply = self.replies.all[-1]
        assert reply is not None
        return reply


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.rig.close()


def create(server: Server, name: bytes = b"file") -> bytes:
    how = createhow3(createmode3.GUARDED, obj_attributes=no_attributes(mode=0o644))
    return pack(CREATE3args, CREATE3args(server.at(name), how))


def test_null_is_answered_without_authentication(server: Server) -> None:
    for program in (NFS, MOUNT):
        status, decoder = server.send(call(0, program=program, version=3))
        assert (status, decoder.remaining) == (accept_stat.SUCCESS, 0)


def test_what_is_not_served_is_said_as_rpc_has_it(server: Server) -> None:
    assert server.nfs(0, program=NFSACL)[0] == accept_stat.PROG_UNAVAIL
    assert server.nfs(22)[0] == accept_stat.PROC_UNAVAIL
    assert server.nfs(6, program=MOUNT)[0] == accept_stat.PROC_UNAVAIL
    assert server.nfs(0, version=2)[0] == accept_stat.PROG_MISMATCH


@pytest.mark.parametrize(
    ("number", "arguments"),
    [
        (1, pack(uint32, 65) + bytes(68)),
        (1, pack(uint32, 0xFFFFFFFF)),
        (1, b""),
        (6, pack(nfs_fh3, nfs_fh3(b"fake")) + bytes(8)),
        (8, pack(nfs_fh3, nfs_fh3(b"fake")) + pack(uint32, 0) + pack(uint32, 9)),
    ],
)
def test_arguments_that_do_not_decode_are_garbage(server: Server, number: int, arguments: bytes) -> None:
    assert server.nfs(number, arguments)[0] == accept_stat.GARBAGE_ARGS


def test_a_repeated_create_and_remove_get_their_first_reply_again(server: Server) -> None:
    first = server.nfs(8, create(server), xid=7)[1].decode(CREATE3res)
    again = server.nfs(8, create(server), xid=7)[1].decode(CREATE3res)
    assert first == again
    assert first.status == nfsstat3.NFS3_OK
    assert server.nfs(8, create(server), xid=8)[1].decode(CREATE3res).status == nfsstat3.NFS3ERR_EXIST
    remove = pack(REMOVE3args, REMOVE3args(server.at(b"file")))
    for xid, status in ((9, nfsstat3.NFS3_OK), (9, nfsstat3.NFS3_OK), (10, nfsstat3.NFS3ERR_NOENT)):
        assert server.nfs(12, remove, xid=xid)[1].decode(REMOVE3res).status == status


def test_read_data_stays_beside_the_message(server: Server) -> None:
    handle = server.nfs(8, create(server))[1].decode(CREATE3res).resok.obj
    assert handle is not None
    Path(server.rig.path, "file").write_bytes(b"0123456789")
    server.nfs(6, pack(READ3args, READ3args(handle, 2, 100)))
    reply = server.last
    ((offset, payload),) = reply.payloads
    assert payload.view == b"23456789"
    assert b"23456789" not in bytes(reply.head)
    whole = bytes(reply.head[:offset]) + bytes(payload.view) + bytes(reply.head[offset:])
    assert len(whole) == len(reply)
    result = Decoder(whole[24:]).decode(READ3res)
    assert (bytes(result.resok.data), result.resok.eof) == (b"23456789", True)
    reply.release()
    assert server.rig.transport.account.in_use == 0


def test_mount_goes_by_whole_messages_too(server: Server) -> None:
    status, decoder = server.nfs(1, pack(uint32, 2) + b"/x\0\0", program=MOUNT)
    assert status == accept_stat.SUCCESS
    assert decoder.uint32() == 0
    assert decoder.opaque(64) == server.rig.root.data
