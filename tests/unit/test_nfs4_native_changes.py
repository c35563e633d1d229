"""REMOVE and SETATTR answered natively: replies, files and tables are those of the general path."""

import asyncio
import os
import random
import struct

import pytest

from nfsd.protocol import nfs4 as p
from nfsd.v4 import compound
from tests.support.nfs4 import wanted
from tests.support.nfs4_native import SEQUENCE_AT, handle_of
from tests.unit.client_support import until
from tests.unit.test_nfs3_native_names import listing
from tests.unit.test_nfs4_native import (
    ANONYMOUS,
    CALLERS,
    OF_CONTENT,
    access,
    comparable,
    getattr_,
    on,
    putfh,
    read,
    write,
)

RESULT_AT = SEQUENCE_AT + 8
"""Where the result of what follows PUTFH stands in a reply; SEQUENCE_RESULT later if there is SEQUENCE."""
SEQUENCE_RESULT = 44
SPARE = 3
"""A slot for calls of one way only, so that the others keep step."""
CHANGE = wanted(3)
SECONDS = 1_500_000_000
NAMES = (b"a", b"b", b"c", b"kept", b"sub", b"full", b"link", b"x" * 255, b"x" * 256, b".", b"..", b"", b"a/b", b"a\0")


def remove(name):
    return (p.OP_REMOVE, p.REMOVE4args(name))


def setattr_(values, stateid=ANONYMOUS):
    """``values``: octets by attribute's number."""
    octets = b"".join(values[number] for number in sorted(values))
    return (p.OP_SETATTR, p.SETATTR4args(stateid, p.fattr4(wanted(*values).attr_request, octets)))


def mode(bits):
    return struct.pack(">I", bits)


def at(seconds, nanoseconds=0):
    return struct.pack(">IqI", p.time_how4.SET_TO_CLIENT_TIME4, seconds, nanoseconds)


NOW = struct.pack(">I", p.time_how4.SET_TO_SERVER_TIME4)
TEXT = struct.pack(">I4s", 4, b"1001")
CHANGES = (
    *({33: mode(bits)} for bits in (0o644, 0o600, 0o4755, 0o2755, 0, 0o666, 0o10644)),
    {48: NOW},
    {54: NOW},
    {48: at(SECONDS), 54: at(SECONDS)},
    {48: at(-1), 54: NOW},
    {54: at(SECONDS, 1_000_000_000)},
    {54: struct.pack(">I", 7)},
    {33: mode(0o640), 48: NOW, 54: at(SECONDS, 5)},
    {33: mode(0o640) + b"more"},
    {33: b""},
    {36: TEXT},
    {33: mode(0o611), 37: TEXT},
    {4: struct.pack(">Q", 3)},
    {11: mode(1)},
    {74: struct.pack(">II", 0o600, 0o777)},
    {},
)


async def change_of(both, handle):
    """A file's change attribute."""
    reply = await both.general.call(None, both.message(SPARE, putfh(handle), getattr_(CHANGE)))
    return int.from_bytes(reply[-8:], "big")


async def each_way(both, operations, handles, **how):
    """The replies of both ways to the same on one of two files each, comparable."""
    replies = []
    for slot, (wire, handle) in enumerate(zip((both.native, both.general), handles, strict=True)):
        message = both.message(slot, putfh(handle), *operations, **how)
        replies.append(comparable(await wire.call(None, message)))
    return replies


def without_change_info(reply):
    """A reply, and the change_info4 of a REMOVE in it that has succeeded."""
    where = RESULT_AT - 4  # comparable() takes the XID away
    if reply[where - 8 : where - 4] == struct.pack(">I", p.OP_SEQUENCE):
        where += SEQUENCE_RESULT
    if reply[where : where + 8] != struct.pack(">II", p.OP_REMOVE, 0):
        return reply, None
    info = struct.unpack_from(">IQQ", reply, where + 8)
    return reply[: where + 8] + reply[where + 28 :], info


