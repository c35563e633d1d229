"""GETATTR, ACCESS, READLINK, READ, WRITE and COMMIT are answered natively whatever they need and however they fail."""

import asyncio
import contextlib
import os
import struct

import pytest

from nfsd.protocol.nfs3 import READLINK3res, READLINK3resfail, READLINK3resok, nfsstat3
from nfsd.vfs import unstable
from rpcrdma.xdr import pack
from tests.support import nfs3_truth
from tests.unit import vfs_support
from tests.unit.test_nfs3_native import ACCESS, COMMIT, GETATTR, READ, WRITE, Both, handle
from tests.unit.test_waiting_calls import until

READLINK = 5
OK, PERM, ACCES, INVAL, FBIG, ROFS, STALE, BADHANDLE, JUKEBOX = 0, 1, 13, 22, 27, 30, 70, 10001, 10008


@pytest.fixture(params=["memory", "disk", "slow"])
def kind(request):
    """In memory, on a disk, on a file system where every look at a file may wait."""
    return request.param


def run(kind, tmp_path, scenario, delegations=None, **options):
    options.setdefault("squash", "none")
    with vfs_support.directory_on("memory" if kind == "memory" else "disk", tmp_path) as path:

        async def main(service, root):
            if kind == "slow":
                root.mount.caching = False  # of the nodes that are met from now on
                service.nodes.forget(root)
            async with Both(service, root, path, delegations) as both:
                await scenario(both)
                assert not both.dispatcher.held

        vfs_support.run(path, tmp_path, main, **options)


def status(reply):
    return int.from_bytes(reply[20:24], "big")


async def natively(both, procedure, arguments, caller=(0, 0)):
    """The reply, which must not have come from anything but the native function."""
    before, declined = both.answered(procedure), sum(count for *_, count in both.dispatcher.declined())
    reply = await both.native.call(procedure, arguments, caller)
    assert sum(count for *_, count in both.dispatcher.declined()) == declined
    assert both.answered(procedure) == before + 1
    return reply


async def same(both, procedure, arguments, caller=(0, 0)):
    """The one answer on the transport's own path and as a general call."""
    general = await both.general.call(procedure, arguments, caller)
    reply = await natively(both, procedure, arguments, caller)
    assert reply == general
    return reply


def read(node, offset=0, count=100):
    return handle(node) + struct.pack(">QI", offset, count)


def write(node, offset=0, data=b"data", *, count=None, stable=0):
    head = struct.pack(">QIII", offset, len(data) if count is None else count, stable, len(data))
    return handle(node) + head + data + bytes(-len(data) & 3)


def commit(node):
    return handle(node) + struct.pack(">QI", 0, 0)


def access(node):
    return handle(node) + struct.pack(">I", 0x3F)


async def nodes_of(both):
    """A file of 1001's with mode 600, one that anybody may use, a directory, a symbolic link."""
    file = await vfs_support.write_file(both.service, both.root, b"private", b"x" * 5000)
    os.chown(os.path.join(both.path, "private"), 1001, 1001)
    os.chmod(os.path.join(both.path, "private"), 0o600)
    public = await vfs_support.write_file(both.service, both.root, b"public", b"y" * 5000, mode=0o666)
    os.mkdir(os.path.join(both.path, "sub"))
    os.symlink("public", os.path.join(both.path, "link"))
    found = [(await both.service.lookup(vfs_support.ROOT, both.root, name))[0] for name in (b"sub", b"link")]
    return file, public, *found


