"""Calls of NFSv3 with integrity or privacy (krb5i, krb5p), answered natively: taken out of their protection, executed,
and their results protected where they arrive."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nfsd.protocol import nfs3 as p
from nfsd.protocol.nfs3 import NFS_PROGRAM, nfsstat3
from rpcrdma.client.messages import Message
from rpcrdma.rpc.gss_messages import FLAVOR, GssCredential
from rpcrdma.rpc.messages import accept_stat
from rpcrdma.xdr import pack
from tests.support import kdc
from tests.unit.client_support import pattern, until
from tests.unit.gss_support import realm
from tests.unit.test_gss_native import CREATE, GETATTR, READ, SIZE, WRITE, Signing, run, signing
from tests.unit.test_nfs3_native_names import creation

SERVICES = {"krb5i": 2, "krb5p": 3}
SECURITIES = list(SERVICES)


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kdc.Realm]:
    with realm(tmp_path_factory.mktemp("realm")) as made:
        yield made


@pytest.mark.parametrize("carrier", ["tcp", "rdma1", "rdma2"])
@pytest.mark.parametrize("security", SECURITIES)
def test_protected_calls_are_answered_natively(tmp_path: Path, example: kdc.Realm, carrier: str, security: str) -> None:
    async def test(it: Signing) -> None:
        handle = await it.file("file")
        await it.read(handle, 0, 1)
        before = it.row(READ).native_calls
        for offset, count in ((0, 4096), (5, 3), (5, 0), (SIZE - 10, 20), (100, 9001), (1, 20_000)):
            assert await it.read(handle, offset, count) == pattern(SIZE)[offset : offset + count]
            assert not any(it.placed)  # what is protected as a whole has no part that could be
        assert it.row(READ).native_calls == before + 6
        got = (await it.call(GETATTR, pack(p.GETATTR3args, p.GETATTR3args(handle)))).decode(p.GETATTR3res)
        assert got.status == nfsstat3.NFS3_OK
        assert it.row(GETATTR).native_calls == it.row(GETATTR).calls == 1
        for size in (1, 9000, 20_001):
            data = pattern(size, 3)
            arguments = p.WRITE3args(handle, 4, size, p.stable_how.FILE_SYNC, memoryview(data))
            done = (await it.call(WRITE, pack(p.WRITE3args, arguments))).decode(p.WRITE3res)
            assert done.status == nfsstat3.NFS3_OK
            assert (it.server.directory / "file").read_bytes()[4 : size + 4] == data
        assert it.row(WRITE).native_calls == it.row(WRITE).calls == 3
        secured = it.server.dispatcher.secured
        assert secured is not None
        assert secured.calls()[security] > 10
        assert it.acceptor.counts["established"] == 1

    run(test, tmp_path, example, carrier, security)


@pytest.mark.parametrize("carrier", ["tcp", "rdma1"])
@pytest.mark.parametrize("security", SECURITIES)
def test_many_sizes_are_protected_right(tmp_path: Path, example: kdc.Realm, carrier: str, security: str) -> None:
    """Inline, beside the head, and in a Reply chunk: with every padding."""
    chance = random.Random(14)

    async def test(it: Signing) -> None:
        handle = await it.file("file")
        for count in (*range(3000, 3012), *(chance.randrange(32_000) for _ in range(40))):
            offset = chance.randrange(SIZE - count)
            assert await it.read(handle, offset, count) == pattern(SIZE)[offset : offset + count]

    run(test, tmp_path, example, carrier, security)


@pytest.mark.parametrize("carrier", ["tcp", "rdma1", "rdma2"])
@pytest.mark.parametrize("security", SECURITIES)
def test_what_is_long_is_done_by_threads(tmp_path: Path, example: kdc.Realm, carrier: str, security: str) -> None:
    async def test(it: Signing) -> None:
        handle = await it.file("file")
        await it.read(handle, 0, 1)
        before = it.row(READ).native_calls
        for offset, count in ((3, 200_001), (0, SIZE), (SIZE - 40_000, 50_000), (1, 32_769), (1, 32_768)):
            assert await it.read(handle, offset, count) == pattern(SIZE)[offset : offset + count]
        assert it.row(READ).native_calls == before + 5
        for size in (100_003, 32_900, SIZE):
            data = pattern(size, 3)
            arguments = p.WRITE3args(handle, 4, size, p.stable_how.UNSTABLE, memoryview(data))
            assert (await it.call(WRITE, pack(p.WRITE3args, arguments))).decode(p.WRITE3res).status == nfsstat3.NFS3_OK
            assert (it.server.directory / "file").read_bytes()[4 : size + 4] == data
        assert it.row(WRITE).native_calls == it.row(WRITE).calls == 3
        assert it.acceptor.counts["discarded"] == it.acceptor.counts["refused_bad_arguments"] == 0

    run(test, tmp_path, example, carrier, security)


class Own:
    """Makes every octet of its calls itself, on a connection that has a context."""

    def __init__(self, it: Signing, sealer: Any, security: str) -> None:
        self.it, self.sealer, self.service = it, sealer, SERVICES[security]
        self.security = it.connection.security
        self.xid, self.sequence = 0x1000, 5000

    def head(self, procedure: int = GETATTR) -> bytes:
        """The header of a call, with the next sequence number."""
        assert self.security is not None
        self.sequence, self.xid = self.sequence + 1, self.xid + 1
        credential = GssCredential(1, 0, self.sequence, self.service, self.security._handle).encode()
        head = struct.pack(">8I", self.xid, 0, 2, NFS_PROGRAM, 3, procedure, FLAVOR, len(credential)) + credential
        mic = self.sealer.sign(head)
        return head + struct.pack(">II", FLAVOR, len(mic)) + mic

    def protected(self, arguments: bytes, sequence: int | None = None) -> bytes:
        """Arguments as they are protected."""
        body = struct.pack(">I", self.sequence if sequence is None else sequence) + arguments
        if self.service == 2:
            mic = self.sealer.sign(body)
            return struct.pack(">I", len(body)) + body + struct.pack(">I", len(mic)) + mic
        room = self.sealer.room(len(body))
        token = bytearray(sum(room) + len(body))
        token[room[0] : room[0] + len(body)] = body
        length = self.sealer.wrap(token, room, len(body))
        return struct.pack(">I", length) + token[:length] + bytes(-length & 3)

    async def outcome(self, head: bytes, body: bytes) -> str:
        """What the reply's header says."""
        message, replies = Message(self.xid, head + body, []), []

        def read(octets: bytes, _: Any) -> Any:
            replies.append(bytes(octets))
            return SimpleNamespace()

        await self.it.connection._exchange(lambda _: message, read)
        (reply,) = replies
        assert struct.unpack_from(">4I", reply) == (self.xid, 1, 0, FLAVOR)
        length = int.from_bytes(reply[16:20], "big")
        assert self.sealer.verify(struct.pack(">I", self.sequence), reply[20 : 20 + length])
        return accept_stat(int.from_bytes(reply[20 + length : 24 + length], "big")).name


