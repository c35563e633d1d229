"""Attacks on RPC: headers, credentials, the replay cache (RFC 5531)."""

from __future__ import annotations

import itertools
import os
import random
import struct
from collections.abc import Callable, Iterator
from typing import Any

from nfsd.protocol import nfs3
from nfsd.protocol import nfs4 as p
from rpcrdma.peer.wire import header
from tests.fuzz.corpus import kept
from tests.hostile.attack import Refused, Scene, attack, ignoring
from tests.hostile.attacks.tcp import file_of
from tests.hostile.peer import Iwarp, Tcp, accepted, client4, drive, mount, nfs3_call, record, results3, rpc
from tests.nfs3_client import attributes
from tests.support.nfs4 import mode

NOBODY = 0xFFFFFFFF
EDGES = (NOBODY, 0xFFFFFFFE, 0x80000000, 0x7FFFFFFF, 65535, 65534, 0, 1)
GIDS = (1000, *EDGES)
GROUPS: tuple[tuple[int, ...], ...] = ((), (NOBODY,), (0, NOBODY), (NOBODY,) * 16)
STABLE = nfs3.stable_how.UNSTABLE


def bad_calls() -> Iterator[bytes]:
    """One of each kind of call that is none."""
    good = rpc(nfs3.NFS_PROGRAM, 3, 0, xid=7)
    yield good[:4] + struct.pack(">I", 1) + good[8:]  # a reply
    yield good[:4] + struct.pack(">I", 2) + good[8:]  # neither
    for at, word in ((8, 3), (8, 0), (12, 0), (12, 100005), (12, NOBODY), (16, 2), (16, 5), (16, NOBODY), (20, 99)):
        yield good[:at] + struct.pack(">I", word) + good[at + 4 :]
    for flavor, length, body in (
        (1, 401, bytes(404)), (1, 0x7FFFFFFF, b""), (1, NOBODY, bytes(8)), (1, 3, b"abc\0"), (6, 20, bytes(20)),
        (7, 0, b""), (NOBODY, 400, bytes(400)), (1, 400, b"\xff" * 400), (0, 400, bytes(400)),
        (1, 20, struct.pack(">5I", 0, NOBODY, 0, 0, 0)), (1, 20, struct.pack(">5I", 0, 0, 0, 0, NOBODY)),
        (1, 20, struct.pack(">5I", 0, 0, 0, 0, 17)),
    ):  # fmt: skip
        credential = struct.pack(">II", flavor, length) + body
        yield rpc(nfs3.NFS_PROGRAM, 3, 1, credential=credential + bytes(8))
        yield rpc(nfs3.NFS_PROGRAM, 4, 1, credential=bytes(8) + credential)
        yield rpc(nfs3.NFS_PROGRAM, 3, 1, credential=credential)
    for cut in range(0, len(good), 3):
        yield good[:cut]


@attack("RPC", "headers that are wrong in every field, over TCP", effect="calls")
def bad_headers(scene: Scene) -> None:
    calls = list(bad_calls())
    connection = None
    for number in scene.rounds(20000):
        with ignoring():
            connection = connection or scene.tcp(patience=1)
            try:
                connection.send(record(calls[number % len(calls)]))
                scene.count("calls")
                if number % 8 == 0:
                    connection.socket.settimeout(0.01)
                    connection.socket.recv(65536)
            except BaseException:
                connection, closed = None, connection
                closed.close()
                raise


@attack("RPC", "headers that are wrong in every field, over softiwarp", effect="calls")
def bad_headers_over_rdma(scene: Scene) -> None:
    calls = list(bad_calls())
    connection = None
    for number in scene.rounds(20000):
        with ignoring():
            connection = connection or scene.iwarp(patience=1)
            try:
                connection.post(header(number + 1), calls[number % len(calls)])
                scene.count("calls")
                if number % 8 == 0:
                    connection.socket.settimeout(0.01)
                    connection.socket.recv(65536)
            except BaseException:
                connection, closed = None, connection
                closed.close()
                raise


@attack("RPC", "the fuzzers' inputs as arguments of every procedure", effect="sent")
def fuzzed_arguments(scene: Scene) -> None:
    inputs = [data for name in ("calls", "compounds") for data in kept(name)]
    chance = random.Random(2)
    connection = None
    for data in itertools.cycle(inputs):
        if scene.over:
            return
        # Not the procedures that change names: what the attacker may remove is the honest client's as well.
        version, procedure = chance.choice(((4, 1), (3, chance.choice((1, 2, 3, 4, 5, 6, 16, 17, 18, 19, 20, 21)))))
        call = rpc(nfs3.NFS_PROGRAM, version, procedure, data, uid=chance.choice(EDGES))
        with ignoring():
            connection = connection or scene.tcp(patience=1)
            try:
                connection.send(record(call) + record(data))
                connection.socket.settimeout(0.01)
                connection.socket.recv(65536)
            except TimeoutError:
                pass
            except (OSError, EOFError):
                connection, closed = None, connection
                closed.close()


