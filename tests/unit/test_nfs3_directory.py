"""NFSv3: READDIR and READDIRPLUS, to the octet; FSSTAT, FSINFO, PATHCONF."""

import os
import time
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nfsd.protocol.nfs3 import (
    FSF3_CANSETTIME,
    FSF3_HOMOGENEOUS,
    FSF3_LINK,
    FSF3_SYMLINK,
    CREATE3args,
    FSINFOargs,
    FSSTAT3args,
    PATHCONF3args,
    READDIR3args,
    READDIRPLUS3args,
    REMOVE3args,
    createhow3,
    createmode3,
    diropargs3,
    entry3,
    entryplus3,
    fattr3,
    nfs_fh3,
    nfsstat3,
)
from nfsd.v3.convert import fattr
from nfsd.v3.request import Limits
from rpcrdma.rpc.program import RpcCredential
from rpcrdma.xdr import codec
from tests.unit.fakes.nfs3 import ROOT as ROOT_CALLER
from tests.unit.fakes.nfs3 import Rig
from tests.unit.listing_support import ENTRIES, KINDS, RealRig, listed_by_kernel, make_directory, make_entry, real_rig
from tests.unit.vfs_support import ROOT

STATUS_SIZE = 4
ZERO = bytes(8)
STRANGER = RpcCredential(1, 4321, 4321, ())


def readdir(rig: RealRig, count: int, cookie: int = 0, verifier: bytes = ZERO) -> tuple[Any, int]:
    answer = rig.call("READDIR", READDIR3args(rig.root, cookie, verifier, count))
    return answer.value, len(answer.wire) - STATUS_SIZE


def readdirplus(
    rig: RealRig, maxcount: int, cookie: int = 0, dircount: int = 1 << 30, verifier: bytes = ZERO
) -> tuple[Any, int]:
    answer = rig.call("READDIRPLUS", READDIRPLUS3args(rig.root, cookie, verifier, dircount, maxcount))
    return answer.value, len(answer.wire) - STATUS_SIZE


def walk(rig: RealRig, read: Any, size: int) -> list[bytes]:
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
    with real_rig(names) as rig:
        found = [name for name, _, _ in listed_by_kernel(rig.path)]
        assert sorted(found) == sorted([b".", b"..", *names])
        assert walk(rig, readdir, size) == found
        assert walk(rig, readdirplus, size + 140) == found


@pytest.mark.parametrize("read", [readdir, readdirplus])
def test_a_listing_fills_its_size_to_the_octet(read: Any) -> None:
    with real_rig([b"n" * length for length in range(1, 60)]) as rig:
        value, exact = read(rig, 1 << 20)
        assert value.resok.reply.eof
        assert read(rig, exact)[1] == exact
        shorter, octets = read(rig, exact - 1)
        assert len(shorter.resok.reply.entries) == len(value.resok.reply.entries) - 1
        assert not shorter.resok.reply.eof
        assert octets < exact


@pytest.mark.parametrize("read", [readdir, readdirplus])
def test_a_size_without_room_for_one_entry_is_too_small(read: Any) -> None:
    with real_rig([b"name"]) as rig:
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
    with real_rig([b"a", b"b"]) as rig:
        value, _ = read(rig, 4096)
        assert sorted(entry.name for entry in value.resok.reply.entries) == [b".", b"..", b"a", b"b"]
        assert value.resok.reply.eof
        value, _ = read(rig, 4096, value.resok.reply.entries[-1].cookie)
        assert value.resok.reply.entries == []
        assert value.resok.reply.eof


def test_readdir_gives_ids_and_readdirplus_attributes_and_handles_too() -> None:
    with real_rig([b"a"]) as rig:
        node, attributes = rig.run(rig.service.lookup(ROOT, rig.root_node, b"a"))
        entry = readdir(rig, 4096)[0].resok.reply.entries[2]
        assert (entry.fileid, entry.name) == (attributes.fileid, b"a")
        value = readdirplus(rig, 4096)[0]
        entry = value.resok.reply.entries[2]
        assert (entry.fileid, entry.name_handle) == (attributes.fileid, nfs_fh3(node.handle))
        assert entry.name_attributes == fattr(attributes)
        assert value.resok.dir_attributes.fileid == os.stat(rig.path).st_ino


