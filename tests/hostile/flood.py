"""Floods fill the server's memory as fast as possible, by prepared calls of many operations, many outstanding.

Each flood is one host's client, over TCP or iWARP. Its calls are prepared octets that differ in a few places only. Of
the replies it reads only how far it got and what ended it. So the server needs most of the time. A flood ends when it
is refused, has everything it wanted, or its time is over.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from nfsd.protocol import nfs4 as p
from nfsd.protocol import nlm4
from rpcrdma.peer.wire import header
from rpcrdma.xdr import pack
from tests.hostile.peer import Iwarp, Refused, Tcp, accepted, client4, drive, record, rpc
from tests.support.nfs4 import Client4, mode

Way = Tcp | Iwarp
Maker = Callable[[int], bytes]
"""The octets of an operation; each has a number."""

NAME = 1000
"""Octets of an owner's name that shall cost much: nearly NFS4_OPAQUE_LIMIT."""
OUTSTANDING = 16
"""Calls; in 4.1 each has a slot of its own."""
_FAR = 1 << 63
"""From here on a lock is nothing that local processes could see: it is in the server's memory alone."""
_INLINE = 3900
"""Octets of a call over RDMA without chunks."""
_MOST = 60
"""Operations of one COMPOUND; Client4 asks for 64."""
_XID = 0x40000000


@dataclass
class Tally:
    """What became of it."""

    done: int = 0
    """What was granted."""
    refusals: dict[int, int] = field(default_factory=dict)
    """How many calls were answered with another status than OK, by status."""

    def add(self, other: Tally) -> None:
        self.done += other.done
        for status, count in other.refusals.items():
            self.refusals[status] = self.refusals.get(status, 0) + count

    def refuse(self, status: int) -> None:
        self.add(Tally(0, {status: 1}))


def pump(way: Way, make: Callable[[int], bytes | None], outstanding: int = OUTSTANDING) -> Iterator[tuple[int, bytes]]:
    """Make calls, many at a time: ``make`` gives the next one of a place, from behind its XID; None: that was all.
    Gives (place, reply) in the order of the replies. Raises EOFError and OSError."""
    free, serial, waiting, more = list(range(outstanding)), 0, 0, True
    while True:
        batch = []
        while more and free:
            message = make(free[-1])
            if message is None:
                more = False
                break
            serial += 1
            xid = struct.pack(">I", _XID | (serial << 6 & 0x3FFFFFC0) | free.pop())
            batch.append(xid + message)
        if isinstance(way, Tcp):
            way.send(b"".join(map(record, batch)))
        else:
            for message in batch:
                way.post(header(int.from_bytes(message[:4], "big")), message)
        waiting += len(batch)
        if not waiting:
            return
        reply = way.reply() if isinstance(way, Tcp) else way.next()[28:]
        place = reply[3] & 63
        waiting -= 1
        free.append(place)
        yield place, reply


