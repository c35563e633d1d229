"""Files that are made natively have the same owner and permissions as those that the file service makes."""

import errno
import os
import random
import stat

import pytest

from nfsd.protocol.nfs3 import nfsstat3, time_how
from nfsd.vfs import posix_acl
from nfsd.vfs.posix_acl import AclEntry, AclTag
from tests.unit.test_nfs3_native import run
from tests.unit.test_nfs3_native_changes import MKDIR, SETTLED, SYMLINK, Twins, linking_to, making, outcome, tree


@pytest.fixture(params=["disk", "memory", "slow"])
def kind(request):
    """On a disk, in memory, on a file system where every look at a file may wait."""
    return request.param


def test_a_default_acl_is_inherited(kind, tmp_path):
    acl = [(AclTag.USER_OBJ, 7, 0xFFFFFFFF), (AclTag.USER, 5, 1002), (AclTag.GROUP_OBJ, 5, 0xFFFFFFFF)]
    acl += [(AclTag.MASK, 5, 0xFFFFFFFF), (AclTag.OTHER, 0, 0xFFFFFFFF)]
    value = posix_acl.encode(tuple(AclEntry(*each) for each in acl))

    async def scenario(both):
        twins = Twins(both, random.Random(0))
        await twins.start()
        for path in twins.paths("s1"):
            try:
                os.setxattr(path, "system.posix_acl_default", value)
            except OSError as error:
                if error.errno == errno.EOPNOTSUPP:
                    pytest.skip("no ACLs here")
                raise
        replies = [
            outcome(MKDIR, await client.call(MKDIR, making(nodes["s1"], b"n", mode=0o777), (1001, 1001)))
            for client, nodes in zip((both.native, both.general), twins.nodes, strict=True)
        ]
        assert replies[0] == replies[1]
        modes = [oct(os.stat(os.path.join(path, "n")).st_mode) for path in twins.paths("s1")]
        assert modes == [oct(stat.S_IFDIR | 0o750)] * 2
        values = [os.getxattr(os.path.join(path, "n"), "system.posix_acl_access") for path in twins.paths("s1")]
        assert values[0] == values[1]
        assert both.answered(MKDIR) == 1

    run(kind, tmp_path, scenario)


def test_a_set_gid_directory_passes_on_its_group(kind, tmp_path):
    async def scenario(both):
        twins = Twins(both, random.Random(0))
        await twins.start()
        for path in twins.paths("s1"):
            os.chown(path, 0, 1002)
            os.chmod(path, 0o2777)
        for mode in (0o755, 0o4755, 0o700):
            replies = [
                outcome(MKDIR, await client.call(MKDIR, making(nodes["s1"], b"m%o" % mode, mode=mode), (1001, 1001)))
                for client, nodes in zip((both.native, both.general), twins.nodes, strict=True)
            ]
            assert replies[0] == replies[1]
        one, two = (tree(path) for path in twins.paths("s1"))
        assert one == two
        assert {entry[3] for entry in one} == {1002}
        assert both.answered(MKDIR) == 3

    run(kind, tmp_path, scenario)


def test_nobody_makes_what_the_caller_may_not(kind, tmp_path):
    """As the squashed user, not as the server."""

    async def scenario(both):
        os.chmod(both.path, 0o755)
        for procedure, arguments in ((MKDIR, making(both.root, b"n")), (SYMLINK, linking_to(both.root, b"n", b"t"))):
            reply = await both.native.call(procedure, arguments, (0, 0))
            assert outcome(procedure, reply)[0] == nfsstat3.NFS3ERR_ACCES
        os.chmod(both.path, 0o777)
        reply = await both.native.call(MKDIR, making(both.root, b"n", uid=0, times=time_how.SET_TO_CLIENT_TIME), (0, 0))
        assert outcome(MKDIR, reply)[0] == SETTLED
        of = os.stat(os.path.join(both.path, "n"))
        assert (of.st_uid, of.st_gid, of.st_mtime_ns // 10**9) == (65534, 65534, 1_500_000_000)
        assert both.answered(MKDIR) == 2

    run(kind, tmp_path, scenario, squash="root")
