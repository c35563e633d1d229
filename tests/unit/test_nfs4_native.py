"""Native answers are those of the general path, octet for octet, and leave the same state behind."""

import contextlib
import os
import random

import pytest

from nfsd.idnames import IdNames
from nfsd.protocol import nfs4 as p
from tests.support.nfs4 import Client4, LoopbackTransport, wanted
from tests.support.nfs4_native import comparable, handle_of, run
from tests.unit import vfs_support
from tests.unit.test_waiting_calls import until

CALLERS = ((0, 0), (1001, 1001), (1002, 1002), (1002, 1001))
LINUX = wanted(1, 3, 4, 8, 20, 33, 35, 36, 37, 41, 45, 47, 52, 53, 55)
"""What Linux asks for most of the time."""
CACHE_CONSISTENCY = wanted(3, 4, 45, 52, 53)
OF_CONTENT = wanted(1, 4, 33, 35, 36, 37)
"""What two files written alike have in common."""
OF_FILES = sorted(set(range(90)) - {21, 22, 23, 42, 43, 44})
"""What a GETATTR may ask for. How much room the file system has is left out: other processes take some at any time."""
ANONYMOUS, BYPASS = p.stateid4(0, bytes(12)), p.stateid4(2**32 - 1, b"\xff" * 12)
CURRENT = p.stateid4(1, bytes(12))
SESSIONS = [1, 2]
"""The minor versions that have them."""
OPERATIONS_AT = 40 + 28 + 12
"""Where the operations stand in a call of NFSv4.0 as :class:`Client4` makes them: header, credential, tag, numbers."""


def on(kind, tmp_path, minor, scenario, **options):
    with vfs_support.directory_on(kind, tmp_path) as path:
        return run(path, tmp_path, minor, scenario, **options)


def putfh(handle):
    return (p.OP_PUTFH, p.PUTFH4args(handle))


def getattr_(what=LINUX):
    return (p.OP_GETATTR, what)


def lookup(name):
    return (p.OP_LOOKUP, p.LOOKUP4args(name))


def access(bits):
    return (p.OP_ACCESS, p.ACCESS4args(bits))


def read(stateid, offset, count):
    return (p.OP_READ, p.READ4args(stateid, offset, count))


def write(stateid, offset, data, stable=0):
    return (p.OP_WRITE, p.WRITE4args(stateid, offset, stable, data))