def test_what_has_to_be_brought_first(kind, tmp_path):
    """Files not in use, callers not known, descriptors not open."""

    async def scenario(both):
        private, public, directory, link = await nodes_of(both)
        for node in (private, public, directory, link):
            for procedure, arguments in ((GETATTR, handle(node)), (ACCESS, access(node)), (READ, read(node))):
                for caller in ((0, 0), (1001, 1001), (1002, 1002)):
                    both.service.nodes.forget(node)
                    both.service.open_files.forget_all(node.inode)
                    await both.native.call(procedure, arguments, caller)  # sets atime
                    both.service.nodes.forget(node)
                    both.service.open_files.forget_all(node.inode)
                    reply = await same(both, procedure, arguments, caller)
                    assert reply[20:] == nfs3_truth.results(node, procedure, arguments, caller)
        for caller, expected in (((1001, 1001), OK), ((1002, 1002), ACCES)):
            both.service.open_files.forget_all(private.inode)
            assert status(await natively(both, WRITE, write(private), caller)) == expected
            both.service.open_files.forget_all(private.inode)
            assert status(await natively(both, COMMIT, commit(private), caller)) == expected

    run(kind, tmp_path, scenario)


def test_the_text_of_links(kind, tmp_path):
    """Of every length, for whoever asks."""

    async def scenario(both):
        for number, length in enumerate((1, 2, 3, 4, 100, 4095)):
            os.symlink("x" * length, os.path.join(both.path, f"link{number}"))
            node, _ = await both.service.lookup(vfs_support.ROOT, both.root, f"link{number}".encode())
            for caller in ((0, 0), (1002, 1002)):
                await both.native.call(READLINK, handle(node), caller)  # sets atime
                both.service.nodes.forget(node)
                reply = await same(both, READLINK, handle(node), caller)
                result = READLINK3resok(nfs3_truth.attributes(node), b"x" * length)
                assert reply[20:] == pack(READLINK3res, READLINK3res(nfsstat3.NFS3_OK, resok=result))
        file = await vfs_support.write_file(both.service, both.root, b"file")
        result = READLINK3res(nfsstat3.NFS3ERR_INVAL, resfail=READLINK3resfail(nfs3_truth.attributes(file)))
        assert (await same(both, READLINK, handle(file)))[20:] == pack(READLINK3res, result)
        both.service.nodes.forget(node)
        os.unlink(os.path.join(both.path, f"link{number}"))
        assert status(await same(both, READLINK, handle(node))) == STALE

    run(kind, tmp_path, scenario)


def test_failures_are_told_with_the_attributes_of_the_file(kind, tmp_path):
    async def scenario(both):
        private, public, directory, link = await nodes_of(both)
        other = (1002, 1002)
        expected = [
            (READ, read(private), other, ACCES),
            (WRITE, write(private), other, ACCES),
            (COMMIT, commit(private), other, ACCES),
            (READ, read(directory), other, INVAL),
            (READ, read(link), other, INVAL),
            (WRITE, write(directory), (0, 0), INVAL),
            (WRITE, write(link), (0, 0), INVAL),
            (COMMIT, commit(directory), (0, 0), INVAL),
            (WRITE, write(public, count=3), (0, 0), INVAL),
            (WRITE, write(public, (1 << 63) - 2), (0, 0), FBIG),
            (WRITE, write(public, (1 << 64) - 1), (0, 0), FBIG),
            (READ, read(public, 0, 0), (0, 0), OK),
            (READ, read(private, 0, 0), other, ACCES),
            (READ, read(public, 5000, 0), (0, 0), OK),
            (READ, read(public, 1 << 63, 10), (0, 0), OK),
            (READ, read(public, (1 << 63) - 5, 10), (0, 0), OK),
            (WRITE, write(public, 0, b"", stable=0), (0, 0), OK),
            (WRITE, write(private, 0, b""), other, ACCES),
        ]
        await both.native.call(READ, read(public))
        for procedure, arguments, caller, outcome in expected:
            assert status(await same(both, procedure, arguments, caller)) == outcome

    run(kind, tmp_path, scenario)


def test_handles_of_nothing(kind, tmp_path):
    async def scenario(both):
        gone = await vfs_support.write_file(both.service, both.root, b"gone", b"x")
        os.unlink(os.path.join(both.path, "gone"))
        tails = {
            GETATTR: b"", ACCESS: bytes(4), READ: struct.pack(">QI", 0, 1), COMMIT: bytes(12),
            WRITE: struct.pack(">QIII", 0, 1, 0, 1) + b"x" + bytes(3),
        }  # fmt: skip
        for procedure, tail in tails.items():
            for octets, outcome in ((b"", BADHANDLE), (bytes(32), BADHANDLE), (b"x" * 64, BADHANDLE)):
                arguments = struct.pack(">I", len(octets)) + octets + tail
                assert status(await same(both, procedure, arguments)) == outcome
            for _ in range(2):
                assert status(await same(both, procedure, handle(gone) + tail)) == STALE

    run(kind, tmp_path, scenario)


