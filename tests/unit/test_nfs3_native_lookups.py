"""Names looked up natively, those on a disk that have to be waited for as well."""

import asyncio
import os

import pytest

from nfsd.protocol.nfs3 import LOOKUP3res, nfsstat3
from rpcrdma.xdr import unpack
from tests.unit import vfs_support
from tests.unit.test_nfs3_native import LOOKUP, Both, handle, name, run
from tests.unit.test_nfs3_native_changes import REMOVE, RENAME, outcome, removal, renaming
from tests.unit.test_nfs3_native_names import made
from tests.unit.test_vfs_mounts import command, unmounted


def status(reply):
    return nfsstat3(int.from_bytes(reply[20:24], "big")).name.removeprefix("NFS3ERR_")


def test_a_name_that_is_not_there_is_looked_up_natively(kind, tmp_path):
    async def scenario(both):
        (one,) = await made(both, "one")
        for _ in range(3):
            await both.same(LOOKUP, handle(one) + name("none"), (1001, 1001))
        os.rmdir(os.path.join(both.path, "one"))
        stale = await both.same(LOOKUP, handle(one) + name("none"))
        assert status(stale) == "STALE"
        assert both.declined() == 0

    run(kind, tmp_path, scenario)


def test_names_that_nobody_has_asked_for_yet_are_looked_up_natively(kind, tmp_path):
    async def scenario(both):
        (one,) = await made(both, "one")
        for number in range(5):
            with open(os.path.join(both.path, "one", f"f{number}"), "w"):
                pass
            both.native.send(LOOKUP, handle(one) + name(f"f{number}"))
            both.native.send(LOOKUP, handle(one) + name(f"none{number}"))
        replies = [(await both.native.reply())[4:] for _ in range(10)]
        assert (
            sorted(status(reply) for reply in replies) == ["NFS3_OK"] * 5 + ["NOENT"] * 5
            or sorted(status(reply) for reply in replies) == ["NOENT"] * 5 + ["NFS3_OK"] * 5
        )
        assert both.answered(LOOKUP) == 10

    run(kind, tmp_path, scenario)


def test_failures_of_lookups_are_answered_natively(kind, tmp_path):
    async def scenario(both):
        (one,) = await made(both, "one")
        with open(os.path.join(both.path, "one", "file"), "w"):
            pass
        file, _ = await both.service.lookup(vfs_support.ROOT, one, b"file")
        os.chmod(os.path.join(both.path, "one"), 0o700)
        for node, text, caller, wanted in (
            (one, "x" * 256, (0, 0), "NAMETOOLONG"),
            (one, "x" * 5000, (0, 0), "NAMETOOLONG"),
            (one, "a/b", (0, 0), "ACCES"),
            (one, "", (0, 0), "ACCES"),
            (file, "x", (0, 0), "NOTDIR"),
            (one, "file", (1001, 1001), "ACCES"),
            (one, "never asked for", (1001, 1001), "ACCES"),
        ):
            answered = both.answered(LOOKUP)
            native = await both.native.call(LOOKUP, handle(node) + name(text), caller)
            assert both.answered(LOOKUP) == answered + 1
            assert status(native) == wanted
            assert (await both.general.call(LOOKUP, handle(node) + name(text), caller))[4:] == native[4:]
        assert both.service.exports.usage.statuses[3, "LOOKUP", "NAMETOOLONG"] == 4

    run(kind, tmp_path, scenario)


def test_names_that_are_not_in_memory_are_waited_for(tmp_path):
    """On an ext4 that has just been mounted: LOOKUP, and what changes names that nobody has looked at."""
    image, mount = str(tmp_path / "image"), tmp_path / "mount"
    mount.mkdir()
    with open(image, "wb") as file:
        file.truncate(16 << 20)
    if not command("mkfs.ext4", "-q", image) or not command("mount", "-o", "loop", image, str(mount)):
        pytest.skip("no loop devices here")
    for number in range(6):
        os.mkdir(mount / f"d{number}")
        (mount / f"d{number}" / "file").write_text("x")
    assert command("umount", str(mount))
    assert command("mount", "-o", "loop", image, str(mount))

    async def scenario(service, root):
        async with Both(service, root, str(mount)) as both:
            waited = []
            for number in range(6):
                directory, _ = await service.lookup(vfs_support.ROOT, root, b"d%d" % number)
                if number < 2:
                    reply = await both.native.call(LOOKUP, handle(directory) + name("file"))
                    assert unpack(LOOKUP3res, reply[20:]).resok.obj_attributes.size == 1
                elif number < 4:
                    assert outcome(REMOVE, await both.native.call(REMOVE, removal(directory, b"file")))[0] == 0
                else:
                    reply = await both.native.call(RENAME, renaming(directory, b"file", root, b"n%d" % number))
                    assert outcome(RENAME, reply)[0] == 0
            waited = {
                what[2]: count for what, reason, count in both.dispatcher.waited() if reason == "data not in memory"
            }
            assert [both.answered(each) for each in (LOOKUP, REMOVE, RENAME)] == [2, 2, 2]
            assert set(waited) >= {"LOOKUP", "REMOVE", "RENAME"}
            assert sorted(os.listdir(mount))[-2:] == ["n4", "n5"]
            assert [len(os.listdir(mount / f"d{number}")) for number in range(6)] == [1, 1, 0, 0, 0, 0]

    try:
        vfs_support.run(str(mount), tmp_path, scenario, squash="none")
    finally:
        assert asyncio.run(unmounted(mount))
