"""Attacks on NFSv4: client records, sessions, opens, locks, delegations, COMPOUNDs (RFC 7530, 7862, 8276, 8881)."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import struct
from collections.abc import Iterator

from nfsd.protocol import nfs4 as p
from rpcrdma.xdr import Encoder
from tests.hostile.attack import Refused, Scene, attack, ignoring
from tests.hostile.flood import pump
from tests.hostile.peer import Tcp, client4, drive, record
from tests.support.nfs4 import Failed, mode, wanted

EDGES = (0, 1, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
ANONYMOUS = p.stateid4(0, bytes(12))
_NOT_DELEGATED = p.OPEN4_SHARE_ACCESS_BOTH | p.OPEN4_SHARE_ACCESS_WANT_NO_DELEG


@contextlib.contextmanager
def refusing() -> Iterator[None]:
    """Any answer will do."""
    with ignoring(), contextlib.suppress(Failed, AssertionError, ValueError):
        yield


def introduction(name: bytes, verifier: bytes = b"verifier") -> tuple[int, p.EXCHANGE_ID4args]:
    protection = p.state_protect4_a(p.state_protect_how4.SP4_NONE)
    return p.OP_EXCHANGE_ID, p.EXCHANGE_ID4args(p.client_owner4(verifier, name), 0x101, protection, [])


def set_clientid(
    name: bytes, where: tuple[bytes, bytes] = (b"tcp", b"127.0.0.1.0.0")
) -> tuple[int, p.SETCLIENTID4args]:
    callback = p.cb_client4(0x40000000, p.netaddr4(*where))
    return p.OP_SETCLIENTID, p.SETCLIENTID4args(p.nfs_client_id4(os.urandom(8), name), callback, 1)


def _introduce(scene: Scene, source: str, served: bool) -> None:
    """EXCHANGE_ID and SETCLIENTID of ever new names, of which the octets are there already."""
    way = scene.tcp(source=source)
    name = b"%016d" % 0
    templates = [
        client4(way, minor).message(make(name + b" " + source.encode() + bytes(900)))[4:].split(name)
        for minor, make in ((1, introduction), (0, set_clientid))
    ]
    rounds = scene.rounds(40000)

    def introduced(_: int) -> bytes | None:
        number = next(rounds, None)
        return None if number is None else (b"%016d" % number).join(templates[number % 2])

    for _, reply in pump(way, introduced, 50):
        scene.count("introductions")
        if not served:
            scene.must(reply[8:12] != bytes(4) or reply[20:28] != bytes(8), "a stranger was made a client")


@attack("NFSv4", "a host that nothing is exported to introduces 40,000 clients", effect="introductions")
def strange_clients(scene: Scene) -> None:
    _introduce(scene, scene.stranger(), False)


@attack("NFSv4", "an exported host introduces 40,000 clients and confirms none", effect="introductions")
def unconfirmed_clients(scene: Scene) -> None:
    _introduce(scene, scene.source, True)


def _take_over(scene: Scene, source: str) -> None:
    """Be somebody whom the honest client is, in every way there is: the names of tests/hostile/honest.py."""
    for number in scene.rounds(50):
        for name, uid in itertools.product((b"v4.1 tcp", b"v4.1 rdma", b"v4.0 tcp"), (4000, 0)):
            with refusing(), Tcp(scene.doors.tcp, source) as way:
                drive(
                    client4(way, 1, uid=uid, gid=uid, name=name).connect(
                        os.urandom(8), reclaim_complete=number % 2 == 0
                    )
                )
            with refusing(), Tcp(scene.doors.tcp, source) as way:
                drive(client4(way, 0, uid=uid, gid=uid, name=name).connect(os.urandom(8)))


@attack("NFSv4", "a host that nothing is exported to takes the honest client's names", effect="received")
def taken_over_by_a_stranger(scene: Scene) -> None:
    _take_over(scene, scene.stranger())


@attack("NFSv4", "another exported host takes the honest client's names, as the same user", effect="received")
def taken_over_by_a_neighbour(scene: Scene) -> None:
    _take_over(scene, scene.source)


@attack("NFSv4", "COMPOUNDs of 10,000 operations, of one operation 250 times, with tags of 64 KiB", effect="sent")
def huge_compounds(scene: Scene) -> None:
    everything = wanted(*(number for number in range(96)))
    for number in scene.rounds(300):
        with refusing():
            way = scene.tcp(patience=2)
            client = client4(way, 0 if number % 2 else 1, name=b"huge " + scene.source.encode())
            many = [p.OP_PUTROOTFH] * 10000
            deep = [p.OP_PUTROOTFH, *[(p.OP_GETATTR, everything)] * 250]
            for operations in (
                many,
                deep,
                [*client.path("/memory"), *[(p.OP_READ, p.READ4args(ANONYMOUS, 0, 1 << 20))] * 200],
            ):
                way.send(record(client.message(*operations)))
            way.send(record(client.message(p.OP_PUTROOTFH, tag=bytes(65536))))
            # A count of operations that do not follow.
            way.send(record(client.message()[:-4] + struct.pack(">I", 0xFFFFFFFF)))
            way.socket.settimeout(0.05)
            way.socket.recv(1 << 20)


@attack(
    "NFSv4",
    "READDIR with counts of 4 GiB and every attribute, names of 4,096 octets, links in circles",
    effect="answers",
)
def huge_directories(scene: Scene) -> None:
    client = client4(scene.tcp(), 1, name=b"lister " + scene.source.encode())
    drive(client.connect())
    bits = wanted(*range(96)).attr_request
    for number in scene.rounds(5000):
        name = (b"x" * 4096, b"x" * 255, b"\0", b"..", b".", b"a/b", b"x" * 60000)[number % 7]
        with refusing():
            listing = p.READDIR4args(EDGES[number % 6], bytes(8), 0xFFFFFFFF, 0xFFFFFFFF, bits)
            drive(client.status(*client.path("/memory"), (p.OP_READDIR, listing)))
            scene.count("answers")
        with refusing():
            drive(client.run(*client.path("/memory"), (p.OP_LOOKUP, p.LOOKUP4args(name))))
        with refusing():
            link = p.createtype4(p.nfs_ftype4.NF4LNK, linkdata=b"circle")
            drive(client.run(*client.path("/memory"), (p.OP_CREATE, p.CREATE4args(link, b"circle", mode(0o777)))))
        with refusing():
            drive(client.open("/memory", b"circle", access=_NOT_DELEGATED))


def _acl(entries: int) -> p.fattr4:
    e = Encoder()
    e.uint32(entries)
    for number in range(entries):
        for word in (number % 2, 0, 0x1F01FF):
            e.uint32(word)
        e.opaque(b"%d" % (number + 5000))
    return p.fattr4([1 << p.FATTR4_ACL], e.getvalue())


@attack("NFSv4", "ACLs of thousands of entries, extended attributes of 64 KiB by the thousand", effect="attributes set")
def bombs_of_attributes(scene: Scene) -> None:
    client = client4(scene.tcp(), 2, name=b"bomber " + scene.source.encode())
    drive(client.connect())
    opened, handle = drive(
        client.open("/disk", b"bombed " + scene.source.encode(), access=_NOT_DELEGATED, create=mode(0o666))
    )
    for number in scene.rounds(3000):
        with refusing():
            change = p.SETATTR4args(opened, _acl((10, 500, 5000, 20000)[number % 4]))
            drive(client.on(handle, (p.OP_SETATTR, change)))
            scene.count("attributes set")
        with refusing():
            value = bytes((1, 4000, 65536, 65537)[number % 4])
            args = p.SETXATTR4args(p.setxattr_option4(0), b"user.%d" % number, value)
            drive(client.on(handle, (p.OP_SETXATTR, args)))
            scene.count("attributes set")
        with refusing():
            drive(client.on(handle, (p.OP_LISTXATTRS, p.LISTXATTRS4args(0, 0xFFFFFFFF))))
        with refusing():
            drive(client.on(handle, (p.OP_GETATTR, wanted(p.FATTR4_ACL))))


@attack(
    "NFSv4",
    "COPY, READ, WRITE, SETATTR, ALLOCATE and SEEK at the edges of 63 and 64 bits, copies by the hundred",
    effect="operations answered",
)
def edge_ranges(scene: Scene) -> None:
    client = client4(scene.tcp(), 2, name=b"copier " + scene.source.encode())
    drive(client.connect())
    opened, handle = drive(
        client.open("/memory", b"copied " + scene.source.encode(), access=_NOT_DELEGATED, create=mode(0o666))
    )
    drive(client.on(handle, (p.OP_WRITE, p.WRITE4args(opened, 0, p.stable_how4.UNSTABLE4, memoryview(bytes(65536))))))
    here = (p.OP_PUTFH, p.PUTFH4args(handle))
    for offset, target, synchronous in itertools.product((*EDGES, 4096), (*EDGES, 65536), (False, True)):
        for operation in (
            (
                p.OP_COPY,
                p.COPY4args(
                    opened, opened, offset, target, 4096 if offset < 65536 else (1 << 64) - 1, True, synchronous, []
                ),
            ),
            (p.OP_READ, p.READ4args(opened, offset, 0xFFFFFFFF)),
            (p.OP_SEEK, p.SEEK4args(opened, offset, p.data_content4.NFS4_CONTENT_HOLE)),
            (p.OP_COMMIT, p.COMMIT4args(offset, 0xFFFFFFFF)),
            (p.OP_ALLOCATE, p.ALLOCATE4args(opened, offset, 1)),
            (p.OP_DEALLOCATE, p.DEALLOCATE4args(opened, offset, target)),
            (p.OP_SETATTR, p.SETATTR4args(opened, _size((1 << 63) - 1))),
            (p.OP_SETATTR, p.SETATTR4args(opened, _size((1 << 64) - 1))),
            (p.OP_SETATTR, p.SETATTR4args(opened, _size(65536))),
        ):
            with refusing():
                drive(client.status(here, p.OP_SAVEFH, here, operation))
                scene.count("operations answered")
        if scene.over:
            return


def _size(octets: int) -> p.fattr4:
    return p.fattr4([1 << p.FATTR4_SIZE], octets.to_bytes(8, "big"))


class _Deaf(Tcp):
    """A client's connection that takes callbacks, and answers none."""

    max_backchannel_size = 1 << 20

    def exchange(self, message: bytes) -> bytes:
        self.send(record(message))
        while True:
            reply = self.reply()
            if reply[:8] == message[:4] + b"\0\0\0\1":
                return reply


