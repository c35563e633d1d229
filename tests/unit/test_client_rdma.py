"""The client library over RPC-over-RDMA, against our own server."""

from __future__ import annotations

import pytest

from rpcrdma.client import Refused
from rpcrdma.rpc.messages import accept_stat
from tests.peer.echo import NULL, PROGRAM, VERSION
from tests.peer.providers import provider  # noqa: F401 (runs each test on every provider)
from tests.unit.client_support import Client, pattern, run

BOTH = pytest.mark.parametrize("version", [1, 2])


@BOTH
def test_a_call_without_chunks(version: int) -> None:
    async def test(client: Client) -> None:
        (await client.call(procedure=NULL)).decode(None)
        assert client.connection.rdma_version == version
        assert client.requester.settled
        assert client.requester.window == 128
        assert await client.echo(b"seven..", filler=3) == [b"seven.."]
        assert client.last.placed == [0]
        with pytest.raises(Refused) as refused:
            await client.connection.call(PROGRAM, VERSION + 1, NULL)
        assert refused.value.stat == accept_stat.PROG_MISMATCH

    run(test, version=version)


@BOTH
@pytest.mark.parametrize("size", [100_001, 1 << 20])
def test_bulk_data_goes_by_read_and_write_chunks(version: int, size: int) -> None:
    async def test(client: Client) -> None:
        data = pattern(size)
        assert await client.echo(b"12") == [b"12"]
        assert await client.echo(data) == [data]
        assert client.last.placed == [size]
        assert client.exposed == 0
        assert client.requester.counters.invalidated == client.rig.provider.can_be_invalidated

    run(test, version=version)


def test_the_first_call_of_all_may_be_a_large_one() -> None:
    async def test(client: Client) -> None:
        data = pattern(300_000)
        assert await client.echo(data) == [data]
        assert client.connection.rdma_version == 2

    run(test)
