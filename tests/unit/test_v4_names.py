"""CREATE, LINK, REMOVE, RENAME, LOOKUP, LOOKUPP, SECINFO and the operations on filehandles: names good and bad."""

import os

import pytest

from nfsd.protocol import nfs4 as p
from tests.support.nfs4 import Client4, LoopbackTransport, mode, with_client

MINORS = [0, 1, 2]
NO_ATTRIBUTES = p.fattr4([], b"")
DIRECTORY = p.createtype4(p.nfs_ftype4.NF4DIR)
BAD_NAMES = (
    (b"", p.NFS4ERR_INVAL),
    (b".", p.NFS4ERR_BADNAME),
    (b"..", p.NFS4ERR_BADNAME),
    (b"a/b", p.NFS4ERR_BADCHAR),
    (b"a\0b", p.NFS4ERR_BADCHAR),
    (b"n" * 256, p.NFS4ERR_NAMETOOLONG),
)


def creating(name, kind=DIRECTORY, attributes=NO_ATTRIBUTES):
    return (p.OP_CREATE, p.CREATE4args(kind, name, attributes))


def looking_up(name):
    return (p.OP_LOOKUP, p.LOOKUP4args(name))


def removing(name):
    return (p.OP_REMOVE, p.REMOVE4args(name))


def renaming(old, new):
    return (p.OP_RENAME, p.RENAME4args(old, new))


def linking(name):
    return (p.OP_LINK, p.LINK4args(name))


@pytest.mark.parametrize("minor", MINORS)
@pytest.mark.parametrize(("name", "status"), BAD_NAMES)
def test_names_that_are_none(tmp_path, minor, name, status):
    async def test(client, export, server):
        (export / "f").write_bytes(b"")
        here = client.path("/0")
        for operation in (looking_up(name), creating(name), removing(name), (p.OP_SECINFO, p.SECINFO4args(name))):
            assert await client.status(*here, operation) == status
        assert await client.status(*here, p.OP_SAVEFH, renaming(name, b"new")) == status
        assert await client.status(*here, p.OP_SAVEFH, renaming(b"f", name)) == status
        assert await client.status(*client.path("/0/f"), p.OP_SAVEFH, *here, linking(name)) == status
        assert await client.status(*here, (p.OP_OPEN, client.open_args(name))) == status
        assert await client.status(p.OP_PUTROOTFH, looking_up(name)) == status

    with_client(tmp_path, minor, test)


@pytest.mark.parametrize("minor", MINORS)
def test_names_need_a_directory_to_stand_in(tmp_path, minor):
    async def test(client, export, server):
        (export / "f").write_bytes(b"")
        (export / "link").symlink_to(".")
        os.mkfifo(export / "fifo")
        for name in ("f", "link", "fifo"):
            here = client.path(f"/0/{name}")
            found = p.NFS4ERR_SYMLINK if name == "link" else p.NFS4ERR_NOTDIR
            assert await client.status(*here, looking_up(b"x")) == found
            above = p.NFS4ERR_SYMLINK if name == "link" and minor else p.NFS4ERR_NOTDIR
            assert await client.status(*here, p.OP_LOOKUPP) == above
            for operation in (creating(b"x"), removing(b"x"), (p.OP_OPEN, client.open_args(b"x"))):
                status = await client.status(*here, operation)
                assert status in ((p.NFS4ERR_NOTDIR, p.NFS4ERR_SYMLINK) if name == "link" else (p.NFS4ERR_NOTDIR,))
            assert await client.status(*here, p.OP_SAVEFH, *client.path("/0"), renaming(b"x", b"y")) == p.NFS4ERR_NOTDIR

    with_client(tmp_path, minor, test)


@pytest.mark.parametrize("minor", MINORS)
def test_no_file_is_current_until_one_is_put(tmp_path, minor):
    async def test(client, export, server):
        for operation in (p.OP_GETFH, p.OP_LOOKUPP, p.OP_SAVEFH, p.OP_READLINK, looking_up(b"x"), creating(b"x")):
            assert await client.status(operation) == p.NFS4ERR_NOFILEHANDLE
        unsaved = p.NFS4ERR_NOFILEHANDLE if minor else p.NFS4ERR_RESTOREFH
        assert await client.status(p.OP_PUTROOTFH, p.OP_RESTOREFH) == unsaved
        assert await client.status(*client.path("/0"), renaming(b"x", b"y")) == p.NFS4ERR_NOFILEHANDLE
        assert await client.status(*client.path("/0"), linking(b"x")) == p.NFS4ERR_NOFILEHANDLE
        for handle in (b"", b"short", bytes(64), b"\xff" * 128):
            status = await client.status((p.OP_PUTFH, p.PUTFH4args(handle)))
            assert status in (p.NFS4ERR_BADHANDLE, p.NFS4ERR_STALE), handle

    with_client(tmp_path, minor, test)


