"""A running server with several stores: what one has lost changes its own write verifier, and no other one's."""

import itertools

import pytest

from nfsd.protocol import nfs4 as p
from nfsd.protocol.nfs3 import stable_how
from tests.nfs3_client import Nfs3Failure
from tests.support.nfs4 import Failed, mode
from tests.support.served import run
from tests.unit.backend_plugins import Losing

LOSING, MEMORY, DIRECTORY, AGAIN = PLACES = ("/losing", "/memory", "/directory", "/again")
_names = itertools.count()
EXPORTS = """\
  - backend: python
    module: "tests.unit.backend_plugins:Losing"
    pseudo: /losing
    squash: none
    options: {size: 1048576}
  - {backend: memory, pseudo: /memory, squash: none}
  - {path: directory, pseudo: /directory, squash: none}
  - {path: directory/again, pseudo: /again, squash: none}
"""


class Version3:
    """Files of a client of NFSv3."""

    async def connect(self, served):
        self.client, self.files = await served.nfs3(), {}
        for place in PLACES:
            self.files[place] = await self.client.create(await served.mount(place), b"f%d" % next(_names))
        return self

    async def write(self, place):
        return (await self.client.write(self.files[place], 0, b"x", stable_how.UNSTABLE)).verf

    async def commit(self, place):
        try:
            return (await self.client.commit(self.files[place])).verf
        except Nfs3Failure as failure:
            return failure.status.name.removeprefix("NFS3ERR_")


class Version4:
    """Files of a client of NFSv4."""

    def __init__(self, minor):
        self.minor = minor

    async def connect(self, served):
        self.client, self.files = await served.nfs4(self.minor), {}
        for place in PLACES:
            self.files[place] = await self.client.open(place, b"f%d" % next(_names), create=mode(0o644))
        return self

    async def write(self, place):
        stateid, handle = self.files[place]
        args = p.WRITE4args(stateid, 0, p.stable_how4.UNSTABLE4, b"x")
        [written] = await self.client.on(handle, (p.OP_WRITE, args))
        return written.resok4.writeverf

    async def commit(self, place):
        try:
            [committed] = await self.client.on(self.files[place][1], (p.OP_COMMIT, p.COMMIT4args(0, 0)))
        except Failed as failed:
            return p.nfsstat4(failed.status).name.removeprefix("NFS4ERR_")
        return committed.resok4.writeverf


@pytest.fixture(params=[3, 0, 1, 2], ids=["v3", "v4.0", "v4.1", "v4.2"])
def peer(request):
    return Version3() if request.param == 3 else Version4(request.param)


def with_peer(tmp_path, peer, test):
    (tmp_path / "directory" / "again").mkdir(parents=True)

    async def connected(served):
        await test(served, await peer.connect(served))

    run(tmp_path, EXPORTS, connected)


def test_an_error_in_one_store_leaves_the_others_their_verifiers(tmp_path, peer, monkeypatch):
    async def test(served, client):
        told = {place: await client.write(place) for place in PLACES}
        monkeypatch.setattr(Losing, "lost", True)
        assert await client.commit(LOSING) == "IO"
        monkeypatch.undo()
        later = {place: await client.commit(place) for place in PLACES}
        assert later[LOSING] != told[LOSING]
        del later[LOSING], told[LOSING]
        assert later == told
        assert len(set(later.values())) == 2  # two exports are of the same file system

    with_peer(tmp_path, peer, test)


def test_a_store_that_is_made_again_leaves_the_others_their_verifiers(tmp_path, peer):
    async def test(served, client):
        told = {place: await client.write(place) for place in PLACES}
        await served.reload("size: 1048576", "size: 2097152")
        later = {place: await client.commit(place) for place in PLACES[1:]}
        assert later == {place: told[place] for place in PLACES[1:]}
        await client.connect(served)
        assert await client.write(LOSING) != told[LOSING]

    with_peer(tmp_path, peer, test)
