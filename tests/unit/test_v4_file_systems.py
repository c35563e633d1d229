"""Attributes on different file systems, each made for the test: times, births, ACLs, space, changes."""

import asyncio
import contextlib
import os
import subprocess

import pytest

from nfsd.protocol import nfs4 as p
from nfsd.v4 import attributes
from nfsd.vfs.types import Features, Quota
from tests.support.nfs4 import Client4, serving, values, wanted
from tests.unit.vfs_support import ALICE, ROOT, directory_on

BORN = 1 << p.FATTR4_TIME_CREATE
ACL = 1 << p.FATTR4_ACL
QUOTA = 1 << p.FATTR4_QUOTA_AVAIL_HARD | 1 << p.FATTR4_QUOTA_AVAIL_SOFT | 1 << p.FATTR4_QUOTA_USED


@contextlib.contextmanager
def file_system(tmp_path, *make):
    """A file system made by a command, mounted."""
    image, path = tmp_path / "image", tmp_path / "mounted"
    with image.open("wb") as file:
        file.truncate(320 << 20)
    subprocess.run([*make, str(image)], check=True, capture_output=True)
    path.mkdir()
    subprocess.run(["mount", "-o", "loop", str(image), str(path)], check=True)
    try:
        path.chmod(0o777)
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def on(path, tmp_path, test, minor=2):
    """Run ``test(client, server, get)`` over a directory; ``get(path, *numbers)`` decodes GETATTR's values."""

    async def main():
        (tmp_path / "state").mkdir(exist_ok=True)
        async with serving(path, state_dir=tmp_path / "state") as server:
            client = await Client4(server, minor).connect()

            async def get(where, *numbers):
                *_, got = await client.run(*client.path(where), (p.OP_GETATTR, wanted(*numbers)))
                given = got.resok4.obj_attributes
                return attributes.mask_of(given.attrmask), values(given)

            await test(client, server, get)

    asyncio.run(main())


async def supported(get, where):
    _, d = await get(where, p.FATTR4_SUPPORTED_ATTRS)
    return attributes.mask_of([d.uint32() for _ in range(d.uint32())])


def test_small_inodes_have_no_births_and_whole_seconds(tmp_path):
    async def test(client, server, get):
        assert not await supported(get, "/0") & BORN
        assert not (await get("/0", p.FATTR4_TIME_CREATE))[0]
        _, d = await get("/0", p.FATTR4_TIME_DELTA)
        assert (d.int64(), d.uint32()) == (1, 0)

    with file_system(tmp_path, "mkfs.ext4", "-q", "-I", "128") as path:
        on(path, tmp_path, test)


def test_large_inodes_have_both(tmp_path):
    async def test(client, server, get):
        assert await supported(get, "/0") & BORN
        assert (await get("/0", p.FATTR4_TIME_CREATE))[0] == BORN
        _, d = await get("/0", p.FATTR4_TIME_DELTA)
        assert (d.int64(), d.uint32()) == (0, 1)

    with file_system(tmp_path, "mkfs.ext4", "-q", "-I", "256") as path:
        on(path, tmp_path, test)


def test_a_file_system_without_acls_says_so(tmp_path):
    """FAT, NFS and others have none; this one is said to have none, since not every kernel has those."""

    async def test(client, server, get):
        mount = (await server.service.root(server.service.exports.exports[0])).mount
        mount.features = Features(xattrs=True, acls=False, labels=False, quotas=())
        assert not await supported(get, "/0") & ACL
        assert (await get("/0", p.FATTR4_ACL))[0] == 0
        _, d = await get("/0", p.FATTR4_ACLSUPPORT)
        assert d.uint32() == 0
        given = p.fattr4(attributes.words_of(ACL), bytes(4))
        setting = (p.OP_SETATTR, p.SETATTR4args(p.stateid4(0, bytes(12)), given))
        assert await client.status(*client.path("/0"), setting) == p.NFS4ERR_ATTRNOTSUPP
        made = p.CREATE4args(p.createtype4(p.nfs_ftype4.NF4DIR), b"d", given)
        assert await client.status(*client.path("/0"), (p.OP_CREATE, made)) == p.NFS4ERR_ATTRNOTSUPP
        assert await client.status(*client.path("/0/d")) == p.NFS4ERR_NOENT
        # What else is there still comes.
        mask, _ = await get("/0", p.FATTR4_ACL, p.FATTR4_SIZE)
        assert mask == 1 << p.FATTR4_SIZE

    with directory_on("memory", tmp_path) as place:
        on(place, tmp_path, test)