@asynccontextmanager
async def own(it: Signing, security: str) -> AsyncIterator[Own]:
    connection = it.connection
    assert connection.security is not None
    yield Own(it, await connection.security.ready(connection._exchange, NFS_PROGRAM, 3), security)


@pytest.mark.parametrize("carrier", ["tcp", "rdma1"])
@pytest.mark.parametrize("security", SECURITIES)
def test_arguments_whose_protection_is_not_good_are_garbage(
    tmp_path: Path, example: kdc.Realm, carrier: str, security: str
) -> None:
    async def test(it: Signing) -> None:
        handle = await it.file("file")
        arguments = pack(p.GETATTR3args, p.GETATTR3args(handle))
        refused = 0
        async with own(it, security) as raw:
            head = raw.head()
            assert await raw.outcome(head, raw.protected(arguments)) == "SUCCESS"
            calls = it.row(GETATTR).calls
            size = len(raw.protected(arguments))
            for at in range(size):  # lengths, sequence number, arguments, ciphertext and MIC: each octet
                head = raw.head()
                body = bytearray(raw.protected(arguments))
                body[at] ^= 1 << at % 8
                assert await raw.outcome(head, bytes(body)) == "GARBAGE_ARGS", at
                refused += 1
            for length in (0, 1, 3, 4, 8, 20, size - 4, size - 1):
                head = raw.head()
                assert await raw.outcome(head, raw.protected(arguments)[:length]) == "GARBAGE_ARGS", length
            head = raw.head()
            assert await raw.outcome(head, raw.protected(arguments) + bytes(4)) == "GARBAGE_ARGS"
            for other in (raw.sequence - 1, raw.sequence + 100, 0):  # the number inside is another call's
                head = raw.head()
                assert await raw.outcome(head, raw.protected(arguments, other)) == "GARBAGE_ARGS"
            for given in (b"", bytes(4), struct.pack(">I", 0xFFFFFFFF), b"\xff" * 400):
                assert await raw.outcome(raw.head(), given) == "GARBAGE_ARGS"
            assert it.row(GETATTR).calls == calls
            head = raw.head()
            assert await raw.outcome(head, raw.protected(arguments)) == "SUCCESS"
        assert it.acceptor.counts["refused_bad_arguments"] > refused // 2  # others have wrong lengths
        assert it.acceptor.counts["discarded"] == 0

    run(test, tmp_path, example, carrier, security)


