"""A configuration changed while clients are served: what they see of it, and what a wrong file does (nothing)."""

import asyncio
import logging
import os
from pathlib import Path
from typing import Any

import pytest
import uvloop

from nfsd.config_file import load
from nfsd.daemon import Daemon
from nfsd.protocol import nfs4 as p
from nfsd.protocol.nfs3 import nfsstat3, stable_how
from rpcrdma.rpc.rpcbind import Rpcbind
from tests.nfs3_client import Nfs3Client, Nfs3Failure, RpcFailure
from tests.support.nfs4 import Client4, Failed, Server4, mode, values, wanted
from tests.support.nfs4_native import Wire
from tests.unit.test_daemon import client_of, port_of
from tests.unit.test_vfs_mounts import command, unmounted


class Rig:
    """A daemon over directories ``one``, ``two``…, whose file is written anew at will."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.file = base / "exports.yaml"
        for name in ("one", "two"):
            (base / name).mkdir()
            (base / name).chmod(0o777)
        self.daemon: Daemon

    def write(self, *exports: str, server: str = "") -> None:
        """``exports``: flow mappings without their braces."""
        lines = "".join(f"  - {{{export}}}\n" for export in exports)
        self.file.write_text(f"server:\n  listen: [tcp://127.0.0.1:0]\n  mountd_port: 0\n{server}exports:\n{lines}")

    async def reload(self, *exports: str, server: str = "") -> bool:
        self.write(*exports, server=server)
        return await self.daemon.reload()

    async def handle(self, path: str) -> Any:
        async with await client_of(self.daemon, "mountd") as mountd:
            return await mountd.mount(path)

    async def client(self) -> Nfs3Client:
        return await client_of(self.daemon, uid=0, gid=0)

    async def client4(self) -> Client4:
        dispatcher = self.daemon.dispatchers["nfs"]

        class InTheDaemon(Server4):
            def __init__(self) -> None:
                self.dispatcher = dispatcher

        return await Client4(InTheDaemon(), 1).connect()


ONE, TWO = "path: one, pseudo: /one, squash: none", "path: two, pseudo: /deep/two, squash: none"


@pytest.fixture
def reloading(tmp_path):
    rig = Rig(tmp_path)

    def run(test, *exports, server=""):
        async def main():
            rig.write(*exports or (ONE,), server=server or "  nfs4: {grace_time: 0}\n")
            rig.daemon = Daemon(load(str(rig.file)), Rpcbind((), None))
            await rig.daemon.start()
            try:
                async with asyncio.timeout(60):
                    await test(rig)
            finally:
                await rig.daemon.stop()

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main())

    return run


GRACE = "  nfs4: {grace_time: 0}\n"


async def root_listing(client: Client4) -> tuple[int, list[bytes]]:
    """CHANGE of the pseudo root, and the names in it."""
    request = p.READDIR4args(0, bytes(8), 1000, 8192, [])
    _, read, got = await client.run(p.OP_PUTROOTFH, (p.OP_READDIR, request), (p.OP_GETATTR, wanted(p.FATTR4_CHANGE)))
    return values(got.resok4.obj_attributes).uint64(), [entry.name for entry in read.resok4.reply.entries]


def test_an_export_is_added_and_found_by_every_version(reloading):
    async def test(rig):
        (rig.base / "two" / "file").write_bytes(b"content")
        client4 = await rig.client4()
        before, names = await root_listing(client4)
        assert names == [b"one"]
        assert await rig.reload(ONE, TWO, server=GRACE)
        after, names = await root_listing(client4)
        assert names == [b"deep", b"one"]
        assert after > before, "clients that cache the directory are told"
        async with await rig.client() as client:
            file = await client.lookup(await rig.handle("/deep/two"), b"file")
            assert (await client.read(file, 0, 10)).data == b"content"
        *_, handle = await client4.run(*client4.path("deep/two/file"), p.OP_GETFH)
        assert handle.resok4.object

    reloading(test)


def test_the_root_of_an_added_export_is_told_of_natively_too(reloading):
    async def test(rig):
        port = port_of(rig.daemon)
        wire = Wire(*await asyncio.open_connection("127.0.0.1", port))
        client = await Client4(wire, 1).connect()
        assert await rig.reload(ONE, TWO, server=GRACE)
        *_, named = await client.run(*client.path("deep/two"), p.OP_GETFH)
        root, row = named.resok4.object, rig.daemon.dispatchers["nfs"].rows[100003, 4, 1]
        before, asked = row.native_calls, (p.OP_GETATTR, wanted(p.FATTR4_MOUNTED_ON_FILEID))
        seen = [values((await client.on(root, asked))[0].resok4.obj_attributes).uint64() for _ in range(3)]
        assert row.native_calls > before
        [place] = (
            await client.run(
                *client.path("deep"), (p.OP_READDIR, p.READDIR4args(0, bytes(8), 1000, 8192, asked[1].attr_request))
            )
        )[-1].resok4.reply.entries
        assert seen == [values(place.attrs).uint64()] * 3
        wire.writer.close()

    reloading(test)


def test_settings_change_for_handles_in_use(reloading):
    async def test(rig):
        (rig.base / "one" / "file").write_bytes(b"content")
        root = await rig.handle("/one")
        async with await rig.client() as client:
            file = await client.lookup(root, b"file")
            await client.write(file, 0, b"CON", stable_how.UNSTABLE)
            assert await rig.reload(ONE + ", access: ro", server=GRACE)
            with pytest.raises(Nfs3Failure) as failure:
                await client.write(file, 0, b"con", stable_how.UNSTABLE)
            assert failure.value.status == nfsstat3.NFS3ERR_ROFS
            assert (await client.read(file, 0, 10)).data == b"CONtent"
            # Nobody of this network any more.
            assert await rig.reload(ONE + ", clients: [192.0.2.1]", server=GRACE)
            with pytest.raises(RpcFailure, match="AUTH_BADCRED"):
                await client.read(file, 0, 10)
            assert await rig.reload(ONE.replace("none", "all") + ", clients: [127.0.0.0/8]", server=GRACE)
            await client.create(root, b"squashed")
            assert os.stat(rig.base / "one" / "squashed").st_uid == 65534

    reloading(test)


def test_what_is_exported_no_more_is_stale_and_can_be_unmounted(reloading, tmp_path):
    async def test(rig):
        two = rig.base / "two"
        assert command("mount", "-t", "tmpfs", "-o", "size=4m,mode=777", "none", str(two))
        try:
            (two / "file").write_bytes(b"content")
            assert await rig.reload(ONE, TWO, server=GRACE)
            client4 = await rig.client4()
            stateid, handle = await client4.open("deep/two", b"file", access=3)
            kept, at = await client4.open("one", b"kept", access=3, create=mode(0o644))
            async with await rig.client() as client:
                root = await rig.handle("/deep/two")
                file = await client.lookup(root, b"file")
                assert (await client.read(file, 0, 7)).data == b"content"
                assert await rig.reload(ONE, server=GRACE)
                for _ in range(2):
                    with pytest.raises(Nfs3Failure) as failure:
                        await client.read(file, 0, 7)
                    assert failure.value.status == nfsstat3.NFS3ERR_STALE
                with pytest.raises(Failed) as stale:
                    await client4.run((p.OP_PUTFH, p.PUTFH4args(handle)))
                assert stale.value.status == p.NFS4ERR_STALE
                # The client learns of its loss, and nothing else is lost (RFC 8881 section 8.5).
                [tested] = await client4.run((p.OP_TEST_STATEID, p.TEST_STATEID4args([stateid, kept])))
                assert tested.tsr_resok4.tsr_status_codes == [p.NFS4ERR_ADMIN_REVOKED, p.NFS4_OK]
                write = p.WRITE4args(kept, 0, p.stable_how4.UNSTABLE4, b"still there")
                await client4.on(at, (p.OP_WRITE, write))
                for _ in range(5):
                    rig.daemon.service.sweep()
                assert await unmounted(two), "no descriptor of it is left, whoever is connected"
        except BaseException:
            command("umount", "-l", str(two))
            raise

    reloading(test)


def test_an_export_taken_back_has_the_same_handles(reloading):
    async def test(rig):
        root = await rig.handle("/deep/two")
        async with await rig.client() as client:
            file = await client.create(root, b"file")
            assert await rig.reload(ONE, server=GRACE)
            with pytest.raises(Nfs3Failure):
                await client.getattr(file)
            assert await rig.reload(TWO, ONE, server=GRACE)
            await client.getattr(file)
            assert await rig.handle("/deep/two") == root

    reloading(test, ONE, TWO)


def test_a_file_system_mounted_on_an_exported_directory_is_found(reloading):
    async def test(rig):
        one = rig.base / "one"
        (one / "below").write_bytes(b"")
        before = await rig.handle("/one")
        assert command("mount", "-t", "tmpfs", "-o", "size=4m", "none", str(one))
        try:
            (one / "above").write_bytes(b"")
            assert await rig.handle("/one") == before, "until it is told of"
            assert await rig.reload(ONE, server=GRACE)
            root = await rig.handle("/one")
            async with await rig.client() as client:
                names = {bytes(entry.name) for entry in await client.listing(root)}
                assert names == {b".", b"..", b"above"}
        finally:
            command("umount", "-l", str(one))

    reloading(test)


@pytest.mark.parametrize("kind", ["tmpfs", "bind"])
def test_mounts_inside_are_not_entered_unless_asked_for(reloading, kind):
    """Neither by name, nor by a handle from when they could be, nor by MNT; what lies beside them is served."""

    async def test(rig):
        inner, outside = rig.base / "one" / "inner", rig.base / "outside"
        inner.mkdir()
        outside.mkdir()
        how = ("-t", "tmpfs", "-o", "size=4m,mode=777", "none") if kind == "tmpfs" else ("--bind", str(outside))
        assert command("mount", *how, str(inner))
        try:
            (inner / "secret").write_bytes(b"secret")
            four, root = await rig.client4(), await rig.handle("/one")
            async with await rig.client() as client:
                for _ in range(2):
                    with pytest.raises(Nfs3Failure) as failure:
                        await client.lookup(root, b"inner")
                    assert failure.value.status == nfsstat3.NFS3ERR_ACCES
                    assert await four.status(*four.path("/one/inner")) == p.NFS4ERR_ACCESS
                    [entry] = [entry for entry in await client.listing(root) if entry.name == b"inner"]
                    assert entry.name_handle is None
                with pytest.raises(Nfs3Failure):
                    await rig.handle("/one/inner")
                assert await rig.reload(ONE + ", cross_mounts: true", server=GRACE)
                inside = await client.lookup(root, b"inner")
                secret = await client.lookup(inside, b"secret")
                assert (await client.read(secret, 0, 10)).data == b"secret"
                assert await rig.reload(ONE, server=GRACE)
                for handle in (inside, secret):
                    with pytest.raises(Nfs3Failure) as failure:
                        await client.getattr(handle)
                    assert failure.value.status == nfsstat3.NFS3ERR_STALE
                    assert await four.status((p.OP_PUTFH, p.PUTFH4args(handle.data))) == p.NFS4ERR_STALE
                await client.create(root, b"beside")
        finally:
            command("umount", "-l", str(inner))

    reloading(test)


def test_mounts_inside_are_left_when_they_may_no_more_be_crossed(reloading):
    async def test(rig):
        inner = rig.base / "one" / "inner"
        inner.mkdir()
        assert command("mount", "-t", "tmpfs", "-o", "size=4m,mode=777", "none", str(inner))
        try:
            assert await rig.reload(ONE + ", cross_mounts: true", server=GRACE)
            root = await rig.handle("/one")
            async with await rig.client() as client:
                inside = await client.lookup(root, b"inner")
                file = await client.create(inside, b"file")
                assert await rig.reload(ONE, server=GRACE)
                with pytest.raises(Nfs3Failure) as failure:
                    await client.getattr(file)
                assert failure.value.status == nfsstat3.NFS3ERR_STALE
                await client.getattr(root)
        finally:
            command("umount", "-l", str(inner))

    reloading(test)


def test_a_wrong_file_changes_nothing_and_the_log_says_where(reloading, caplog):
    async def test(rig):
        root = await rig.handle("/one")
        rig.write(ONE, "path: two, pseudo: /two, acess: ro")
        assert not await rig.daemon.reload()
        assert f"{rig.file}:6" in caplog.text
        assert "acess" in caplog.text
        rig.file.unlink()
        assert not await rig.daemon.reload()
        assert "cannot be read" in caplog.text
        async with await rig.client() as client:
            await client.create(root, b"still served")
        async with await client_of(rig.daemon, "mountd") as mountd:
            assert [path for path, _ in await mountd.exports()] == [b"/one"]

    reloading(test)


def test_what_waits_for_a_restart_is_named(reloading, caplog):
    async def test(rig):
        with caplog.at_level(logging.INFO):
            for _ in range(2):
                caplog.clear()
                more = "  nfs4: {grace_time: 0, lease_time: 17}\n  log: {level: info}\n"
                assert await rig.reload(ONE, TWO, server=more)
                assert "server.nfs4 has changed" in caplog.text
                assert "server.listen" not in caplog.text
            assert "the exports are the same" in caplog.text

    reloading(test)


def test_reloads_in_the_midst_of_work_lose_no_call(reloading):
    async def test(rig):
        (rig.base / "one" / "file").write_bytes(b"content")
        root = await rig.handle("/one")
        done = 0

        async def work(name):
            nonlocal done
            async with await rig.client() as client:
                while True:
                    file = await client.lookup(root, b"file")
                    assert (await client.read(file, 0, 7)).data == b"content"
                    await client.create(root, name)
                    await client.remove(root, name)
                    done += 1
                    if over.is_set():
                        return

        over = asyncio.Event()
        workers = [asyncio.create_task(work(b"made%d" % number)) for number in range(4)]
        for turn in range(20):
            assert await rig.reload(*((ONE, TWO) if turn % 2 else (ONE + ", workers: 3",)), server=GRACE)
            await asyncio.sleep(0)
        over.set()
        await asyncio.gather(*workers)
        assert done >= len(workers)

    reloading(test)
