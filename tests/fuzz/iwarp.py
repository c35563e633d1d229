"""Target ``iwarp``: MPA, DDP and RDMAP as a peer may send them to a connection with memory registered.

An input is read as a little program (see :class:`Peer`): FPDUs right and wrong, octets by hand, damage to what was
framed, arbitrary cuts between what one wake-up finds and what the next does, and things the application does meanwhile.
Its first octet chooses how the connection was agreed on; from 0xC0 on the rest is MPA frames instead.

What must hold
    Memory, messages, completions, Read Responses and the Terminate are those of :class:`tests.fuzz.iwarp_model.Model`,
    which is fed the same octets in the same cuts; nothing else is written to. Nothing is raised out of a callback, and
    nothing is logged as an error. Whatever the peer does, the connection ends once, with every token reported and every
    buffer given back. The sanitizer watches the native code, and the memory around what is registered.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import struct

from rpcrdma.memory import Pool
from rpcrdma.verbs.interface import RdmaRead, RdmaWrite, Send
from rpcrdma.verbs.softiwarp.crc import crc32c
from rpcrdma.verbs.softiwarp.endpoint import Endpoint
from rpcrdma.verbs.softiwarp.mpa import RTR, Agreement
from rpcrdma.verbs.softiwarp.options import SoftIwarpOptions
from tests.fuzz.iwarp_fakes import ERRORS, Loop, Owner, Sent, log
from tests.fuzz.iwarp_model import READ_REQUEST, READ_RESPONSE, SEND, WRITE, Model, Read, Region
from tests.fuzz.mpa_frames import check_frames

OPTIONS = SoftIwarpOptions(fpdu="max", keepalive=0)
RECEIVES = (1024, 2048, 1024, 4096, 8192)
SIZES = ((256, True, True), (3000, True, False), (5000, False, True), (64, True, True))
"""Octets, readable and writable of the regions; the last is withdrawn before anything comes."""
FILL = bytes(range(1, 252))
MOST_STEPS = 64


def pattern(length: int, start: int = 0) -> bytes:
    start %= len(FILL)
    return (FILL * (length // len(FILL) + 2))[start : start + length]


class Peer:
    """Runs one input against one connection."""

    def __init__(self, data: bytes, pool: Pool) -> None:
        self.data, self.at = data, 1
        mode = data[0]
        self.crc = bool(mode & 1)
        initiator = bool(mode & 2)
        inbound = (0, 1, 2, 16)[mode >> 2 & 3]
        expect_rtr = bool(mode & 16) and not initiator
        self.account = pool.account(16 << 20)
        self.loop, self.owner, self.sent = Loop(), Owner(), Sent(self.crc)
        self.ours, theirs = socket.socketpair()
        self.ours.setblocking(False)
        theirs.setblocking(False)
        self.closed: list[Endpoint] = []
        leases = [self.account.lease(size) for size in RECEIVES]
        for lease in leases:
            lease.view[:] = b"\xee" * lease.capacity
        self.leases = [lease.retain() for lease in leases]
        self.endpoint = Endpoint(
            self.loop, theirs, self.owner, leases, Agreement(self.crc, False, 2, inbound, expect_rtr, RTR.NONE),
            OPTIONS, ("127.0.0.1", 1), "127.0.0.1", initiator, self.closed.append,
        )  # fmt: skip
        self.model = Model(self.crc, inbound, expect_rtr, initiator, [lease.capacity for lease in leases])
        self.regions: list[Region] = []
        self.memory: list[bytearray] = []
        self.posted = 0
        self.read_sinks: list[tuple[bytearray, bytearray]] = []
        self.stream = b""
        self.latest = b""
        self.send_msn = self.read_msn = 1
        self.message_offset = self.response_offset = 0
        self.ended = False
        self.endpoint.start()
        for size, readable, writable in SIZES:
            self.register(size, readable, writable)
        self.withdraw(len(SIZES) - 1)

    # The input

    def octet(self) -> int:
        self.at += 1
        return self.data[self.at - 1] if self.at <= len(self.data) else 0

    def number(self) -> int:
        return self.octet() << 8 | self.octet()

    def literal(self, length: int) -> bytes:
        self.at += length
        return self.data[self.at - length : self.at]

    # What the application does

    def register(self, size: int, readable: bool, writable: bool) -> None:
        memory = bytearray(pattern(size, len(self.regions)))
        handle, base = self.endpoint.register(memoryview(memory), remote_read=readable, remote_write=writable)
        region = Region(handle, base, bytearray(memory), readable, writable)
        self.memory.append(memory)
        self.regions.append(region)
        self.model.regions[handle] = region

    def withdraw(self, index: int) -> None:
        region = self.regions[index % len(self.regions)]
        with contextlib.suppress(KeyError):
            self.endpoint.invalidate(region.handle)
        region.valid = False

    def application(self) -> None:
        """Something that the connection's owner does."""
        action, argument = self.octet() % 8, self.octet()
        self.posted += 1
        if action == 0 and len(self.regions) < 12:
            self.register(argument * 16 + 1, bool(argument & 1), bool(argument & 2))
        elif action == 1:
            self.withdraw(argument)
        elif action == 2:
            writes = [RdmaWrite(7, 8, memoryview(pattern(argument * 9)))] * (argument % 4)
            self.endpoint.post(writes, Send([pattern(argument), b"x"], argument or None), self.posted)
            return
        elif action == 3:
            sinks = [bytearray(b"\xdd" * (argument * 40 + index)) for index in range(1 + argument % 3)]
            self.read_sinks += [(sink, bytearray(sink)) for sink in sinks]
            self.endpoint.post_reads([RdmaRead(9, 0, memoryview(sink)) for sink in sinks], self.posted)
            return
        elif action == 4 and argument > 200:
            self.ended = self.ended or not self.over
            self.endpoint.close(abort=argument > 230)
            self.model.stopped = True
        elif action == 5 and not self.over:
            lease = self.account.lease(1024)
            lease.view[:] = b"\xee" * lease.capacity
            self.leases.append(lease.retain())
            self.endpoint.post_receives([lease])
            self.model.posted.append(lease.capacity)
        elif action == 6:
            assert self.endpoint.statistics()
            self.endpoint.check(self.loop.now)
        self.posted -= 1

    @property
    def over(self) -> bool:
        """Whether the connection takes no more of the stream."""
        return self.model.stopped

    # What the peer sends

    def frame(self, ulpdu: bytes) -> None:
        body = len(ulpdu).to_bytes(2, "big") + ulpdu
        body += bytes(-len(body) % 4)
        self.latest = body + struct.pack("<I", crc32c(body) if self.crc else 0)
        self.stream += self.latest

    def control(self, opcode: int, wrong: int, tagged: bool) -> bytes:
        ddp = (0 if wrong & 1 else 0x40) | (3 if wrong & 16 else 1) | (0x80 if tagged != bool(wrong & 64) else 0)
        return bytes((ddp, (0x80 if wrong & 32 else 0x40) | opcode | (8 if wrong & 128 else 0)))

    def region(self) -> tuple[int, int, int]:
        """The handle, base and size of a region, or of none."""
        index = self.octet() % (len(self.regions) + 1)
        if index == len(self.regions):
            return 0xDEAD, 0, 64
        region = self.regions[index]
        return region.handle, region.base, len(region.data)

    def place(self) -> tuple[int, int]:
        """The handle and an offset, mostly within bounds."""
        handle, base, size = self.region()
        offset = self.number()
        if offset >= 0xFFF0:
            return handle, (base if offset & 1 else 0) - (offset & 15) & (1 << 64) - 1
        return handle, base + offset % (size + 2)

    def write(self) -> None:
        wrong = self.octet()
        handle, offset = self.place()
        ulpdu = self.control(WRITE, wrong, True) + struct.pack(">IQ", handle, offset)
        self.frame(ulpdu + pattern(self.number() % 5200, wrong))

    def send(self) -> None:
        opcode, wrong = SEND + self.octet() % 4, self.octet()
        payload = pattern(self.number() % 5000, wrong + 1)
        handle = self.region()[0] if opcode in (4, 6) else 0
        head = struct.pack(
            ">IIII", handle, wrong >> 3 & 1, self.send_msn + (wrong >> 1 & 1), self.message_offset + (wrong >> 2 & 1)
        )
        self.frame(self.control(opcode, wrong, False) + head + payload)
        self.message_offset += len(payload)
        if not wrong & 1:
            self.send_msn += 1
            self.message_offset = 0

    def read(self) -> None:
        wrong = self.octet()
        handle, offset = self.place()
        head = struct.pack(">IIII", 0, 1 ^ (wrong >> 3 & 1), self.read_msn + (wrong >> 1 & 1), 0 + (wrong >> 2 & 1))
        self.frame(
            self.control(READ_REQUEST, wrong, False) + head + struct.pack(">IQIIQ", 5, 6, self.number(), handle, offset)
        )
        self.read_msn += 1

    def response(self) -> None:
        wrong, length = self.octet(), self.number() % 6000
        sink, size = (self.sent.reads or [(1, 0)])[self.model.answered % max(len(self.sent.reads), 1)]
        if wrong & 8:
            length = max(size - self.response_offset, 0)
        head = struct.pack(">IQ", sink + (wrong >> 1 & 1), self.response_offset + (wrong >> 2 & 1))
        self.frame(self.control(READ_RESPONSE, wrong, True) + head + pattern(length, wrong))
        self.response_offset = 0 if not wrong & 1 else self.response_offset + length

    def step(self) -> None:
        match self.octet() % 16:
            case 0 | 1:
                self.write()
            case 2 | 3:
                self.send()
            case 4 | 5:
                self.read()
            case 6 | 7:
                self.response()
            case 8:
                body = self.literal(self.octet())
                self.frame(bytes((0x41, 0x47)) + struct.pack(">IIII", 0, 2, 1, 0) + body)
            case 9:
                self.frame(self.literal(self.octet()))
            case 10:
                self.stream += self.literal(self.octet())
            case 11 | 12:
                keep = min(self.number() % 6000, len(self.stream))
                self.deliver(self.stream[: len(self.stream) - keep])
                self.stream = self.stream[len(self.stream) - keep :]
            case 13:
                self.deliver(self.stream)
                self.stream = b""
                self.application()
                self.settle()
            case 14:
                at, bits = self.number(), self.octet()
                if at < len(self.stream):
                    at = len(self.stream) - 1 - at
                    self.stream = self.stream[:at] + bytes((self.stream[at] ^ bits,)) + self.stream[at + 1 :]
            case 15:
                self.stream += self.latest

    # Running the connection

    def deliver(self, data: bytes) -> None:
        """What one wake-up of the connection finds."""
        if not data or self.owner.reasons:
            return
        for start in range(0, len(data), 1 << 16):
            piece = data[start : start + (1 << 16)]
            try:
                assert self.ours.send(piece) == len(piece)
            except (BrokenPipeError, ConnectionResetError):
                return
            self.model.feed(piece)
            self.wake()
        self.settle()

    def wake(self) -> None:
        descriptor = next(iter(self.loop.readers), None)
        if descriptor is not None:
            self.loop.readers[descriptor]()

    def settle(self) -> None:
        """Let the connection do what it has to do, and see what it sends."""
        for _ in range(50):
            self.loop.run()
            got = b""
            with contextlib.suppress(BlockingIOError, ConnectionResetError):
                while piece := self.ours.recv(1 << 18):
                    got += piece
            known = len(self.sent.reads)
            self.sent.take(got)
            for sink, size in self.sent.reads[known:]:
                self.model.reads.append(Read(sink, self.read_sinks[len(self.model.reads) + self.model.answered][1]))
                assert size == len(self.model.reads[-1].data)
            writer = next(iter(self.loop.writers.values()), None)
            if not got and writer is None:
                return
            if writer is not None:
                writer()
        raise AssertionError("the connection sends without end")

    def run(self) -> None:
        for _ in range(MOST_STEPS):
            if self.at >= len(self.data) or self.owner.reasons:
                break
            self.step()
        self.deliver(self.stream)
        self.settle()
        self.compare()
        self.finish()

    def compare(self) -> None:
        """What has come of it is what the model says."""
        model, owner = self.model, self.owner
        assert owner.messages == model.messages
        for memory, region in zip(self.memory, self.regions, strict=True):
            assert memory == region.data
        for number, (sink, expected) in enumerate(self.read_sinks):
            # What of an answer is not complete may be anything: there the next segments are received before their
            # headers have been looked at.
            sure = model.read_placed if number == model.answered else len(sink)
            assert sink[:sure] == expected[:sure]
        if model.violation is None or self.ended:
            assert self.sent.terminate is None
        elif model.enabled:
            assert self.sent.terminate is not None
            assert tuple(self.sent.terminate[:2]) == model.violation
        else:
            # RFC 5044 section 7.1.2 rule 4: a responder sends nothing before the initiator's first FPDU.
            assert self.sent.terminate is None
        complete = [each for each in self.sent.responses if self.sent.open_response is None or each[2]]
        assert complete == model.sent[: len(complete)]
        if model.violation is None and not self.ended and not model.terminated:
            assert len(complete) == len(model.sent)
        if model.terminated:
            assert owner.reasons
        if model.violation is None and not model.terminated and not self.ended:
            assert not owner.reasons, owner.reasons

    def finish(self) -> None:
        """The peer goes away: the connection ends, once, and gives everything back."""
        self.ours.shutdown(socket.SHUT_WR)
        for _ in range(3):
            self.wake()
            self.settle()
        self.loop.expire()
        assert len(self.owner.reasons) == 1
        assert self.closed == [self.endpoint]
        assert not self.loop.readers
        assert not self.loop.writers
        assert sorted(token for token, _ in self.owner.tokens) == list(range(1, self.posted + 1))
        self.ours.close()
        for lease in self.leases:
            lease.release()
        assert self.account.in_use == 0


class Target:
    """MPA, DDP and RDMAP."""

    def __init__(self) -> None:
        self.pool = Pool(64 << 20)
        self.reached: dict[str, int] = {}

    def close(self) -> None:
        """Nothing outlives an input."""

    def one(self, data: bytes) -> None:
        """Check one input. Raises AssertionError, or whatever the code under test should not have raised."""
        if not data:
            return
        ERRORS.records.clear()
        level, propagate = log.level, log.propagate
        log.setLevel(logging.ERROR)
        log.propagate = False
        try:
            self.run(data)
        finally:
            log.setLevel(level)
            log.propagate = propagate
        assert not ERRORS.records, ERRORS.records
        assert self.pool.in_use == 0
        assert self.pool.leaked == 0

    def run(self, data: bytes) -> None:
        if data[0] >= 0xC0:
            check_frames(data[1:], self.pool)
        else:
            peer = Peer(data, self.pool)
            peer.run()
            for name in ("violation", "terminated"):
                if getattr(peer.model, name):
                    self.reached[name] = self.reached.get(name, 0) + 1
