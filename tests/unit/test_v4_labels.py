"""Security labels (FATTR4_SEC_LABEL, RFC 7862 section 9): kept in security.selinux, for exports that say so.

SELinux does not run where the tests do, which leaves an extended attribute that root may set: the server is told that
it does run. What SELinux allows is not tested here.
"""

import asyncio
import os
from unittest import mock

import pytest

from nfsd.backends.local import file_systems
from nfsd.exports import Export
from nfsd.protocol import nfs4 as p
from nfsd.v4 import attributes
from nfsd.v4.attributes import words_of
from rpcrdma.xdr import Encoder
from tests.support.nfs4 import Client4, mode, serving, values, wanted
from tests.unit.vfs_support import directory_on

LABEL = b"system_u:object_r:user_home_t:s0"
BIT = 1 << p.FATTR4_SEC_LABEL


def labelled(tmp_path, test, *, selinux=True, allowed=True):
    async def main():
        (tmp_path / "state").mkdir(exist_ok=True)
        with directory_on("disk", tmp_path) as place, mock.patch.object(file_systems, "SELINUX", selinux):
            export = Export(9, place, "/0", squash="none", security_labels=allowed)
            async with serving(state_dir=tmp_path / "state", more=(export,)) as server:
                await test(await Client4(server, 2).connect(), place)

    asyncio.run(main())


def attribute(data, lfs=0):
    e = Encoder()
    e.encode(p.fattr4_sec_label, p.sec_label4(p.labelformat_spec4(lfs, 0), data))
    return p.fattr4(words_of(BIT), e.getvalue())


def setting(given):
    return (p.OP_SETATTR, p.SETATTR4args(p.stateid4(0, bytes(12)), given))


async def shown(client, path):
    *_, got = await client.run(*client.path(path), (p.OP_GETATTR, wanted(p.FATTR4_SEC_LABEL)))
    given = got.resok4.obj_attributes
    return values(given).decode(p.fattr4_sec_label).slai_data if given.attrmask == words_of(BIT) else None


async def is_supported(client):
    *_, got = await client.run(*client.path("/0"), (p.OP_GETATTR, wanted(p.FATTR4_SUPPORTED_ATTRS)))
    d = values(got.resok4.obj_attributes)
    return bool(attributes.mask_of([d.uint32() for _ in range(d.uint32())]) & BIT)


def test_labels_are_shown_set_and_given_to_new_files(tmp_path):
    async def test(client, place):
        assert await is_supported(client)
        open(place + "/f", "w").close()
        assert await shown(client, "/0/f") == b""
        os.setxattr(place + "/f", "security.selinux", LABEL + b"\0")
        assert await shown(client, "/0/f") == LABEL
        *_, done = await client.run(*client.path("/0/f"), setting(attribute(b"other")))
        assert done.attrsset == words_of(BIT)
        assert os.getxattr(place + "/f", "security.selinux") == b"other"
        *_, opened = await client.run(
            *client.path("/0"), (p.OP_OPEN, client.open_args(b"new", create=attribute(LABEL)))
        )
        assert opened.resok4.attrset == words_of(BIT)
        assert os.getxattr(place + "/new", "security.selinux") == LABEL
        link = p.createtype4(p.nfs_ftype4.NF4LNK, linkdata=b"f")
        await client.run(*client.path("/0"), (p.OP_CREATE, p.CREATE4args(link, b"link", attribute(LABEL))))
        assert os.getxattr(place + "/link", "security.selinux", follow_symlinks=False) == LABEL
        assert await shown(client, "/0/link") == LABEL
        assert await shown(client, "/0/f") == b"other"

    labelled(tmp_path, test)


def test_labels_of_other_kinds_are_refused(tmp_path):
    async def test(client, place):
        open(place + "/f", "w").close()
        for given, status in (
            (attribute(LABEL, lfs=7), p.NFS4ERR_WRONG_LFS),
            (attribute(b"x" * 2049), p.NFS4ERR_BADLABEL),
            (attribute(b""), p.NFS4ERR_BADLABEL),
            (p.fattr4(words_of(BIT), bytes(7)), p.NFS4ERR_BADXDR),
        ):
            assert await client.status(*client.path("/0/f"), setting(given)) == status
        with pytest.raises(OSError, match="No data"):
            os.getxattr(place + "/f", "security.selinux")

    labelled(tmp_path, test)


@pytest.mark.parametrize(("selinux", "allowed"), [(False, True), (True, False)])
def test_without_selinux_or_leave_there_are_none(tmp_path, selinux, allowed):
    async def test(client, place):
        await client.open("/0", b"f", create=mode(0o600))
        os.setxattr(place + "/f", "security.selinux", LABEL)
        assert not await is_supported(client)
        assert await shown(client, "/0/f") is None
        assert await client.status(*client.path("/0/f"), setting(attribute(LABEL))) == p.NFS4ERR_ATTRNOTSUPP

    labelled(tmp_path, test, selinux=selinux, allowed=allowed)
