"""Attacks on connections and records of RPC over TCP (RFC 5531 section 11)."""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Callable

from nfsd.protocol import nfs3
from tests.hostile.attack import Scene, attack, ignoring, reset
from tests.hostile.peer import LAST, NULL3, Iwarp, Tcp, dial, mount, nfs3_call, record
from tests.nfs3_client import attributes

MIB = 1 << 20


def file_of(scene: Scene, export: bytes = b"/memory", size: int = 0) -> nfs3.nfs_fh3:
    """The handle of a file of this attack's own."""
    root = mount(scene.doors.mountd, scene.source, export)
    connection = Tcp(scene.doors.tcp, scene.source)
    try:
        how = nfs3.createhow3(nfs3.createmode3.UNCHECKED, obj_attributes=attributes(mode=0o666))
        where = nfs3.diropargs3(root, b"of " + scene.source.encode())
        made: nfs3.nfs_fh3 = connection.nfs3("CREATE", nfs3.CREATE3args(where, how)).resok.obj
        if size:
            last = nfs3.WRITE3args(made, size - 1, 1, nfs3.stable_how.UNSTABLE, memoryview(b"."))
            connection.nfs3("WRITE", last)
        return made
    finally:
        connection.close()


def write_call(handle: nfs3.nfs_fh3, size: int = MIB) -> bytes:
    return nfs3_call("WRITE", nfs3.WRITE3args(handle, 0, size, nfs3.stable_how.UNSTABLE, memoryview(bytes(size))))


@attack("TCP", "1,100 connections that say nothing", effect="connections")
def silent_connections(scene: Scene) -> None:
    scene.many(1100, scene.doors.tcp)


@attack("TCP", "1,100 silent connections of a hundred hosts", effect="connections")
def silent_hosts(scene: Scene) -> None:
    for number in range(100):
        scene.many(11, scene.doors.tcp, source=f"127.0.200.{number + 1}")


def _calling_hosts(scene: Scene, connect: Callable[[str], Tcp | Iwarp], first: int) -> None:
    """A connection each of as many hosts as may have one, and more; all call, and come again when they are closed."""
    sources = [f"127.0.{first + number // 250}.{number % 250 + 2}" for number in range(1100)]
    ways: dict[str, Tcp | Iwarp] = {}
    with scene.setting_up():
        for source in sources:
            with ignoring():
                ways[source] = scene.keep(connect(source))
                ways[source].exchange(NULL3)
                scene.count("calls answered")
    while not scene.over:
        for source in sources:
            try:
                ways[source].exchange(NULL3)
                scene.count("calls answered")
            except (OSError, EOFError, KeyError):
                with ignoring():
                    ways[source] = scene.keep(connect(source))
                    scene.count("connected again")
            if scene.over:
                break


@attack("TCP", "1,100 hosts with one connection each, by which they make calls", effect="calls answered")
def calling_hosts(scene: Scene) -> None:
    _calling_hosts(scene, lambda source: Tcp(scene.doors.tcp, source, patience=1), 205)


@attack("iWARP", "1,100 hosts with one connection each, by which they make calls", effect="calls answered")
def calling_hosts_rdma(scene: Scene) -> None:
    _calling_hosts(scene, lambda source: Iwarp(scene.doors.rdma, source, patience=1), 210)


@attack("TCP", "connections made and closed as fast as they can be, with 1,050 others open", effect="connections")
def connect_and_close(scene: Scene) -> None:
    scene.many(1050, scene.doors.tcp)
    for _ in scene.rounds(20000):
        with ignoring():
            dial(scene.doors.tcp, scene.source, patience=1).close()
            reset(dial(scene.doors.tcp, scene.source, patience=1))


@attack("TCP", "1,000 records of 1 MiB, one octet of each sent", effect="sent")
def half_records(scene: Scene) -> None:
    scene.many(1000, scene.doors.tcp, struct.pack(">I", LAST | MIB) + b"x")


@attack("TCP", "the same from a hundred hosts", effect="sent")
def half_records_of_many(scene: Scene) -> None:
    for number in range(100):
        scene.many(10, scene.doors.tcp, struct.pack(">I", LAST | MIB) + b"x", source=f"127.0.201.{number + 1}")


def _die_in_write(scene: Scene, how: str) -> None:
    octets = record(write_call(file_of(scene)))
    for number in range(1000):
        with ignoring():
            sock = dial(scene.doors.tcp, scene.source, patience=0.5)
            if how == "silent":
                scene.keep(sock)
            sock.settimeout(0.1)
            with ignoring():
                sock.sendall(octets[: 1000 + number * 37 % 60000])
            if how == "RST":
                reset(sock)
            elif how == "FIN":
                sock.close()
        if scene.over and number > 100:
            break


