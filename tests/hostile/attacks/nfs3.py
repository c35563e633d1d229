"""Attacks on NFSv3: values at the edges, names, directories, links."""

from __future__ import annotations

import itertools

from nfsd.protocol import nfs3
from rpcrdma.peer.wire import Segment, header
from tests.hostile.attack import Scene, attack, ignoring
from tests.hostile.attacks.tcp import MIB, file_of
from tests.hostile.peer import Tcp, accepted, mount, nfs3_call, record, results3, rpc
from tests.nfs3_client import attributes

EDGES = (0, 1, (1 << 31) - 1, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 4096, (1 << 64) - 1)
COUNTS = (0, 1, 8192, MIB, MIB + 1, 0x7FFFFFFF, 0xFFFFFFFF)
OK = nfs3.nfsstat3.NFS3_OK


@attack("NFSv3", "offsets, sizes and counts at the edges of 32, 63 and 64 bits", effect="calls answered")
def edge_offsets(scene: Scene) -> None:
    for export in itertools.cycle((b"/memory", b"/disk")):
        handle = file_of(scene, export, 100)
        with scene.tcp() as way:
            for offset, count in itertools.product(EDGES, COUNTS):
                read = way.nfs3("READ", nfs3.READ3args(handle, offset, count))
                if read.status == OK:
                    scene.must(len(read.resok.data) <= min(count, MIB), f"READ of {count} gave {len(read.resok.data)}")
                way.nfs3("COMMIT", nfs3.COMMIT3args(handle, offset, count))
                scene.count("calls answered")
                if count <= 8192:
                    # From an offset that stays a hole; no data behind the file system's largest file.
                    write = nfs3.WRITE3args(handle, offset, count, nfs3.stable_how.UNSTABLE, memoryview(bytes(count)))
                    way.nfs3("WRITE", write)
            for size in EDGES:
                way.nfs3("SETATTR", nfs3.SETATTR3args(handle, attributes(size=size), None))
            way.nfs3("SETATTR", nfs3.SETATTR3args(handle, attributes(size=0), None))
        if scene.over:
            return


@attack(
    "NFSv3",
    "names of 255, 256 and 4,096 octets, with slashes, dots and zeros; links that lead in circles",
    effect="received",
)
def names(scene: Scene) -> None:
    root = mount(scene.doors.mountd, scene.source, b"/memory")
    strange = [bytes([letter]) * length for letter in (0x61, 0, 0x2F, 0xFF) for length in (1, 255, 256, 4096, 60000)]
    strange += [b"", b".", b"..", b"../secret", b"a/../../private", b"..\0", b"\xc0\xae\xc0\xae"]
    how = nfs3.createhow3(nfs3.createmode3.UNCHECKED, obj_attributes=attributes(mode=0o644))
    with scene.tcp() as way:
        here = f"names {scene.source}".encode()
        made = way.nfs3("MKDIR", nfs3.MKDIR3args(nfs3.diropargs3(root, here), attributes(mode=0o755)))
        directory = made.resok.obj
        outside = way.nfs3("GETATTR", nfs3.GETATTR3args(root)).resok.obj_attributes.fileid
        for name in strange:
            where = nfs3.diropargs3(directory, name)
            for call in (
                nfs3_call("LOOKUP", nfs3.LOOKUP3args(where)),
                nfs3_call("CREATE", nfs3.CREATE3args(where, how)),
                nfs3_call("MKDIR", nfs3.MKDIR3args(where, attributes(mode=0o755))),
                nfs3_call("RENAME", nfs3.RENAME3args(where, nfs3.diropargs3(root, name))),
                nfs3_call("REMOVE", nfs3.REMOVE3args(where)),
                nfs3_call("RMDIR", nfs3.RMDIR3args(where)),
            ):
                with ignoring():
                    way.exchange(call)
        # Out of the export: its root is its own parent.
        up = way.nfs3("LOOKUP", nfs3.LOOKUP3args(nfs3.diropargs3(root, b"..")))
        if up.status == OK:
            there = way.nfs3("GETATTR", nfs3.GETATTR3args(up.resok.object)).resok.obj_attributes.fileid
            scene.must(there == outside, "LOOKUP of .. led out of the export")
        for number in scene.rounds(500):
            data = nfs3.symlinkdata3(
                attributes(mode=0o777), (b"/private", b"loop", b"x" * 4000, b"../" * 300)[number % 4]
            )
            link = nfs3.diropargs3(directory, b"loop" if number % 4 == 1 else b"link%d" % number)
            way.nfs3("SYMLINK", nfs3.SYMLINK3args(link, data))
            below = way.nfs3("LOOKUP", nfs3.LOOKUP3args(link))
            if below.status == OK:
                handle = below.resok.object
                for name, arguments in (
                    ("LOOKUP", nfs3.LOOKUP3args(nfs3.diropargs3(handle, b"x"))),
                    ("READLINK", nfs3.READLINK3args(handle)),
                    ("READ", nfs3.READ3args(handle, 0, 100)), ("COMMIT", nfs3.COMMIT3args(handle, 0, 0)),
                ):  # fmt: skip
                    way.nfs3(name, arguments)