async def directories(both):
    """Two directories for anyone, known to the server and open to be synchronised."""
    handles = []
    for name in ("one", "two"):
        path = both.path / name
        path.mkdir()
        path.chmod(0o777)
        handles.append(await handle_of(both, name.encode()))
        (path / "first").touch()
        await both.general.call(None, both.message(SPARE, putfh(handles[-1]), remove(b"first")))
    return handles


def fill(path, rng):
    """Whatever may be removed."""
    for name in ("a", "b", "c"):
        (path / name).write_bytes(b"x" * rng.choice((0, 10, 10_000)))
    for name, make in (("kept", lambda one: one.touch()), ("sub", lambda one: one.mkdir())):
        if not (path / name).exists():
            make(path / name)
    if not (path / "full").exists():
        (path / "full").mkdir()
        (path / "full" / "file").touch()
    if not (path / "link").is_symlink():
        (path / "link").symlink_to("a")
    (path / ("x" * 255)).touch()
    path.chmod(rng.choice((0o777, 0o777, 0o1777, 0o755)))


def test_what_stands_before_a_write_does_not_see_it(kind, tmp_path, minor):
    """A COMPOUND's operations are carried out in their order (RFC 8881 section 16.2.3)."""

    async def scenario(both):
        (both.path / "a").write_bytes(b"old data")
        stateid, handle = await both.client.open("/0", b"a")
        for way in (both.native, both.general):
            (both.path / "a").write_bytes(b"old data")
            compound = putfh(handle), read(stateid, 0, 8), write(stateid, 0, b"new data")
            reply = await way.call(None, both.message(0, *compound))
            assert b"old data" in reply
            assert (both.path / "a").read_bytes() == b"new data"

    on(kind, tmp_path, minor, scenario)


@pytest.mark.parametrize("seed", range(2))
def test_random_removals(kind, tmp_path, minor, seed):
    rng = random.Random(seed)

    async def scenario(both):
        handles = await directories(both)
        done = 0
        for step in range(150):
            if step % 8 == 0:
                state = rng.getstate()
                for name in ("one", "two"):
                    rng.setstate(state)
                    fill(both.path / name, rng)
                    if rng.random() < 0.5:
                        await handle_of(both, f"{name}/a".encode())  # the server knows it
                    if rng.random() < 0.5:
                        (both.path / name / "b").unlink()
                        os.link(both.path / name / "a", both.path / name / "b")
            caller = rng.choice((*CALLERS, (0, 0), (0, 0)))
            behind = rng.choice(([], [getattr_(OF_CONTENT)], [getattr_(OF_CONTENT)], [p.OP_GETFH, access(0x3F)]))
            before = [await change_of(both, handle) for handle in handles]
            replies = await each_way(
                both, [remove(rng.choice(NAMES)), *behind], handles, caller=caller, cache=rng.random() < 0.2
            )
            results = [without_change_info(reply) for reply in replies]
            if behind[:1] != [p.OP_GETFH]:
                assert results[0][0] == results[1][0]
            assert (results[0][1] is None) == (results[1][1] is None)
            if results[0][1] is not None:
                done += 1
                after = [await change_of(both, handle) for handle in handles]
                for (_, info), was, now in zip(results, before, after, strict=True):
                    assert info == (1, was, now)
                    assert was != now
            assert listing(both.path / "one") == listing(both.path / "two")
        return both.answered, done

    answered, done = on(kind, tmp_path, minor, scenario)
    assert done > 30
    assert answered > 15


