"""A server that may not open files by handle, or is not root at all, still serves: within what it may."""

import contextlib
import ctypes
import errno
import os
import struct
import sys
import traceback

import pytest

from nfsd.vfs.types import BadHandle, Credential, SetAttributes
from tests.support.machine import open_the_way
from tests.unit.vfs_support import ALICE, BOB, ROOT, read_file, run, write_file

CAP_DAC_READ_SEARCH = 2


def refused(code):
    return pytest.raises(OSError, match=os.strerror(code))


def drop(capability):
    library = ctypes.CDLL(None, use_errno=True)
    header, data = struct.pack("<Ii", 0x20080522, 0), bytearray(24)
    buffer = (ctypes.c_char * 24).from_buffer(data)
    assert library.capget(header, buffer) == 0
    effective, permitted = struct.unpack_from("<II", data)
    struct.pack_into("<II", data, 0, effective & ~(1 << capability), permitted & ~(1 << capability))
    assert library.capset(header, buffer) == 0


def in_child(prepare, check):
    """Run ``check`` in a child of this process after ``prepare`` took its privileges."""
    child = os.fork()
    if child == 0:
        code = 1
        with contextlib.suppress(BaseException):
            try:
                prepare()
                check()
                code = 0
            except BaseException:
                traceback.print_exc(file=sys.__stderr__)
                sys.__stderr__.flush()
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.fixture
def place(tmp_path):
    place = tmp_path / "export"
    place.mkdir()
    return place


def without_handles():
    drop(CAP_DAC_READ_SEARCH)


def test_files_are_found_again_by_their_place(place, tmp_path):
    (place / "a" / "b").mkdir(parents=True)
    (place / "a" / "b" / "local").write_text("local")

    async def first(service, root):
        assert service.known.places is not None
        a, _ = await service.lookup(ALICE, root, b"a")
        b, _ = await service.lookup(ALICE, a, b"b")
        local, _ = await service.lookup(ALICE, b, b"local")
        os.chmod(place, 0o777)
        made = await write_file(service, root, b"made", b"made", ALICE)
        moved = await write_file(service, root, b"before", b"moved", ALICE)
        await service.rename(ROOT, root, b"before", b, b"after")
        gone = await write_file(service, root, b"gone")
        elsewhere = await write_file(service, root, b"elsewhere")
        replaced = await write_file(service, root, b"replaced")
        nodes = (root, a, b, local, made, moved, gone, elsewhere, replaced)
        for number in range(300):
            (place / "a" / f"listed{number}").write_text(str(number))
        page = await service.readdir(ROOT, a, 0, limit=1000, plus=True)
        listed = {entry.name: entry.handle for entry in page.entries if entry.name.startswith(b"listed")}
        return [node.handle for node in nodes], listed

    async def second(service, root):
        expected = (None, None, None, b"local", b"made", b"moved")
        for handle, data in zip(handles, expected, strict=False):
            node = await service.resolve(handle)
            assert node.handle == handle
            if data is not None:
                assert (await read_file(service, node, ALICE))[0] == data
        for handle in handles[6:]:
            with refused(errno.ESTALE):
                await service.resolve(handle)
        with pytest.raises(BadHandle):
            await service.resolve(handles[3][:-1] + bytes((handles[3][-1] ^ 1,)))
        found, _ = await service.lookup(ROOT, root, b"now elsewhere")
        assert found.handle == handles[7]
        assert len(listed) == 300
        for name, handle in listed.items():
            node = await service.resolve(handle)
            assert (await read_file(service, node))[0] == name.removeprefix(b"listed")

    def check():
        nonlocal handles, listed
        handles, listed = run(place, tmp_path, first)
        os.unlink(place / "gone")
        os.rename(place / "elsewhere", place / "now elsewhere")
        (place / "new").write_text("")
        os.rename(place / "new", place / "replaced")
        run(place, tmp_path, second)

    handles, listed = [], {}
    in_child(without_handles, check)


def test_paths_longer_than_the_kernel_takes(place, tmp_path):
    async def first(service, root):
        node = root
        for _ in range(20):
            node, _, _ = await service.mkdir(ROOT, node, b"d" * 250, SetAttributes())
        return (await write_file(service, node, b"f", b"deep")).handle

    async def second(service, root):
        assert (await read_file(service, await service.resolve(handle)))[0] == b"deep"

    def check():
        nonlocal handle
        handle = run(place, tmp_path, first)
        run(place, tmp_path, second)

    handle = b""
    in_child(without_handles, check)


def test_as_one_ordinary_user(place, tmp_path):
    me = 1001
    os.chown(place, me, me)
    (place / "others").write_text("not mine")
    os.chmod(place / "others", 0o600)
    # No way from the root of the file system for this user: start where it is allowed.
    open_the_way(tmp_path)
    state = tmp_path / "state"
    state.mkdir()
    os.chown(state, me, me)

    def become():
        os.setgroups([])
        os.setresgid(me, me, me)
        os.setresuid(me, me, me)

    async def scenario(service, root):
        assert not service.executor.can_switch
        # Whoever calls acts as the server's user.
        node = await write_file(service, root, b"f", b"mine", BOB)
        assert (await service.attributes(node)).uid == me
        assert (await read_file(service, node, Credential(0, 0)))[0] == b"mine"
        others, _ = await service.lookup(ROOT, root, b"others")
        with refused(errno.EACCES):
            await service.open(ROOT, others, read=True, write=False)
        directory, _, _ = await service.mkdir(ALICE, root, b"d", SetAttributes(mode=0o300))
        await write_file(service, directory, b"unlistable", b"data")
        await service.remove(ALICE, directory, b"unlistable", directory_wanted=False)
        return node.handle

    async def again(service, root):
        assert (await read_file(service, await service.resolve(handle)))[0] == b"mine"

    def check():
        nonlocal handle
        handle = run(place, state, scenario)
        run(place, state, again)

    handle = b""
    in_child(become, check)