# Identities


def _as_a_neighbour(way: Tcp | Iwarp, root: nfs3.nfs_fh3, who: dict[str, Any]) -> None:
    """Ordinary calls of a user with the same groups, of several kinds: threads that were somebody else, and the server,
    right before."""
    ordinary = who | {"uid": 1000}
    how = nfs3.createhow3(nfs3.createmode3.UNCHECKED, obj_attributes=attributes(mode=0o666))
    made = way.nfs3("CREATE", nfs3.CREATE3args(nfs3.diropargs3(root, b"ordinary"), how), **ordinary)
    if made.status == 0:
        data = nfs3.WRITE3args(made.resok.obj, 0, 1, nfs3.stable_how.FILE_SYNC, memoryview(b"."))
        way.nfs3("WRITE", data, **ordinary)
        way.nfs3("COMMIT", nfs3.COMMIT3args(made.resok.obj, 0, 0), **ordinary)


def _calls_as(way: Tcp | Iwarp, root: nfs3.nfs_fh3, secret: nfs3.nfs_fh3, closed: nfs3.nfs_fh3, name: bytes,
              who: dict[str, Any]) -> Iterator[str]:  # fmt: skip
    """What only root may do, several times; yields what was allowed."""
    how = nfs3.createhow3(nfs3.createmode3.UNCHECKED, obj_attributes=attributes(mode=0o644))
    for _ in range(5):
        _as_a_neighbour(way, root, who)
        read = way.nfs3("READ", nfs3.READ3args(secret, 0, 100), **who)
        if read.status == nfs3.nfsstat3.NFS3_OK:
            yield f"root's file was read as {who}"
        where = nfs3.diropargs3(closed, name)
        if way.nfs3("CREATE", nfs3.CREATE3args(where, how), **who).status == nfs3.nfsstat3.NFS3_OK:
            yield f"a file was made in root's directory as {who}"
        way.nfs3("CREATE", nfs3.CREATE3args(nfs3.diropargs3(root, name), how), **who)


def _as_everybody(scene: Scene, make: Callable[..., Tcp | Iwarp]) -> None:
    for export, directory in ((b"/disk", scene.server.disk), (b"/memory", scene.server.memory)):
        root = mount(scene.doors.mountd, scene.source, export)
        found = {}
        for name in (b"secret", b"closed"):
            with make() as way:
                found[name] = way.nfs3("LOOKUP", nfs3.LOOKUP3args(nfs3.diropargs3(root, name))).resok.object
        for number, (uid, gid, gids) in enumerate(itertools.product(EDGES, GIDS, GROUPS)):
            if scene.over and (number > 64 or scene.found):
                return
            name = f"as {uid} {gid} {number} {scene.source}".encode()
            who = {"uid": uid, "gid": gid, "gids": gids}
            try:
                with make() as way:
                    for fault in _calls_as(way, root, found[b"secret"], found[b"closed"], name, who):
                        scene.must(False, fault)
                scene.count("callers")
            except (OSError, EOFError, Refused) as error:
                scene.must(False, f"no answer as {who}: {error!r}")
            made = directory / os.fsdecode(name)
            if made.exists():
                scene.must(made.stat().st_uid != 0, f"a file of root's was made as {who}")
            scene.must(not any((directory / "closed").iterdir()), f"root's directory has a file made as {who}")


@attack("RPC", "users and groups at the edges, 0xFFFFFFFF first, over TCP: none of them is root", effect="callers")
def edge_identities(scene: Scene) -> None:
    _as_everybody(scene, lambda: Tcp(scene.doors.tcp, scene.source))


@attack("RPC", "users and groups at the edges over softiwarp: none of them is root", effect="callers")
def edge_identities_over_rdma(scene: Scene) -> None:
    _as_everybody(scene, lambda: Iwarp(scene.doors.rdma, scene.source))


