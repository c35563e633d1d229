"""COMPOUNDs that wait on the native path hold their slot, and give it back if they cannot be kept."""

import os
import struct

import pytest

from nfsd.protocol import nfs4 as p
from rpcrdma.server.rdma_connection import RdmaConnection
from rpcrdma.server.tcp_connection import TcpConnection
from rpcrdma.wire.private_data import PrivateData
from tests.support import nfs4_native
from tests.support.nfs4 import mode, wanted
from tests.support.nfs4_native import Both, BothRdma, run
from tests.unit import vfs_support
from tests.unit.test_waiting_calls import stalled, until

SUCCESS, DELAY = 0, int(p.NFS4ERR_DELAY)


def on_disk(tmp_path, scenario, ways=Both):
    with vfs_support.directory_on("disk", tmp_path) as path:
        return run(path, tmp_path, 1, scenario, ways)


def status(reply):
    """Of a COMPOUND: behind the XID and the accepted reply's header."""
    return struct.unpack(">I", reply[24:28])[0]


async def opened(both):
    """A file that the client has open: (handle, stateid)."""
    stateid, handle = await both.client.open("/0", b"a", create=mode(0o644))
    return handle, stateid


def write(handle, state, data, stable=0):
    arguments = p.WRITE4args(stateid=state, offset=0, stable=p.stable_how4(stable), data=data)
    return (p.OP_PUTFH, p.PUTFH4args(object=handle)), (p.OP_WRITE, arguments)


@pytest.mark.parametrize("stable", [0, 2])
def test_the_slot_is_held_while_the_compound_waits(tmp_path, stable):
    async def scenario(both):
        file = await opened(both)
        assert status(await both.native.call(None, both.message(0, *write(*file, b"first")))) == SUCCESS
        natively = both.answered
        root = await both.server.service.root(both.server.service.exports.exports[0])
        async with stalled(both.server.service, root, tmp_path):
            message = both.message(0, *write(*file, b"once..", stable))
            both.native.send(message)
            await until(lambda: len(both.dispatcher.held) == 1)
            assert both.session.slots[1].in_use
            # The same request again finds it in progress (RFC 8881 section 2.10.6.2).
            assert status(await both.general.call(None, message)) == DELAY
            assert both.session.slots[1].in_use
        assert status(await both.native.reply()) == SUCCESS
        assert both.answered - natively == 1
        assert not both.session.slots[1].in_use

    on_disk(tmp_path, scenario)


@pytest.mark.parametrize("transport", [TcpConnection, RdmaConnection])
def test_a_compound_that_cannot_be_kept_gives_its_slot_back(tmp_path, monkeypatch, transport):
    async def scenario(both):
        file = await opened(both)

        async def send(data):
            if transport is TcpConnection:
                return status(await both.native.call(None, both.message(0, *write(*file, data))))
            outcome = await both.call(0, 0, *write(*file, data))
            return status(bytes(4) + outcome[4])

        assert await send(b"first...") == SUCCESS
        refused = []
        monkeypatch.setattr(transport, "begin_held", lambda connection: bool(refused.append(connection)))
        for data in (b"second..", b"third..."):
            assert await send(data) == SUCCESS
            assert not both.session.slots[1].in_use
        assert len(refused) == 2
        assert (both.path / "a").read_bytes() == b"third..."

    on_disk(tmp_path, scenario, Both if transport is TcpConnection else BothRdma)


def test_a_late_reply_is_no_longer_than_the_peer_takes(tmp_path, monkeypatch):
    takes = 3072  # leases are 2048 or 4096 octets
    monkeypatch.setattr(
        nfs4_native, "LINUX", PrivateData(remote_invalidation=True, send_size=4096, receive_size=takes).encode()
    )

    async def scenario(both):
        handle, state = await opened(both)
        asked = [p.FATTR4_CHANGE, p.FATTR4_SIZE, p.FATTR4_FILEID, p.FATTR4_MODE, p.FATTR4_TIME_ACCESS]
        asked += [p.FATTR4_TIME_METADATA, p.FATTR4_TIME_MODIFY]
        for octets in (100, 2700, 2900):
            with open(both.path / "a", "wb") as file:
                file.write(bytes(octets))
                file.flush()
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            operations = [
                (p.OP_PUTFH, p.PUTFH4args(object=handle)),
                (p.OP_READ, p.READ4args(stateid=state, offset=0, count=octets)),
                (p.OP_GETATTR, wanted(*asked)),
            ]
            *_, payload, _, _ = await both.call(0, 0, *operations)
            assert 28 + 4 + len(payload) <= takes

    on_disk(tmp_path, scenario, BothRdma)
