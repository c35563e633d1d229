"""COPY and CLONE of NFSv4.2: within and between file systems, what the kernel cannot do, and what is refused."""

import asyncio
import contextlib
import errno
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nfsd.protocol import nfs4 as p
from nfsd.vfs import copying, stable
from nfsd.vfs.executor import Chain
from nfsd.vfs.syscalls import SYS_COPY_FILE_RANGE, SYS_FSYNC
from tests.support.nfs4 import Client4, Failed, mode, values, wanted
from tests.unit.v42_support import (
    ANONYMOUS,
    CURRENT,
    MIB,
    content,
    handle_of,
    place_on,
    status_on,
    two_files,
    with_clients,
)

BLOCK = 4096


@pytest.fixture(params=["disk", "memory"])
def place(request, tmp_path):
    with place_on(request.param, tmp_path) as path:
        yield path


@pytest.fixture(params=["xfs", "btrfs"])
def sharing(request, tmp_path):
    """A file system that can clone."""
    with place_on(request.param, tmp_path) as path:
        yield path


def put(path, data):
    with open(path, "wb") as file:
        file.write(data)


def copy_args(source, target, *, offset=0, to=0, count=0, consecutive=True, synchronous=True, servers=()):
    return (
        p.OP_COPY,
        p.COPY4args(source, target, offset, to, count, consecutive, synchronous, list(servers)),
    )


async def copied(client, source, target, **how):
    """COPY between two handles, under special stateids; returns (count, result)."""
    *_, result = await client.run(*two_files(source, target), copy_args(ANONYMOUS, ANONYMOUS, **how))
    return result.cr_resok4.cr_response.wr_count, result.cr_resok4


async def refused(client, source, target, operation):
    return await client.status(*two_files(source, target), operation)


@contextlib.contextmanager
def kernel_refuses_to_copy(monkeypatch, code, after=0):
    """copy_file_range fails after some calls (by being asked for flags it does not know)."""
    add = Chain.add
    calls = 0

    def add_refused(self, number, *arguments, **how):
        nonlocal calls
        if number == SYS_COPY_FILE_RANGE:
            calls += 1
            if calls > after:
                flags = 1 if code == errno.EINVAL else 0
                source = -1 if code == errno.EBADF else arguments[0]
                return add(self, number, source, *arguments[1:5], flags, **how)
        return add(self, number, *arguments, **how)

    class Refusing(Chain):
        add = add_refused

    monkeypatch.setattr("nfsd.backends.local.copies.Chain", Refusing)
    yield
    assert calls > after


def test_copy_by_offset_and_count(place, tmp_path):
    data = os.urandom(300_000)
    put(f"{place}/source", data)
    put(f"{place}/target", b"x" * 10)

    async def test(server, client):
        source, source_handle = await client.open("/0", b"source", access=1)
        target, target_handle = await client.open("/0", b"target", access=2, owner=b"other")
        files = two_files(source_handle, target_handle)
        change = wanted(p.FATTR4_CHANGE)
        *_, before = await client.run(*files, (p.OP_GETATTR, change))
        args = copy_args(source, target, offset=1000, to=20, count=200_001)
        *_, result = await client.run(*files, args)
        response = result.cr_resok4.cr_response
        assert (response.wr_count, list(response.wr_callback_id)) == (200_001, [])
        assert result.cr_resok4.cr_requirements == p.copy_requirements4(True, True)
        assert content(f"{place}/target") == b"x" * 10 + bytes(10) + data[1000:201_001]
        *_, after = await client.run(*files, (p.OP_GETATTR, change))
        assert values(after.resok4.obj_attributes).uint64() > values(before.resok4.obj_attributes).uint64()
        [committed] = await client.on(target_handle, (p.OP_COMMIT, p.COMMIT4args(0, 0)))
        assert committed.resok4.writeverf == response.wr_writeverf

    with_clients(place, tmp_path, test)


def test_a_count_of_zero_copies_to_the_end(place, tmp_path):
    put(f"{place}/source", b"0123456789")
    put(f"{place}/target", b"")
    put(f"{place}/empty", b"")

    async def test(server, client):
        source, target = await handle_of(client, "source"), await handle_of(client, "target")
        empty = await handle_of(client, "empty")
        assert (await copied(client, source, target, offset=4))[0] == 6
        assert content(f"{place}/target") == b"456789"
        assert (await copied(client, source, target, offset=10))[0] == 0
        assert (await copied(client, empty, target))[0] == 0

    with_clients(place, tmp_path, test)