@attack(
    "NFSv4",
    "a client that is given delegations and does not return them, while another opens the files",
    effect="opens answered",
)
def delegations_kept(scene: Scene) -> None:
    keeper = client4(scene.keep(_Deaf(scene.doors.tcp, scene.source)), 1, name=b"keeper " + scene.source.encode())
    drive(keeper.connect())
    names = [b"kept %d %s" % (number, scene.source.encode()) for number in range(50)]
    for name in names:
        drive(keeper.open("/memory", name, access=p.OPEN4_SHARE_ACCESS_BOTH, create=mode(0o666)))
    other = client4(scene.tcp(source=scene.address(), patience=10), 1, name=b"other " + scene.source.encode())
    drive(other.connect())
    for name in itertools.cycle(names):
        if scene.over:
            return
        with contextlib.suppress(Failed):  # DELAY, until the delegation is revoked; but an answer
            drive(other.open("/memory", name, access=_NOT_DELEGATED))
        scene.count("opens answered")


@attack(
    "NFSv4",
    "NFSv4.0 clients whose callback address is another host's: nobody may be made to connect there",
    effect="clients",
)
def callbacks_to_others(scene: Scene) -> None:
    with socket.socket() as third:
        third.bind((scene.address(), 0))
        third.listen(64)
        third.settimeout(0.01)
        host, port = third.getsockname()
        where = f"{host}.{port >> 8}.{port & 255}".encode()
        client = client4(scene.tcp(), 0)
        for number in scene.rounds(300):
            with refusing():
                client.name = b"pointer %d %s" % (number, scene.source.encode())
                client.callback_address = (b"tcp", where)
                drive(client.connect())
                scene.count("clients")
            with contextlib.suppress(OSError):
                third.accept()[0].close()
                scene.must(False, "the server connected to a host that a client of another one named")


