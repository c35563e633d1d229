"""What has been made is on the disk, with all its attributes, when the client is told; in ext4 with one fsync."""

import os
import stat
import subprocess
from typing import Any

import pytest

from nfsd.protocol.nfs3 import (
    CREATE3args,
    MKDIR3args,
    MKNOD3args,
    SYMLINK3args,
    createhow3,
    createmode3,
    ftype3,
    mknoddata3,
    nfs_fh3,
    symlinkdata3,
)
from nfsd.protocol.nfs3 import diropargs3 as at
from nfsd.vfs import posix_acl
from nfsd.vfs.posix_acl import AclEntry, AclTag
from tests.nfs3_client import Nfs3Client, attributes
from tests.unit.nfs_client_support import Rig
from tests.unit.test_vfs_links_durability import calls as calls
from tests.unit.test_vfs_links_durability import disk, rebooted, what_is_on

ACL = (
    AclEntry(AclTag.USER_OBJ, 7, 0xFFFFFFFF),
    AclEntry(AclTag.USER, 5, 1002),
    AclEntry(AclTag.GROUP_OBJ, 5, 0xFFFFFFFF),
    AclEntry(AclTag.MASK, 5, 0xFFFFFFFF),
    AclEntry(AclTag.OTHER, 0, 0xFFFFFFFF),
)


def requests(directory: nfs_fh3) -> dict[str, tuple[str, Any]]:
    """Creations by name."""

    def creating(name: bytes, **wanted: Any) -> tuple[str, Any]:
        how = createhow3(createmode3.UNCHECKED, obj_attributes=attributes(**wanted))
        return "CREATE", CREATE3args(at(directory, name), how)

    def linking(name: bytes, **wanted: Any) -> tuple[str, Any]:
        return "SYMLINK", SYMLINK3args(at(directory, name), symlinkdata3(attributes(**wanted), memoryview(b"text")))

    return {
        "file": creating(b"file", mode=0o640),
        "owned": creating(b"owned", mode=0o4755, uid=4242, gid=4243),
        "sized": creating(b"sized", mode=0o600, size=5000),
        "directory": ("MKDIR", MKDIR3args(at(directory, b"directory"), attributes(mode=0o750))),
        "link": linking(b"link"),
        "owned link": linking(b"owned link", uid=4242),
        "pipe": (
            "MKNOD",
            MKNOD3args(at(directory, b"pipe"), mknoddata3(ftype3.NF3FIFO, pipe_attributes=attributes(mode=0o600))),
        ),
    }


@pytest.mark.parametrize("journal", [True, False], ids=["journal", "no journal"])
def test_what_is_made_survives_a_power_cut(tmp_path, journal, calls):
    rig = Rig(tmp_path)
    expected = {
        "file": (stat.S_IFREG | 0o640, 0, 0, 0),
        "owned": (stat.S_IFREG | 0o4755, 4242, 4243, 0),
        "sized": (stat.S_IFREG | 0o600, 0, 0, 5000),
        "directory": (stat.S_IFDIR | 0o750, 0, 0, None),
        "link": (stat.S_IFLNK | 0o777, 0, 0, 4),
        "owned link": (stat.S_IFLNK | 0o777, 4242, 0, 4),
        "pipe": (stat.S_IFIFO | 0o600, 0, 0, 0),
    }

    async def main():
        service = rig.daemon.service
        root = nfs_fh3((await service.root(service.exports.exports[0])).handle)
        async with await Nfs3Client.connect("127.0.0.1", rig.ports["tcp"]) as client:
            syncs = {}
            for name, (procedure, arguments) in requests(root).items():
                calls.clear()
                assert (await client.nfs(procedure, arguments)).status == 0
                syncs[name] = list(calls)
                found = what_is_on(image, tmp_path, name)
                size = None if name == "directory" else found.st_size
                assert (found.st_mode, found.st_uid, found.st_gid, size) == expected[name]
            two = ["fsync", "fsync"]
            one = two[:1] if journal else two
            alone = ["fsync"] if journal else ["syncfs", "fsync"]
            assert syncs == {
                "file": one,
                "owned": one,
                "sized": one,
                "directory": one,
                "link": alone,
                "owned link": alone,
                "pipe": alone,
            }

    with disk(tmp_path, rig.export, journal=journal) as image:
        (rig.export / "by itself").touch()
        with pytest.raises(FileNotFoundError):  # or this disk writes back on its own, and nothing is shown
            what_is_on(image, tmp_path, "by itself")
        rig.run(main)


def test_an_inherited_acl_survives_a_power_cut(tmp_path, calls):
    rig = Rig(tmp_path)

    async def main():
        service = rig.daemon.service
        root = nfs_fh3((await service.root(service.exports.exports[0])).handle)
        async with await Nfs3Client.connect("127.0.0.1", rig.ports["tcp"]) as client:
            for name in ("file", "directory"):
                calls.clear()
                procedure, arguments = requests(root)[name]
                assert (await client.nfs(procedure, arguments)).status == 0
                assert calls == ["fsync"]
                with rebooted(image, tmp_path) as place:
                    modes = [stat.S_IMODE(os.lstat(each / name).st_mode) for each in (place, rig.export)]
                    acls = [os.getxattr(each / name, "system.posix_acl_access") for each in (place, rig.export)]
                assert modes == [0o640 if name == "file" else 0o750] * 2
                assert acls[0] == acls[1]

    with disk(tmp_path, rig.export) as image:
        os.setxattr(rig.export, "system.posix_acl_default", posix_acl.encode(ACL))
        subprocess.run(["sync", "-f", str(rig.export)], check=True)
        rig.run(main)