@pytest.mark.parametrize("where", ["/dev/shm", "/var/tmp"], ids=["memory", "disk"])
@pytest.mark.parametrize("read", [readdir, readdirplus])
def test_a_listing_has_no_names_that_were_read_before_the_directory_changed(read: Any, where: str) -> None:
    """Names read ahead for one listing are not given to another one that has begun after a change of our own."""
    with real_rig([b"name %03d" % number for number in range(60)], where=where) as rig:
        victims = os.listdir(os.fsencode(rig.path))[::4]
        for number, victim in enumerate(victims):
            read(rig, 1200)  # which reads on behind the last entry that it has room for
            assert rig.call("REMOVE", REMOVE3args(diropargs3(rig.root, victim))).value.status == nfsstat3.NFS3_OK
            how = createhow3(createmode3.EXCLUSIVE, verf=bytes(8))
            made = rig.call("CREATE", CREATE3args(diropargs3(rig.root, b"new %d" % number), how))
            assert made.value.status == nfsstat3.NFS3_OK
            assert sorted(walk(rig, read, 1200)) == sorted([b".", b"..", *os.listdir(os.fsencode(rig.path))])
            time.sleep(0.1)  # so that the directory's ctime is one that no change gives it again


def test_dircount_bounds_the_names_but_lets_one_out() -> None:
    with real_rig([b"name%04d" % number for number in range(50)]) as rig:
        for dircount in (0, 1, 27):
            assert len(readdirplus(rig, 1 << 20, dircount=dircount)[0].resok.reply.entries) == 1
        entries = readdirplus(rig, 1 << 20, dircount=320)[0].resok.reply.entries
        octets = sum(4 + 8 + 4 + (len(entry.name) + 3 & ~3) + 8 for entry in entries)
        assert 320 - 32 < octets <= 320


@pytest.mark.parametrize("read", [readdir, readdirplus])
def test_cookies_go_with_their_verifier(read: Any) -> None:
    with real_rig([b"a", b"b"]) as rig:
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
    with real_rig() as rig:
        value, _ = read(rig, 4096, (1 << 64) - 1)
        assert value.status == nfsstat3.NFS3ERR_BAD_COOKIE
        assert value.resfail.dir_attributes is not None


@pytest.mark.parametrize("read", [readdir, readdirplus])
def test_listing_what_is_no_directory(read: Any) -> None:
    with real_rig([b"a"]) as rig:
        rig.root = nfs_fh3(rig.run(rig.service.lookup(ROOT, rig.root_node, b"a"))[0].handle)
        assert read(rig, 4096)[0].status == nfsstat3.NFS3ERR_NOTDIR


@pytest.mark.parametrize("read", [readdir, readdirplus])
def test_a_reply_stays_within_a_mebibyte_whatever_is_asked_for(read: Any) -> None:
    with real_rig([b"%0200d" % number for number in range(6000)]) as rig:
        value, octets = read(rig, 0xFFFFFFFF)
        assert not value.resok.reply.eof
        assert (1 << 20) - 2048 < octets <= (1 << 20) - 1024


def test_entries_that_the_caller_may_not_look_at_are_listed_without() -> None:
    with real_rig([b"a"]) as rig:
        if not rig.service.executor.can_switch:
            pytest.skip("needs the privilege to act as others")
        os.chmod(rig.path, 0o744)
        arguments = READDIRPLUS3args(rig.root, 0, ZERO, 1 << 20, 1 << 20)
        answer = rig.call("READDIRPLUS", arguments, STRANGER)
        entries = answer.value.resok.reply.entries
        assert [entry.name_handle for entry in entries] == [None] * 3
        assert [entry.name_attributes for entry in entries] == [None] * 3
        assert len(answer.wire) == STATUS_SIZE + 88 + 16 + 3 * (4 + 8 + 8 + 8 + 8)


