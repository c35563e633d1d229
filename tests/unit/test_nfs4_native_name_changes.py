"""CREATE, RENAME and LINK answered natively, and failures: all is as the general path would have it."""

import os
import random
import shutil
import struct

import pytest

from nfsd.protocol import nfs4 as p
from tests.support.nfs4 import Client4
from tests.support.nfs4_native import handle_of
from tests.unit.nfs4_names_support import (
    ATTRIBUTES,
    NAMES,
    NEW,
    OF_DIRECTORY,
    OK,
    TEXTS,
    agree,
    confirmed,
    fifo,
    fill,
    link,
    making,
    mkdir,
    natively,
    rename,
    sides,
    symlink,
    tree,
)
from tests.unit.test_nfs4_native import CALLERS, OF_CONTENT, access, getattr_, on, putfh
from tests.unit.test_nfs4_native_changes import SPARE, directories, mode, remove
from tests.unit.test_nfs4_native_opens import closing, next_seqid


@pytest.mark.parametrize("seed", range(2))
def test_random_directories_and_links(kind, tmp_path, minor, seed):
    rng = random.Random(seed)

    async def scenario(both):
        pair = await sides(both)
        done = 0
        for step in range(120):
            if step % 12 == 0:
                state = rng.getstate()
                for side in pair:
                    rng.setstate(state)
                    fill(side.path, rng)
            new, text = rng.choice(NEW), rng.choice(TEXTS)
            values = rng.choice((ATTRIBUTES[0], *[rng.choice(ATTRIBUTES)] * 2))
            what = rng.choice((mkdir(new, values), mkdir(new, values), symlink(new, text, values), fifo(b"n0")))
            behind = rng.choice(
                ([], [p.OP_GETFH, getattr_(OF_DIRECTORY)], [p.OP_GETFH, getattr_(OF_DIRECTORY)], [9999])
            )
            shown = await agree(
                pair,
                lambda _, what=what, behind=behind: [what, *behind],
                caller=rng.choice((*CALLERS, (0, 0))),
                cache=rng.random() < 0.3,
            )
            done += shown[0] == OK
        return both.answered, done

    answered, done = on(kind, tmp_path, minor, scenario)
    assert done > 20
    assert answered > 25


@pytest.mark.parametrize("seed", range(2))
def test_random_renames_and_further_names(kind, tmp_path, minor, seed):
    rng = random.Random(seed)

    async def scenario(both):
        pair = await sides(both)
        done = 0
        for step in range(150):
            if step % 10 == 0:
                state = rng.getstate()
                for side in pair:
                    rng.setstate(state)
                    for one in side.path.iterdir():
                        shutil.rmtree(one) if one.is_dir() and not one.is_symlink() else one.unlink()
                    fill(side.path, rng)
                    for known in (b"a", b"link", b"sub"):
                        setattr(side, known.decode(), await handle_of(both, os.fsencode(side.path.name) + b"/" + known))
                    # The directory is open to be synchronised.
                    await both.general.call(None, both.message(SPARE, putfh(side.sub), mkdir(b"new", {})))
            likely = (*NAMES[:5] * 3, *NAMES)
            old, new, which = rng.choice(likely), rng.choice(likely), rng.randrange(6)
            behind = rng.choice(([], [], [getattr_(OF_DIRECTORY)], [p.OP_RESTOREFH, getattr_(OF_CONTENT)], [9999]))

            def make(side, which=which, old=old, new=new, behind=behind):
                match which:
                    case 0 | 1:
                        return [p.OP_SAVEFH, putfh(side.handle), rename(old, new), *behind]
                    case 2:
                        return [p.OP_SAVEFH, putfh(side.sub), rename(old, new), putfh(side.handle), *behind[1:]]
                    case 3:
                        return [putfh(side.sub), p.OP_SAVEFH, putfh(side.handle), rename(old, new), *behind]
                    case 4:
                        return [putfh(side.a), p.OP_SAVEFH, putfh(side.handle), link(new), *behind]
                    case _:
                        file = (side.link, side.sub, side.handle)[len(old) % 3]
                        return [putfh(file), p.OP_SAVEFH, putfh(side.handle), link(new), *behind]

            before = [await side.change(side.handle) for side in pair]
            caller, cache = rng.choice((*CALLERS, (0, 0), (0, 0))), rng.random() < 0.2
            shown = [await side.run(putfh(side.handle), *make(side), caller=caller, cache=cache) for side in pair]
            assert shown[0] == shown[1], (which, old, new)
            done += shown[0][0] == OK
            for side, was in zip(pair, before, strict=True):
                now = await side.change(side.handle)
                if side.infos and which != 2:
                    assert (side.infos[-1].before, side.infos[-1].after) == (was, now)
                elif side.infos:
                    assert (side.infos[0].before, side.infos[0].after) == (was, now)
            assert tree(pair[0].path) == tree(pair[1].path)
        return both.answered, done

    answered, done = on(kind, tmp_path, minor, scenario)
    assert done > 15
    assert answered > 25


