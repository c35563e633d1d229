"""Inputs of the target ``calls``: NFSv3 calls, damaged or not, and the parts of their replies to compare."""

from __future__ import annotations

import struct

from nfsd.protocol.nfs3 import NFS_PROGRAM

NULL, GETATTR, SETATTR, LOOKUP, ACCESS, READLINK, READ, WRITE, CREATE, REMOVE, COMMIT = *range(9), 12, 21
PROCEDURES = (
    GETATTR, LOOKUP, ACCESS, READ, WRITE, COMMIT, READ, NULL, READLINK, 19, SETATTR, CREATE, REMOVE, 64, 0xFFFFFFFF
)  # fmt: skip
"""What may be called: nothing that changes names anywhere else, which one server would find changed by the other, nor
FSSTAT, which other users of the file system change."""
NAMING = (CREATE, REMOVE)
CHANGING = (SETATTR, WRITE, COMMIT, *NAMING)
NAMES = (b"a", b"b", b"empty", b"large", b"none", b".", b"..", b"", b"x" * 255, b"x" * 256, b"sub", b"a/b", b"a\0")
OFFSETS = (0, 0, 1, 4096, 69_999, 70_000, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
COUNTS = (0, 1, 3, 100, 999, 4096, 8192, 65536, 1 << 20, 1 << 31)
CALLERS = ((0, 0), (1001, 1001), (1002, 1002), (1002, 1001))
FATTR = 84


class Input:
    """The octets of an input, one after the other; zeros behind its end."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def octet(self) -> int:
        self.at += 1
        return self.data[self.at - 1] if self.at <= len(self.data) else 0

    def number(self) -> int:
        return self.octet() << 8 | self.octet()

    @property
    def over(self) -> bool:
        return self.at >= len(self.data)


def opaque(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data + bytes(-len(data) & 3)


class Call:
    """One call of an input, for either server."""

    def __init__(self, source: Input) -> None:
        self.procedure = PROCEDURES[source.octet() % len(PROCEDURES)]
        self.node = source.octet()
        self.caller = CALLERS[source.octet() % len(CALLERS)]
        self.name = NAMES[source.octet() % len(NAMES)]
        self.offset, self.count = OFFSETS[source.octet() % len(OFFSETS)], COUNTS[source.octet() % len(COUNTS)]
        self.size, self.stable = source.number() % 9000, source.octet() % 5
        self.word = source.number()
        self.damage = [(source.octet(), source.number(), source.octet()) for _ in range(source.octet() % 4)]
        self.again = source.octet() == 1
        self.shape = source.octet()
        self.cuts = [source.number() for _ in range(source.octet() % 6)]
        self.data = bytes(index * 7 + self.word & 0xFF for index in range(self.size))

    def arguments(self, handle: bytes, inline: bool) -> bytes:
        head = opaque(handle)
        if self.procedure == LOOKUP:
            return head + opaque(self.name)
        if self.procedure == SETATTR:
            return head + self.attributes() + (struct.pack(">IQ", 1, 0) if self.stable == 4 else bytes(4))
        if self.procedure == REMOVE:
            return head + opaque(self.name)
        if self.procedure == CREATE:
            return head + opaque(self.name) + self.creation()
        if self.procedure == ACCESS:
            return head + struct.pack(">I", self.word)
        if self.procedure == READ:
            return head + struct.pack(">QI", self.offset, self.count)
        if self.procedure == COMMIT:
            return head + struct.pack(">QI", self.offset, self.count)
        if self.procedure == WRITE:
            count = len(self.data) + (1 if self.word == 7 else 0)
            head += struct.pack(">QIII", min(self.offset, 1 << 16), count, self.stable, len(self.data))
            return head + (self.data + bytes(-len(self.data) & 3) if inline else b"")
        return head if self.procedure != NULL else b""

    def creation(self) -> bytes:
        """A createhow3 (RFC 1813 section 3.3.8); most set nothing but a mode."""
        if self.stable == 2:
            return struct.pack(">IQ", 2, self.word)
        return struct.pack(">I", self.stable) + self.attributes()

    def attributes(self) -> bytes:
        """A sattr3 (RFC 1813 section 2.5)."""
        kind = self.word & 15
        mode = b"" if kind == 1 else struct.pack(">I", (self.word >> 4 ^ 0o644) & 0o7777)
        size = {2: 0, 3: 5, 4: 1 << 63}.get(kind)
        fields = [mode, *(struct.pack(">I", 1001) if kind == each else b"" for each in (5, 6))]
        fields.append(b"" if size is None else struct.pack(">Q", size))
        times = {7: (1, b""), 8: (2, struct.pack(">II", 5, self.offset & 0xFFFFFFFF)), 9: (3, b"")}.get(kind, (0, b""))
        return (
            b"".join(struct.pack(">I", bool(field)) + field for field in fields)
            + struct.pack(">I", times[0])
            + times[1]
            + bytes(4)
        )

    def message(self, xid: int, handle: bytes, inline: bool = True) -> bytes | None:
        """The RPC message as damaged; None if it would now be a call that is not to be made."""
        credential = struct.pack(">6I", self.word, 0, *self.caller, 0, 0)[:20]
        message = bytearray(
            struct.pack(">8I", xid, 0, 2, NFS_PROGRAM, 3, self.procedure, 1, len(credential))
            + credential
            + bytes(8)
            + self.arguments(handle, inline)
        )
        for kind, where, value in self.damage:
            at = where % (len(message) + 1)
            match kind % 5:
                case 0:
                    message[at : at + 1] = bytes((value,))
                case 1:
                    message[at & ~3 : (at & ~3) + 4] = (value if value < 240 else value - 256 & 0xFFFFFFFF).to_bytes(
                        4, "big"
                    )
                case 2:
                    del message[at:]
                case 3:
                    message += bytes(value % 9)
                case 4:
                    del message[at : at + value % 9]
        kind, _, program, _, procedure = struct.unpack_from(">5I", message[:24].ljust(24, b"\0"), 4)
        if kind == 1:
            return None  # a reply, which nobody answers
        other = program == NFS_PROGRAM and procedure < 22 and procedure != self.procedure
        if other and (procedure not in PROCEDURES or self.changing or procedure in CHANGING):
            return None
        return bytes(message)

    @property
    def changing(self) -> bool:
        return self.procedure in CHANGING


def comparable(call: Call, reply: bytes | None) -> bytes | None:
    """The reply to a call that changes something, without what differs between two files and two moments."""
    if reply is None or reply[20:24] != bytes(4) or len(reply) < 24 + 4 + 8 + 24:
        return reply
    body, at = bytearray(reply[24:]), 4
    if call.procedure == CREATE and body[:4] == bytes(4):
        length = int.from_bytes(body[8:12], "big")
        body[12 : 12 + length] = bytes(length)
        at = 12 + (length + 3 & ~3) + 4
        _forget(body, at)
        at += FATTR
    if body[at : at + 4] == b"\0\0\0\1":
        body[at + 12 : at + 28] = bytes(16)
        at += 24
    at += 4
    if body[at : at + 4] == b"\0\0\0\1":
        _forget(body, at + 4)
    return reply[:24] + bytes(body)


def _forget(body: bytearray, at: int) -> None:
    """The fileid and the times of a fattr3."""
    body[at + 52 : at + FATTR] = bytes(FATTR - 52)