@pytest.mark.parametrize("security", SECURITIES)
def test_replays_of_protected_calls_are_dropped(tmp_path: Path, example: kdc.Realm, security: str) -> None:
    async def test(it: Signing) -> None:
        handle = await it.file("file")
        arguments = pack(p.GETATTR3args, p.GETATTR3args(handle))
        async with own(it, security) as raw:
            head = raw.head()
            body = raw.protected(arguments)
            assert await raw.outcome(head, body) == "SUCCESS"
            calls = it.row(GETATTR).calls
            again = asyncio.ensure_future(raw.outcome(head, body))
            await until(lambda: it.acceptor.counts["discarded"])
            assert not again.done()
            again.cancel()
            assert it.row(GETATTR).calls == calls

    run(test, tmp_path, example, "tcp", security)


@pytest.mark.parametrize("carrier", ["tcp", "rdma1"])
@pytest.mark.parametrize("security", SECURITIES)
def test_a_retransmission_gets_the_reply_that_is_kept(
    tmp_path: Path, example: kdc.Realm, carrier: str, security: str
) -> None:
    """What is kept is not encrypted: the retransmission's reply is protected with its own sequence number."""

    async def test(it: Signing) -> None:
        await it.file("file")
        connection, secured = it.connection, it.connection.security
        assert secured is not None
        sealer = await secured.ready(connection._exchange, NFS_PROGRAM, 3)
        arguments = creation(SimpleNamespace(handle=it.server.root.data), b"new", how=p.createmode3.GUARDED)
        for _ in range(3):
            make, read = secured.call(sealer, NFS_PROGRAM, 3, CREATE, arguments)
            reply = await connection._exchange(lambda _, make=make: make(0x77), read)
            assert reply.decode(p.CREATE3res).status == nfsstat3.NFS3_OK  # EXIST, if it were executed again
        assert it.server.dispatcher.replay.hits == 2
        assert it.row(CREATE).native_calls == 1

    run(test, tmp_path, example, carrier, security)


@pytest.mark.parametrize("carrier", ["tcp", "rdma1"])
@pytest.mark.parametrize("security", SECURITIES)
def test_a_call_that_is_declined_is_not_unprotected_again(
    tmp_path: Path, example: kdc.Realm, carrier: str, security: str
) -> None:
    """Arguments that no native function takes have been decrypted where they stand."""

    async def test(it: Signing) -> None:
        await it.file("file")
        with pytest.raises(Exception, match="GARBAGE_ARGS"):
            await it.call(GETATTR, struct.pack(">I", 64))
        assert it.acceptor.counts["discarded"] == it.acceptor.counts["refused_bad_arguments"] == 0
        # NULL has no native function.
        await it.call(0, b"")
        assert it.row(0).calls == 1

    run(test, tmp_path, example, carrier, security)


def writing(handle: p.nfs_fh3, data: bytes) -> bytes:
    return pack(p.WRITE3args, p.WRITE3args(handle, 0, len(data), p.stable_how.UNSTABLE, memoryview(data)))


