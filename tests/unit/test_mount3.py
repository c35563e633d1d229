"""MOUNT version 3: paths, handles, refusals, the mount list and the export list."""

import asyncio
import errno
from typing import Any

import pytest

from nfsd.exports import Export, ExportTable
from nfsd.mount.mountlist import MountList
from nfsd.mount.paths import components, matches
from nfsd.mount.program import mount3_program
from nfsd.protocol.mount3 import mountstat3
from nfsd.vfs.types import CrossingRefused, FileType
from rpcrdma.rpc.program import Call
from rpcrdma.xdr import Decoder, Encoder, pack, unpack
from tests.unit.fakes.file_service import FakeFileService, FakeNode
from tests.unit.fakes.nfs3 import ROOT, FakeTransport

EXPORTS = (
    Export(1, "/srv/export", "/export", clients=("*",)),
    Export(2, "/srv/export/inner", "/export/nested", clients=("10.0.0.0/8", "*.example.org")),
    Export(3, "/data", "/data"),
)


class MountRig:
    def __init__(self, *exports: Export, mounts: MountList | None = None) -> None:
        self.table = ExportTable(exports or EXPORTS)
        self.service = FakeFileService(self.table)
        self.transport = FakeTransport("127.0.0.1")
        self.program = mount3_program(self.service, self.table, mounts)  # type: ignore[arg-type]

    def call(self, name: str, arguments: Any = None) -> Any:
        procedure = next(p for p in self.program.versions[3].values() if p.name == name)
        decoder = Decoder(pack(procedure.arguments, arguments))
        call = Call(self.transport, 1, 100005, 3, 1, ROOT, decoder, Encoder())  # type: ignore[arg-type]
        result = asyncio.run(procedure.handler(call, decoder.decode(procedure.arguments)))  # type: ignore[arg-type]
        return unpack(procedure.results, pack(procedure.results, result))

    def directory(self, parent: FakeNode, name: bytes, kind: FileType = FileType.DIR) -> FakeNode:
        node = self.service._new(parent.export, kind, parent)
        self.service._bind(parent, name, node)
        return node


def test_the_program_has_the_six_procedures_of_the_rfc() -> None:
    program = MountRig().program
    assert program.number == 100005
    assert [program.versions[3][number].name for number in range(6)] == [
        "NULL", "MNT", "DUMP", "UMNT", "UMNTALL", "EXPORT",
    ]  # fmt: skip
    assert MountRig().call("NULL") is None


@pytest.mark.parametrize("path", [b"/export", b"/export/", b"//export/.", b"/srv/export", b"/srv/export//"])
def test_mnt_of_an_export_gives_its_roots_handle_and_auth_sys(path: bytes) -> None:
    rig = MountRig()
    result = rig.call("MNT", path)
    assert result.fhs_status == mountstat3.MNT3_OK
    assert result.mountinfo.fhandle == rig.service.roots[1].handle
    assert result.mountinfo.auth_flavors == [1]


@pytest.mark.parametrize("path", [b"/export/a/b", b"/srv/export/a/b", b"/export//a/./b/"])
def test_mnt_of_a_directory_below_an_export(path: bytes) -> None:
    rig = MountRig()
    below = rig.directory(rig.directory(rig.service.roots[1], b"a"), b"b")
    assert rig.call("MNT", path).mountinfo.fhandle == below.handle


def test_mnt_of_names_that_are_not_utf8() -> None:
    rig = MountRig()
    below = rig.directory(rig.service.roots[1], b"\xff\xfe")
    assert rig.call("MNT", b"/export/\xff\xfe").mountinfo.fhandle == below.handle


@pytest.mark.parametrize(
    ("path", "status"),
    [
        (b"/nowhere", mountstat3.MNT3ERR_NOENT),
        (b"/", mountstat3.MNT3ERR_NOENT),
        (b"/export/missing", mountstat3.MNT3ERR_NOENT),
        (b"/exporter", mountstat3.MNT3ERR_NOENT),
        (b"/export/file", mountstat3.MNT3ERR_NOTDIR),
        (b"/export/file/x", mountstat3.MNT3ERR_NOTDIR),
        (b"/export/link", mountstat3.MNT3ERR_ACCES),  # out of the export
        (b"/export/link/x", mountstat3.MNT3ERR_ACCES),
        (b"/export/" + b"n" * 256, mountstat3.MNT3ERR_NAMETOOLONG),
        (b"/export/..", mountstat3.MNT3ERR_ACCES),
        (b"/export/a/../../etc", mountstat3.MNT3ERR_ACCES),
        (b"export", mountstat3.MNT3ERR_ACCES),
        (b"", mountstat3.MNT3ERR_ACCES),
        (b"/export\0/etc", mountstat3.MNT3ERR_ACCES),
        (b"/export/nested", mountstat3.MNT3ERR_ACCES),
    ],
)
def test_mnt_refuses(path: bytes, status: mountstat3) -> None:
    rig = MountRig()
    rig.directory(rig.service.roots[1], b"file", FileType.REG)
    rig.directory(rig.service.roots[1], b"link", FileType.LNK).target = b"/"
    result = rig.call("MNT", path)
    assert result.fhs_status == status
    assert result.mountinfo is None
    assert rig.call("DUMP") == []