def test_what_linux_sends_is_answered_natively(kind, tmp_path, minor):
    async def scenario(both):
        one, two = await directories(both)
        await confirmed(both)
        umasked = {81: struct.pack(">II", 0o666, 0o022)} if minor == 2 else {33: mode(0o644)}
        looks = p.OP_GETFH, access(0x2D), getattr_(OF_CONTENT)
        kinds = (
            p.createmode4.UNCHECKED4,
            p.createmode4.GUARDED4,
            p.createmode4.EXCLUSIVE4_1 if minor else p.createmode4.EXCLUSIVE4,
        )
        for number, how_ in enumerate(kinds):
            seqid = 0 if minor else next_seqid(both, b"owner")
            made = making(both, b"file %d" % number, how_, umasked, seqid=seqid)
            _, opened, handle, _, _ = await natively(both, putfh(one), made, *looks)
            file = handle.resok4.object
            await natively(both, putfh(file), closing(opened.resok4.stateid, seqid + 1 if not minor else 0))
            bits = os.stat(both.path / "one" / f"file {number}").st_mode & 0o777
            assert bits == (0o600 if how_ == p.createmode4.EXCLUSIVE4 else 0o644)
        await natively(both, putfh(one), mkdir(b"sub", {33: mode(0o755)}), p.OP_GETFH, getattr_(OF_DIRECTORY))
        await natively(
            both, putfh(one), symlink(b"link", b"file 0", {33: mode(0o777)}), p.OP_GETFH, getattr_(OF_DIRECTORY)
        )
        assert os.readlink(both.path / "one" / "link") == "file 0"
        await natively(both, putfh(one), p.OP_SAVEFH, putfh(two), rename(b"file 1", b"moved"))
        await natively(
            both, putfh(file), p.OP_SAVEFH, putfh(two), link(b"further"), p.OP_RESTOREFH, getattr_(OF_CONTENT)
        )
        assert sorted(os.listdir(both.path / "two")) == ["further", "moved"]
        assert (both.path / "two" / "further").stat().st_nlink == 2
        assert not both.server.engine.stateids.entries or not minor

    on(kind, tmp_path, minor, scenario)


def test_failures_are_answered_natively(kind, tmp_path, minor):
    async def scenario(both):
        one, two = await directories(both)
        await confirmed(both)
        fill(both.path / "one", random.Random(0))
        (both.path / "one").chmod(0o755)
        file = await handle_of(both, b"one/a")
        await both.native.call(None, both.message(0, putfh(one), p.OP_SAVEFH, putfh(two), rename(b"none", b"x")))
        user, root, guarded = (1001, 1001), (0, 0), p.createmode4.GUARDED4

        def opening_(name, how_=guarded):
            return making(both, name, how_, seqid=0 if minor else next_seqid(both, b"owner"))

        for caller, operations, status in (
            (root, lambda: [putfh(one), mkdir(b"sub", {})], p.NFS4ERR_EXIST),
            (root, lambda: [putfh(one), opening_(b"a")], p.NFS4ERR_EXIST),
            (user, lambda: [putfh(one), mkdir(b"new", {})], p.NFS4ERR_ACCESS),
            (user, lambda: [putfh(one), opening_(b"new", p.createmode4.UNCHECKED4)], p.NFS4ERR_ACCESS),
            (user, lambda: [putfh(one), remove(b"a")], p.NFS4ERR_ACCESS),
            (root, lambda: [putfh(one), remove(b"full")], p.NFS4ERR_NOTEMPTY),
            (root, lambda: [putfh(one), remove(b"none")], p.NFS4ERR_NOENT),
            (root, lambda: [putfh(file), remove(b"none")], p.NFS4ERR_NOTDIR),
            (root, lambda: [putfh(one), p.OP_SAVEFH, putfh(two), rename(b"none", b"x")], p.NFS4ERR_NOENT),
            (root, lambda: [putfh(one), p.OP_SAVEFH, rename(b"a", b"full")], p.NFS4ERR_EXIST),
            (root, lambda: [putfh(one), p.OP_SAVEFH, rename(b"sub", b"full")], p.NFS4ERR_NOTEMPTY),
            (root, lambda: [putfh(file), p.OP_SAVEFH, putfh(one), link(b"b")], p.NFS4ERR_EXIST),
            (root, lambda: [putfh(one), p.OP_SAVEFH, putfh(one), link(b"dir")], p.NFS4ERR_ISDIR),
            (root, lambda: [putfh(one), symlink(b"new", b"", {})], p.NFS4ERR_INVAL),
            (root, lambda: [putfh(one), mkdir(b"..", {})], p.NFS4ERR_BADNAME),
            (root, lambda: [putfh(one), mkdir(b"a/b", {})], p.NFS4ERR_BADCHAR),
        ):
            before, tried = both.answered, tree(both.path)
            reply = await both.native.call(None, both.message(0, *operations(), caller=caller))
            assert (Client4.parse(reply)[0], both.answered) == (status, before + 1), status
            assert tree(both.path) == tried
            again = await both.general.call(None, both.message(1, *operations(), caller=caller))
            assert Client4.parse(again)[0] == status

    on(kind, tmp_path, minor, scenario)
