"""If an export's directory is not there, the log says so, the others are served, and it is served once it is there."""

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
from weakref import WeakKeyDictionary

import pytest
import uvloop

from nfsd.admin.shapes import SHAPES
from nfsd.config_file import load
from nfsd.daemon import Daemon, StartError
from nfsd.protocol import nfs4 as p
from nfsd.protocol.mount3 import mountstat3
from nfsd.protocol.nfs3 import nfsstat3
from nfsd.usage_metrics import UsageCollector
from rpcrdma.rpc.rpcbind import Rpcbind
from tests.nfs3_client import Nfs3Failure
from tests.support.nfs4 import Failed
from tests.unit.test_any_directory import needs_bindfs
from tests.unit.test_reload import GRACE, ONE, Rig
from tests.unit.test_vfs_mounts import mounted

clients4: WeakKeyDictionary = WeakKeyDictionary()
ABSENT = "path: absent, pseudo: /absent, squash: none"


@pytest.fixture
def rig(tmp_path):
    return Rig(tmp_path)


def running(rig, test, *exports, **options):
    """Run ``test`` with a daemon that serves these exports."""

    async def main():
        rig.write(*exports, server=GRACE)
        rig.daemon = Daemon(load(str(rig.file)), Rpcbind((), None), **options)
        await rig.daemon.start()
        try:
            async with asyncio.timeout(60):
                return await test()
        finally:
            await rig.daemon.stop()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())


async def is_not_there(rig, path="/absent"):
    """What clients are told."""
    with pytest.raises(Nfs3Failure) as refused:
        await rig.handle(path)
    assert refused.value.status == mountstat3.MNT3ERR_NOENT
    client = clients4.get(rig) or clients4.setdefault(rig, await rig.client4())
    with pytest.raises(Failed) as failed:
        await client.run(*client.path(path.strip("/")), p.OP_GETFH)
    assert failed.value.status == p.NFS4ERR_NOENT


def served(rig):
    """The metric."""
    daemon = rig.daemon
    collector = UsageCollector(daemon.dispatchers, daemon.exports, daemon._nfs4, daemon._nfs3)
    (found,) = (one for one in collector.collect() if one.name == "rdma_nfsd_export_served")
    return {sample.labels["export"]: sample.value for sample in found.samples}


def test_the_others_are_served_and_it_is_told_of(rig, caplog):
    (rig.base / "plain").write_text("a file")

    async def test():
        async with await rig.client() as client:
            await client.create(await rig.handle("/one"), b"made")
        await is_not_there(rig)
        await is_not_there(rig, "/plain")
        assert served(rig) == {"/one": 1, "/absent": 0, "/plain": 0}
        rows = {row["export"]: row["absent"] for row in await rig.daemon._inspector.exports()}
        assert rows["/one"] == ""
        assert "does not exist; create it (mkdir -p)" in rows["/absent"]
        lines = SHAPES["exports"]({"rows": await rig.daemon._inspector.exports()})
        assert any(line.startswith("/absent is not served: ") for line in lines)

    with caplog.at_level(logging.ERROR, "nfsd.reloader"):
        running(rig, test, ONE, ABSENT, "path: plain, pseudo: /plain")
    said = [record.getMessage() for record in caplog.records if record.name == "nfsd.reloader"]
    assert len(said) == 2, "once each"
    assert said[0].startswith(f"{rig.file}:7: /absent is not served: {rig.base}/absent does not exist; create it")
    assert said[1].startswith(f"{rig.file}:8: /plain is not served: {rig.base}/plain is not a directory; only")


def test_it_is_served_as_soon_as_it_is_there(rig, monkeypatch, caplog):
    monkeypatch.setattr("nfsd.reloader.LOOK_AGAIN", 0.05)

    async def test():
        await is_not_there(rig)
        (rig.base / "absent").mkdir(mode=0o777)
        while served(rig) != {"/one": 1, "/absent": 1}:  # noqa: ASYNC110 (the server has no event for it)
            await asyncio.sleep(0.01)
        async with await rig.client() as client:
            await client.create(await rig.handle("/absent"), b"made")
        assert (rig.base / "absent" / "made").exists()

    with caplog.at_level(logging.INFO, "nfsd.reloader"):
        running(rig, test, ONE, ABSENT)
    assert "/absent is served now" in caplog.text


def test_its_handles_are_stale_for_as_long_and_good_again(rig):
    (rig.base / "absent").mkdir(mode=0o777)

    async def handle():
        async with await rig.client() as client:
            root = await rig.handle("/absent")
            return root, await client.create(root, b"file")

    async def stale():
        async with await rig.client() as client:
            for one in handles:
                with pytest.raises(Nfs3Failure) as refused:
                    await client.getattr(one)
                assert refused.value.status == nfsstat3.NFS3ERR_STALE
            (rig.base / "elsewhere").rename(rig.base / "absent")
            await rig.daemon._reloader.find_absent()
            for one in handles:
                await client.getattr(one)

    handles = running(rig, handle, ONE, ABSENT)
    (rig.base / "absent").rename(rig.base / "elsewhere")
    running(rig, stale, ONE, ABSENT)


def test_a_reload_takes_up_what_can_be_served(rig, caplog):
    async def test():
        assert await rig.reload(ONE, ABSENT, "path: two, pseudo: /two", server=GRACE)
        assert served(rig) == {"/one": 1, "/absent": 0, "/two": 1}
        assert f"{rig.file}:7: /absent is not served" in caplog.text
        (rig.base / "two").rename(rig.base / "absent")
        assert await rig.reload(ONE, ABSENT, "path: two, pseudo: /two", server=GRACE)
        assert served(rig) == {"/one": 1, "/absent": 1, "/two": 0}
        await rig.daemon._reloader.withdraw(rig.daemon.exports.by_id[rig.daemon.exports.exports[0].id])
        assert set(served(rig)) == {"/absent", "/two"}, "what was drained does not come back, and nothing is forgotten"
        await rig.daemon._reloader.find_absent()
        assert set(served(rig)) == {"/absent", "/two"}

    running(rig, test, ONE)