# -- against what the kernel says, encoded by the reference codec ------------------------------------------------------
def encoded(kind: Any, value: Any) -> bytes:
    encoder = codec.Encoder()
    encoder.boolean(True)
    encoder.encode(kind, value)
    return encoder.getvalue()


def entry_of(rig: RealRig, directory: Any, found: tuple[bytes, int, int], plus: bool, may_look: bool) -> bytes:
    """An entry as a server would send it that looks up every name."""
    name, fileid, cookie = found
    if not plus:
        return encoded(entry3, entry3(fileid, name, cookie))
    if not may_look or name == b"..":
        return encoded(entryplus3, entryplus3(fileid, name, cookie, None, None))
    node, attributes = rig.run(rig.service.lookup(ROOT, directory, name))
    shown = fattr(attributes)
    return encoded(entryplus3, entryplus3(fileid, name, cookie, shown, nfs_fh3(node.handle)))


def expected(
    rig: RealRig,
    path: str,
    arguments: READDIR3args | READDIRPLUS3args,
    caller: RpcCredential,
    cookies: Mapping[bytes, int],
) -> tuple[nfsstat3, bytes, bool]:
    """Status, entries and eof of a listing within its sizes (RFC 1813 sections 3.3.16 and 3.3.17); with ``cookies``
    where they are given."""
    plus = isinstance(arguments, READDIRPLUS3args)
    directory = rig.run(rig.service.resolve(arguments.dir.data))
    room = (arguments.maxcount if plus else arguments.count) - 88 - 8 - 4 - 4
    names = arguments.dircount if plus else 1 << 40
    taken = b""
    left = [
        (name, fileid, cookies.get(name, cookie)) for name, fileid, cookie in listed_by_kernel(path, arguments.cookie)
    ]
    while left:
        name = left[0][0]
        entry = entry_of(rig, directory, left[0], plus, caller is ROOT_CALLER)
        names -= 4 + 8 + 4 + (len(name) + 3 & ~3) + 8
        if len(entry) > room or (names < 0 and taken):
            break
        taken += entry
        room -= len(entry)
        del left[0]
    if not taken and (left or room < 0):
        return nfsstat3.NFS3ERR_TOOSMALL, b"", False
    return nfsstat3.NFS3_OK, taken, not left


@pytest.fixture(scope="module", params=["/dev/shm", "/var/tmp"], ids=["memory", "disk"])
def rig(request: pytest.FixtureRequest) -> Any:
    with real_rig(where=request.param) as rig:
        yield rig


@settings(max_examples=60, deadline=None)
@given(
    entries=ENTRIES,
    plus=st.booleans(),
    size=st.one_of(st.integers(0, 3000), st.just(1 << 20)),
    dircount=st.one_of(st.integers(0, 800), st.just(1 << 20)),
    searching=st.booleans(),
    data=st.data(),
)
def test_listings_are_those_of_the_kernel_to_the_octet(
    rig: RealRig, entries: dict[bytes, str], plus: bool, size: int, dircount: int, searching: bool, data: Any
) -> None:
    path = make_directory(rig.path, entries)
    handle = nfs_fh3(rig.run(rig.service.lookup(ROOT, rig.root_node, os.path.basename(path).encode()))[0].handle)
    caller = ROOT_CALLER
    if not searching and rig.service.executor.can_switch:
        caller = STRANGER
        os.chmod(path, 0o744)
    cookie = 0
    for _ in range(100):
        procedure = "READDIRPLUS" if plus else "READDIR"
        arguments = (
            READDIRPLUS3args(handle, cookie, ZERO, dircount, size) if plus else READDIR3args(handle, cookie, ZERO, size)
        )
        answer = rig.call(procedure, arguments, caller)
        given = {}
        if answer.value.resok is not None and not path.startswith("/dev/shm"):
            # ext4 has two offsets for the gap between two names, depending on where a reader's block ends.
            given = {entry.name: entry.cookie for entry in answer.value.resok.reply.entries}
        status, octets, eof = expected(rig, path, arguments, caller, given)
        assert answer.value.status == status
        if status != nfsstat3.NFS3_OK:
            return
        shown = fattr(rig.run(rig.service.attributes(rig.run(rig.service.resolve(handle.data)))))
        whole = codec.Encoder()
        whole.uint32(status)
        whole.boolean(True)
        whole.encode(fattr3, shown)
        whole.fixed(ZERO)
        whole.append(octets)
        whole.boolean(False)
        whole.boolean(eof)
        assert answer.wire == whole.getvalue()
        assert len(answer.wire) - STATUS_SIZE <= size
        if eof:
            return
        cookie = answer.value.resok.reply.entries[-1].cookie
        names = sorted(set(os.listdir(os.fsencode(path))))
        if names and data.draw(st.booleans(), label="remove one meanwhile"):
            gone = os.path.join(os.fsencode(path), data.draw(st.sampled_from(names)))
            os.rmdir(gone) if os.path.isdir(gone) and not os.path.islink(gone) else os.unlink(gone)
    pytest.fail("the listing has no end")


