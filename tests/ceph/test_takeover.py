"""``rdma-nfsd takeover`` of a server whose host hangs: the other host goes on at once, and what the first one still
does when it wakes up comes to nothing."""

import asyncio
import os
import struct
import subprocess
import sys

import pytest

from nfsd.protocol import nfs4 as p
from tests.ceph.conftest import Place
from tests.ceph.gateways import HOST, PLACE, Gateway
from tests.support.nfs4 import Client4, mode
from tests.support.over_tcp import OverTcp, connect
from tests.unit.test_v4_locks import locking

pytestmark = [pytest.mark.ceph, pytest.mark.timeout(600)]

NAME = b"f"


def _takeover(gateway, *more):
    """Status, and what was said."""
    words = ["takeover", gateway.name, "--config", str(gateway.file), *more]
    command = [sys.executable, "-m", "nfsd.cli", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def hosts(cluster, rados, tmp_path):
    """Two hosts of one server, which is started on neither."""
    pool = {"config": rados.pool.config, "pool": rados.pool.pool, "namespace": rados.pool.namespace}
    settings = {"stable_storage": {"rados": pool}, "nfs4": {"lease_time": 30, "grace_time": 30}}
    options, made = Place(cluster).options, []
    for host in ("one", "two"):
        (tmp_path / host).mkdir()
        made.append(Gateway(tmp_path / host, options, f"moved-{os.getpid()}", settings))
    yield made
    for gateway in made:
        gateway.kill()


async def _client(gateway):
    """One, or the same at another host."""
    client = Client4(OverTcp(HOST, gateway.port), 1, name=b"the client")
    return await client.connect(b"the same", reclaim_complete=False)


def _writing(stateid, data):
    return p.OP_WRITE, p.WRITE4args(stateid, 0, p.stable_how4.FILE_SYNC4, data)


async def _reclaim(client, handle):
    """The open of the file, and the lock on its beginning: the stateid."""
    args = client.open_args(b"")
    none = p.open_delegation_type4.OPEN_DELEGATE_NONE
    args.claim = p.open_claim4(p.open_claim_type4.CLAIM_PREVIOUS, delegate_type=none)
    [opened] = await client.on(handle, (p.OP_OPEN, args))
    _, lock = locking(client, opened.resok4.stateid, 0, 8)
    lock.reclaim = True
    [locked] = await client.on(handle, (p.OP_LOCK, lock))
    return locked.resok4.lock_stateid


def test_a_server_moves_from_a_host_that_hangs(cluster, hosts):
    one, two = hosts

    def blocked():
        return set(cluster.command("osd", "blocklist", "ls").splitlines())

    async def test():
        assert _takeover(one)[0] == 0
        one.start()
        await one.ready()
        status, said = _takeover(one)
        assert (status, said) == (0, f"{one.name}: runs on this host already\n")
        ours = await _client(one)
        await ours.run((p.OP_RECLAIM_COMPLETE, p.RECLAIM_COMPLETE4args(False)))
        stateid, handle = await ours.open(PLACE, NAME, create=mode(0o666))
        [locked] = await ours.on(handle, locking(ours, stateid, 0, 8))
        await ours.on(handle, _writing(stateid, b"kept"))
        one.freeze()
        # A write that the frozen server has, and carries out when it wakes up.
        there = p.OP_PUTFH, p.PUTFH4args(handle)
        late = ours.message(*ours.in_session(there, _writing(locked.resok4.lock_stateid, b"late")))
        _, writer = await connect(HOST, one.port)
        writer.write(struct.pack(">I", 1 << 31 | len(late)) + late)
        await writer.drain()

        status, said = await asyncio.to_thread(_takeover, two)
        assert status == 3
        assert "is in use by the server on" in said
        assert "--fence" in said
        status, said = await asyncio.to_thread(_takeover, two, "--fence")
        assert status == 0, said
        assert f"{one.name}: may start here; it was taken from" in said
        before = blocked()
        two.start()
        await two.ready()
        assert blocked() - before, "CephFS takes what the frozen server still has in memory"
        ours = await _client(two)
        stateid = await _reclaim(ours, handle)
        await ours.run((p.OP_RECLAIM_COMPLETE, p.RECLAIM_COMPLETE4args(False)))
        await ours.on(handle, _writing(stateid, b"next"))

        one.wake()
        assert await one.ended() == 70
        assert "this server ends at once" in one.log
        writer.close()
        [read] = await ours.on(handle, (p.OP_READ, p.READ4args(stateid, 0, 99)))
        assert read.resok4.data == b"next"
        # In order, it moves back without a word.
        assert await two.stop() == 0
        status, said = await asyncio.to_thread(_takeover, one)
        assert (status, said) == (0, f"{one.name}: may start here; nobody else has it\n")

    asyncio.run(asyncio.wait_for(test(), 500))


def test_what_is_kept_for_one_host_no_other_gets(hosts):
    one, two = hosts
    assert _takeover(one) == (0, f"{one.name}: may start here, for the first time\n")
    assert _takeover(two)[0] == 3
    status, said = _takeover(two, "--fence")
    assert status == 0, said
    assert _takeover(one)[0] == 3