@pytest.mark.parametrize("minor", MINORS)
def test_the_saved_file_comes_back(tmp_path, minor):
    async def test(client, export, server):
        (export / "f").write_bytes(b"")
        *_, saved, _, _, other, _, back = await client.run(
            *client.path("/0/f"), p.OP_GETFH, p.OP_SAVEFH, p.OP_PUTPUBFH, p.OP_GETFH, p.OP_RESTOREFH, p.OP_GETFH
        )
        assert saved.resok4.object == back.resok4.object != other.resok4.object

    with_client(tmp_path, minor, test)


@pytest.mark.parametrize("minor", MINORS)
def test_every_type_is_created_but_files(tmp_path, minor):
    async def test(client, export, server):
        kinds = p.nfs_ftype4
        device = p.specdata4(3, 7)
        for name, kind in (
            (b"dir", DIRECTORY),
            (b"lnk", p.createtype4(kinds.NF4LNK, linkdata=b"elsewhere")),
            (b"blk", p.createtype4(kinds.NF4BLK, devdata=device)),
            (b"chr", p.createtype4(kinds.NF4CHR, devdata=device)),
            (b"sock", p.createtype4(kinds.NF4SOCK)),
            (b"fifo", p.createtype4(kinds.NF4FIFO)),
        ):
            assert await client.status(*client.path("/0"), creating(name, kind, mode(0o640))) == p.NFS4_OK, name
            assert await client.status(*client.path("/0"), creating(name, kind)) == p.NFS4ERR_EXIST, name
        assert os.stat(export / "blk").st_rdev == os.makedev(3, 7)
        assert os.stat(export / "dir").st_mode & 0o7777 == 0o640
        assert os.readlink(export / "lnk") == "elsewhere"
        for kind in (kinds.NF4REG, kinds.NF4ATTRDIR, kinds.NF4NAMEDATTR):
            bad = await client.status(*client.path("/0"), creating(b"bad", p.createtype4(kind)))
            assert bad == p.NFS4ERR_BADTYPE
        empty = creating(b"bad", p.createtype4(kinds.NF4LNK, linkdata=b""))
        assert await client.status(*client.path("/0"), empty) == p.NFS4ERR_INVAL
        assert await client.status(*client.path("/0/lnk"), p.OP_READLINK) == p.NFS4_OK
        assert await client.status(*client.path("/0/dir"), p.OP_READLINK) != p.NFS4_OK

    with_client(tmp_path, minor, test)


@pytest.mark.parametrize("minor", MINORS)
def test_renames_replace_what_they_may(tmp_path, minor):
    async def test(client, export, server):
        (export / "f").write_bytes(b"f")
        (export / "g").write_bytes(b"g")
        for name in ("empty", "other", "full", "full/below"):
            (export / name).mkdir()

        async def rename(old, new):
            return await client.status(*client.path("/0"), p.OP_SAVEFH, renaming(old, new))

        assert await rename(b"nothing", b"x") == p.NFS4ERR_NOENT
        assert await rename(b"f", b"empty") == p.NFS4ERR_EXIST
        assert await rename(b"empty", b"f") == p.NFS4ERR_NOTDIR
        assert await rename(b"empty", b"full") == p.NFS4ERR_NOTEMPTY
        assert await rename(b"other", b"empty") == p.NFS4_OK
        assert await rename(b"f", b"g") == p.NFS4_OK
        assert (export / "g").read_bytes() == b"f"
        assert await rename(b"g", b"g") == p.NFS4_OK
        into_itself = (*client.path("/0"), p.OP_SAVEFH, *client.path("/0/full/below"), renaming(b"full", b"x"))
        assert await client.status(*into_itself) == p.NFS4ERR_INVAL

    with_client(tmp_path, minor, test)


@pytest.mark.parametrize("minor", MINORS)
def test_two_names_of_one_file_are_not_renamed_onto_each_other(tmp_path, minor):
    async def test(client, export, server):
        (export / "f").write_bytes(b"f")
        await client.run(*client.path("/0/f"), p.OP_SAVEFH, *client.path("/0"), linking(b"g"))
        *_, renamed = await client.run(*client.path("/0"), p.OP_SAVEFH, renaming(b"f", b"g"))
        assert sorted(os.listdir(export)) == ["f", "g"]
        info = renamed.resok4.source_cinfo
        assert info.before == info.after

    with_client(tmp_path, minor, test)