@attack(
    "NFSv4",
    "sessions' slots misused: sequence ids of chance, 300 sessions, requests cut short, calls in no session",
    effect="received",
)
def sessions_misused(scene: Scene) -> None:
    client = client4(scene.tcp(), 1, name=b"misuser " + scene.source.encode())
    drive(client.connect())
    for number in scene.rounds(20000):
        with refusing():
            sequence = p.SEQUENCE4args(
                client.session if number % 3 else os.urandom(16),
                EDGES[number % 6] & 0xFFFFFFFF,
                number % 70,
                number % 300,
                True,
            )
            drive(client.raw((p.OP_SEQUENCE, sequence), *client.path("/memory"), (p.OP_GETATTR, wanted(1))))
        if number % 50 == 0:
            with refusing():
                drive(client4(client.transport, 1, name=client.name).connect())
            with refusing():
                client.transport.send(record(client.message(*client.in_session(*client.path("/disk")))[:-3]))
                client.transport = client.server = scene.tcp()


@attack("NFSv4", "requests of one session over 64 connections, and stateids of others", effect="operations refused")
def stateids_of_others(scene: Scene) -> None:
    victim = client4(scene.tcp(source=scene.address()), 1, name=b"victim " + scene.source.encode())
    drive(victim.connect())
    name = b"stolen " + scene.source.encode()
    opened, handle = drive(victim.open("/memory", name, access=_NOT_DELEGATED, create=mode(0o600)))
    thief = client4(scene.tcp(), 1, uid=6666, gid=6666, name=b"thief " + scene.source.encode())
    drive(thief.connect())
    for number in scene.rounds(2000):
        for operation in (
            (p.OP_READ, p.READ4args(opened, 0, 100)),
            (p.OP_WRITE, p.WRITE4args(opened, 0, p.stable_how4.UNSTABLE4, memoryview(b"mine now"))),
            (p.OP_CLOSE, p.CLOSE4args(0, opened)),
            (p.OP_SETATTR, p.SETATTR4args(opened, _size(0))),
        ):
            status = drive(thief.status((p.OP_PUTFH, p.PUTFH4args(handle)), operation))
            scene.must(
                status != p.NFS4_OK, f"operation {operation[0]} with the stateid of another client's was allowed"
            )
            scene.count("operations refused")
        with refusing():  # in the victim's session, whose id is told to anybody on its way
            stolen = client4(thief.transport, 1, uid=6666, gid=6666)
            stolen.session, stolen.clientid, stolen.sequence = victim.session, victim.clientid, 100 + number
            drive(stolen.run((p.OP_DESTROY_CLIENTID, p.DESTROY_CLIENTID4args(victim.clientid))))
    try:
        drive(
            victim.on(handle, (p.OP_WRITE, p.WRITE4args(opened, 0, p.stable_how4.UNSTABLE4, memoryview(b"still mine"))))
        )
    except (Failed, OSError, EOFError, Refused) as error:
        scene.must(False, f"the victim cannot write any more: {error}")
