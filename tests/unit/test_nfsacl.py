"""NFS_ACL version 3 over TCP: ACLs as getfacl and setfacl on an NFSv3 mount ask for them, and refused."""

import asyncio
import os
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from nfsd.protocol import nfsacl as a
from nfsd.protocol.nfs3 import nfs_fh3, nfsstat3
from nfsd.vfs import posix_acl
from nfsd.vfs.posix_acl import AclEntry, AclTag
from rpcrdma.xdr import pack
from tests.nfs3_client import Nfs3Client, RpcFailure, auth_sys
from tests.support.nfs3_server import serving

ALL = a.NFS_ACL | a.NFS_ACLCNT | a.NFS_DFACL | a.NFS_DFACLCNT
BASIC = [(1, 6, 0), (4, 4, 0), (0x10, 4, 0), (0x20, 0, 0)]
NAMED = [(1, 6, 0), (2, 4, 1234), (4, 4, 0), (8, 6, 4321), (0x10, 6, 0), (0x20, 0, 0)]


def entries(of, flag=0):
    return [a.aclent(tag | flag, number, permissions) for tag, permissions, number in of]


def secattr(access=(), default=()):
    return a.secattr(len(access), entries(access), len(default), entries(default, a.NFS_ACL_DEFAULT))


def local_acl(path, name="access"):
    try:
        value = os.getxattr(path, f"system.posix_acl_{name}")
    except OSError:
        return None
    return list(struct.iter_unpack("<HHI", value[4:]))


async def get(client: Nfs3Client, file: nfs_fh3, mask: int = ALL) -> Any:
    return await client.call(a.NFSACL_PROGRAM, 3, 1, pack(a.GETACL3args, a.GETACL3args(file, mask)), a.GETACL3res)


async def put(client: Nfs3Client, file: nfs_fh3, mask: int, acl: a.secattr) -> Any:
    return await client.call(a.NFSACL_PROGRAM, 3, 2, pack(a.SETACL3args, a.SETACL3args(file, mask, acl)), a.SETACL3res)


@asynccontextmanager
async def a_file_and_a_directory(tmp_path: Path, **how: Any) -> AsyncIterator[tuple[Any, ...]]:
    async with serving(tmp_path, **how) as (client, directory):
        (directory / "f").write_bytes(b"")
        (directory / "f").chmod(0o640)
        (directory / "d").mkdir(mode=0o755)
        root = await client.mount("/export")
        file, sub = [await client.lookup(root, name) for name in (b"f", b"d")]
        yield client, directory, file, sub


def run(tmp_path: Path, test: Any, **how: Any) -> None:
    async def main() -> None:
        async with a_file_and_a_directory(tmp_path, **how) as rig:
            await test(*rig)

    asyncio.run(main())


def test_a_mode_is_an_acl_with_a_mask(tmp_path: Path) -> None:
    async def test(client, directory, file, sub):
        result = await get(client, file)
        assert result.status == nfsstat3.NFS3_OK
        status = os.stat(directory / "f")
        assert (result.resok.attr.fileid, result.resok.mask) == (status.st_ino, ALL)
        shown = result.resok.acl
        assert shown.aclcnt == 4
        assert [(entry.type, entry.id, entry.perm) for entry in shown.aclents] == [
            (1, status.st_uid, 6), (4, status.st_gid, 4), (0x10, 0, 4), (0x20, 0, 0),
        ]  # fmt: skip
        assert (shown.dfaclcnt, shown.dfaclents) == (0, [])
        # Asked for, only the number.
        counted = (await get(client, file, a.NFS_ACLCNT | a.NFS_DFACLCNT)).resok.acl
        assert (counted.aclcnt, counted.aclents) == (4, [])
        nothing = (await get(client, file, 0)).resok.acl
        assert (nothing.aclcnt, nothing.aclents) == (0, [])

    run(tmp_path, test)


def test_acls_set_are_the_kernels_and_come_back(tmp_path: Path) -> None:
    async def test(client, directory, file, sub):
        done = await put(client, file, a.NFS_ACL, secattr(NAMED))
        assert done.status == nfsstat3.NFS3_OK
        assert done.resok.attr.mode == 0o660
        no_id = 0xFFFFFFFF
        assert local_acl(directory / "f") == [
            (1, 6, no_id), (2, 4, 1234), (4, 4, no_id), (8, 6, 4321), (0x10, 6, no_id), (0x20, 0, no_id),
        ]  # fmt: skip
        shown = (await get(client, file)).resok.acl.aclents
        assert [(entry.type, entry.perm) for entry in shown] == [entry[:2] for entry in NAMED]
        # Four entries with a mask like the group's say no more than a mode.
        await put(client, file, a.NFS_ACL, secattr(BASIC))
        assert local_acl(directory / "f") is None
        assert os.stat(directory / "f").st_mode & 0o777 == 0o640

    run(tmp_path, test)


def test_default_acls_are_of_directories(tmp_path: Path) -> None:
    async def test(client, directory, file, sub):
        path = directory / "d"
        assert (await put(client, sub, a.NFS_ACL | a.NFS_DFACL, secattr(BASIC, NAMED))).status == nfsstat3.NFS3_OK
        assert (2, 4, 1234) in local_acl(path, "default")
        shown = (await get(client, sub)).resok.acl
        assert [(entry.type, entry.perm) for entry in shown.dfaclents] == [(tag | 0x1000, n) for tag, n, _ in NAMED]
        # What the mask does not name stays.
        await put(client, sub, a.NFS_ACL, secattr(NAMED))
        assert (2, 4, 1234) in local_acl(path, "default")
        assert (2, 4, 1234) in local_acl(path)
        await put(client, sub, a.NFS_DFACL, secattr())
        assert local_acl(path, "default") is None
        # A client that sends none for a file is not refused; one that sends some is.
        assert (await put(client, file, a.NFS_ACL | a.NFS_DFACL, secattr(BASIC))).status == nfsstat3.NFS3_OK
        assert (await put(client, file, a.NFS_DFACL, secattr((), NAMED))).status == nfsstat3.NFS3ERR_ACCES

    run(tmp_path, test)