def test_what_is_malformed_is_garbage(tmp_path):
    async def scenario(both):
        node = await vfs_support.write_file(both.service, both.root, b"a", b"x", mode=0o666)
        for procedure, arguments in (
            (GETATTR, struct.pack(">I", 68) + bytes(68)),
            (GETATTR, handle(node)[:-4]),
            (READLINK, handle(node)[:-4]),
            (ACCESS, handle(node)),
            (READ, read(node)[:-4]),
            (READ, struct.pack(">I", 4) + bytes(4)),  # before its handle, which is bad, is looked at
            (WRITE, write(node, stable=3)),
            (WRITE, write(node)[:-4]),
            (COMMIT, commit(node)[:-4]),
        ):
            general = await both.general.call(procedure, arguments)
            assert await both.native.call(procedure, arguments) == general
            assert general[16:20] == struct.pack(">I", 4), (procedure, len(arguments))  # GARBAGE_ARGS

    run("memory", tmp_path, scenario)


def test_octets_behind_the_arguments_do_no_harm(tmp_path):
    async def scenario(both):
        node = await vfs_support.write_file(both.service, both.root, b"a", b"x", mode=0o666)
        await both.native.call(READ, read(node))
        for procedure, arguments in (
            (GETATTR, handle(node)),
            (ACCESS, access(node)),
            (READ, read(node)),
            (COMMIT, commit(node)),
            (WRITE, write(node, count=1)),
        ):
            await same(both, procedure, arguments + bytes(8))

    run("memory", tmp_path, scenario)


def test_who_may_not_write_the_export(kind, tmp_path):
    async def scenario(both):
        with open(os.path.join(both.path, "a"), "wb") as file:
            file.write(b"data")
        os.mkdir(os.path.join(both.path, "sub"))
        found = [(await both.service.lookup(vfs_support.ROOT, both.root, name))[0] for name in (b"a", b"sub")]
        for node in found:
            for procedure, arguments in ((WRITE, write(node)), (WRITE, write(node, count=1)), (COMMIT, commit(node))):
                assert status(await same(both, procedure, arguments)) == ROFS
            await both.general.call(READ, read(node))
            for procedure, arguments in ((GETATTR, handle(node)), (ACCESS, access(node)), (READ, read(node))):
                await same(both, procedure, arguments)

    run(kind, tmp_path, scenario, read_only=True)


def test_who_may_not_use_the_export(kind, tmp_path):
    async def scenario(both):
        node = await vfs_support.write_file(both.service, both.root, b"a", b"x", mode=0o666)
        for procedure, arguments in (
            (GETATTR, handle(node)), (ACCESS, access(node)), (READ, read(node)), (WRITE, write(node)),
            (COMMIT, commit(node)),
        ):  # fmt: skip
            assert status(await same(both, procedure, arguments)) == ACCES

    run(kind, tmp_path, scenario, clients=("192.0.2.1",))


def test_an_asynchronous_export_promises_nothing(kind, tmp_path):
    async def scenario(both):
        node = await vfs_support.write_file(both.service, both.root, b"a", b"x", mode=0o666)
        assert status(await natively(both, WRITE, write(node, stable=2))) == OK
        assert (await same(both, COMMIT, commit(node)))[20:24] == bytes(4)

    run(kind, tmp_path, scenario, asynchronous=True)


def test_more_octets_than_the_server_writes_at_once(kind, tmp_path):
    async def scenario(both):
        node = await vfs_support.write_file(both.service, both.root, b"a", b"", mode=0o666)
        data = os.urandom((1 << 20) + 5000)
        reply = await natively(both, WRITE, write(node, 0, data))
        assert reply[20:24] + reply[-16:-8] == bytes(4) + struct.pack(">II", 1 << 20, 0)
        with open(os.path.join(both.path, "a"), "rb") as file:
            assert file.read() == data[: 1 << 20]

    run(kind, tmp_path, scenario)