@pytest.mark.parametrize("carrier", ["tcp", "rdma1"])
@pytest.mark.parametrize("security", SECURITIES)
def test_long_arguments_whose_protection_is_not_good_are_garbage(
    tmp_path: Path, example: kdc.Realm, carrier: str, security: str
) -> None:
    async def test(it: Signing) -> None:
        handle = await it.file("file")
        arguments = writing(handle, bytes(100_000))
        async with own(it, security) as raw:
            head = raw.head(WRITE)
            size = len(raw.protected(arguments))
            assert await raw.outcome(head, raw.protected(arguments)) == "SUCCESS"
            for at in (3, 5, 20, 60, 50_000, size - 30, size - 5):
                head = raw.head(WRITE)
                body = bytearray(raw.protected(arguments))
                body[at] ^= 1
                assert await raw.outcome(head, bytes(body)) == "GARBAGE_ARGS", at
            head = raw.head(WRITE)
            assert await raw.outcome(head, raw.protected(arguments, raw.sequence + 100)) == "GARBAGE_ARGS"
            head = raw.head(WRITE)
            assert await raw.outcome(head, raw.protected(arguments)) == "SUCCESS"
        assert it.row(WRITE).calls == it.row(WRITE).native_calls == 2
        assert it.acceptor.counts["discarded"] == 0

    run(test, tmp_path, example, carrier, security)


@pytest.mark.parametrize("security", SECURITIES)
def test_a_long_retransmission_gets_the_reply_that_is_kept(tmp_path: Path, example: kdc.Realm, security: str) -> None:
    """Its arguments are not known before a thread has seen to them."""

    async def test(it: Signing) -> None:
        handle = await it.file("file")
        connection, secured = it.connection, it.connection.security
        assert secured is not None
        sealer = await secured.ready(connection._exchange, NFS_PROGRAM, 3)
        for _ in range(3):
            make, read = secured.call(sealer, NFS_PROGRAM, 3, WRITE, writing(handle, pattern(60_000)))
            reply = await connection._exchange(lambda _, make=make: make(0x78), read)
            assert reply.decode(p.WRITE3res).status == nfsstat3.NFS3_OK
        assert it.server.dispatcher.replay.hits == 2
        assert it.row(WRITE).native_calls == 1

    run(test, tmp_path, example, "tcp", security)


@pytest.mark.parametrize("carrier", ["tcp", "rdma1"])
@pytest.mark.parametrize("security", SECURITIES)
def test_a_context_may_go_while_threads_work_with_it(
    tmp_path: Path, example: kdc.Realm, carrier: str, security: str
) -> None:
    async def test(it: Signing) -> None:
        handle = await it.file("file")
        for _ in range(5):
            calls = [asyncio.ensure_future(it.read(handle, 0, SIZE)) for _ in range(4)]
            calls += [asyncio.ensure_future(it.call(WRITE, writing(handle, pattern(SIZE)))) for _ in range(4)]
            await asyncio.sleep(0.001)
            for context in it.acceptor.table:
                it.acceptor.destroy(context)
            for done in await asyncio.gather(*calls):
                if isinstance(done, bytes):
                    assert done == pattern(SIZE)
                else:
                    assert done.decode(p.WRITE3res).status == nfsstat3.NFS3_OK

    run(test, tmp_path, example, carrier, security)


@pytest.mark.parametrize("carrier", ["tcp", "rdma1"])
@pytest.mark.parametrize("security", SECURITIES)
def test_connections_may_end_while_threads_work_for_them(
    tmp_path: Path, example: kdc.Realm, carrier: str, security: Any
) -> None:
    """All memory is given back (the fixtures look), and what was to be written is written."""

    async def main() -> None:
        async with signing(tmp_path, example, carrier, security) as it:
            handle = await it.file("file")
            await it.read(handle, 0, 1)
            calls = [asyncio.ensure_future(it.read(handle, 0, SIZE)) for _ in range(8)]
            calls += [asyncio.ensure_future(it.call(WRITE, writing(handle, pattern(SIZE, 5)))) for _ in range(8)]
            dispatcher = it.server.dispatcher
            await until(lambda: len(dispatcher.held) > 2)
            await it.connection.close()
            await asyncio.gather(*calls, return_exceptions=True)
            await until(lambda: not dispatcher.held and not dispatcher.running and not dispatcher.securing)

    asyncio.run(main())


@pytest.mark.parametrize("security", SECURITIES)
def test_hosts_have_threads_in_turn_and_nothing_is_lost(tmp_path: Path, example: kdc.Realm, security: str) -> None:
    """More calls than a host has threads."""

    async def test(it: Signing) -> None:
        handle = await it.file("file")
        reads = [it.read(handle, at, SIZE - at) for at in range(40)]
        assert await asyncio.gather(*reads) == [pattern(SIZE)[at:] for at in range(40)]

    run(test, tmp_path, example, "tcp", security)