class Flood:
    """A client of NFSv4 with a file open."""

    def __init__(self, way: Way, minor: int, name: bytes, directory: str, file: bytes = b"flooded") -> None:
        """Raises Failed and AssertionError when the client is refused; Refused, EOFError and OSError."""
        self._way = way
        self.client: Client4 = client4(way, minor, name=name)
        self.client.slots = OUTSTANDING
        drive(self.client.connect())
        access = p.OPEN4_SHARE_ACCESS_BOTH | (p.OPEN4_SHARE_ACCESS_WANT_NO_DELEG if minor else 0)
        self.opened, self.handle = drive(
            self.client.open(directory, file, access=access, create=mode(0o666), owner=b"first")
        )
        *_, found = drive(self.client.run(*self.client.path(directory), p.OP_GETFH))
        self._file, self._directory = file, found.resok4.object
        self._slots = [self.client.sequence] + [0] * (OUTSTANDING - 1)
        # What stands between the XID and the number of operations.
        self._head = self.client.message()[4:-4]

    # -- operations ----------------------------------------------------------------------------------------------
    def opens(self, size: int = NAME) -> Maker:
        """OPENs of the file, each by an owner of its own, whose name has ``size`` octets (a multiple of 4). In 4.0
        nobody confirms them."""
        client = self.client
        access = p.OPEN4_SHARE_ACCESS_READ | (p.OPEN4_SHARE_ACCESS_WANT_NO_DELEG if client.minor else 0)
        head = struct.pack(">IIIIQI", p.OP_OPEN, 0 if client.minor else 1, access, 0, client.clientid, size)
        tail = bytes(size - 16) + struct.pack(">I", p.opentype4.OPEN4_NOCREATE)
        if client.minor:
            tail += struct.pack(">I", p.open_claim_type4.CLAIM_FH)
        else:
            tail += struct.pack(">I", p.open_claim_type4.CLAIM_NULL) + _opaque(self._file)
        return lambda number: b"%b%016d%b" % (head, number, tail)

    def lock_owners(self, size: int = NAME) -> Maker:
        """LOCKs of the same octet for reading, each by an owner of its own. In 4.0 one COMPOUND at a time: the open
        owner's operations stand in an order."""
        client = self.client
        head = struct.pack(">IIIQQI", p.OP_LOCK, p.nfs_lock_type4.READ_LT, 0, _FAR, 1, 1)
        after = struct.pack(">I12sIQI", self.opened.seqid, bytes(self.opened.other), 1, client.clientid, size)
        tail = bytes(size - 16)
        first = 0 if client.minor else client.seqids[b"first"] + 1
        step = 0 if client.minor else 1
        return lambda number: b"%b%b%b%016d%b" % (head, struct.pack(">I", first + step * number), after, number, tail)

    def ranges(self, first: int = 0) -> Maker:
        """LOCKs of one owner of an octet each, with a gap before it, beyond ``first`` others. Of 4.1, where no seqid
        puts them in an order."""
        start = _FAR + 2 + 2 * first
        new = p.open_to_lock_owner4(0, self.opened, 0, p.lock_owner4(self.client.clientid, b"ranges"))
        lock = p.LOCK4args(p.nfs_lock_type4.WRITE_LT, False, start, 1, p.locker4(True, open_owner=new))
        [made] = drive(self.client.on(self.handle, (p.OP_LOCK, lock)))
        self._slots[0] = self.client.sequence
        head = struct.pack(">III", p.OP_LOCK, p.nfs_lock_type4.WRITE_LT, 0)
        tail = struct.pack(">QII12sI", 1, 0, 0, bytes(made.resok4.lock_stateid.other), 0)
        return lambda number: b"%b%b%b" % (head, struct.pack(">Q", start + 2 + 2 * number), tail)

    # -- the flood -----------------------------------------------------------------------------------------------
    def run(self, make: Maker, most: int, *, over: Callable[[], bool] = lambda: False) -> Tally:
        """Up to ``most`` operations. Raises Refused, EOFError and OSError."""
        client, sample = self.client, make(0)
        opening = sample[:4] == struct.pack(">I", p.OP_OPEN) and not client.minor
        before = struct.pack(">I", p.OP_PUTFH) + _opaque(self._directory if opening else self.handle)
        before += struct.pack(">I", p.OP_SAVEFH) if opening else b""
        between = struct.pack(">I", p.OP_RESTOREFH) if opening else b""
        each = _MOST
        if isinstance(self._way, Iwarp):
            each = max(1, min(_MOST, (_INLINE - len(self._head) - len(before) - 50) // len(sample + between)))
        tally, number = Tally(), 0

        def next_call(place: int) -> bytes | None:
            nonlocal number
            if number >= most or tally.refusals or over():
                return None
            operations = [make(one) for one in range(number, min(number + each, most))]
            number += len(operations)
            count = 1 + len(operations)
            parts = [before, between.join(operations)]
            if client.minor:
                self._slots[place] += 1
                sequence = self._slots[place], place, OUTSTANDING - 1, 0
                parts.insert(0, struct.pack(">I16sIIII", p.OP_SEQUENCE, client.session, *sequence))
                count += 1
            elif opening:
                count += len(operations)
            return b"".join([self._head, struct.pack(">I", count), *parts])

        in_order = sample[:4] == struct.pack(">I", p.OP_LOCK) and not client.minor
        for _, reply in pump(self._way, next_call, 1 if in_order else OUTSTANDING):
            status, tag, results = struct.unpack(">3I", accepted(reply)[:12])
            if tag:
                raise Refused(reply[:48].hex())
            ours = results - (1 if status else 0) - (2 if client.minor or opening else 1)
            tally.done += max(0, (ours + 1) // 2 if opening else ours)
            if status:
                tally.refuse(status)
        return tally


def _opaque(octets: bytes) -> bytes:
    return struct.pack(">I", len(octets)) + octets + bytes(-len(octets) % 4)


def lock_by_nlm(way: Tcp, handle: bytes, name: bytes, most: int, *, over: Callable[[], bool] = lambda: False) -> Tally:
    """NM_LOCKs of NFSv3's clients (NLM 4), of the same octet for reading, each by an owner of its own with a long name.
    Raises Refused, EOFError and OSError."""
    lock = nlm4.nlm4_lock(name, handle, b"owner".ljust(NAME, b"."), 0x5EED5EED, 0, 1)
    args = nlm4.nlm4_lockargs(b"", False, False, lock, False, 1)
    message = rpc(nlm4.NLM_PROGRAM, nlm4.NLM_V4, nlm4.NLMPROC4_NM_LOCK, pack(nlm4.nlm4_lockargs, args), uid=0, gid=0)
    head, tail = message[4:].split(struct.pack(">I", 0x5EED5EED))
    tally, number = Tally(), 0

    def next_call(_: int) -> bytes | None:
        nonlocal number
        if number >= most or tally.refusals or over():
            return None
        number += 1
        return head + struct.pack(">I", number) + tail

    for _, reply in pump(way, next_call, 64):
        status = int.from_bytes(accepted(reply)[4:8], "big")  # behind a cookie of no octets
        if status:
            tally.refuse(status)
        else:
            tally.done += 1
    return tally


def introduce(
    way: Tcp, names: list[bytes], *, sessions: int = 1, slots: int = 1, cached: int = 512
) -> tuple[Tally, Tally]:
    """Clients of 4.1, and sessions of each, with replies of ``cached`` octets kept in each slot. Raises Refused,
    EOFError and OSError."""
    stranger = client4(way, 1)
    protection = p.state_protect4_a(p.state_protect_how4.SP4_NONE)
    clients, made = Tally(), Tally()
    left = iter(names)

    def exchange_id(_: int) -> bytes | None:
        name = next(left, None)
        if name is None or clients.refusals:
            return None
        args = p.EXCHANGE_ID4args(p.client_owner4(b"verifier", name), 0x101, protection, [])
        return stranger.message((p.OP_EXCHANGE_ID, args))[4:]

    known: list[tuple[int, int]] = []
    for _, reply in pump(way, exchange_id):
        status, [(_, result)] = Client4.parse(reply)
        if status:
            clients.refuse(status)
        else:
            clients.done += 1
            known.append((result.eir_resok4.eir_clientid, result.eir_resok4.eir_sequenceid))
    fore = p.channel_attrs4(0, 8192, 8192, cached, 64, slots, [])
    back = p.channel_attrs4(0, 4096, 4096, 0, 2, 1, [])
    creations = iter([(clientid, first + more) for more in range(sessions) for clientid, first in known])

    def create_session(_: int) -> bytes | None:
        creation = next(creations, None)
        if creation is None or made.refusals:
            return None
        args = p.CREATE_SESSION4args(*creation, 0, fore, back, 0x40000000, [p.callback_sec_parms4(0)])
        return stranger.message((p.OP_CREATE_SESSION, args))[4:]

    for _, reply in pump(way, create_session, min(OUTSTANDING, max(1, len(known)))):
        status, _ = Client4.parse(reply)
        if status:
            made.refuse(status)
        else:
            made.done += 1
    return clients, made


def introduce40(way: Tcp, names: list[bytes]) -> Tally:
    """Clients of 4.0, confirmed, that do nothing. Raises Refused, EOFError and OSError."""
    stranger = client4(way, 0)
    callback = p.cb_client4(0x40000000, p.netaddr4(b"tcp", b"127.0.0.1.0.0"))
    clients = Tally()
    left = iter(names)

    def setclientid(_: int) -> bytes | None:
        name = next(left, None)
        if name is None or clients.refusals:
            return None
        args = p.SETCLIENTID4args(p.nfs_client_id4(b"verifier", name), callback, 1)
        return stranger.message((p.OP_SETCLIENTID, args))[4:]

    known: list[tuple[int, bytes]] = []
    for _, reply in pump(way, setclientid, 8):
        status, results = Client4.parse(reply)
        if status:
            clients.refuse(status)
        else:
            known.append((results[0][1].resok4.clientid, bytes(results[0][1].resok4.setclientid_confirm)))
    confirmations = iter(known)

    def confirm(_: int) -> bytes | None:
        made = next(confirmations, None)
        if made is None:
            return None
        return stranger.message((p.OP_SETCLIENTID_CONFIRM, p.SETCLIENTID_CONFIRM4args(*made)))[4:]

    for _, reply in pump(way, confirm, 8):
        clients.done += not Client4.parse(reply)[0]
    return clients