@attack("TCP", "1,000 clients that die in a WRITE, with a RST", effect="sent")
def die_with_reset(scene: Scene) -> None:
    _die_in_write(scene, "RST")


@attack("TCP", "1,000 clients that die in a WRITE, with a FIN", effect="sent")
def die_with_fin(scene: Scene) -> None:
    _die_in_write(scene, "FIN")


@attack("TCP", "1,000 clients that stop in a WRITE and stay", effect="sent")
def stop_in_write(scene: Scene) -> None:
    _die_in_write(scene, "silent")


@attack("TCP", "200 records of 1 MiB that arrive an octet at a time", effect="sent")
def dripping_records(scene: Scene) -> None:
    sockets = scene.many(200, scene.doors.tcp, struct.pack(">I", LAST | MIB))
    while not scene.over:
        for sock in sockets:
            with ignoring():
                sock.send(b"x", socket.MSG_DONTWAIT)


@attack("TCP", "records of 50,000 fragments of an octet each", effect="sent")
def many_fragments(scene: Scene) -> None:
    octets = struct.pack(">IB", 1, 0) * 50000
    for _ in scene.rounds(100):
        with ignoring():
            sock = scene.keep(dial(scene.doors.tcp, scene.source, patience=1))
            sock.sendall(octets)


@attack("TCP", "fragments of no octets, 100,000 at a time, and no end of the record", effect="sent")
def empty_fragments(scene: Scene) -> None:
    for _ in scene.rounds(100):
        with ignoring():
            sock = scene.keep(dial(scene.doors.tcp, scene.source, patience=1))
            for _ in scene.rounds(50):
                sock.sendall(bytes(400000))


@attack("TCP", "marks of records beyond any bound", effect="sent")
def oversize_records(scene: Scene) -> None:
    for _ in scene.rounds(1000):
        for mark in (0xFFFFFFFF, 0x7FFFFFFF, LAST | 1 << 30, LAST | (8 << 20)):
            with ignoring():
                sock = dial(scene.doors.tcp, scene.source, patience=1)
                sock.sendall(struct.pack(">I", mark) + bytes(100))
                sock.close()


def _readers(scene: Scene, connections: int, calls: int) -> list[socket.socket]:
    """Connections that have asked for much and read nothing."""
    handle = file_of(scene, size=MIB)
    made = []
    for _ in range(connections):
        with ignoring():
            sock = scene.keep(dial(scene.doors.tcp, scene.source, window=4096, patience=1))
            sock.settimeout(0.2)
            made.append(sock)
            for _ in range(calls):
                sock.sendall(record(nfs3_call("READ", nfs3.READ3args(handle, 0, MIB))))
                scene.count("READs asked for")
        if scene.over:
            break
    return made


@attack("TCP", "100 clients that ask for 100 MiB each and read nothing of it", effect="READs asked for")
def replies_never_read(scene: Scene) -> None:
    _readers(scene, 100, 100)


@attack("TCP", "50 clients that ask for 100 MiB each and read a few octets now and then", effect="READs asked for")
def replies_read_slowly(scene: Scene) -> None:
    sockets = _readers(scene, 50, 100)
    while not scene.over:
        for sock in sockets:
            with ignoring():
                scene.count("octets read slowly", len(sock.recv(7, socket.MSG_DONTWAIT)))
        scene.pause(0.05)


@attack("TCP", "octets of chance, in records and not", effect="sent")
def garbage(scene: Scene) -> None:
    chance = random.Random(1)
    for number in scene.rounds(3000):
        octets = chance.randbytes(chance.choice((1, 3, 4, 5, 24, 100, 4000)))
        with ignoring():
            sock = dial(scene.doors.tcp, scene.source, patience=1)
            sock.sendall(record(octets) * 3 if number % 2 else octets)
            sock.close()


@attack("TCP", "NULL as fast as it goes over 64 connections, answers unread for as long as possible", effect="received")
def null_flood(scene: Scene) -> None:
    octets = record(NULL3) * 200
    sockets = scene.many(64, scene.doors.tcp)
    while not scene.over:
        for sock in sockets:
            with ignoring():
                sock.send(octets, socket.MSG_DONTWAIT)
                sock.recv(1 << 16, socket.MSG_DONTWAIT)


@attack("TCP", "half of a record mark, then nothing, 1,000 times", effect="sent")
def half_marks(scene: Scene) -> None:
    scene.many(1000, scene.doors.tcp, b"\x80\x00")
