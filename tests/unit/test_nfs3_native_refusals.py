"""Refusals of file systems, for reasons that no test can bring about everywhere."""

import errno
import os

import pytest

from nfsd.protocol.nfs3 import nfsstat3
from tests.support.seccomp import refuse
from tests.unit import vfs_support
from tests.unit.test_identity import in_child
from tests.unit.test_nfs3_native import run
from tests.unit.test_nfs3_native_changes import LINK, linking, outcome

SYS_LINKAT = 265  # as x86-64 numbers it


@pytest.mark.parametrize("kind", ["disk", "memory", "slow"])
@pytest.mark.parametrize(
    ("code", "status"),
    [
        (errno.EMLINK, nfsstat3.NFS3ERR_MLINK),
        (errno.EPERM, nfsstat3.NFS3ERR_PERM),  # an immutable file
        (errno.ENOSPC, nfsstat3.NFS3ERR_NOSPC),
        (errno.EDQUOT, nfsstat3.NFS3ERR_DQUOT),
        (errno.EROFS, nfsstat3.NFS3ERR_ROFS),
    ],
)
def test_a_link_that_the_kernel_refuses(kind, tmp_path, code, status):
    async def scenario(both):
        file = await vfs_support.write_file(both.service, both.root, b"file")
        refuse(SYS_LINKAT, code=code)
        before = both.answered(LINK)
        native = outcome(LINK, await both.native.call(LINK, linking(file, both.root, b"native")))
        general = outcome(LINK, await both.general.call(LINK, linking(file, both.root, b"general")))
        assert native[0] == general[0] == status
        assert both.answered(LINK) == before + 1
        assert os.listdir(both.path) == ["file"]
        assert not both.root.inode.serial.busy
        assert not file.inode.changing

    in_child(lambda: run(kind, tmp_path, scenario))
