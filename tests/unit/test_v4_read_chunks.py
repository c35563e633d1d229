"""COMPOUNDs with data in Read chunks: where chunks may stand, and retransmissions that came another way.

RFC 8166 section 4.5.2, RFC 8267 section 6, RFC 8881 section 2.10.6.1.3.1.
"""

import pytest

from nfsd.protocol import nfs4 as p
from tests.support.nfs4 import mode, with_client

DATA = b"0123456789abcdefg"
GARBAGE_ARGS = 4


def reduced(message: bytes, data: bytes = DATA, *, padded=False):
    """The message without its data, and the chunk."""
    at = message.index(data)
    length = len(data) + 3 & ~3
    view = message[at : at + length] if padded else data
    return message[:at] + message[at + length :], [(at, memoryview(view))]


def write(client, stateid, handle, *, cache=True, more=()):
    args = p.WRITE4args(stateid, 0, p.stable_how4.FILE_SYNC4, memoryview(DATA))
    return client.message(
        *client.in_session((p.OP_PUTFH, p.PUTFH4args(handle)), (p.OP_WRITE, args), *more, cache=cache)
    )


def accept_status(reply: bytes) -> int:
    return int.from_bytes(reply[20:24], "big")


@pytest.mark.parametrize("minor", [0, 1, 2])
def test_data_in_a_chunk_is_written_padded_or_not(tmp_path, minor):
    async def test(client, export, server):
        stateid, handle = await client.open("/0", b"f", create=mode(0o644))
        for padded in (False, True):
            message, chunks = reduced(write(client, stateid, handle), padded=padded)
            status, _ = client.parse(await server.call(client.transport, message, chunks))
            assert status == p.NFS4_OK
            assert (export / "f").read_bytes() == DATA

    with_client(tmp_path, minor, test)


def test_a_retransmission_is_known_whichever_way_it_comes(tmp_path):
    """RDMA with a chunk, then TCP without one, and the other way round: one session may have both."""

    async def test(client, export, server):
        stateid, handle = await client.open("/0", b"f", create=mode(0o644))
        for first_reduced in (True, False):
            whole = write(client, stateid, handle)
            ways = [reduced(whole), reduced(whole, padded=True), (whole, ())]
            replies = [
                client.parse(await server.call(client.transport, *way))
                for way in (ways if first_reduced else ways[::-1])
            ]
            assert replies[0][0] == p.NFS4_OK
            assert replies[1] == replies[2] == replies[0]
            other = whole.replace(DATA, DATA[::-1])
            for way in (reduced(other, DATA[::-1]), (other, ())):
                status, _ = client.parse(await server.call(client.transport, *way))
                assert status == p.NFS4ERR_SEQ_FALSE_RETRY
        assert (export / "f").read_bytes() == DATA

    with_client(tmp_path, 1, test)


@pytest.mark.parametrize("minor", [0, 1])
def test_a_chunk_in_the_wrong_place_keeps_its_operation_from_running(tmp_path, minor):
    async def test(client, export, server):
        stateid, handle = await client.open("/0", b"f", create=mode(0o644))
        for back in (4, 24):  # within the arguments: what stands behind is not what it seems
            message, [(at, view)] = reduced(write(client, stateid, handle))
            status, results = client.parse(await server.call(client.transport, message, [(at - back, view)]))
            assert status == p.NFS4ERR_BADXDR
            assert results[-1][0] == p.OP_WRITE
        # A whole WRITE, with a chunk too many inside its arguments.
        whole = write(client, stateid, handle)
        status, _ = client.parse(await server.call(client.transport, whole, [(at - 24, memoryview(b"more"))]))
        assert status == p.NFS4ERR_BADXDR
        assert (export / "f").read_bytes() == b""

    with_client(tmp_path, minor, test)


def test_a_chunk_behind_the_last_operation_is_garbage(tmp_path):
    async def test(client, export, server):
        message = client.message(*client.in_session(p.OP_PUTROOTFH))
        chunks = [(len(message), memoryview(b"more"))]
        assert accept_status(await server.call(client.transport, message, chunks)) == GARBAGE_ARGS
        assert (
            accept_status(await server.call(client.transport, client.message(*client.in_session(p.OP_PUTROOTFH)))) == 0
        )

    with_client(tmp_path, 1, test)


def test_a_request_is_as_long_as_xdr_has_it(tmp_path):
    """ca_maxrequestsize counts what the chunks carry (RFC 8881 section 18.36.3)."""

    async def test(client, export, server):
        stateid, handle = await client.open("/0", b"f", create=mode(0o644))
        data = bytes(1 << 20)
        args = p.WRITE4args(stateid, 0, p.stable_how4.FILE_SYNC4, memoryview(data))
        whole = client.message(*client.in_session((p.OP_PUTFH, p.PUTFH4args(handle)), (p.OP_WRITE, args)))
        at = len(whole) - len(data)
        status, _ = client.parse(await server.call(client.transport, whole[:at], [(at, memoryview(data))]))
        assert status == p.NFS4ERR_REQ_TOO_BIG

    with_client(tmp_path, 1, test)