def test_copies_that_ask_for_less_are_made_at_once_and_in_order(place, tmp_path):
    put(f"{place}/source", b"0123456789")
    put(f"{place}/target", b"")

    async def test(server, client):
        source, target = await handle_of(client, "source"), await handle_of(client, "target")
        count, result = await copied(client, source, target, consecutive=False, synchronous=False)
        assert (count, list(result.cr_response.wr_callback_id)) == (10, [])
        assert result.cr_requirements == p.copy_requirements4(cr_consecutive=True, cr_synchronous=True)

    with_clients(place, tmp_path, test)


def test_copy_refuses_what_cannot_be_copied(place, tmp_path):
    put(f"{place}/source", b"0123456789")
    put(f"{place}/target", b"")
    os.symlink("source", f"{place}/link")

    async def test(server, client):
        source, target = await handle_of(client, "source"), await handle_of(client, "target")
        link, root = await handle_of(client, "link"), await handle_of(client, "")
        anonymous = (ANONYMOUS, ANONYMOUS)
        for offset, count in ((11, 0), (11, 1), (10, 1), (0, 11), (2**64 - 1, 0), (2**64 - 1, 2**64 - 1)):
            args = copy_args(*anonymous, offset=offset, count=count)
            assert await refused(client, source, target, args) == p.NFS4ERR_INVAL
        assert await refused(client, source, source, copy_args(*anonymous)) == p.NFS4ERR_INVAL
        assert await refused(client, source, target, copy_args(*anonymous, to=2**63 - 5)) == p.NFS4ERR_FBIG
        for one, other in ((root, target), (link, target), (source, root), (source, link)):
            assert await refused(client, one, other, copy_args(*anonymous)) == p.NFS4ERR_WRONG_TYPE
        elsewhere = p.netloc4(p.netloc_type4.NL4_NAME, nl_name=b"server")
        from_elsewhere = copy_args(*anonymous, servers=[elsewhere])
        assert await refused(client, source, target, from_elsewhere) == p.NFS4ERR_OFFLOAD_DENIED
        assert await status_on(client, target, copy_args(*anonymous)) == p.NFS4ERR_NOFILEHANDLE
        assert content(f"{place}/target") == b""

    with_clients(place, tmp_path, test)


def test_copy_checks_both_stateids(place, tmp_path):
    put(f"{place}/source", b"0123456789")
    put(f"{place}/target", b"")

    async def test(server, client):
        reading, source = await client.open("/0", b"source", access=1)
        also_reading, target = await client.open("/0", b"target", access=1)
        wrong = p.stateid4(1, b"nobody's own")
        for one, other, status in (
            (reading, also_reading, p.NFS4ERR_OPENMODE),
            (wrong, ANONYMOUS, p.NFS4ERR_BAD_STATEID),
            (reading, wrong, p.NFS4ERR_BAD_STATEID),
            (also_reading, ANONYMOUS, p.NFS4ERR_BAD_STATEID),
            (CURRENT, ANONYMOUS, p.NFS4ERR_BAD_STATEID),
        ):
            assert await refused(client, source, target, copy_args(one, other)) == status
        assert content(f"{place}/target") == b""

    with_clients(place, tmp_path, test)


def test_the_current_stateids_of_both_files_are_understood(place, tmp_path):
    put(f"{place}/source", b"0123456789")
    put(f"{place}/target", b"")

    async def test(server, client):
        *_, result = await client.run(
            *client.path("/0"),
            (p.OP_OPEN, client.open_args(b"source", access=1)),
            p.OP_SAVEFH,
            *client.path("/0"),
            (p.OP_OPEN, client.open_args(b"target", access=2)),
            copy_args(CURRENT, CURRENT),
        )
        assert result.cr_resok4.cr_response.wr_count == 10

    with_clients(place, tmp_path, test)


def test_copy_needs_the_callers_permissions(place, tmp_path):
    put(f"{place}/secret", b"secret")
    os.chmod(f"{place}/secret", 0o600)
    put(f"{place}/public", b"public")
    os.chmod(f"{place}/public", 0o644)
    put(f"{place}/hers", b"")
    os.chown(f"{place}/hers", 1001, 1001)

    async def test(server, alice):
        secret, public, hers = [await handle_of(alice, name) for name in ("secret", "public", "hers")]
        anonymous = copy_args(ANONYMOUS, ANONYMOUS)
        assert await refused(alice, secret, hers, anonymous) == p.NFS4ERR_ACCESS
        assert await refused(alice, hers, public, anonymous) == p.NFS4ERR_ACCESS
        assert (await copied(alice, public, hers))[0] == 6

    with_clients(place, tmp_path, test, uids=(1001,))