@attack("RPC", "users and groups at the edges in NFSv4.0 and 4.1: none of them is root", effect="callers")
def edge_identities_of_nfs4(scene: Scene) -> None:
    everybody = itertools.product(EDGES, ("disk", "memory"), GROUPS, (1, 0))
    for number, (uid, export, gids, minor) in enumerate(everybody):
        if scene.over and (number > 24 or scene.found):
            return
        directory = scene.server.disk if export == "disk" else scene.server.memory
        name = f"four {minor} {uid} {number} {scene.source}".encode()
        try:
            with Tcp(scene.doors.tcp, scene.source) as way:
                client = client4(way, minor, uid=uid, gid=GIDS[number // 16 % len(GIDS)], gids=gids, name=name)
                drive(client.connect())
                anonymous = p.stateid4(0, bytes(12))
                root = mount(scene.doors.mountd, scene.source, b"/" + export.encode())
                for _ in range(5):
                    _as_a_neighbour(way, root, {"gid": client.credential[1], "gids": gids})
                    status, _ = drive(
                        client.raw(
                            *client.in_session(
                                *client.path(f"/{export}/secret"), (p.OP_READ, p.READ4args(anonymous, 0, 100))
                            )
                        )
                    )
                    scene.must(status != p.NFS4_OK, f"root's file was read as {client.credential} in 4.{minor}")
                    made = (p.OP_CREATE, p.CREATE4args(p.createtype4(p.nfs_ftype4.NF4DIR), name, mode(0o755)))
                    status = drive(client.status(*client.path(f"/{export}/closed"), made))
                    scene.must(status != p.NFS4_OK, f"a directory was made in root's as {client.credential}")
                    drive(client.status(*client.path(f"/{export}"), made))
                scene.count("callers")
        except (OSError, EOFError, Refused) as error:
            scene.must(False, f"no answer as {uid} {gids} in 4.{minor}: {error!r}")
        if (directory / os.fsdecode(name)).exists():
            scene.must((directory / os.fsdecode(name)).stat().st_uid != 0, f"a directory of root's was made as {uid}")


# The replay cache


@attack(
    "RPC",
    "calls with the XID of others, that differ late or in who calls: no answer is another call's",
    effect="WRITEs",
)
def replay_games(scene: Scene) -> None:
    root = mount(scene.doors.mountd, scene.source, b"/memory")
    handle = file_of(scene)
    path = scene.server.memory / f"of {scene.source}"
    victim = scene.server.memory / f"victim {scene.source}"
    for number in scene.rounds(500):
        xid = 0x5000 + number
        for letter in (b"a", b"b", b"c"):  # each on a connection of its own, as clients that start at the same XID are
            data = bytes(1200) + letter * 100
            write = nfs3.WRITE3args(handle, 0, len(data), STABLE, memoryview(data))
            with Tcp(scene.doors.tcp, scene.source) as way:
                done = results3("WRITE", way.exchange(nfs3_call("WRITE", write, xid=xid)))
                scene.count("WRITEs")
                if done.status == 0:
                    scene.must(path.read_bytes()[:1300] == data, "a WRITE was answered OK and is not in the file")
        victim.write_bytes(b"")
        os.chown(victim, 4242, 4242)
        remove = nfs3.REMOVE3args(nfs3.diropargs3(root, os.fsencode(victim.name)))
        for uid in (9, 4242):  # the directory is sticky: 9 may not, 4242 may
            with Tcp(scene.doors.tcp, scene.source) as way:
                done = results3(
                    "REMOVE", way.exchange(nfs3_call("REMOVE", remove, xid=xid + 0x10000, uid=uid, gid=uid))
                )
                scene.must((done.status == 0) == (not victim.exists()), "a REMOVE was given another's answer")


@attack("RPC", "17,000 WRITEs of one client, then another's CREATE sent again: it is still known", effect="WRITEs")
def replay_flood(scene: Scene) -> None:
    root = mount(scene.doors.mountd, scene.source, b"/memory")
    handle = file_of(scene)
    honest = scene.address()
    how = nfs3.createhow3(nfs3.createmode3.GUARDED, obj_attributes=attributes(mode=0o600))
    create = nfs3_call("CREATE", nfs3.CREATE3args(nfs3.diropargs3(root, b"once " + scene.source.encode()), how))
    with scene.tcp(source=honest) as first:
        scene.must(results3("CREATE", first.exchange(create)).status == 0, "no file could be made")
        with scene.tcp() as flood:
            for start in range(0, 17000, 100):
                calls = [
                    nfs3_call("WRITE", nfs3.WRITE3args(handle, start + more, 1, STABLE, memoryview(b"x")))
                    for more in range(100)
                ]
                flood.send(b"".join(map(record, calls)))
                for _ in calls:
                    accepted(flood.reply())
                    scene.count("WRITEs")
        again = results3("CREATE", first.exchange(create))
        scene.must(again.status == 0, f"the CREATE sent again got {again.status!r}")


@attack("RPC", "programs that are not there, and procedures, as fast as they go", effect="sent")
def wrong_programs(scene: Scene) -> None:
    octets = (
        b"".join(record(rpc(program, version, 99)) for program in (100003, 100005, 7) for version in (2, 3, 9)) * 20
    )
    sockets = scene.many(16, scene.doors.tcp) + scene.many(16, scene.doors.mountd)
    while not scene.over:
        for sock in sockets:
            with ignoring():
                sock.setblocking(False)
                sock.send(octets)
                sock.recv(1 << 16)