class Things:
    """Files of several sizes, owners and modes, and stateids of some of them."""

    def __init__(self, both, rng):
        self.both, self.rng = both, rng
        self.handles, self.stateids = [], [ANONYMOUS, BYPASS, CURRENT, p.stateid4(1, b"none of ours")]

    async def make(self, count=6):
        both, rng = self.both, self.rng
        for number in range(count):
            path = both.path / f"f{number}"
            path.write_bytes(rng.randbytes(rng.choice((0, 1, 4095, 9000, 70000))))
            if number % 2 == 0:
                path.chmod(0o666)
                how = {"access": rng.choice((1, 2, 3)), "owner": rng.choice((b"one", b"two"))}
                both.client.credential = (*rng.choice(CALLERS), ())
                stateid, _ = await both.client.open("/0", path.name.encode(), **how)
                self.stateids += [stateid] * 3
                self.stateids += [p.stateid4(0, stateid.other), p.stateid4(stateid.seqid + 1, stateid.other)]
                both.client.credential = (0, 0, ())
            os.chown(path, *rng.choice(CALLERS))
            path.chmod(rng.choice((0o600, 0o644, 0o666, 0o444, 0o711, 0o000)))
            self.handles.append(await handle_of(both, path.name.encode()))
        (both.path / "sub").mkdir()
        (both.path / "link").symlink_to("f0")
        self.root = await handle_of(both)
        for name in (b"sub", b"link"):
            self.handles.append(await handle_of(both, name))

    def operation(self):
        """Something that changes nothing; most of it Linux would send."""
        rng = self.rng
        match rng.randrange(12):
            case 0 | 1 | 2 | 3:
                offset = rng.choice((0, 0, 1, 4096, 69999, 70000, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1))
                return read(
                    rng.choice(self.stateids), offset, rng.choice((0, 1, 3, 100, 4096, 65536, 1 << 20, 1 << 31))
                )
            case 4 | 5 | 6:
                numbers = rng.sample(OF_FILES, rng.randrange(5))
                return getattr_(rng.choice((LINUX, LINUX, CACHE_CONSISTENCY, wanted(*numbers), wanted(0, 19, 50))))
            case 7:
                return lookup(rng.choice((b"f0", b"f1", b"f5", b"none", b".", b"..", b"sub", b"a/b", b"", b"x" * 256)))
            case 8:
                return access(rng.choice((0x3F, 0x1F, 1, 0, 0x1FF, 0xFFFFFFFF)))
            case 9:
                return p.OP_GETFH
            case 10:
                again = (p.OP_SEQUENCE, p.SEQUENCE4args(self.both.client.session or bytes(16), 1, 1, 1, False))
                return rng.choice((p.OP_SAVEFH, p.OP_RESTOREFH, p.OP_PUTROOTFH, p.OP_READLINK, again, 9999))
            case _:
                return (p.OP_COMMIT, p.COMMIT4args(rng.choice((0, 2**64 - 1)), rng.choice((0, 1))))

    def compound(self):
        """Operations behind SEQUENCE."""
        rng, root = self.rng, self.root
        handle = rng.choice([*self.handles, root])
        stateid = rng.choice(self.stateids)
        match rng.randrange(8):
            case 0:
                return [putfh(handle), getattr_()]
            case 1:
                return [putfh(root), lookup(b"f%d" % rng.randrange(7)), p.OP_GETFH, getattr_()]
            case 2:
                return [putfh(handle), access(0x3F if self.both.minor == 1 else 0x1FF), getattr_(CACHE_CONSISTENCY)]
            case 3:
                return [putfh(handle), read(stateid, 0, 4096)]
            case _:
                operations = (
                    [putfh(rng.choice((handle, root, b"", b"no handle", b"x" * 128)))] if rng.random() < 0.9 else []
                )
                return operations + [self.operation() for _ in range(rng.randrange(4))]


def disturb(rng, both):
    """Something a local process might do meanwhile."""
    path = both.path / f"f{rng.randrange(6)}"
    with contextlib.suppress(FileNotFoundError):
        match rng.randrange(5):
            case 0:
                path.chmod(rng.choice((0o600, 0o644, 0o666, 0o444, 0o000)))
            case 1:
                os.chown(path, *rng.choice(CALLERS))
            case 2:
                os.truncate(path, rng.choice((0, 5, 4096, 100_000)))
            case 3:
                with path.open("ab") as file:
                    file.write(rng.randbytes(rng.randrange(5000)))
            case 4:
                path.rename(both.path / f"f{rng.randrange(6)}")


@pytest.mark.parametrize("seed", range(2))
def test_random_compounds_among_local_changes(kind, minor, tmp_path, seed):
    rng = random.Random(seed)

    async def scenario(both):
        things = Things(both, rng)
        await things.make()
        for step in range(300):
            if step % 5 == 0:
                disturb(rng, both)
            await both.same(*things.compound(), cache=rng.random() < 0.2, caller=rng.choice(CALLERS))
        return both.answered

    assert on(kind, tmp_path, minor, scenario) > 80