def _large_directory(scene: Scene) -> nfs3.nfs_fh3:
    root = mount(scene.doors.mountd, scene.source, b"/memory")
    how = nfs3.createhow3(nfs3.createmode3.UNCHECKED, obj_attributes=attributes(mode=0o644))
    with scene.tcp() as way:
        here = nfs3.diropargs3(root, f"many {scene.source}".encode())
        directory = way.nfs3("MKDIR", nfs3.MKDIR3args(here, attributes(mode=0o755))).resok.obj
        for start in range(0, 5000, 250):
            for number in range(start, start + 250):
                where = nfs3.diropargs3(directory, b"%0100d" % number)
                way.send(record(nfs3_call("CREATE", nfs3.CREATE3args(where, how))))
            for _ in range(250):
                way.reply()
    listed: nfs3.nfs_fh3 = directory
    return listed


@attack(
    "NFSv3", "directories of 5,000 names listed with counts of 4 GiB, over 20 connections", effect="listings asked for"
)
def huge_listings(scene: Scene) -> None:
    directory = _large_directory(scene)
    plus = nfs3.READDIRPLUS3args(directory, 0, bytes(8), 0xFFFFFFFF, 0xFFFFFFFF)
    plain = nfs3.READDIR3args(directory, 0, bytes(8), 0xFFFFFFFF)
    octets = record(nfs3_call("READDIRPLUS", plus)) + record(nfs3_call("READDIR", plain))
    ways = [scene.tcp(patience=0.2) for _ in range(20)]
    for way in ways:
        with ignoring():
            way.send(octets * 10)
            scene.count("listings asked for", 20)
    while not scene.over:
        for way in ways:
            with ignoring():
                way.socket.settimeout(0.02)
                scene.count("octets of listings", len(way.socket.recv(1 << 20)))
                way.send(octets)


@attack("NFSv3", "the same over 8 RDMA connections, into Reply chunks of 1 MiB", effect="listings asked for")
def huge_listings_over_rdma(scene: Scene) -> None:
    directory = _large_directory(scene)
    plus = nfs3.READDIRPLUS3args(directory, 0, bytes(8), 1 << 20, 1 << 20)
    for way in scene.iwarps(8):
        with ignoring():
            way.socket.settimeout(0.2)
            for xid in range(1, 31):
                way.post(header(xid, reply=[Segment(7, 1 << 20, 0)]), nfs3_call("READDIRPLUS", plus, xid=xid))
                scene.count("listings asked for")
    while not scene.over:
        scene.pause(0.1)