def test_copy_and_clone_leave_a_read_only_export_alone(place, tmp_path):
    put(f"{place}/source", b"0123456789")
    put(f"{place}/target", b"")

    async def test(server, client):
        source, target = await handle_of(client, "source"), await handle_of(client, "target")
        assert await refused(client, source, target, copy_args(ANONYMOUS, ANONYMOUS)) == p.NFS4ERR_ROFS
        clone = (p.OP_CLONE, p.CLONE4args(ANONYMOUS, ANONYMOUS, 0, 0, 0))
        assert await refused(client, source, target, clone) == p.NFS4ERR_ROFS

    with_clients(place, tmp_path, test, read_only=True)


def test_copy_between_file_systems_of_different_kinds(tmp_path):
    data = os.urandom(3 * MIB + 17)
    with place_on("disk", tmp_path) as disk, place_on("memory", tmp_path) as memory:
        put(f"{disk}/source", data)
        put(f"{memory}/target", b"")

        async def test(server, client):
            source = await handle_of(client, "source")
            *_, found = await client.run(*client.path("/1/target"), p.OP_GETFH)
            target, done = found.resok4.object, 0
            while done < len(data):
                count, _ = await copied(client, source, target, offset=done, to=done, count=len(data) - done)
                assert count > 0
                done += count
            assert content(f"{memory}/target") == data

        with_clients(disk, tmp_path, test, paths=(memory,))


def test_what_the_kernel_will_not_copy_is_copied_by_hand(place, tmp_path, monkeypatch):
    data = os.urandom(2 * MIB + 5)
    put(f"{place}/source", data)
    put(f"{place}/target", b"")

    async def test(server, client):
        source, target = await handle_of(client, "source"), await handle_of(client, "target")
        with kernel_refuses_to_copy(monkeypatch, errno.EINVAL):
            assert (await copied(client, source, target, offset=3))[0] == len(data) - 3
        assert content(f"{place}/target") == data[3:]

    with_clients(place, tmp_path, test)


def test_an_error_after_some_octets_is_a_short_copy(place, tmp_path, monkeypatch):
    data = os.urandom(copying._PIECE + 1000)
    put(f"{place}/source", data)
    put(f"{place}/target", b"")

    async def test(server, client):
        source, target = await handle_of(client, "source"), await handle_of(client, "target")
        with kernel_refuses_to_copy(monkeypatch, errno.EBADF, after=1):
            assert (await copied(client, source, target))[0] == copying._PIECE
            with pytest.raises(Failed):
                await copied(client, source, target, offset=copying._PIECE, to=copying._PIECE)
        assert content(f"{place}/target") == data[: copying._PIECE]

    with_clients(place, tmp_path, test)


def test_parallel_copies_into_one_file_do_not_disturb_each_other(place, tmp_path, monkeypatch):
    monkeypatch.setattr(copying, "_PIECE", 10_000)
    parts = [os.urandom(100_000 + number) for number in range(6)]
    for number, data in enumerate(parts):
        put(f"{place}/{number}", data)
    put(f"{place}/target", b"")

    async def test(server, *clients):
        target, at, copies = await handle_of(clients[0], "target"), 0, []
        for number, client in enumerate(clients):
            copies.append(copied(client, await handle_of(client, str(number)), target, to=at))
            at += len(parts[number])
        assert [count for count, _ in await asyncio.gather(*copies)] == [len(data) for data in parts]
        assert content(f"{place}/target") == b"".join(parts)

    with_clients(place, tmp_path, test, uids=(0,) * 6)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    size=st.integers(0, 40_000),
    steps=st.lists(
        st.tuples(st.integers(0, 45_000), st.integers(0, 45_000), st.integers(0, 45_000), st.booleans()), max_size=6
    ),
)
def test_copies_agree_with_a_model(tmp_path_factory, size, steps):
    state = tmp_path_factory.mktemp("state")
    source, model = os.urandom(size), bytearray()
    with place_on("memory", state) as place, pytest.MonkeyPatch.context() as patch:
        patch.setattr(copying, "_PIECE", 7_000)
        patch.setattr(copying, "_PIECE_BY_HAND", 3_000)
        put(f"{place}/source", source)
        put(f"{place}/target", b"")
        by_hand = copying.Copying.copy_by_hand
        by_kernel = copying.Copying.copy_by_kernel

        async def test(server, client):
            one, other = await handle_of(client, "source"), await handle_of(client, "target")
            for offset, to, count, hand in steps:
                patch.setattr(copying.Copying, "copy_by_kernel", by_hand if hand else by_kernel)
                if offset > size or offset + count > size:
                    wrong = copy_args(ANONYMOUS, ANONYMOUS, offset=offset, to=to, count=count)
                    assert await refused(client, one, other, wrong) == p.NFS4ERR_INVAL
                    continue
                expected = source[offset : offset + count] if count else source[offset:]
                assert (await copied(client, one, other, offset=offset, to=to, count=count))[0] == len(expected)
                if expected:
                    model.extend(bytes(max(0, to + len(expected) - len(model))))
                    model[to : to + len(expected)] = expected
                assert content(f"{place}/target") == model

        with_clients(place, state, test)