@pytest.mark.parametrize("size", [1 << 20, 1100, 300])
@pytest.mark.parametrize("procedure", ["READDIR", "READDIRPLUS"])
def test_a_listing_from_memory_is_the_same_to_the_octet(rig: RealRig, procedure: str, size: int) -> None:
    path = make_directory(rig.path, {b"%s %d" % (kind.encode(), n): kind for kind in KINDS for n in range(9)})
    handle = nfs_fh3(rig.run(rig.service.lookup(ROOT, rig.root_node, os.path.basename(path).encode()))[0].handle)
    recent = rig.service.listings.recent

    def whole(procedure: str, size: int) -> list[bytes]:
        pages: list[bytes] = []
        cookie, end = 0, False
        while not end:
            plus = procedure == "READDIRPLUS"
            arguments = (READDIRPLUS3args(handle, cookie, ZERO, size, size) if plus
                         else READDIR3args(handle, cookie, ZERO, size))  # fmt: skip
            answer = rig.call(procedure, arguments)
            pages.append(answer.wire)
            end, cookie = answer.value.resok.reply.eof, answer.value.resok.reply.entries[-1].cookie
        return pages

    time.sleep(0.1)  # from then on the directory's ctime tells of every change
    before = recent.recalled
    first = whole(procedure, size)
    assert recent.recalled == before
    deadline = time.monotonic() + 60
    while recent.recalled == before and time.monotonic() < deadline:
        whole("READDIRPLUS", 700)
        assert whole(procedure, size) == first
    assert recent.recalled > before


@pytest.mark.parametrize("kind", ["file", "directory", "symbolic link", "fifo", "socket", "device"])
def test_attributes_in_listings_are_those_that_stat_tells(rig: RealRig, kind: str) -> None:
    path = make_directory(rig.path, {})
    make_entry(path, b"it", kind)
    handle = nfs_fh3(rig.run(rig.service.lookup(ROOT, rig.root_node, os.path.basename(path).encode()))[0].handle)
    value = rig.call("READDIRPLUS", READDIRPLUS3args(handle, 0, ZERO, 4096, 4096)).value
    (entry,) = [entry for entry in value.resok.reply.entries if entry.name == b"it"]
    told, shown = os.lstat(f"{path}/it"), entry.name_attributes
    assert (shown.mode, shown.nlink, shown.uid, shown.gid, shown.size, shown.used, shown.fileid) == (
        told.st_mode & 0o7777, told.st_nlink, told.st_uid, told.st_gid, told.st_size, told.st_blocks * 512, told.st_ino
    )  # fmt: skip
    assert (shown.ctime.seconds, shown.ctime.nseconds) == divmod(told.st_ctime_ns, 10**9)
    if kind == "file":
        # NFSv3's times are 1970 to 2106: the nearest ones.
        assert (shown.atime.seconds, shown.atime.nseconds) == ((1 << 32) - 1, 999_999_999)
        assert (shown.mtime.seconds, shown.mtime.nseconds) == (0, 0)
    rdev = (os.major(told.st_rdev), os.minor(told.st_rdev)) if kind == "device" else (0, 0)
    assert (shown.rdev.specdata1, shown.rdev.specdata2) == rdev


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