@attack("NFSv3", "handles of chance and of others: forged, cut, of another export", effect="handles refused")
def forged_handles(scene: Scene) -> None:
    root = mount(scene.doors.mountd, scene.source, b"/memory")
    private = mount(scene.doors.mountd, "127.0.0.1", b"/private")
    with scene.tcp() as way:
        # The handle is genuine; the host may not use the export.
        read = way.nfs3("GETATTR", nfs3.GETATTR3args(private))
        scene.must(read.status != OK, "a handle of an export for another host was taken")
        for number in scene.rounds(3000):
            octets = bytearray((root if number % 2 else private).data)
            octets[number // 2 % len(octets)] ^= 1 << number % 8
            if number % 5 == 0:
                octets = octets[: number % 65]
            found = way.nfs3("GETATTR", nfs3.GETATTR3args(nfs3.nfs_fh3(bytes(octets))))
            scene.must(found.status != OK, f"a forged handle was taken: {octets.hex()}")
            scene.count("handles refused")


@attack("NFSv3", "MNT of paths that are long, strange and outside", effect="received")
def strange_mounts(scene: Scene) -> None:
    paths = (
        b"/" * 1000,
        b"/memory/" + b"../" * 300,
        b"/private",
        b"/private/..",
        b"x" * 1024,
        b"\0" * 100,
        b"/memory/../private",
    )
    with ignoring(), Tcp(scene.doors.mountd, scene.source) as way:
        for number in scene.rounds(3000):
            path = paths[number % len(paths)]
            argument = len(path).to_bytes(4, "big") + path + bytes(-len(path) % 4)
            reply = way.exchange(rpc(100005, 3, 1, argument))
            scene.must(reply[24:28] != bytes(4) or b"private" not in path, f"MNT of {path[:40]!r} was allowed")


@attack(
    "NFSv3", "data of one octet written to each of 1,000 files on a disk, unstable and never committed", effect="writes"
)
def unwritten_files(scene: Scene) -> None:
    directory = scene.server.disk / f"unwritten {scene.source}"
    directory.mkdir()
    names = [b"%d" % number for number in range(1000)]
    for name in names:
        (directory / name.decode()).touch()
        (directory / name.decode()).chmod(0o666)
    root = mount(scene.doors.mountd, scene.source, b"/disk")
    way = scene.tcp(patience=2.5)
    found = way.nfs3("LOOKUP", nfs3.LOOKUP3args(nfs3.diropargs3(root, directory.name.encode()))).resok.object
    for first in range(0, len(names), 50):
        if scene.over and first:
            return
        some = names[first : first + 50]
        looks = [nfs3_call("LOOKUP", nfs3.LOOKUP3args(nfs3.diropargs3(found, name))) for name in some]
        way.send(b"".join(map(record, looks)))
        handles = [results3("LOOKUP", way.reply()).resok.object for _ in some]
        writes = [
            nfs3_call("WRITE", nfs3.WRITE3args(handle, 0, 1, nfs3.stable_how.UNSTABLE, memoryview(b"x")))
            for handle in handles
        ]
        way.send(b"".join(map(record, writes)))
        for _ in some:
            status = results3("WRITE", way.reply()).status
            scene.must(status in (OK, nfs3.nfsstat3.NFS3ERR_JUKEBOX), f"WRITE: {status!r}")
            scene.count("writes")


@attack(
    "NFSv3", "FILE_SYNC WRITEs and COMMITs of 64 files on a disk, 256 outstanding of one host", effect="calls answered"
)
def sync_crowd(scene: Scene) -> None:
    root = mount(scene.doors.mountd, scene.source, b"/disk")
    how = nfs3.createhow3(nfs3.createmode3.UNCHECKED, obj_attributes=attributes(mode=0o666))
    with scene.tcp() as way:
        names = [b"%d of %s" % (number, scene.source.encode()) for number in range(64)]
        files = [way.nfs3("CREATE", nfs3.CREATE3args(nfs3.diropargs3(root, name), how)).resok.obj for name in names]
    data = memoryview(bytes(4096))
    ways = [scene.tcp(patience=20) for _ in range(4)]
    for number in scene.rounds():
        for way in ways:
            write = [nfs3.WRITE3args(file, number % 64 * 4096, 4096, nfs3.stable_how.FILE_SYNC, data) for file in files]
            way.send(b"".join(record(nfs3_call("WRITE", one)) for one in write[::2]))
            way.send(b"".join(record(nfs3_call("COMMIT", nfs3.COMMIT3args(file, 0, 0))) for file in files[1::2]))
        for way in ways:
            for _ in files:
                scene.must(accepted(way.reply())[:4] == bytes(4), "a sync failed")
                scene.count("calls answered")