def test_the_longest_export_holds_the_path() -> None:
    rig = MountRig()
    rig.transport.peer_address = "10.0.0.1"
    for path in (b"/export/nested", b"/srv/export/inner"):
        assert rig.call("MNT", path).mountinfo.fhandle == rig.service.roots[2].handle


def test_an_export_at_the_root_hides_no_directory_paths() -> None:
    rig = MountRig(Export(1, "/srv/all", "/"), Export(2, "/srv/some", "/some"))
    assert rig.call("MNT", b"/").mountinfo.fhandle == rig.service.roots[1].handle
    assert rig.call("MNT", b"/some").mountinfo.fhandle == rig.service.roots[2].handle
    assert rig.call("MNT", b"/srv/some").mountinfo.fhandle == rig.service.roots[2].handle


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (OSError(errno.EACCES, ""), mountstat3.MNT3ERR_ACCES),
        (OSError(errno.EIO, ""), mountstat3.MNT3ERR_IO),
        (OSError(errno.ENFILE, ""), mountstat3.MNT3ERR_SERVERFAULT),
        (CrossingRefused(), mountstat3.MNT3ERR_ACCES),
    ],
)
def test_errors_on_the_way_have_their_status(error: BaseException, status: mountstat3) -> None:
    rig = MountRig()
    rig.service.failures["lookup"] = [error]
    assert rig.call("MNT", b"/export/a").fhs_status == status


def test_the_way_is_walked_as_the_server_not_as_the_caller() -> None:
    rig = MountRig()
    rig.directory(rig.service.roots[1], b"a")
    rig.call("MNT", b"/export/a")
    (acted,) = rig.service.credentials
    assert (acted.uid, acted.gid, acted.gids) == (0, 0, ())


def test_dump_lists_mounts_until_they_are_given_up() -> None:
    rig = MountRig()

    def mounts() -> list[tuple[bytes, bytes]]:
        return [(entry.ml_hostname, entry.ml_directory) for entry in rig.call("DUMP")]

    rig.call("MNT", b"/export")
    rig.call("MNT", b"/data")
    rig.call("MNT", b"/export")
    rig.transport.peer_address = "10.9.9.9"
    rig.call("MNT", b"/data")
    assert mounts() == [(b"127.0.0.1", b"/data"), (b"127.0.0.1", b"/export"), (b"10.9.9.9", b"/data")]
    rig.call("UMNT", b"/export")  # not this client's
    assert len(mounts()) == 3
    rig.call("UMNT", b"/data")
    assert mounts() == [(b"127.0.0.1", b"/data"), (b"127.0.0.1", b"/export")]
    rig.transport.peer_address = "127.0.0.1"
    rig.call("UMNTALL")
    assert mounts() == []


def test_the_mount_list_is_bounded_and_forgets_the_oldest() -> None:
    mounts = MountList(limit=3)
    for number in range(5):
        mounts.add("client", b"/%d" % number)
    assert list(mounts) == [("client", b"/2"), ("client", b"/3"), ("client", b"/4")]
    mounts.add("client", b"/2")
    mounts.add("client", b"/5")
    assert list(mounts) == [("client", b"/4"), ("client", b"/2"), ("client", b"/5")]


def test_export_lists_every_export_with_its_clients() -> None:
    listed = [(node.ex_dir, [group.gr_name for group in node.ex_groups]) for node in MountRig().call("EXPORT")]
    assert listed == [
        (b"/export", [b"*"]),
        (b"/export/nested", [b"10.0.0.0/8", b"*.example.org"]),
        (b"/data", [b"*"]),
    ]


def test_client_names_in_the_export_list_fit_the_protocol() -> None:
    rig = MountRig(Export(1, "/srv/export", "/export", clients=("h" * 300,)))
    assert rig.call("EXPORT")[0].ex_groups[0].gr_name == b"h" * 255


def test_paths_are_taken_apart_without_climbing() -> None:
    assert components(b"/a//b/./c/") == [b"a", b"b", b"c"]
    assert components(b"/") == []
    assert components(b"a") is None
    assert components(b"/a/../b") is None
    assert components(b"/a\0") is None


def test_names_match_whole_components_only() -> None:
    assert [export.id for export, _ in matches(EXPORTS, [b"export", b"nestedmore"])] == [1]
    assert matches(EXPORTS, [b"exp"]) == []
    assert matches(EXPORTS, [b"export", b"x"])[0][1] == [b"x"]
