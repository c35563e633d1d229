"""NFSv3: LOOKUP, CREATE, MKDIR, SYMLINK, MKNOD, REMOVE, RMDIR, RENAME, LINK."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nfsd.exports import Export
from nfsd.protocol.nfs3 import (
    CREATE3args,
    GETATTR3args,
    LINK3args,
    LOOKUP3args,
    MKDIR3args,
    MKNOD3args,
    REMOVE3args,
    RENAME3args,
    RMDIR3args,
    SYMLINK3args,
    createhow3,
    createmode3,
    devicedata3,
    diropargs3,
    ftype3,
    mknoddata3,
    nfs_fh3,
    nfsstat3,
    specdata3,
    symlinkdata3,
)
from tests.nfs3_client import attributes as no_attributes
from tests.support.nfs3_server import Server, running
from tests.unit.vfs_support import directory_on

NOT_UTF8 = b"\xff\xfe caf\xe9"
LARGEST = specdata3(511, (1 << 18) - 1)
"""Numbers of a device that XFS keeps, too."""


class Rig:
    """A server of two directories, and a client of it."""

    def __init__(self, runner: asyncio.Runner, server: Server, second: Path) -> None:
        self.runner, self.server, self.path = runner, server, server.directory
        self.root = server.root
        export = next(export for export in server.service.exports.exports if export.path == str(second))
        self.second = nfs_fh3(runner.run(server.service.root(export)).handle)

    def at(self, name: bytes) -> diropargs3:
        return diropargs3(self.root, name)

    def call(self, name: str, arguments: Any) -> Any:
        return self.runner.run(self.server.client.nfs(name, arguments))

    def number(self, path: str = "") -> int:
        return (self.path / path).stat().st_ino


@pytest.fixture(params=["memory", "disk"])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    with directory_on(request.param, tmp_path) as path, asyncio.Runner() as runner:
        (tmp_path / "state").mkdir(mode=0o700)
        second = tmp_path / "second"
        second.mkdir()
        server = running(Path(path), tmp_path / "state", more=(Export(2, str(second), "/second", squash="none"),))
        yield Rig(runner, runner.run(server.__aenter__()), second)
        runner.run(server.__aexit__(None, None, None))


def unchecked(**attributes: Any) -> createhow3:
    return createhow3(createmode3.UNCHECKED, obj_attributes=no_attributes(**attributes))


def create(rig: Rig, name: bytes = b"file", how: createhow3 | None = None) -> Any:
    return rig.call("CREATE", CREATE3args(rig.at(name), how or unchecked(mode=0o640)))


def mkdir(rig: Rig, name: bytes = b"dir") -> nfs_fh3:
    obj: nfs_fh3 = rig.call("MKDIR", MKDIR3args(rig.at(name), no_attributes(mode=0o700))).resok.obj
    return obj


def test_lookup_finds_a_file_and_tells_about_the_directory_too(rig: Rig) -> None:
    made = create(rig, NOT_UTF8).resok.obj
    resok = rig.call("LOOKUP", LOOKUP3args(rig.at(NOT_UTF8))).resok
    assert resok.object == made
    assert resok.obj_attributes.mode == 0o640
    assert resok.dir_attributes.type == ftype3.NF3DIR


def test_lookup_of_dots(rig: Rig) -> None:
    directory = mkdir(rig)
    for where, name, found in (
        (directory, b".", directory),
        (directory, b"..", rig.root),
        (rig.root, b"..", rig.root),
        (rig.root, b".", rig.root),
    ):
        assert rig.call("LOOKUP", LOOKUP3args(diropargs3(where, name))).resok.object == found


def test_a_failed_lookup_tells_about_the_directory(rig: Rig) -> None:
    value = rig.call("LOOKUP", LOOKUP3args(rig.at(b"nothing")))
    assert value.status == nfsstat3.NFS3ERR_NOENT
    assert value.resfail.dir_attributes.type == ftype3.NF3DIR


def test_names_in_what_is_no_directory(rig: Rig) -> None:
    file = create(rig).resok.obj
    assert rig.call("LOOKUP", LOOKUP3args(diropargs3(file, b"x"))).status == nfsstat3.NFS3ERR_NOTDIR
    value = rig.call("MKDIR", MKDIR3args(diropargs3(file, b"x"), no_attributes()))
    assert value.status == nfsstat3.NFS3ERR_NOTDIR
    assert value.resfail.dir_wcc.after.type == ftype3.NF3REG


def every_procedure_on(rig: Rig, name: bytes) -> dict[str, Any]:
    where, file = rig.at(name), rig.at(b"file")
    handle = create(rig).resok.obj
    link_data = symlinkdata3(no_attributes(), memoryview(b"text"))
    fifo = mknoddata3(ftype3.NF3FIFO, pipe_attributes=no_attributes())
    return {
        "LOOKUP": LOOKUP3args(where),
        "CREATE": CREATE3args(where, unchecked()),
        "MKDIR": MKDIR3args(where, no_attributes()),
        "SYMLINK": SYMLINK3args(where, link_data),
        "MKNOD": MKNOD3args(where, fifo),
        "REMOVE": REMOVE3args(where),
        "RMDIR": RMDIR3args(where),
        "RENAME": RENAME3args(file, where),
        "LINK": LINK3args(handle, where),
    }


@pytest.mark.parametrize("name", [b"", b"a/b", b"/", b"a\0b", b"../x"])
def test_names_that_cannot_be_are_refused_everywhere(rig: Rig, name: bytes) -> None:
    for procedure, arguments in every_procedure_on(rig, name).items():
        assert rig.call(procedure, arguments).status == nfsstat3.NFS3ERR_ACCES, procedure
    assert os.listdir(rig.path) == ["file"]


def test_names_that_are_too_long_are_called_that(rig: Rig) -> None:
    for procedure in ("LOOKUP", "CREATE", "MKDIR", "SYMLINK", "MKNOD", "REMOVE", "RMDIR"):
        arguments = every_procedure_on(rig, b"n" * 256)[procedure]
        assert rig.call(procedure, arguments).status == nfsstat3.NFS3ERR_NAMETOOLONG, procedure


@pytest.mark.parametrize("name", [b".", b".."])
def test_dots_cannot_be_made_or_removed(rig: Rig, name: bytes) -> None:
    exist, inval, isdir = nfsstat3.NFS3ERR_EXIST, nfsstat3.NFS3ERR_INVAL, nfsstat3.NFS3ERR_ISDIR
    expected = {
        "CREATE": exist, "MKDIR": exist, "SYMLINK": exist, "MKNOD": exist, "LINK": exist,
        "REMOVE": isdir, "RENAME": inval, "RMDIR": inval if name == b"." else exist,
    }  # fmt: skip
    requests = every_procedure_on(rig, name)
    for procedure, status in expected.items():
        assert rig.call(procedure, requests[procedure]).status == status, procedure


def test_create_makes_a_file_with_its_attributes_and_the_directorys_change(rig: Rig) -> None:
    os.utime(rig.path, (1000, 1000))
    resok = create(rig, how=unchecked(mode=0o604, size=5)).resok
    assert (resok.obj_attributes.mode, resok.obj_attributes.size) == (0o604, 5)
    assert resok.dir_wcc.before.mtime.seconds == 1000
    assert resok.dir_wcc.after.mtime.seconds > 1000


def test_create_without_a_mode_makes_a_file_for_its_owner_only(rig: Rig) -> None:
    assert create(rig, how=unchecked()).resok.obj_attributes.mode == 0


def test_unchecked_create_takes_an_existing_file_and_truncates_it_if_asked(rig: Rig) -> None:
    first = create(rig).resok.obj
    (rig.path / "file").write_bytes(b"0123456789")
    again = create(rig, how=unchecked(mode=0o777)).resok
    assert (again.obj, again.obj_attributes.size, again.obj_attributes.mode) == (first, 10, 0o640)
    assert create(rig, how=unchecked(size=0)).resok.obj_attributes.size == 0


def test_guarded_create_refuses_an_existing_file(rig: Rig) -> None:
    create(rig)
    value = create(rig, how=createhow3(createmode3.GUARDED, obj_attributes=no_attributes()))
    assert value.status == nfsstat3.NFS3ERR_EXIST
    assert value.resfail.dir_wcc.after.type == ftype3.NF3DIR


def test_exclusive_create_takes_only_the_file_it_made_itself(rig: Rig) -> None:
    ours = createhow3(createmode3.EXCLUSIVE, verf=b"12345678")
    made = create(rig, how=ours)
    again = create(rig, how=ours)
    assert made.resok.obj == again.resok.obj
    assert made.resok.obj_attributes.mode == 0
    other = create(rig, how=createhow3(createmode3.EXCLUSIVE, verf=b"87654321"))
    assert other.status == nfsstat3.NFS3ERR_EXIST


def test_mkdir_makes_a_directory(rig: Rig) -> None:
    resok = rig.call("MKDIR", MKDIR3args(rig.at(NOT_UTF8), no_attributes(mode=0o2755))).resok
    assert (resok.obj_attributes.type, resok.obj_attributes.mode) == (ftype3.NF3DIR, 0o2755)
    assert rig.call("MKDIR", MKDIR3args(rig.at(NOT_UTF8), no_attributes())).status == nfsstat3.NFS3ERR_EXIST


def test_symlink_stores_its_text_as_it_comes(rig: Rig) -> None:
    text = b"/anywhere/" + NOT_UTF8
    data = symlinkdata3(no_attributes(), memoryview(text))
    resok = rig.call("SYMLINK", SYMLINK3args(rig.at(b"link"), data)).resok
    assert resok.obj_attributes.type == ftype3.NF3LNK
    assert os.readlink(os.fsencode(rig.path / "link")) == text


@pytest.mark.parametrize("text", [b"", b"a\0b"])
def test_symlink_texts_that_cannot_be_stored(rig: Rig, text: bytes) -> None:
    value = rig.call("SYMLINK", SYMLINK3args(rig.at(b"link"), symlinkdata3(no_attributes(), memoryview(text))))
    assert value.status == nfsstat3.NFS3ERR_INVAL


@pytest.mark.parametrize("kind", [ftype3.NF3CHR, ftype3.NF3BLK])
def test_mknod_makes_devices(rig: Rig, kind: ftype3) -> None:
    what = mknoddata3(kind, device=devicedata3(no_attributes(mode=0o600), LARGEST))
    resok = rig.call("MKNOD", MKNOD3args(rig.at(b"dev"), what)).resok
    assert resok.obj_attributes.type == kind
    assert resok.obj_attributes.rdev == LARGEST


@pytest.mark.parametrize("kind", [ftype3.NF3SOCK, ftype3.NF3FIFO])
def test_mknod_makes_sockets_and_pipes(rig: Rig, kind: ftype3) -> None:
    what = mknoddata3(kind, pipe_attributes=no_attributes(mode=0o622))
    resok = rig.call("MKNOD", MKNOD3args(rig.at(b"pipe"), what)).resok
    assert (resok.obj_attributes.type, resok.obj_attributes.mode) == (kind, 0o622)


@pytest.mark.parametrize("kind", [ftype3.NF3REG, ftype3.NF3DIR, ftype3.NF3LNK])
def test_mknod_makes_nothing_else(rig: Rig, kind: ftype3) -> None:
    value = rig.call("MKNOD", MKNOD3args(rig.at(b"x"), mknoddata3(kind)))
    assert value.status == nfsstat3.NFS3ERR_BADTYPE


@pytest.mark.parametrize("spec", [specdata3(4096, 0), specdata3(0, 1 << 20)])
def test_mknod_refuses_device_numbers_that_would_not_survive(rig: Rig, spec: specdata3) -> None:
    what = mknoddata3(ftype3.NF3CHR, device=devicedata3(no_attributes(), spec))
    assert rig.call("MKNOD", MKNOD3args(rig.at(b"x"), what)).status == nfsstat3.NFS3ERR_INVAL


def test_remove_removes_files_and_only_files(rig: Rig) -> None:
    file = create(rig).resok.obj
    mkdir(rig)
    os.utime(rig.path, (1000, 1000))
    resok = rig.call("REMOVE", REMOVE3args(rig.at(b"file"))).resok
    assert resok.dir_wcc.after.mtime.seconds > resok.dir_wcc.before.mtime.seconds == 1000
    assert os.listdir(rig.path) == ["dir"]
    assert rig.call("GETATTR", GETATTR3args(file)).status == nfsstat3.NFS3ERR_STALE
    value = rig.call("REMOVE", REMOVE3args(rig.at(b"dir")))
    assert value.status == nfsstat3.NFS3ERR_ISDIR
    assert value.resfail.dir_wcc.after is not None
    assert rig.call("REMOVE", REMOVE3args(rig.at(b"file"))).status == nfsstat3.NFS3ERR_NOENT


def test_rmdir_removes_empty_directories_and_only_those(rig: Rig) -> None:
    directory = mkdir(rig)
    create(rig)
    rig.call("MKDIR", MKDIR3args(diropargs3(directory, b"inner"), no_attributes()))
    assert rig.call("RMDIR", RMDIR3args(rig.at(b"dir"))).status == nfsstat3.NFS3ERR_NOTEMPTY
    assert rig.call("RMDIR", RMDIR3args(rig.at(b"file"))).status == nfsstat3.NFS3ERR_NOTDIR
    assert rig.call("RMDIR", RMDIR3args(diropargs3(directory, b"inner"))).status == nfsstat3.NFS3_OK
    assert rig.call("RMDIR", RMDIR3args(rig.at(b"dir"))).status == nfsstat3.NFS3_OK


def test_rename_moves_and_tells_about_both_directories(rig: Rig) -> None:
    directory = mkdir(rig)
    file = create(rig).resok.obj
    resok = rig.call("RENAME", RENAME3args(rig.at(b"file"), diropargs3(directory, b"new"))).resok
    assert os.listdir(rig.path / "dir") == ["new"]
    assert rig.call("GETATTR", GETATTR3args(file)).resok.obj_attributes.fileid == rig.number("dir/new")
    assert resok.fromdir_wcc.after.fileid == rig.number()
    assert resok.todir_wcc.after.fileid == rig.number("dir")


def test_a_failed_rename_tells_about_both_directories(rig: Rig) -> None:
    directory = mkdir(rig)
    value = rig.call("RENAME", RENAME3args(rig.at(b"nothing"), diropargs3(directory, b"new")))
    assert value.status == nfsstat3.NFS3ERR_NOENT
    assert value.resfail.fromdir_wcc.after.fileid == rig.number()
    assert value.resfail.todir_wcc.after.fileid == rig.number("dir")
    stale = mkdir(rig, b"gone")
    (rig.path / "gone").rmdir()
    value = rig.call("RENAME", RENAME3args(rig.at(b"dir"), diropargs3(stale, b"new")))
    assert value.status == nfsstat3.NFS3ERR_STALE
    assert value.resfail.fromdir_wcc.after is not None
    assert value.resfail.todir_wcc.after is None


def test_rename_and_link_stay_within_one_export(rig: Rig) -> None:
    file = create(rig).resok.obj
    elsewhere = diropargs3(rig.second, b"new")
    assert rig.call("RENAME", RENAME3args(rig.at(b"file"), elsewhere)).status == nfsstat3.NFS3ERR_XDEV
    assert rig.call("LINK", LINK3args(file, elsewhere)).status == nfsstat3.NFS3ERR_XDEV


def test_rename_onto_a_directory_that_is_not_empty(rig: Rig) -> None:
    mkdir(rig)
    create(rig, b"x")
    target = mkdir(rig, b"target")
    rig.call("MKDIR", MKDIR3args(diropargs3(target, b"inner"), no_attributes()))
    value = rig.call("RENAME", RENAME3args(rig.at(b"dir"), rig.at(b"target")))
    assert value.status in (nfsstat3.NFS3ERR_NOTEMPTY, nfsstat3.NFS3ERR_EXIST)  # as XFS says


def test_link_adds_a_name_and_tells_about_file_and_directory(rig: Rig) -> None:
    file = create(rig).resok.obj
    resok = rig.call("LINK", LINK3args(file, rig.at(b"second"))).resok
    assert resok.file_attributes.nlink == 2
    assert resok.linkdir_wcc.after.type == ftype3.NF3DIR
    value = rig.call("LINK", LINK3args(file, rig.at(b"second")))
    assert value.status == nfsstat3.NFS3ERR_EXIST
    assert value.resfail.file_attributes.nlink == 2
    assert value.resfail.linkdir_wcc.after.type == ftype3.NF3DIR
