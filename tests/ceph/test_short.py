"""The short run over Ceph, part of every test run where a cluster can be had; make test-ceph has the rest."""

import asyncio
import os

import pytest

from nfsd.backend_suite.scenarios import SCENARIOS, WRITING, Trial
from nfsd.backend_suite.trying import WAYS
from tests.support.stable_storage import SCENARIOS as RECORDS
from tests.support.stable_storage import a_failed_commit_fails_the_flush_and_is_tried_again as FAILING
from tests.unit.test_backends_served import run

pytestmark = pytest.mark.timeout(900)


@pytest.mark.parametrize("way", WAYS, ids="-".join)
def test_the_suite(tmp_path, place, way):
    async def test(server):
        async with server.connect(way) as fs:
            for scenario in WRITING:
                name = scenario.__name__
                await fs.mkdir(name)
                await scenario(Trial(fs, name))
            for scenario in SCENARIOS:
                await scenario(Trial(fs, "data_is_read_as_it_was_written"))

    run(tmp_path, place.entry(), test, patience=600)


def test_what_is_written_is_in_the_cluster(tmp_path, place):
    data = os.urandom(9 << 20)  # more than two of the objects that Ceph makes of it

    async def test(server):
        async with server.connect(("rdma", "4.1")) as fs:
            await fs.write_bytes("f", data)

    run(tmp_path, place.entry(), test, patience=600)
    with place.client() as (client, root):
        key, _ = client.lookup(None, root, b"f")
        sink = bytearray(len(data) + 1)
        assert client.read(client.open(None, key, 1), 0, memoryview(sink))[0] == len(data)
        assert sink[:-1] == data


@pytest.mark.parametrize("scenario", [one for one in RECORDS if one is not FAILING], ids=lambda one: one.__name__)
def test_stable_storage_in_a_pool(rados, scenario):
    asyncio.run(scenario(rados))
