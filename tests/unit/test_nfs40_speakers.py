"""For whom a connection of NFSv4.0 speaks is asked once, until it may be otherwise."""

from nfsd.protocol import nfs4 as p
from nfsd.state.types import Gone
from tests.support.nfs4 import Client4
from tests.support.nfs4_native import handle_of
from tests.unit.test_nfs4_native import on, putfh
from tests.unit.test_nfs4_native_opens import opening


async def opened(both, root, owner):
    """The outcome of an OPEN by an owner that has opened nothing yet."""
    reply = await both.native.call(None, both.message(0, putfh(root), opening(both, b"a", owner=owner, seqid=1)))
    return Client4.parse(reply)[0]


async def prepared(both):
    (both.path / "a").write_bytes(b"content")
    return await handle_of(both)


def test_the_exports_are_asked_again_when_they_have_changed(tmp_path):
    async def scenario(both):
        root = await prepared(both)
        exports, asked = both.server.nfs4.exports, []
        speaker = exports.speaker

        def noting(transport):
            asked.append(transport)
            return speaker(transport)

        exports.speaker = noting
        assert await opened(both, root, b"one") == p.NFS4_OK
        before = len(asked)
        assert await opened(both, root, b"two") == p.NFS4_OK
        assert len(asked) == before
        exports.speaker = lambda transport: speaker(transport) + "!"  # a user of the host, from now on
        exports.edition.number += 1
        assert await opened(both, root, b"three") == p.NFS4ERR_STALE_CLIENTID

    on("memory", tmp_path, 0, scenario)


def test_a_client_that_has_gone_is_told_so_on_its_own_connection(tmp_path):
    async def scenario(both):
        root = await prepared(both)
        assert await opened(both, root, b"one") == p.NFS4_OK
        engine = both.server.engine
        engine.expire_client(engine.clients.lookup(both.client.clientid), Gone.WANTED)
        assert await opened(both, root, b"two") == p.NFS4ERR_EXPIRED

    on("memory", tmp_path, 0, scenario)