@pytest.mark.parametrize("seed", range(2))
def test_random_writes_leave_the_same_file_behind(tmp_path, minor, seed):
    rng = random.Random(seed)

    async def scenario(both):
        files = []
        for name in (b"a", b"b"):
            (both.path / os.fsdecode(name)).write_bytes(b"x" * 5000)
            (both.path / os.fsdecode(name)).chmod(0o666)
            both.client.credential = (1001, 1001, ())
            files.append([await both.client.open("/0", name, access=access, owner=b"%d" % access) for access in (3, 1)])
        for step in range(250):
            data = rng.randbytes(rng.choice((0, 1, 3, 100, 4096, 70000)))
            offset = rng.choice((0, 0, 1, 1, 4096, 4096, 10_000, 10_000, 1 << 16, (1 << 63) - 10, (1 << 64) - 1))
            stable, which, cache = rng.choice((0, 0, 0, 0, 1, 2)), rng.choice((0, 0, 0, 0, 1)), rng.random() < 0.2
            wrong = rng.random() < 0.1
            behind = rng.choice(
                ([], [getattr_(OF_CONTENT)], [getattr_(OF_CONTENT)], [getattr_(wanted(4, 11, 50))], [p.OP_GETFH, 9999])
            )
            caller = rng.choice((CALLERS[1], CALLERS[1], *CALLERS))
            if step % 20 == 0:
                bits, owner = rng.choice((0o666, 0o600, 0o2755, 0o4777)), rng.choice(CALLERS)
                for name in ("a", "b"):
                    os.chown(both.path / name, *owner)
                    (both.path / name).chmod(bits)
            replies = []
            for slot, (wire, opens) in enumerate(zip((both.native, both.general), files, strict=True)):
                stateid, handle = opens[which]
                if wrong:
                    stateid = p.stateid4(stateid.seqid + 1, stateid.other)
                operations = (putfh(handle), write(stateid, offset, data, stable), *behind)
                reply = await wire.call(None, both.message(slot, *operations, cache=cache, caller=caller))
                replies.append(comparable(reply).replace(handle, b""))
            if behind[-1:] != [getattr_(wanted(4, 11, 50))]:
                assert replies[0] == replies[1]
            both.same_progress()
            results = [(both.path / name).stat() for name in ("a", "b")]
            assert results[0].st_size == results[1].st_size
            assert results[0].st_mode == results[1].st_mode
        with (both.path / "a").open("rb") as a, (both.path / "b").open("rb") as b:
            while block := a.read(1 << 20):
                assert block == b.read(1 << 20)
                if a.tell() > 1 << 21:
                    break
        return both.answered

    assert on("memory", tmp_path, minor, scenario) > 30


@pytest.mark.parametrize("minor", SESSIONS)
def test_a_retransmission_of_what_was_answered_natively_is_answered_from_the_slot(tmp_path, minor):
    async def scenario(both):
        (both.path / "a").write_bytes(b"old")
        stateid, handle = await both.client.open("/0", b"a")
        first = both.message(0, putfh(handle), write(stateid, 0, b"AAAA"), getattr_(), cache=True)
        replied = await both.native.call(None, first)
        assert both.answered == 1
        (both.path / "a").write_bytes(b"meanwhile")
        # With another XID, over another connection (RFC 8881 section 2.10.6.1.3.1).
        assert (await both.general.call(None, b"\1\2\3\4" + first[4:]))[4:] == replied[4:]
        assert await both.native.call(None, first) == replied
        assert (both.path / "a").read_bytes() == b"meanwhile"
        # Another request under the same sequence id is none.
        both.sequences[1] -= 1
        other = await both.native.call(None, both.message(0, putfh(handle), getattr_(), cache=True))
        assert Client4.parse(other)[0] == p.NFS4ERR_SEQ_FALSE_RETRY
        # What was not kept is told apart.
        uncached = both.message(0, putfh(handle), getattr_())
        assert Client4.parse(await both.native.call(None, uncached))[0] == 0
        assert Client4.parse(await both.native.call(None, uncached))[0] == p.NFS4ERR_RETRY_UNCACHED_REP
        assert both.answered == 5

    on("memory", tmp_path, minor, scenario)


def test_a_connection_is_bound_by_its_first_sequence(tmp_path):
    async def scenario(both):
        handle = await handle_of(both)
        both.session.client.hosts.clear()
        both.server.engine.sessions.connection_closed(next(iter(both.session.connections)))
        both.server.engine.sessions.connection_closed(next(iter(both.session.connections)))
        assert not both.session.connections
        for answered in (1, 2, 3):
            await both.native.call(None, both.message(0, putfh(handle), getattr_()))
            assert (both.answered, len(both.session.connections)) == (answered, 1)
            assert list(both.session.client.hosts) == ["127.0.0.1"]
        both.native.writer.close()
        await until(lambda: not both.session.connections)

    on("memory", tmp_path, 1, scenario)


