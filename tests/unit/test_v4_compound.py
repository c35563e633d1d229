"""The COMPOUND procedure itself: tags, minor versions, operations that do not decode, and where it stops."""

import pytest

from nfsd.protocol import nfs4 as p
from rpcrdma.xdr import Decoder, Encoder
from tests.support.nfs4 import Client4, LoopbackTransport, wanted, with_client

MINORS = [0, 1, 2]
HEADER = 4 * 6
"""Octets of an accepted RPC reply before its results."""


def test_the_tag_comes_back_whatever_it_is(tmp_path):
    async def test(client, export, server):
        for tag in (b"", b"x", b"\xc0\xc1 is not UTF-8", b"\0", b"t" * 1024):
            reply = Decoder(memoryview(await server.call(client.transport, client.message(p.OP_PUTROOTFH, tag=tag))))
            header = [reply.uint32() for _ in range(6)]
            assert header[5] == 0
            assert (reply.uint32(), reply.opaque(1024)) == (p.NFS4_OK, tag)

    with_client(tmp_path, 0, test)


def test_a_tag_without_bound_is_garbage(tmp_path):
    async def test(client, export, server):
        message = client.message(p.OP_PUTROOTFH, tag=b"t" * 1028)
        reply = Decoder(memoryview(await server.call(client.transport, message)))
        assert [reply.uint32() for _ in range(6)][5] == 4  # GARBAGE_ARGS

    with_client(tmp_path, 0, test)


@pytest.mark.parametrize("minor", [3, 4, 2**32 - 1])
def test_minor_versions_not_known(tmp_path, minor):
    async def test(client, export, server):
        other = Client4(server, 0, transport=LoopbackTransport())
        other.minor = minor
        assert await other.raw(p.OP_PUTROOTFH) == (p.NFS4ERR_MINOR_VERS_MISMATCH, [])

    with_client(tmp_path, 0, test)


@pytest.mark.parametrize("minor", MINORS)
def test_nothing_to_do_is_done(tmp_path, minor):
    async def test(client, export, server):
        assert await client.raw() == (p.NFS4_OK, [])

    with_client(tmp_path, minor, test)


@pytest.mark.parametrize("minor", MINORS)
def test_operations_that_are_none_end_the_compound(tmp_path, minor):
    async def test(client, export, server):
        for number in (0, 2, 200, 2**31, 2**32 - 1, p.OP_ILLEGAL):
            status, results = await client.raw(*client.in_session(p.OP_PUTROOTFH, number, p.OP_PUTROOTFH))
            assert status == p.NFS4ERR_OP_ILLEGAL
            assert results[-1][0] == p.OP_ILLEGAL
            assert results[-1][1].status == p.NFS4ERR_OP_ILLEGAL
            assert results[-2][0] == p.OP_PUTROOTFH

    with_client(tmp_path, minor, test)


@pytest.mark.parametrize("minor", MINORS)
def test_arguments_that_do_not_decode_fail_their_operation(tmp_path, minor):
    async def test(client, export, server):
        # A name and an array that are not there, a handle longer than it may be.
        before = client.in_session(p.OP_PUTROOTFH)
        for number, octets in (
            (p.OP_LOOKUP, (9,)),
            (p.OP_GETATTR, (2**31,)),
            (p.OP_PUTFH, (129, *[0] * 33)),
        ):
            message = bytearray(client.message(*before, p.OP_ILLEGAL))
            e = Encoder()
            for word in (number, *octets):
                e.uint32(word)
            message[-4:] = e.getvalue()
            status, results = client.parse(await server.call(client.transport, bytes(message)))
            assert status == p.NFS4ERR_BADXDR
            assert results[-1][0] == number
            if minor:
                before = client.in_session(p.OP_PUTROOTFH)

    with_client(tmp_path, minor, test)


def test_too_many_operations_without_a_session(tmp_path):
    async def test(client, export, server):
        many = [p.OP_PUTROOTFH] * 256
        assert (await client.raw(*many))[0] == p.NFS4_OK
        status, results = await client.raw(*many, p.OP_PUTROOTFH)
        assert (status, len(results)) == (p.NFS4ERR_RESOURCE, 1)

    with_client(tmp_path, 0, test)


def test_a_reply_beyond_all_bounds_is_cut_off_with_resource(tmp_path):
    async def test(client, export, server):
        (export / "f").write_bytes(bytes(1 << 20))
        read = (p.OP_READ, p.READ4args(p.stateid4(0, bytes(12)), 0, 1 << 20))
        status, results = await client.raw(*client.path("/0/f"), *[read] * 4, (p.OP_GETATTR, wanted(p.FATTR4_SIZE)))
        reads = [result for number, result in results if number == p.OP_READ and not result.status]
        carried = sum(len(result.resok4.data) for result in reads)
        assert carried <= server.nfs4.max_reply
        assert status in (p.NFS4_OK, p.NFS4ERR_RESOURCE)

    with_client(tmp_path, 0, test)
