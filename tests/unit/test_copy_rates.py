"""COPY and CLONE by clients with a rate: what is copied within the server is charged like what is read and written."""

import asyncio
import os

import pytest

from nfsd.protocol import nfs4 as p
from nfsd.vfs import copying
from rpcrdma.pace import pretend
from rpcrdma.paces import Bound
from tests.unit.test_pace import Clock
from tests.unit.test_v42_offload import PIECE, SIZE, Pieces, offload, until
from tests.unit.test_v42_offload import place as place  # a fixture
from tests.unit.v42_support import ANONYMOUS, content, handle_of, two_files, with_clients

RATE = 2 * PIECE
"""A piece, read and written, in a second."""


@pytest.fixture
def clock():
    found = Clock()
    yield found
    pretend(0)


async def settle():
    for _ in range(200):
        await asyncio.sleep(0.0005)


def limited(server, clock, rate=RATE):
    """The client's pace: it has a rate, and nothing saved up."""
    server.service.exports.prices.paces._schedule = clock.schedule
    server.service.exports.set_client_rate(Bound(octets=rate))
    return server.service.exports.prices.paces


@pytest.mark.parametrize("operation", ["copy", "clone"])
def test_what_is_copied_before_the_reply_is_charged(place, tmp_path, monkeypatch, clock, operation):
    async def cloned(*_):
        """On a file system that can."""

    monkeypatch.setattr(copying.Copying, "clone_range", cloned)

    async def test(server, client):
        paces = limited(server, clock)
        if operation == "copy":
            _, made = await offload(client, synchronous=True)
            assert made.cr_response.wr_count == SIZE
        else:
            files = two_files(await handle_of(client, "source"), await handle_of(client, "target"))
            await client.run(*files, (p.OP_CLONE, p.CLONE4args(ANONYMOUS, ANONYMOUS, 0, 0, SIZE)))
        pace = paces.known("127.0.0.1")
        assert 2 * SIZE / RATE - 1 < pace.owed <= 2 * SIZE / RATE
        [amount] = server.service.exports.usage.by_export().values()
        assert (amount.read, amount.written) == (SIZE, SIZE)

    with_clients(place, tmp_path, test)


def test_a_copy_that_goes_on_behind_the_reply_keeps_to_the_rate(place, tmp_path, monkeypatch, clock):
    async def test(server, client):
        pieces = Pieces(monkeypatch, go=1000)
        paces = limited(server, clock)
        stateid, _ = await offload(client)
        assert stateid is not None
        await until(lambda: pieces.begun >= 1)
        await settle()
        assert pieces.begun == 1
        assert paces.known("127.0.0.1").held, "it is in a row with the client's connections"
        for number in range(2, 6):
            clock.pass_by(1.01)
            await until(lambda number=number: pieces.begun == number)
            await settle()
            assert pieces.begun == number
        server.service.exports.set_client_rate(Bound())
        clock.pass_by(0.01)
        await until(lambda: server.nfs4.copies.counters.completed == 1)
        assert content(f"{place}/target") == content(f"{place}/source")
        assert os.stat(f"{place}/target").st_size == SIZE

    with_clients(place, tmp_path, test, backchannel=True)


def test_a_copy_that_waits_for_its_rate_can_be_cancelled(place, tmp_path, monkeypatch, clock):
    async def test(server, client):
        pieces = Pieces(monkeypatch, go=1000)
        paces = limited(server, clock)
        stateid, _ = await offload(client)
        await until(lambda: paces.known("127.0.0.1") is not None and paces.known("127.0.0.1").held)
        await client.on(await handle_of(client, "target"), (p.OP_OFFLOAD_CANCEL, p.OFFLOAD_CANCEL4args(stateid)))
        assert not paces.known("127.0.0.1").held
        assert server.nfs4.copies.counters.cancelled == 1
        assert pieces.begun == 1

    with_clients(place, tmp_path, test, backchannel=True)