def test_the_lease_is_renewed_and_a_courtesy_client_comes_back(tmp_path):
    async def scenario(both):
        handle, client = await handle_of(both), both.session.client
        await both.native.call(None, both.message(0, putfh(handle), getattr_()))
        client.lease_end = 0.0
        await both.native.call(None, both.message(0, putfh(handle), getattr_()))
        assert client.lease_end > both.server.engine.now()
        answered = both.answered
        client.courtesy, client.lease_end = True, 0.0
        await both.native.call(None, both.message(0, putfh(handle), getattr_()))
        assert not client.courtesy
        assert client.lease_end > both.server.engine.now()
        assert both.answered == answered + 1

    on("memory", tmp_path, 1, scenario)


@pytest.mark.parametrize("rare", [p.OP_LOOKUPP, p.OP_READLINK])
def test_a_compound_that_is_declined_gives_its_slot_back_as_it_was(tmp_path, rare):
    async def scenario(both):
        handle, session = await handle_of(both), both.session
        slots = len(session.slots)
        both.server.engine.sessions.budget.shrink(session, 3)
        # The client learns of the lower target by the first reply; what it sends then shows that it knows.
        for left in (slots, 3):
            await both.native.call(None, both.message(0, putfh(handle), rare, highest=2))
            assert len(session.slots) == left
            assert not session.slots[1].in_use
        assert both.answered == 0

    on("memory", tmp_path, 1, scenario)


def test_a_write_waits_for_what_other_compounds_promised(tmp_path):
    async def scenario(both):
        (both.path / "a").write_bytes(b"old")
        stateid, handle = await both.client.open("/0", b"a")
        compound = (putfh(handle), write(stateid, 0, b"data"), getattr_(OF_CONTENT))
        await both.native.call(None, both.message(0, *compound))
        answered = both.answered
        both.server.engine.end_grace()
        both.server.engine._write(None)
        await both.native.call(None, both.message(0, *compound))
        assert (both.answered, both.server.engine.stable) == (answered + 1, True)
        await both.native.call(None, both.message(0, *compound))
        assert both.answered == answered + 2

    on("memory", tmp_path, 1, scenario)


@pytest.mark.parametrize("minor", SESSIONS)
def test_a_session_with_small_replies_is_held_to_them(tmp_path, minor):
    async def scenario(both):
        (both.path / "a").write_bytes(bytes(4096))
        stateid, handle = await both.client.open("/0", b"a")
        await both.same(putfh(handle), read(stateid, 0, 4096))
        for size in (0, 100, 200, 300, 400):
            # As CREATE_SESSION would have granted them.
            both.client.clientid = both.session.client.clientid
            made = both.session.client
            fore = p.channel_attrs4(0, 4096, 512 + size, size, 8, 8, [])
            back = p.channel_attrs4(0, 4096, 4096, 0, 2, 1, [])
            creation = p.CREATE_SESSION4args(made.clientid, made.create_seqid + 1, 0, fore, back, 0x40000000, [])
            status, [(_, created)] = await both.client.raw((p.OP_CREATE_SESSION, creation))
            assert status == 0
            both.client.session, both.sequences = created.csr_resok4.csr_sessionid, {}
            for wire, slot in ((both.native, 0), (both.general, 1), (both.native, 2)):
                await wire.call(None, both.message(slot))
            for cache in (False, True):
                for compound in (
                    [getattr_()],
                    [getattr_(), getattr_()],
                    [read(stateid, 0, 4096)],
                    [read(stateid, 0, 256), getattr_()],
                    [p.OP_GETFH, getattr_(), p.OP_GETFH],
                ):
                    await both.same(putfh(handle), *compound, cache=cache)
        return both.answered

    assert on("memory", tmp_path, minor, scenario) > 20


