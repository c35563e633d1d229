"""NFSv3: READDIR and READDIRPLUS, to the octet; FSSTAT, FSINFO, PATHCONF."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nfsd.protocol.nfs3 import (
    FSF3_CANSETTIME,
    FSF3_HOMOGENEOUS,
    FSF3_LINK,
    FSF3_SYMLINK,
    FSINFOargs,
    FSSTAT3args,
    PATHCONF3args,
    READDIR3args,
    READDIRPLUS3args,
    nfs_fh3,
    nfsstat3,
)
from nfsd.v3.request import Limits
from nfsd.vfs.types import FileType
from tests.unit.fakes.nfs3 import Rig

STATUS_SIZE = 4
ZERO = bytes(8)


def filled(names: list[bytes], limits: Limits | None = None) -> Rig:
    rig = Rig(limits=limits)
    root = rig.service.roots[1]
    for name in names:
        rig.service._bind(root, name, rig.service._new(root.export, FileType.REG, root))
    return rig


def readdir(rig: Rig, count: int, cookie: int = 0, verifier: bytes = ZERO) -> tuple[Any, int]:
    answer = rig.call("READDIR", READDIR3args(rig.root, cookie, verifier, count))
    return answer.value, len(answer.wire) - STATUS_SIZE


def readdirplus(
    rig: Rig, maxcount: int, cookie: int = 0, dircount: int = 1 << 30, verifier: bytes = ZERO
) -> tuple[Any, int]:
    answer = rig.call("READDIRPLUS", READDIRPLUS3args(rig.root, cookie, verifier, dircount, maxcount))
    return answer.value, len(answer.wire) - STATUS_SIZE


def walk(rig: Rig, read: Any, size: int) -> list[bytes]:
    """The whole directory by pieces of at most ``size`` octets."""
    names: list[bytes] = []
    cookie, verifier = 0, ZERO
    while True:
        value, octets = read(rig, size, cookie, verifier=verifier)
        assert value.status == nfsstat3.NFS3_OK
        assert octets <= size
        reply = value.resok.reply
        assert reply.entries or reply.eof
        names += [entry.name for entry in reply.entries]
        if reply.eof:
            return names
        cookie, verifier = reply.entries[-1].cookie, value.resok.cookieverf


@settings(max_examples=40, deadline=None)
@given(
    names=st.lists(st.binary(min_size=1, max_size=40).filter(lambda n: not {0, 47} & set(n)), unique=True, max_size=40),
    size=st.integers(220, 1500),
)
def test_listings_by_pieces_are_complete_and_never_too_long(names: list[bytes], size: int) -> None:
    names = [name for name in names if name not in (b".", b"..")]
    rig = filled(names)
    assert walk(rig, readdir, size) == [b".", b"..", *names]
    size += 140
    assert walk(rig, readdirplus, size) == [b".", b"..", *names]


@pytest.mark.parametrize("read", [readdir, readdirplus])
def test_a_listing_fills_its_size_to_the_octet(read: Any) -> None:
    rig = filled([b"n" * length for length in range(1, 60)])
    value, exact = read(rig, 1 << 20)
    assert value.resok.reply.eof
    assert read(rig, exact)[1] == exact
    shorter, octets = read(rig, exact - 1)
    assert len(shorter.resok.reply.entries) == len(value.resok.reply.entries) - 1
    assert not shorter.resok.reply.eof
    assert octets < exact


@pytest.mark.parametrize("read", [readdir, readdirplus])
def test_a_size_without_room_for_one_entry_is_too_small(read: Any) -> None:
    rig = filled([b"name"])
    one = next(size for size in range(0, 1000, 4) if read(rig, size)[0].status == nfsstat3.NFS3_OK)
    value, octets = read(rig, one)
    assert [entry.name for entry in value.resok.reply.entries] == [b"."]
    assert octets == one
    for size in (0, 1, one - 1):
        value, _ = read(rig, size)
        assert value.status == nfsstat3.NFS3ERR_TOOSMALL
        assert value.resfail.dir_attributes is not None


@pytest.mark.parametrize("read", [readdir, readdirplus])
def test_the_end_is_told_once_the_last_entry_is_out(read: Any) -> None:
    rig = filled([b"a", b"b"])
    value, _ = read(rig, 4096)
    assert [entry.name for entry in value.resok.reply.entries] == [b".", b"..", b"a", b"b"]
    assert value.resok.reply.eof
    value, _ = read(rig, 4096, value.resok.reply.entries[-1].cookie)
    assert value.resok.reply.entries == []
    assert value.resok.reply.eof


def test_readdir_gives_ids_and_readdirplus_attributes_and_handles_too() -> None:
    rig = filled([b"a"])
    node = rig.service.roots[1].children[b"a"]
    entry = readdir(rig, 4096)[0].resok.reply.entries[2]
    assert (entry.fileid, entry.name) == (node.fileid, b"a")
    value = readdirplus(rig, 4096)[0]
    entry = value.resok.reply.entries[2]
    assert (entry.fileid, entry.name_handle) == (node.fileid, nfs_fh3(node.handle))
    assert entry.name_attributes.fileid == node.fileid
    assert value.resok.dir_attributes.fileid == rig.service.roots[1].fileid


def test_dircount_bounds_the_names_but_lets_one_out() -> None:
    rig = filled([b"name%04d" % number for number in range(50)])
    for dircount in (0, 1, 27):
        assert len(readdirplus(rig, 1 << 20, dircount=dircount)[0].resok.reply.entries) == 1
    entries = readdirplus(rig, 1 << 20, dircount=320)[0].resok.reply.entries
    octets = sum(4 + 8 + 4 + (len(entry.name) + 3 & ~3) + 8 for entry in entries)
    assert 320 - 32 < octets <= 320


@pytest.mark.parametrize("read", [readdir, readdirplus])
def test_cookies_go_with_their_verifier(read: Any) -> None:
    rig = filled([b"a", b"b"])
    value, _ = read(rig, 4096)
    cookie = value.resok.reply.entries[2].cookie
    for verifier, status in (
        (value.resok.cookieverf, nfsstat3.NFS3_OK),
        (ZERO, nfsstat3.NFS3_OK),
        (b"otherone", nfsstat3.NFS3ERR_BAD_COOKIE),
    ):
        assert read(rig, 4096, cookie, verifier=verifier)[0].status == status
    assert read(rig, 4096, 0, verifier=b"otherone")[0].status == nfsstat3.NFS3_OK


@pytest.mark.parametrize("read", [readdir, readdirplus])
def test_a_cookie_that_was_never_given_out_is_bad(read: Any) -> None:
    value, _ = read(filled([]), 4096, (1 << 64) - 1)
    assert value.status == nfsstat3.NFS3ERR_BAD_COOKIE
    assert value.resfail.dir_attributes is not None


@pytest.mark.parametrize("read", [readdir, readdirplus])
def test_listing_what_is_no_directory(read: Any) -> None:
    rig = filled([b"a"])
    rig.service.roots[1].type = FileType.REG
    assert read(rig, 4096)[0].status == nfsstat3.NFS3ERR_NOTDIR


@pytest.mark.parametrize("read", [readdir, readdirplus])
def test_a_reply_stays_within_a_mebibyte_whatever_is_asked_for(read: Any) -> None:
    rig = filled([b"%0200d" % number for number in range(6000)])
    value, octets = read(rig, 0xFFFFFFFF)
    assert not value.resok.reply.eof
    assert (1 << 20) - 2048 < octets <= (1 << 20) - 1024


def test_entries_without_handle_and_attributes_are_listed_without() -> None:
    rig = filled([b"a"])
    plain = rig.service.readdir

    async def bare(*arguments: Any, **named: Any) -> Any:
        page = await plain(*arguments, **named)
        return page._replace(entries=[entry._replace(handle=None, attributes=None) for entry in page.entries])

    rig.service.readdir = bare  # type: ignore[method-assign]
    value, octets = readdirplus(rig, 1 << 20)
    assert [entry.name_handle for entry in value.resok.reply.entries] == [None] * 3
    assert [entry.name_attributes for entry in value.resok.reply.entries] == [None] * 3
    assert octets < 88 + 16 + 3 * (4 + 8 + 8 + 8 + 8) + 1
    assert walk(rig, readdirplus, 220) == [b".", b"..", b"a"]


def test_fsstat_tells_space_and_files() -> None:
    rig = Rig()
    resok = rig.call("FSSTAT", FSSTAT3args(rig.root)).value.resok
    assert (resok.tbytes, resok.fbytes, resok.abytes) == (10 << 30, 5 << 30, 4 << 30)
    assert (resok.tfiles, resok.ffiles, resok.afiles, resok.invarsec) == (1000, 500, 400, 0)
    assert resok.obj_attributes is not None


def test_fsinfo_announces_what_the_procedures_hold_to() -> None:
    rig = Rig()
    resok = rig.call("FSINFO", FSINFOargs(rig.root)).value.resok
    limits = Limits()
    assert (resok.rtmax, resok.rtpref, resok.wtmax, resok.wtpref) == (1 << 20,) * 4
    assert (resok.rtmult, resok.wtmult, resok.dtpref) == (4096, 4096, limits.directory_preferred)
    assert resok.maxfilesize == (1 << 44) - 4096
    assert (resok.time_delta.seconds, resok.time_delta.nseconds) == (0, 1)
    assert resok.properties == FSF3_LINK | FSF3_SYMLINK | FSF3_HOMOGENEOUS | FSF3_CANSETTIME


def test_fsinfo_promises_no_links_where_there_are_none() -> None:
    rig = Rig()
    rig.service.link_max = 1
    resok = rig.call("FSINFO", FSINFOargs(rig.root)).value.resok
    assert resok.properties == FSF3_HOMOGENEOUS | FSF3_CANSETTIME


def test_pathconf_tells_the_limits_of_names() -> None:
    rig = Rig()
    resok = rig.call("PATHCONF", PATHCONF3args(rig.root)).value.resok
    assert (resok.linkmax, resok.name_max) == (32000, 255)
    assert (resok.no_trunc, resok.chown_restricted) == (True, True)
    assert (resok.case_insensitive, resok.case_preserving) == (False, True)


@pytest.mark.parametrize("name", ["FSSTAT", "FSINFO", "PATHCONF"])
def test_asking_about_a_file_system_by_a_stale_handle(name: str) -> None:
    rig = Rig()
    arguments = {"FSSTAT": FSSTAT3args, "FSINFO": FSINFOargs, "PATHCONF": PATHCONF3args}[name]
    value = rig.call(name, arguments(nfs_fh3(b"fake gone"))).value
    assert value.status == nfsstat3.NFS3ERR_STALE
    assert value.resfail.obj_attributes is None