@pytest.mark.parametrize("minor", MINORS)
def test_what_cannot_be_linked_or_removed(tmp_path, minor):
    async def test(client, export, server):
        (export / "f").write_bytes(b"f")
        (export / "full").mkdir()
        (export / "full/below").mkdir()
        here = client.path("/0")
        assert await client.status(*client.path("/0/full"), p.OP_SAVEFH, *here, linking(b"x")) == p.NFS4ERR_ISDIR
        assert await client.status(*client.path("/0/f"), p.OP_SAVEFH, *here, linking(b"full")) == p.NFS4ERR_EXIST
        assert await client.status(*here, removing(b"full")) == p.NFS4ERR_NOTEMPTY
        assert await client.status(*here, removing(b"nothing")) == p.NFS4ERR_NOENT
        *_, removed = await client.run(*here, removing(b"f"))
        assert removed.resok4.cinfo.before < removed.resok4.cinfo.after

    with_client(tmp_path, minor, test)


@pytest.mark.parametrize("minor", MINORS)
def test_the_pseudo_file_system_is_read_only(tmp_path, minor):
    async def test(client, export, server):
        (export / "f").write_bytes(b"f")
        root = p.OP_PUTROOTFH
        for operation in (creating(b"x"), removing(b"0")):
            assert await client.status(root, operation) == p.NFS4ERR_ROFS
        assert await client.status(root, p.OP_SAVEFH, renaming(b"0", b"x")) == p.NFS4ERR_ROFS
        assert await client.status(*client.path("/0"), p.OP_SAVEFH, root, renaming(b"f", b"x")) == p.NFS4ERR_ROFS
        assert await client.status(root, p.OP_SAVEFH, *client.path("/0"), renaming(b"0", b"x")) == p.NFS4ERR_ROFS
        assert await client.status(*client.path("/0/f"), p.OP_SAVEFH, root, linking(b"x")) == p.NFS4ERR_ROFS
        making = client.open_args(b"x", create=mode(0o644))
        assert await client.status(root, (p.OP_OPEN, making)) == p.NFS4ERR_ROFS
        setting = (p.OP_SETATTR, p.SETATTR4args(p.stateid4(0, bytes(12)), mode(0o777)))
        assert await client.status(root, setting) == p.NFS4ERR_ROFS

    with_client(tmp_path, minor, test)


@pytest.mark.parametrize("minor", MINORS)
def test_security_flavors_of_a_name(tmp_path, minor):
    async def test(client, export, server):
        (export / "f").write_bytes(b"f")
        asking = (p.OP_SECINFO, p.SECINFO4args(b"f"))
        *_, found = await client.run(*client.path("/0"), asking)
        assert [one.flavor for one in found.resok4] == [1, 0]
        # In 4.1 the current file is used up, so that nothing is done under the wrong flavor.
        after = p.NFS4ERR_NOFILEHANDLE if minor else p.NFS4_OK
        assert await client.status(*client.path("/0"), asking, p.OP_GETFH) == after
        gone = (p.OP_SECINFO, p.SECINFO4args(b"nothing"))
        assert await client.status(*client.path("/0"), gone) == p.NFS4ERR_NOENT
        assert await client.status(*client.path("/0/f"), asking) == p.NFS4ERR_NOTDIR
        if minor:
            for style in p.secinfo_style4:
                asking = (p.OP_SECINFO_NO_NAME, style)
                assert await client.status(*client.path("/0"), asking) == p.NFS4_OK
                assert await client.status(*client.path("/0"), asking, p.OP_GETFH) == p.NFS4ERR_NOFILEHANDLE
            parent = (p.OP_SECINFO_NO_NAME, p.secinfo_style4.SECINFO_STYLE4_PARENT)
            assert await client.status(p.OP_PUTROOTFH, parent) == p.NFS4ERR_NOENT

    with_client(tmp_path, minor, test)


@pytest.mark.parametrize("minor", MINORS)
def test_names_are_refused_to_whom_the_directory_is_closed(tmp_path, minor):
    async def test(client, export, server):
        (export / "closed").mkdir(mode=0o700)
        (export / "closed/f").write_bytes(b"")
        user = await Client4(server, minor, uid=1000, gid=1000, name=b"u", transport=LoopbackTransport()).connect()
        here = user.path("/0/closed")
        for operation in (looking_up(b"f"), creating(b"x"), removing(b"f"), (p.OP_OPEN, user.open_args(b"f"))):
            assert await user.status(*here, operation) == p.NFS4ERR_ACCESS
        assert await user.status(*here, p.OP_SAVEFH, *user.path("/0"), renaming(b"f", b"g")) == p.NFS4ERR_ACCESS

    with_client(tmp_path, minor, test)