@pytest.mark.parametrize("kind", ["disk", "memory"])
def test_space_is_what_users_have(tmp_path, kind):
    async def test(client, server, get):
        _, d = await get("/0", p.FATTR4_SPACE_AVAIL, p.FATTR4_SPACE_FREE, p.FATTR4_SPACE_TOTAL)
        mine = os.statvfs(place)
        for ours, theirs in zip(range(3), (mine.f_bavail, mine.f_bfree, mine.f_blocks), strict=True):
            assert abs(d.uint64() - theirs * mine.f_frsize) < 256 << 20, ours
        assert not await supported(get, "/0") & QUOTA

    with directory_on(kind, tmp_path) as place:
        on(place, tmp_path, test)


def test_reserved_blocks_are_free_but_not_available(tmp_path):
    async def test(client, server, get):
        _, d = await get("/0", p.FATTR4_SPACE_AVAIL, p.FATTR4_SPACE_FREE)
        available, free = d.uint64(), d.uint64()
        assert 0.15 < (free - available) / free < 0.25

    with file_system(tmp_path, "mkfs.ext4", "-q", "-m", "20") as path:
        on(path, tmp_path, test)


def test_the_kind_of_change_attribute_depends_on_the_file_system(tmp_path):
    async def test(client, server, get):
        node = await server.service.root(server.service.exports.exports[0])
        kinds = p.change_attr_type4
        for fine, kind in (
            (True, kinds.NFS4_CHANGE_TYPE_IS_MONOTONIC_INCR),
            (False, kinds.NFS4_CHANGE_TYPE_IS_TIME_METADATA),
        ):
            node.mount.fine = fine
            _, d = await get("/0", p.FATTR4_CHANGE_ATTR_TYPE)
            assert d.uint32() == kind

    with directory_on("memory", tmp_path) as place:
        on(place, tmp_path, test)


def test_quotas_are_shown_where_there_are_any(tmp_path):
    """Kept by a stand-in here: not every kernel has them. The kernel's own are read in tests/vm/test_attributes.py."""

    async def test(client, server, get):
        asked = []

        async def quota(node, uid, gid):
            asked.append((uid, gid))
            return Quota(3000, 2000, 1000)

        async def yes(node):
            return True

        server.service.quota, server.service.supports_quotas = quota, yes
        assert await supported(get, "/0") & QUOTA == QUOTA
        os.chown(place + "/f", 7, 8)
        numbers = (p.FATTR4_QUOTA_AVAIL_HARD, p.FATTR4_QUOTA_AVAIL_SOFT, p.FATTR4_QUOTA_USED)
        for where in ("/0/f", "/0"):
            mask, d = await get(where, *numbers)
            assert (mask, [d.uint64() for _ in numbers]) == (QUOTA, [3000, 2000, 1000])
        assert asked == [(7, 8), (0, 0)], "a file's owner; in a directory the caller, who would make files there"

    with directory_on("memory", tmp_path) as place:
        open(place + "/f", "w").close()
        on(place, tmp_path, test)


def test_there_is_no_quota_without_one(tmp_path):
    async def scenario(client, server, get):
        service = server.service
        node = await service.root(service.exports.exports[0])
        assert not await service.supports_quotas(node)
        available = (await service.status(node)).available_bytes
        for who in (ROOT, ALICE):
            left = await service.quota(node, who.uid, who.gid)
            assert left.used == 0
            assert abs(left.available_hard - available) < 256 << 20

    with directory_on("memory", tmp_path) as place:
        on(place, tmp_path, scenario)