def test_a_long_copy_ends_in_time_and_is_gone_on_with(place, tmp_path, monkeypatch):
    monkeypatch.setattr(copying, "_SECONDS", 0.0)
    monkeypatch.setattr(copying, "_PIECE", 1 << 16)
    data = os.urandom(200_000)
    put(f"{place}/source", data)
    put(f"{place}/target", b"")

    async def test(server, client):
        source, target, counts = await handle_of(client, "source"), await handle_of(client, "target"), []
        while sum(counts) < len(data):
            done = sum(counts)
            counts.append((await copied(client, source, target, offset=done, to=done))[0])
        assert counts == [65536, 65536, 65536, 200_000 - 3 * 65536]
        assert content(f"{place}/target") == data

    with_clients(place, tmp_path, test)


def test_copies_from_elsewhere_are_not_supported(tmp_path):
    with place_on("memory", tmp_path) as place:
        put(f"{place}/f", b"")

        async def test(server, client):
            handle = await handle_of(client, "f")
            elsewhere = p.netloc4(p.netloc_type4.NL4_NAME, nl_name=b"server")
            notify = (p.OP_COPY_NOTIFY, p.COPY_NOTIFY4args(ANONYMOUS, elsewhere))
            assert await status_on(client, handle, notify) == p.NFS4ERR_NOTSUPP

        with_clients(place, tmp_path, test)


def test_a_copy_from_another_server_is_left_to_the_client(tmp_path):
    """Its COMPOUND begins with a handle of the other server."""
    with place_on("memory", tmp_path) as place:
        put(f"{place}/f", b"")

        async def test(server, client):
            target = await handle_of(client, "f")
            elsewhere = [p.netloc4(p.netloc_type4.NL4_NAME, nl_name=b"server")]
            for foreign in (b"another server's handle", target[:-1] + bytes((target[-1] ^ 1,))):
                files = two_files(foreign, target)
                copy = copy_args(ANONYMOUS, ANONYMOUS, servers=elsewhere)
                assert await client.status(*files, copy) == p.NFS4ERR_OFFLOAD_DENIED
                # Anything else meets the error that PUTFH would have had.
                unknown = await client.status(files[0])
                assert unknown == p.NFS4ERR_BADHANDLE
                assert await client.status(*files, copy_args(ANONYMOUS, ANONYMOUS)) == unknown
                assert await client.status(*files, p.OP_RESTOREFH) == unknown
                assert await client.status(*files[:2], p.OP_GETFH) == unknown
                assert await client.status(*files[:2]) == p.NFS4_OK
                assert await client.status(files[0], p.OP_GETFH, p.OP_SAVEFH) == unknown
            early = Client4(server, 1, name=b"early")
            await early.connect()
            assert await early.status(*two_files(b"another server's handle", target)) == p.NFS4ERR_BADHANDLE

        with_clients(place, tmp_path, test)


# -- CLONE ------------------------------------------------------------------------------------------------------------
def clone(offset=0, to=0, count=0):
    return (p.OP_CLONE, p.CLONE4args(ANONYMOUS, ANONYMOUS, offset, to, count))


