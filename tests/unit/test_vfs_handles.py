"""File handles: authenticated, the same over restarts, stale when the file is gone."""

import asyncio
import errno
import hashlib
import os
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nfsd.exports import Export, ExportTable
from nfsd.vfs.handles import HandleCodec, load_key
from nfsd.vfs.service import FileService
from nfsd.vfs.types import BadHandle
from tests.unit.vfs_support import ROOT, run, write_file


def test_a_handle_says_what_went_in():
    codec = HandleCodec(b"k" * 32)
    for size in (0, 8, 40):
        handle = codec.encode(0xFFFFFFFF, b"abcdef", 0x4D, bytes(range(size)))
        assert len(handle) <= 64
        assert codec.decode(handle) == (0xFFFFFFFF, b"abcdef", 0x4D, bytes(range(size)))
    with pytest.raises(OSError, match="fit"):
        codec.encode(1, b"abcdef", 1, bytes(41))


@given(
    key=st.binary(min_size=1, max_size=32),
    export_id=st.integers(0, 0xFFFFFFFF),
    fs_id=st.binary(min_size=6, max_size=6),
    kind=st.integers(0, 255),
    kernel=st.binary(max_size=40),
)
def test_a_handle_is_signed_with_blake2s(key, export_id, fs_id, kind, kernel):
    body = bytes((1, kind)) + export_id.to_bytes(4, "big") + fs_id + kernel
    signed = body + hashlib.blake2s(body, key=key, digest_size=12).digest()
    assert HandleCodec(key).encode(export_id, fs_id, kind, kernel) == signed
    assert HandleCodec(key).decode(signed) == (export_id, fs_id, kind, kernel)


def test_every_changed_octet_is_noticed():
    codec = HandleCodec(b"k" * 32)
    handle = codec.encode(1, b"abcdef", 1, b"kernel's")
    for position in range(len(handle)):
        forged = bytearray(handle)
        forged[position] ^= 1
        with pytest.raises(BadHandle):
            codec.decode(bytes(forged))
    for other in (b"", handle[:-1], handle + b"\0", bytes(64), bytes(65), handle[:24]):
        with pytest.raises(BadHandle):
            codec.decode(other)
    with pytest.raises(BadHandle):
        HandleCodec(b"K" * 32).decode(handle)


def test_the_key_is_made_once_and_is_private(tmp_path):
    (tmp_path / "handle.key.new").write_bytes(b"left by a crash")
    key = load_key(str(tmp_path))
    assert len(key) == 32
    assert load_key(str(tmp_path)) == key
    assert stat.S_IMODE((tmp_path / "handle.key").stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["handle.key"]


def test_a_damaged_key_is_an_error_that_names_it(tmp_path):
    (tmp_path / "handle.key").write_bytes(b"short")
    with pytest.raises(OSError, match=r"handle\.key"):
        load_key(str(tmp_path))


def test_handles_of_files_that_are_gone_are_stale(tmp_path):
    place = tmp_path / "export"
    place.mkdir()

    async def make(service, root):
        return (await write_file(service, root, b"f")).handle

    async def resolve(service, root):
        with pytest.raises(OSError, match=os.strerror(errno.ESTALE)):
            await service.resolve(handle)

    handle = run(place, tmp_path, make)
    os.unlink(place / "f")
    for number in range(20):  # the inode's number comes back under another generation
        (place / f"g{number}").write_text("")
    run(place, tmp_path, resolve)


def test_local_removal_makes_a_known_handle_stale(tmp_path):
    place = tmp_path / "export"
    place.mkdir()

    async def scenario(service, root):
        node = await write_file(service, root, b"f")
        os.unlink(place / "f")
        for operation in (
            lambda: service.attributes(node),
            lambda: service.open(ROOT, node, read=True, write=False),
            lambda: service.access(ROOT, node),
        ):
            with pytest.raises(OSError, match=os.strerror(errno.ESTALE)):
                await operation()

    run(place, tmp_path, scenario)


def test_handles_of_other_exports_and_servers_are_refused(tmp_path):
    for name in ("one", "other", "state"):
        (tmp_path / name).mkdir()

    async def make(service, root):
        return (await write_file(service, root, b"f")).handle

    async def other_state(service, root):
        with pytest.raises(BadHandle):
            await service.resolve(handle)

    async def other_export(service, root):
        service.roots._by_export.clear()  # as after the export was taken out of the configuration
        with pytest.raises(OSError, match=os.strerror(errno.ESTALE)):
            await service.resolve(handle)

    handle = run(tmp_path / "one", tmp_path, make)
    run(tmp_path / "one", tmp_path / "state", other_state)
    run(tmp_path / "other", tmp_path, other_export)


def test_a_missing_export_is_named(tmp_path):
    async def main():
        exports = [Export(id=n, path=str(tmp_path / name), pseudo=f"/{n}") for n, name in ((7, "nowhere"), (8, "here"))]
        service = FileService(ExportTable(exports), str(tmp_path))
        await service.start()
        try:
            assert {id_: one.why for id_, one in service.absent.items()} == {7: f"{tmp_path}/nowhere does not exist"}
            assert [export.id for export in service.exports.exports] == [8]
            handle = (await service.root(service.exports.exports[0])).handle
            assert (await service.resolve(handle)).export.id == 8
        finally:
            await service.close()

    (tmp_path / "here").mkdir()
    asyncio.run(main())


def test_no_descriptor_is_left_behind(tmp_path):
    place = tmp_path / "export"
    place.mkdir()
    held = []

    async def scenario(service, root):
        for number in range(20):
            node = await write_file(service, root, b"%d" % number, b"data")
            held.append(await service.open(ROOT, node, read=True, write=False))
            await service.set_local_lock(node, 0, 1, exclusive=True)
            await service.readdir(ROOT, root, 0, limit=5, plus=True)

    before = set(os.listdir("/proc/self/fd"))
    run(place, tmp_path, scenario)
    assert set(os.listdir("/proc/self/fd")) == before


def test_descriptors_stay_within_their_bound(tmp_path):
    place = tmp_path / "export"
    place.mkdir()

    async def scenario(service, root):
        service.nodes.limit = 50
        service.shares.bound(20, 20)
        for number in range(300):
            await write_file(service, root, b"%d" % number, b"data")
        return len(os.listdir("/proc/self/fd"))

    before = len(os.listdir("/proc/self/fd"))
    assert run(place, tmp_path, scenario, asynchronous=True) < before + 130