def test_groups_that_the_server_looks_up(kind, tmp_path):
    """A caller with as many groups as AUTH_SYS takes: who it is has to be found out each time."""

    async def scenario(both):
        node = await vfs_support.write_file(both.service, both.root, b"a", b"x" * 50, mode=0o666)
        body = struct.pack(">IIIII", 0, 0, 1001, 1001, 16) + struct.pack(">16I", *range(5000, 5016))
        head = struct.pack(">8I", 77, 0, 2, 100003, 3, READ, 1, len(body)) + body + bytes(8) + read(node)
        record = struct.pack(">I", 1 << 31 | len(head)) + head
        replies = []
        for client in (both.general, both.native, both.general, both.native):
            client.writer.write(record)
            replies.append(await client.reply())
        assert replies[2] == replies[3]
        assert status(replies[3][4:]) == OK
        waited = {(what[2], why): count for what, why, count in both.dispatcher.waited()}
        assert waited["READ", "standing unknown"] or waited["READ", "file not in use"]

    run(kind, tmp_path, scenario)


class Recalling:
    """NFSv4's delegations: one file is delegated, until it is given back."""

    def __init__(self):
        self.key, self.given_back, self.held = None, asyncio.Event(), 0

    def may_stand(self, directory):
        return True

    @contextlib.contextmanager
    def hold(self, key):
        self.held += key == self.key
        yield
        self.held -= key == self.key

    async def cleared(self, key, *, write):
        if key != self.key:
            return True
        with contextlib.suppress(TimeoutError):
            # In a task of its own: calls run in none, and from Python 3.12 on wait_for asks for the one it is in.
            await asyncio.ensure_future(asyncio.wait_for(self.given_back.wait(), 0.05))
        return self.given_back.is_set()


def test_delegations_are_recalled(kind, tmp_path):
    delegations = Recalling()

    async def scenario(both):
        delegations.given_back = asyncio.Event()
        node = await vfs_support.write_file(both.service, both.root, b"a", b"x" * 50, mode=0o666)
        for arguments, procedure in ((read(node), READ), (write(node), WRITE)):
            await both.native.call(procedure, arguments)
        delegations.key, node.inode.delegated = node.key, 2
        assert status(await natively(both, READ, read(node))) == JUKEBOX
        assert status(await natively(both, WRITE, write(node))) == JUKEBOX
        assert delegations.held == 0
        both.native.send(WRITE, write(node, 0, b"later"))
        await until(lambda: delegations.held)
        delegations.given_back.set()
        assert (await both.native.reply())[24:28] == bytes(4)
        await until(lambda: not delegations.held)
        assert status(await natively(both, READ, read(node))) == OK

    run(kind, tmp_path, scenario, delegations)


def test_a_file_with_many_unstable_descriptors(tmp_path):
    async def scenario(both):
        node = await vfs_support.write_file(both.service, both.root, b"a", b"", mode=0o666)
        for uid in range(1001, 1001 + unstable.MOST_OF_ONE_FILE + 4):
            assert status(await natively(both, WRITE, write(node), (uid, uid))) == OK
        assert len(node.inode.unstable) <= unstable.MOST_OF_ONE_FILE

    run("disk", tmp_path, scenario)


def test_failures_are_counted(kind, tmp_path):
    async def scenario(both):
        node = await vfs_support.write_file(both.service, both.root, b"a", b"x")
        os.chmod(os.path.join(both.path, "a"), 0o600)
        assert status(await natively(both, READ, read(node), (1002, 1002))) == ACCES
        tally = both.service.exports.tally(both.service.exports.exports[0], "127.0.0.1")
        assert tally.errors == 1
        assert both.service.exports.usage.statuses[3, "READ", "ACCES"] == 1

    run(kind, tmp_path, scenario)
