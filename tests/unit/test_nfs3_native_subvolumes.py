"""Changes of names in a btrfs subvolume, whose files are numbered anew: the replies are the general path's."""

import os

from tests.unit import vfs_support
from tests.unit.test_nfs3_native import Both
from tests.unit.test_nfs3_native_changes import (
    CREATE,
    LINK,
    MKDIR,
    RENAME,
    creation,
    linking,
    making,
    outcome,
    renaming,
)
from tests.unit.test_vfs_mounts import btrfs, command


def test_replies_tell_the_subvolume(tmp_path):
    with btrfs(tmp_path) as mount:

        async def scenario(service, root):
            async with Both(service, root, str(mount)) as both:
                directories = [(await service.lookup(vfs_support.ROOT, root, name))[0] for name in (b"one", b"two")]
                files = []
                for procedure, arguments in (
                    (CREATE, lambda directory, file: creation(directory, b"file")),
                    (MKDIR, lambda directory, file: making(directory, b"d")),
                    (LINK, lambda directory, file: linking(file, directory, b"l")),
                    (RENAME, lambda directory, file: renaming(directory, b"l", directory, b"n")),
                ):
                    results = [
                        outcome(procedure, await client.call(procedure, arguments(directory, file)))
                        for client, directory, file in zip(
                            (both.native, both.general), directories, files or (None, None), strict=True
                        )
                    ]
                    assert results[0][0] == 0
                    assert str(results[0]).replace(str(fsid(directories[0])), "") == str(results[1]).replace(
                        str(fsid(directories[1])), ""
                    )
                    assert str(fsid(directories[0])) in str(results[0])
                    assert both.answered(procedure) == 1
                    files = files or [
                        (await service.lookup(vfs_support.ROOT, directory, b"file"))[0] for directory in directories
                    ]

        def fsid(node):
            of = os.stat(f"/proc/self/fd/{node.fd}").st_dev
            pair = node.mount.fsid[0], os.major(of) << 32 | os.minor(of)
            return (pair[0] * 0x9E3779B97F4A7C15 + pair[1]) & 0xFFFFFFFFFFFFFFFF

        for name in ("one", "two"):
            assert command("btrfs", "-q", "subvolume", "create", str(mount / name))
        vfs_support.run(str(mount), tmp_path, scenario, squash="none")