def test_a_default_acl_of_a_file_is_refused_and_never_dropped(tmp_path: Path) -> None:
    flagged = a.secattr(len(BASIC), entries(BASIC, a.NFS_ACL_DEFAULT), 0, [])

    async def test(client, directory, file, sub):
        before = local_acl(directory / "f"), os.stat(directory / "f").st_mode
        for default in (BASIC, NAMED):
            assert (await put(client, file, a.NFS_DFACL, secattr((), default))).status == nfsstat3.NFS3ERR_ACCES
            # The mask does not name the list.
            for mask in (a.NFS_ACL, a.NFS_ACL | a.NFS_DFACLCNT):
                for one in (file, sub):
                    given = secattr(BASIC, default)
                    assert (await put(client, one, mask, given)).status == nfsstat3.NFS3ERR_INVAL
        for one in (file, sub):
            assert (await put(client, one, a.NFS_ACL, flagged)).status == nfsstat3.NFS3ERR_INVAL
            assert (await put(client, one, a.NFS_DFACL, secattr(BASIC))).status == nfsstat3.NFS3ERR_INVAL
        assert before == (local_acl(directory / "f"), os.stat(directory / "f").st_mode)
        assert local_acl(directory / "d", "default") is None

    run(tmp_path, test)


@pytest.mark.parametrize(
    ("mask", "given"),
    [
        (0x10, secattr(BASIC)),
        (a.NFS_ACL, a.secattr(3, entries(BASIC), 0, [])),
        (a.NFS_ACL, secattr(BASIC[:2])),
        (a.NFS_ACL, secattr([*BASIC, BASIC[0]])),
        (a.NFS_ACL, secattr([*BASIC, (3, 1, 1)])),
        (a.NFS_ACL, secattr([(1, 8, 0), *BASIC[1:]])),
        (a.NFS_ACL, secattr([*BASIC, (2, 4, 0xFFFFFFFF)])),
    ],
)
def test_what_is_no_acl_is_refused(tmp_path: Path, mask: int, given: a.secattr) -> None:
    async def test(client, directory, file, sub):
        result = await put(client, file, mask, given)
        assert result.status == nfsstat3.NFS3ERR_INVAL
        assert result.resfail.attr.mode == 0o640
        assert local_acl(directory / "f") is None

    run(tmp_path, test)


def test_masks_of_other_systems_are_cut_down_and_other_masks_refused(tmp_path: Path) -> None:
    async def test(client, directory, file, sub):
        solaris = [(tag, permissions | (0xF00 if tag == 0x10 else 0), number) for tag, permissions, number in NAMED]
        assert (await put(client, file, a.NFS_ACL, secattr(solaris))).status == nfsstat3.NFS3_OK
        assert (0x10, 6, 0xFFFFFFFF) in local_acl(directory / "f")
        assert (await get(client, file, 0x1F)).status == nfsstat3.NFS3ERR_INVAL

    run(tmp_path, test)


def test_rights_and_exports_count(tmp_path: Path) -> None:
    async def test(client, directory, file, sub):
        if client.acts_as_callers:
            client.credential = auth_sys(1001, 1001)
            assert (await get(client, file)).status == nfsstat3.NFS3_OK
            assert (await put(client, file, a.NFS_ACL, secattr(NAMED))).status == nfsstat3.NFS3ERR_PERM
        assert (await get(client, nfs_fh3(b"no handle"))).status == nfsstat3.NFS3ERR_BADHANDLE

    async def read_only(client, directory, file, sub):
        assert (await put(client, file, a.NFS_ACL, secattr(NAMED))).status == nfsstat3.NFS3ERR_ROFS

    run(tmp_path, test)
    (tmp_path / "export" / "d").rmdir()
    run(tmp_path, read_only, read_only=True)


def test_links_have_no_acls(tmp_path: Path) -> None:
    async def test(client, directory, file, sub):
        (directory / "link").symlink_to("f")
        link = await client.lookup(await client.mount("/export"), b"link")
        assert (await get(client, link)).status == nfsstat3.NFS3ERR_NOTSUPP
        assert (await put(client, link, a.NFS_ACL, secattr(BASIC))).status == nfsstat3.NFS3ERR_NOTSUPP

    run(tmp_path, test)


def test_lists_that_are_too_long_are_no_arguments(tmp_path: Path) -> None:
    async def test(client, directory, file, sub):
        head = pack(nfs_fh3, file) + struct.pack(">III", a.NFS_ACL, 0x7FFFFFFF, 0x7FFFFFFF)
        with pytest.raises(RpcFailure):
            await client.call(a.NFSACL_PROGRAM, 3, 2, head, a.SETACL3res)
        # An ACL that is longer than NFS_ACL can say, set locally.
        users = (AclEntry(AclTag.USER, 4, number) for number in range(1, 400))
        large = posix_acl.in_order((*posix_acl.from_mode(0o640), AclEntry(AclTag.MASK, 4), *users))
        os.setxattr(directory / "f", "system.posix_acl_access", posix_acl.encode(large))
        assert (await get(client, file)).resok.acl.aclcnt == 403

    run(tmp_path, test)