@pytest.mark.parametrize("seed", range(2))
def test_random_attributes(kind, tmp_path, minor, seed):
    rng = random.Random(seed)

    async def scenario(both):
        handles = []
        for name in ("one", "two"):
            (both.path / name).write_bytes(b"x" * 99)
            handles.append(await handle_of(both, name.encode()))
            await both.general.call(None, both.message(SPARE, putfh(handles[-1]), setattr_({54: NOW})))
        for step in range(200):
            if step % 10 == 0:
                owner = rng.choice(CALLERS)
                for name in ("one", "two"):
                    os.chown(both.path / name, *owner)
            caller, what = rng.choice((*CALLERS, (0, 0), (0, 0))), rng.choice(CHANGES)
            stateid = rng.choice((ANONYMOUS, p.stateid4(7, b"none of ours")))
            behind = rng.choice(([], [getattr_(OF_CONTENT)], [getattr_(OF_CONTENT)], [p.OP_GETFH]))
            changes = [await change_of(both, handle) for handle in handles]
            one, two = await each_way(
                both, [setattr_(what, stateid), *behind], handles, caller=caller, cache=rng.random() < 0.2
            )
            assert one.replace(handles[0], b"") == two.replace(handles[1], b""), what
            moved = [await change_of(both, handle) for handle in handles]
            assert (changes[0] == moved[0]) == (changes[1] == moved[1])
            facts = [(both.path / name).stat() for name in ("one", "two")]
            for field in ("st_mode", "st_uid", "st_gid", "st_size"):
                assert getattr(facts[0], field) == getattr(facts[1], field)
            for field in ("st_atime_ns", "st_mtime_ns"):
                set_to = [getattr(of, field) // 10**9 in (SECONDS, -1) for of in facts]
                assert set_to[0] == set_to[1]
        return both.answered

    assert on(kind, tmp_path, minor, scenario) > 30


def test_what_stands_behind_a_change_comes_in_its_turn(kind, tmp_path, minor, monkeypatch):
    """Whoever carries that out finds the change made, and does not make it once more."""
    done = []

    async def carried_out(c, row, *arguments, original=compound.carry_out):
        if c.call.transport.peer_port == natively:
            done.append(row.number)
        return await original(c, row, *arguments)

    monkeypatch.setattr(compound, "carry_out", carried_out)
    natively = None

    async def scenario(both):
        nonlocal natively
        natively = both.native.writer.get_extra_info("sockname")[1]
        handles = await directories(both)
        many = [getattr_(OF_CONTENT)] * 2
        for behind in (
            [p.OP_PUTROOTFH],
            [9999],
            [p.OP_LOOKUPP],
            many,
            [getattr_(wanted(12))],
            [write(ANONYMOUS, 0, b"")],
        ):
            for name in ("one", "two"):
                (both.path / name / "a").touch()
            done.clear()
            one, two = await each_way(both, [remove(b"a"), *behind], handles)
            assert p.OP_REMOVE not in done
            results = [without_change_info(reply) for reply in (one, two)]
            assert results[0][1] is not None
            assert results[1][1] is not None
            assert len(results[0][0]) == len(results[1][0])
            assert listing(both.path / "one") == listing(both.path / "two")
            assert not (both.path / "one" / "a").exists()
        # Octets behind the last operation, too.
        (both.path / "one" / "a").touch()
        done.clear()
        await both.native.call(None, both.message(0, putfh(handles[0]), remove(b"a")) + bytes(4))
        assert (done, (both.path / "one" / "a").exists()) == ([], False)

    on(kind, tmp_path, minor, scenario)


def test_directories_are_removed_natively(kind, tmp_path, minor):
    async def scenario(both):
        handles = await directories(both)
        for name in ("one", "two"):
            (both.path / name / "sub").mkdir()
        before = both.answered
        one, two = await each_way(both, [remove(b"sub"), getattr_(OF_CONTENT)], handles)
        assert without_change_info(one)[0] == without_change_info(two)[0]
        assert without_change_info(one)[1] is not None
        assert both.answered == before + 1
        assert not (both.path / "one" / "sub").exists()

    on(kind, tmp_path, minor, scenario)


def test_a_removal_is_not_repeated_whatever_happens_while_it_waits(tmp_path, minor):
    """What the caller may do has to be found out anew, which takes time."""

    async def scenario(both):
        handles = await directories(both)
        (both.path / "one" / "a").touch()
        service = both.server.service
        begun, before = [], both.answered
        directory = await service.resolve(handles[0])
        group = directory.mount.sync if directory.mount.journal else directory.inode.sync
        group.join(begun.append)
        removing = asyncio.ensure_future(both.native.call(None, both.message(SPARE, putfh(handles[0]), remove(b"a"))))
        await until(lambda: group.waiting)
        service.exports.edition.number += 1
        service.exports.standing = lambda *_: None
        begun[0](0)
        reply = await removing
        del service.exports.standing
        assert without_change_info(comparable(reply))[1] is not None
        assert both.answered == before + 1
        assert not (both.path / "one" / "a").exists()

    on("disk", tmp_path, minor, scenario)


def test_a_change_waits_for_what_other_compounds_promised(tmp_path):
    async def scenario(both):
        handle, _ = await directories(both)
        both.server.engine.end_grace()
        for change in (remove(b"a"), setattr_({33: mode(0o700)})):
            (both.path / "one" / "a").touch()
            answered = both.answered
            both.server.engine._write(None)
            await both.native.call(None, both.message(0, putfh(handle), change))
            assert (both.answered, both.server.engine.stable) == (answered + 1, True)
            (both.path / "one" / "a").touch()
            await both.native.call(None, both.message(0, putfh(handle), change))
            assert both.answered == answered + 2

    on("memory", tmp_path, 1, scenario)


def test_a_retransmission_is_answered_from_the_slot(tmp_path):
    async def scenario(both):
        handle, _ = await directories(both)
        (both.path / "one" / "a").touch()
        before = both.answered
        message = both.message(0, putfh(handle), remove(b"a"), cache=True)
        reply = await both.native.call(None, message)
        assert both.answered == before + 1
        (both.path / "one" / "a").touch()
        assert await both.native.call(None, message) == reply
        assert (both.path / "one" / "a").exists()

    on("memory", tmp_path, 1, scenario)


def test_a_client_that_may_only_read_changes_nothing(tmp_path):
    async def scenario(both):
        (both.path / "a").touch()
        (both.path / "a").chmod(0o640)
        root, handle = await handle_of(both), await handle_of(both, b"a")
        await both.same(putfh(root), remove(b"a"))
        await both.same(putfh(handle), setattr_({33: mode(0o777)}), getattr_(OF_CONTENT))
        assert both.answered == 4  # each comes twice that way
        assert (both.path / "a").stat().st_mode & 0o777 == 0o640

    on("memory", tmp_path, 1, scenario, read_only=True)


def test_a_file_that_is_delegated_takes_an_errand(tmp_path):
    async def scenario(both):
        directory, _ = await directories(both)
        (both.path / "one" / "a").touch()
        handle = await handle_of(both, b"one/a")
        node = both.server.nfs4.service.nodes.find(handle)
        await both.general.call(None, both.message(SPARE, putfh(handle), setattr_({54: NOW})))
        before = both.answered
        node.inode.delegated = 1
        await both.native.call(None, both.message(0, putfh(handle), setattr_({33: mode(0o700)})))
        await both.native.call(None, both.message(0, putfh(directory), remove(b"a")))
        assert both.answered == before + 2

    on("memory", tmp_path, 1, scenario)


def test_a_removed_file_stays_as_long_as_it_is_open(tmp_path):
    async def scenario(both):
        directory, _ = await directories(both)
        (both.path / "one" / "a").write_bytes(b"data")
        (both.path / "one" / "a").chmod(0o666)
        stateid, handle = await both.client.open("/0/one", b"a", access=1)
        before = both.answered
        await both.native.call(None, both.message(SPARE, putfh(directory), remove(b"a")))
        assert both.answered == before + 1
        await both.same(putfh(handle), getattr_(wanted(1, 4, 35)), (p.OP_READ, p.READ4args(stateid, 0, 100)))
        for wire, slot in ((both.general, 1), (both.native, 0)):
            reply = await wire.call(None, both.message(slot, putfh(handle), (p.OP_READ, p.READ4args(stateid, 0, 100))))
            assert b"data" in reply

    on("memory", tmp_path, 1, scenario)
