"""A message in words, as the test suite's own reader understands it: the transport header of either version, and the
head of the RPC message behind it."""

from __future__ import annotations

import struct

from rpcrdma.peer.wire import Segment

PROCEDURES = {
    1: {0: "RDMA_MSG", 1: "RDMA_NOMSG", 2: "RDMA_MSGP", 3: "RDMA_DONE", 4: "RDMA_ERROR"},
    2: {0: "RDMA2_MSG", 1: "RDMA2_NOMSG", 4: "RDMA2_ERROR", 5: "RDMA2_OPTIONAL"},
}
ERRORS = {
    1: {1: "ERR_VERS", 2: "ERR_CHUNK"},
    2: {
        1: "RDMA2_ERR_VERS",
        2: "RDMA2_ERR_BAD_XDR",
        3: "RDMA2_ERR_CANT_REPLY",
        4: "RDMA2_ERR_INVAL_PROC",
        5: "RDMA2_ERR_INVAL_OPTION",
    },
}
DIRECTIONS = {0: "CALL", 1: "REPLY"}
PROGRAMS = {100003: "NFS", 0x40000000: "NFS4_CALLBACK"}
NAMES = {
    (100003, 3, 0): "NULL",
    (100003, 3, 1): "GETATTR",
    (100003, 3, 3): "LOOKUP",
    (100003, 3, 6): "READ",
    (100003, 3, 7): "WRITE",
    (100003, 3, 8): "CREATE",
    (100003, 3, 17): "READDIRPLUS",
    (100003, 4, 1): "COMPOUND",
    (0x40000000, 1, 0): "CB_NULL",
    (0x40000000, 1, 1): "CB_COMPOUND",
}


def describe(octets: bytes) -> list[str]:
    """Lines; what cannot be read is shown as it is."""
    try:
        return _Describer(octets).lines
    except (struct.error, IndexError):
        return [f"{len(octets)} octets that cannot be read to the end: {octets[:64].hex()}"]


class _Describer:
    def __init__(self, octets: bytes) -> None:
        self.octets = octets
        self.at = 0
        xid, version, credit, procedure = (self.word() for _ in range(4))
        name = PROCEDURES.get(version, {}).get(procedure, f"procedure {procedure}")
        self.lines = [f"{name}, version {version}, xid {xid:#x}, credits {credit}"]
        if version not in PROCEDURES and procedure != 4:
            return
        if procedure == 4:
            self._error(version)
        elif version == 2 and procedure == 5:
            direction, opttype = DIRECTIONS.get(self.word(), "?"), self.word()
            info = octets[self.at + 4 : self.at + 4 + self.word()]
            self.lines[0] += f", {direction}, type {opttype}, {len(info)} octets of information"
        elif procedure in PROCEDURES[version]:
            if version == 2:
                way = self.word()
                self.lines[0] += f", {DIRECTIONS.get(way, way)}, rdma_inv_handle {self.word():#x}"
            self._lists()
            if procedure == 0:
                self._rpc()

    def word(self) -> int:
        (value,) = struct.unpack_from(">I", self.octets, self.at)
        self.at += 4
        return int(value)

    def segment(self) -> Segment:
        segment = Segment(*struct.unpack_from(">IIQ", self.octets, self.at))
        self.at += 16
        return segment

    def _error(self, version: int) -> None:
        code = self.word()
        text = ERRORS.get(version, ERRORS[1]).get(code, f"code {code}")
        if code == 1:
            text += f", versions {self.word()} to {self.word()} are supported"
        elif version == 2 and code == 3:
            processed, segment, needed = self.word(), self.word(), self.word()
            text += f": {'' if processed else 'not '}processed, segment {segment} needs {needed} octets"
        self.lines.append(text)

    def _lists(self) -> None:
        while self.word():
            position, segment = self.word(), self.segment()
            self.lines.append(f"Read chunk at position {position}: {_text(segment)}")
        while self.word():
            self.lines.append(
                "Write chunk: " + (", ".join(_text(self.segment()) for _ in range(self.word())) or "empty")
            )
        if self.word():
            self.lines.append(
                "Reply chunk: " + (", ".join(_text(self.segment()) for _ in range(self.word())) or "empty")
            )

    def _rpc(self) -> None:
        rpc = self.octets[self.at :]
        if len(rpc) < 8:
            self.lines.append(f"{len(rpc)} octets of payload")
            return
        xid, kind = struct.unpack_from(">II", rpc)
        if kind == 0:
            _, program, version, procedure = struct.unpack_from(">4I", rpc, 8)
            name = NAMES.get((program, version, procedure), f"procedure {procedure}")
            text = f"call, {PROGRAMS.get(program, program)} version {version}, {name}"
        else:
            status, *_, accepted = struct.unpack_from(">4I", rpc, 8)
            text = "reply, " + (f"accepted, status {accepted}" if status == 0 else "denied")
        self.lines.append(f"RPC {text}, xid {xid:#x}, {len(rpc)} octets inline")


def _text(segment: Segment) -> str:
    return f"{segment.length} octets of {segment.handle:#x}"