def test_a_client_that_may_only_read_writes_nothing(tmp_path):
    async def scenario(both):
        (both.path / "a").write_bytes(b"kept")
        (both.path / "a").chmod(0o666)
        stateid, handle = await both.client.open("/0", b"a", access=1)
        await both.same(putfh(handle), write(stateid, 0, b"lost"), getattr_())
        await both.same(putfh(handle), write(ANONYMOUS, 0, b"lost"))
        await both.same(putfh(handle), access(0x3F))
        await both.same(putfh(handle), access(0x3F), getattr_())
        assert (both.path / "a").read_bytes() == b"kept"
        return both.answered

    assert on("memory", tmp_path, 1, scenario, read_only=True) > 0


def test_another_clients_state_and_deny_are_respected(tmp_path, minor):
    async def scenario(both):
        (both.path / "a").write_bytes(b"content")
        (both.path / "a").chmod(0o666)
        wire = both.general
        other = await Client4(wire, minor, name=b"other", transport=LoopbackTransport()).connect()
        stateid, handle = await both.client.open("/0", b"a", access=1)
        theirs, _ = await other.open("/0", b"a", access=3)
        await both.same(putfh(handle), read(theirs, 0, 7))
        await both.same(putfh(handle), write(theirs, 0, b"lost"))
        await both.same(putfh(handle), write(stateid, 0, b"lost"))
        await both.same(putfh(handle), read(stateid, 0, 7))
        await other.close(theirs, handle)
        await other.open("/0", b"a", access=2, deny=0)
        await both.same(putfh(handle), read(stateid, 0, 7))
        await both.client.close(stateid, handle)
        await both.same(putfh(handle), read(stateid, 0, 7))
        # In NFSv4.0 the stateid is all that tells whose WRITE it is.
        assert (both.path / "a").read_bytes() == (b"content" if minor else b"lostent")

    on("memory", tmp_path, minor, scenario)


def test_names_of_further_exports_shadow_real_ones(tmp_path):
    from nfsd.exports import Export

    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "inside").write_bytes(b"")

    async def scenario(both):
        (both.path / "inner").mkdir()
        (both.path / "file").write_bytes(b"")
        root = await handle_of(both)
        await handle_of(both, b"inner")
        await handle_of(both, b"file")
        for name in (b"inner", b"file"):
            await both.same(putfh(root), lookup(name), p.OP_GETFH, getattr_())
        await both.same(putfh(root), getattr_(wanted(8, 20, 55)))

    on("memory", tmp_path, 2, scenario, more=[Export(9, str(tmp_path / "inner"), "/0/inner")])


@pytest.mark.parametrize("seed", range(2))
def test_mangled_compounds(tmp_path, minor, seed):
    rng = random.Random(seed)

    async def scenario(both):
        things = Things(both, rng)
        await things.make()
        for _ in range(300):
            compound, octets = things.compound(), (0, 1, 4, 0x7F, 0x80, 0xFF, rng.randrange(256))
            changes = [(rng.random(), rng.choice(octets)) for _ in range(rng.randrange(3))]
            kept = rng.random() if rng.random() < 0.3 else 1
            replies = []
            for wire, slot in ((both.native, 2), (both.general, 1), (both.native, 0)):
                message = bytearray(both.message(slot, *compound))
                # Behind SEQUENCE, whose arguments end with the flag.
                start = message.index(both.client.session) + 16 + 16 if minor else OPERATIONS_AT
                for where, octet in changes:
                    if len(message) > start:
                        message[start + int(where * (len(message) - start))] = octet
                del message[start + int(kept * (len(message) - start)) :]
                replies.append(comparable(await wire.call(None, bytes(message))))
            assert replies[1] == replies[2]
            both.same_slots()
        return both.answered

    assert on("memory", tmp_path, minor, scenario) > 50


def test_users_and_groups_with_names(tmp_path):
    async def scenario(both):
        handle = await handle_of(both)
        reply = await both.same(putfh(handle), getattr_(OF_CONTENT))
        assert b"@localdomain" in reply
        await both.same(putfh(handle), getattr_(CACHE_CONSISTENCY))
        assert both.answered == 4

    on("memory", tmp_path, 1, scenario, names=IdNames(numeric=False))