def test_clone_shares_blocks(sharing, tmp_path):
    data = os.urandom(64 * MIB)
    put(f"{sharing}/source", data)
    put(f"{sharing}/target", b"x" * BLOCK)
    os.sync()
    used = os.statvfs(sharing).f_bfree

    async def test(server, client):
        source, target = await handle_of(client, "source"), await handle_of(client, "target")
        change = wanted(p.FATTR4_CHANGE)
        [before] = await client.on(target, (p.OP_GETATTR, change))
        await client.run(*two_files(source, target), clone())
        assert content(f"{sharing}/target") == data
        [after] = await client.on(target, (p.OP_GETATTR, change))
        assert values(after.resok4.obj_attributes).uint64() > values(before.resok4.obj_attributes).uint64()
        taken = (used - os.statvfs(sharing).f_bfree) * os.statvfs(sharing).f_frsize
        assert taken < 8 * MIB, "the blocks are shared"
        await client.run(*two_files(source, target), clone(BLOCK, 64 * MIB + BLOCK, 2 * BLOCK))
        assert os.stat(f"{sharing}/target").st_size == 64 * MIB + 3 * BLOCK
        await client.run(*two_files(source, source), clone(0, MIB, MIB))
        assert content(f"{sharing}/source")[: 2 * MIB] == data[:MIB] * 2

    with_clients(sharing, tmp_path, test)


def test_a_clone_is_on_the_disk_before_its_reply_and_a_copy_is_the_clients_to_commit(sharing, tmp_path, monkeypatch):
    put(f"{sharing}/source", b"a" * BLOCK)
    put(f"{sharing}/target", b"")
    synced = []

    class Recording(Chain):
        def add(self, number, *arguments, **how):
            if number == SYS_FSYNC:
                synced.append(os.path.basename(os.readlink(f"/proc/self/fd/{arguments[0]}")))
            return super().add(number, *arguments, **how)

    monkeypatch.setattr(stable, "Chain", Recording)

    async def test(server, client):
        source, target = await handle_of(client, "source"), await handle_of(client, "target")
        _, result = await copied(client, source, target)
        assert result.cr_response.wr_committed == p.stable_how4.UNSTABLE4
        assert synced == []
        await client.run(*two_files(source, target), clone())
        assert synced == ["target"]

    with_clients(sharing, tmp_path, test)


def test_clone_refuses_what_is_not_on_blocks_or_beyond_the_end(sharing, tmp_path):
    put(f"{sharing}/source", b"a" * 10 * BLOCK + b"b")
    put(f"{sharing}/target", b"c" * 20 * BLOCK)

    async def test(server, client):
        source, target = await handle_of(client, "source"), await handle_of(client, "target")
        for wrong in (
            clone(1, 0, BLOCK),
            clone(0, 1, BLOCK),
            clone(0, 0, BLOCK + 1),
            clone(0, 0, 11 * BLOCK),
            clone(20 * BLOCK, 0, 0),
            clone(0, 2**63, BLOCK),
            clone(2**64 - BLOCK, 0, BLOCK),
        ):
            assert await refused(client, source, target, wrong) == p.NFS4ERR_INVAL, wrong
        assert await refused(client, source, source, clone(0, BLOCK, 4 * BLOCK)) == p.NFS4ERR_INVAL
        root = await handle_of(client, "")
        assert await refused(client, root, target, clone()) == p.NFS4ERR_WRONG_TYPE
        assert await refused(client, source, root, clone()) == p.NFS4ERR_WRONG_TYPE
        assert content(f"{sharing}/target") == b"c" * 20 * BLOCK
        [shown] = await client.on(source, (p.OP_GETATTR, wanted(p.FATTR4_CLONE_BLKSIZE)))
        assert values(shown.resok4.obj_attributes).uint32() == BLOCK

    with_clients(sharing, tmp_path, test)


def test_clone_is_not_supported_where_the_file_system_has_none(place, tmp_path):
    put(f"{place}/source", b"a" * BLOCK)
    put(f"{place}/target", b"")

    async def test(server, client):
        source, target = await handle_of(client, "source"), await handle_of(client, "target")
        assert await refused(client, source, target, clone()) == p.NFS4ERR_NOTSUPP
        [shown] = await client.on(source, (p.OP_GETATTR, wanted(p.FATTR4_CLONE_BLKSIZE)))
        assert values(shown.resok4.obj_attributes).uint32() == 0
        _, made = await client.open("/0", b"new", create=mode(0o600))
        assert await refused(client, source, made, clone()) == p.NFS4ERR_NOTSUPP

    with_clients(place, tmp_path, test)


def test_clone_between_file_systems_is_refused(sharing, tmp_path):
    put(f"{sharing}/source", b"a" * BLOCK)
    with place_on("memory", tmp_path) as memory:
        put(f"{memory}/target", b"")

        async def test(server, client):
            source = await handle_of(client, "source")
            *_, found = await client.run(*client.path("/1/target"), p.OP_GETFH)
            assert await refused(client, source, found.resok4.object, clone()) == p.NFS4ERR_XDEV

        with_clients(sharing, tmp_path, test, paths=(memory,))