def test_strict_starts_only_with_everything(rig):
    async def test():
        raise AssertionError

    with pytest.raises(StartError, match=r"exports.yaml:7: .*/absent does not exist; create it"):
        running(rig, test, ONE, ABSENT, strict=True)


@pytest.mark.parametrize("where", ["true", "disk"])
def test_only_what_is_mounted(rig, where):
    """The directory below the mount is never shown in its place."""
    (rig.base / "disk").mkdir()
    (rig.base / "disk" / "below").write_text("what nobody is to see")
    export = f"path: disk, pseudo: /disk, squash: none, mountpoint: {where}"

    async def test():
        await is_not_there(rig, "/disk")
        with mounted(str(rig.base / "disk"), "-t", "tmpfs", "-o", "mode=777", "none"):
            await rig.daemon._reloader.find_absent()
            async with await rig.client() as client:
                root = await rig.handle("/disk")
                await client.create(root, b"made")
                assert (rig.base / "disk" / "made").exists()
                with pytest.raises(Nfs3Failure):
                    await client.lookup(root, b"below")
        assert await rig.reload(ONE, export, server=GRACE)
        await is_not_there(rig, "/disk")
        (absent,) = rig.daemon.service.absent.values()
        assert (absent.why, absent.remedy) == (
            f"nothing is mounted at {rig.base}/disk",
            "mount it, or leave out mountpoint",
        )

    running(rig, test, ONE, export)


def test_a_refused_mount_names_the_line_and_the_reason(rig, caplog):
    """It said "there is no such directory" of a path that stands in the file."""

    async def test():
        await is_not_there(rig)

    with caplog.at_level(logging.WARNING, "nfsd.events"):
        running(rig, test, ONE, ABSENT)
    (said,) = [line for line in caplog.messages if "is refused /absent" in line and "NFSv3" in line]
    assert f"it is exported ({rig.file}:7) and not served: {rig.base}/absent does not exist; create it" in said


def test_a_refused_mount_of_the_only_export_does_too(rig, caplog):
    async def test():
        with pytest.raises(Nfs3Failure):
            await rig.handle("/absent")

    with caplog.at_level(logging.WARNING, "nfsd.events"):
        running(rig, test, ABSENT)
    (said,) = [line for line in caplog.messages if "is refused /absent" in line]
    assert f"({rig.file}:6) and not served" in said


@contextlib.contextmanager
def in_a_process(base):
    """A file system in a process, which is given: stopped, it does not answer."""
    (base / "lower").mkdir()
    (base / "lower").chmod(0o777)
    (base / "hung").mkdir()
    server = subprocess.Popen(["bindfs", "-f", str(base / "lower"), str(base / "hung")])
    try:
        while not os.path.ismount(base / "hung"):
            assert server.poll() is None
        yield server
    finally:
        server.kill()  # which ends whoever waits for it, too
        server.wait()
        subprocess.run(["umount", "--lazy", str(base / "hung")], check=True)


@needs_bindfs
def test_what_hangs_does_not_hold_up_the_others(rig, monkeypatch, caplog):
    """Whoever looks at a dead NFS or FUSE mount waits for ever: the server did not start, and nothing was said."""
    monkeypatch.setattr("nfsd.reach.PATIENCE", 1.0)

    async def test():
        assert served(rig) == {"/one": 1, "/hung": 0}
        async with await rig.client() as client:
            await client.create(await rig.handle("/one"), b"made")
        await is_not_there(rig, "/hung")
        # A reload is not held up either, nor are looks in between.
        assert await rig.reload(ONE, "path: hung, pseudo: /hung, squash: none", server=GRACE)
        await rig.daemon._reloader.find_absent()
        assert served(rig) == {"/one": 1, "/hung": 0}
        server.send_signal(signal.SIGCONT)
        while served(rig) != {"/one": 1, "/hung": 1}:
            await rig.daemon._reloader.find_absent()
            await asyncio.sleep(0.05)
        async with await rig.client() as client:
            await client.create(await rig.handle("/hung"), b"made")

    with in_a_process(rig.base) as server, caplog.at_level(logging.ERROR, "nfsd.reloader"):
        server.send_signal(signal.SIGSTOP)
        running(rig, test, ONE, "path: hung, pseudo: /hung, squash: none")
    assert f"/hung is not served: {rig.base}/hung does not answer; its server, or the process" in caplog.text


@needs_bindfs
def test_what_is_served_stays_served_while_it_hangs(rig, monkeypatch):
    """Its clients wait, as they do for any disk: their handles are not stale."""
    monkeypatch.setattr("nfsd.reach.PATIENCE", 1.0)
    export = "path: hung, pseudo: /hung, squash: none"

    async def test():
        async with await rig.client() as client:
            made = await client.create(await rig.handle("/hung"), b"made")
            server.send_signal(signal.SIGSTOP)
            try:
                assert await rig.reload(ONE, export, server=GRACE)
                assert served(rig) == {"/one": 1, "/hung": 1}
            finally:
                server.send_signal(signal.SIGCONT)
            await client.getattr(made)

    with in_a_process(rig.base) as server:
        running(rig, test, ONE, export)
