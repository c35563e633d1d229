"""An RPC-over-RDMA requester on pyverbs: independent of this project's code, and of the kernel's client.

Runs under the interpreter that has pyverbs (Debian: /usr/bin/python3) and imports nothing but it and the standard
library. It speaks RDMA-CM with private data (RFC 8797), RPC-over-RDMA version One (RFC 8166) and as much RPC and NFSv3
as its steps need. The memory it offers the server is memory windows of type 2 where the device has them, else memory
regions: both can be invalidated by the server's Send.

    verbs_peer.py ADDRESS PORT MOUNTD_PORT [STEP...]

runs the steps (all of them where none is named), each a function below, and prints one JSON object with what each saw.
"""

import json
import os
import signal
import socket
import struct
import sys
import time
from collections.abc import Sequence
from typing import Any

import pyverbs.cm_enums as ce
import pyverbs.enums as e
from pyverbs.cmid import CMID, AddrInfo, CMEvent, CMEventChannel, ConnParam
from pyverbs.cq import CQ
from pyverbs.mr import MR, MW, MWBindInfo
from pyverbs.pd import PD
from pyverbs.qp import QP, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

INLINE = 4096
RECEIVES = 16
MAGIC = 0xF6AB0E18
RDMA_MSG, RDMA_NOMSG, RDMA_ERROR = 0, 1, 4
NFS, MOUNT = 100003, 100005
Segment = tuple[int, int, int]
"""Handle, length, offset (RFC 8166 section 3.4.3)."""
Chunk = Sequence[Segment]
REMOTE = e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_WRITE


class Gone(Exception):
    """The connection was lost, or a work request failed."""


def opaque(data: bytes) -> bytes:
    """XDR variable-length opaque."""
    return struct.pack(">I", len(data)) + data + bytes(-len(data) % 4)


def private_data(remote_invalidation: bool = True, inline: int = INLINE) -> bytes:
    """RFC 8797 section 4: magic, version, flags (R), send and receive size in units of 1024, less one."""
    return struct.pack(">IBBBB", MAGIC, 1, int(remote_invalidation), inline // 1024 - 1, inline // 1024 - 1)


class Region:
    """Memory the server may reach: ``key`` and ``address`` go into chunks."""

    def __init__(self, connection: "Connection", size: int) -> None:
        access = e.IBV_ACCESS_LOCAL_WRITE | REMOTE
        if connection.windows:
            access |= e.IBV_ACCESS_MW_BIND
        self.mr = MR(connection.pd, size, access)
        self.size = size
        self.address = self.mr.buf
        self.key = self.mr.rkey
        self.window = None
        if connection.windows:
            self.window = MW(connection.pd, e.IBV_MW_TYPE_2)
            # a type 2 window gets a key whose low octet the binder chooses anew
            self.key = (self.window.rkey & ~0xFF) | ((self.window.rkey + 1) & 0xFF)
            connection.bind(self)

    def segment(self, start: int = 0, length: int | None = None) -> Segment:
        """(handle, length, offset) of a part."""
        return self.key, (self.size - start if length is None else length), self.address + start

    def read(self, length: int, start: int = 0) -> bytes:
        return bytes(self.mr.read(length, start))

    def write(self, data: bytes, start: int = 0) -> None:
        self.mr.write(data, len(data), start)

    def close(self) -> None:
        if self.window is not None:
            self.window.close()
        self.mr.close()


class Connection:
    """An RDMA-CM connection with a queue pair of ours, and calls on it, one at a time."""

    def __init__(self, address: str, port: int, offered: bytes) -> None:
        self.xid = int.from_bytes(os.urandom(3), "big") << 8
        self.channel = CMEventChannel()
        self.cmid = CMID(creator=self.channel)
        target = AddrInfo(dst=address, dst_service=str(port), port_space=ce.RDMA_PS_TCP)
        self.cmid.resolve_addr(target, 5000)
        self._event(ce.RDMA_CM_EVENT_ADDR_RESOLVED)
        self.cmid.resolve_route(5000)
        self._event(ce.RDMA_CM_EVENT_ROUTE_RESOLVED)
        self.context = self.cmid.context
        self.windows = bool(self.context.query_device().device_cap_flags & e.IBV_DEVICE_MEM_WINDOW_TYPE_2B)
        self.pd = PD(self.context)
        self.send_cq = CQ(self.context, 64)
        self.receive_cq = CQ(self.context, RECEIVES + 1)
        caps = QPCap(max_send_wr=32, max_recv_wr=RECEIVES, max_send_sge=1, max_recv_sge=1)
        init = QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.send_cq, rcq=self.receive_cq, cap=caps, sq_sig_all=1)
        self.qp = QP(self.pd, init)
        self._modify(e.IBV_QPS_INIT)
        self.messages = MR(self.pd, INLINE * (RECEIVES + 1), e.IBV_ACCESS_LOCAL_WRITE)
        for slot in range(RECEIVES):
            self._post_receive(slot)
        parameters = ConnParam(
            resources=16, depth=0, retry=6, rnr_retry=0, qp_num=self.qp.qp_num, data_len=len(offered)
        )
        parameters.set_private_data(offered)
        self.cmid.connect(parameters)
        event = CMEvent(self.channel)
        self.kind = event.event_type
        self.accepted = bytes(event.private_data or b"")
        text = event.event_str()
        event.ack_cm_event()
        if self.kind == ce.RDMA_CM_EVENT_CONNECT_RESPONSE:
            self._modify(e.IBV_QPS_RTR)
            self._modify(e.IBV_QPS_RTS)
            self.cmid.establish()
        elif self.kind != ce.RDMA_CM_EVENT_ESTABLISHED:
            raise Gone(text if isinstance(text, str) else text.decode())
        self.credits = 1

    def _event(self, wanted: int) -> None:
        event = CMEvent(self.channel)
        kind = event.event_type
        event.ack_cm_event()
        if kind != wanted:
            raise Gone(f"RDMA-CM event {kind}, not {wanted}")

    def _modify(self, state: int) -> None:
        attributes, mask = self.cmid.init_qp_attr(state)
        if state == e.IBV_QPS_INIT:
            attributes.qp_access_flags = e.IBV_ACCESS_LOCAL_WRITE | REMOTE
            mask |= e.IBV_QP_ACCESS_FLAGS
        self.qp.modify(attributes, mask)

    def _post_receive(self, slot: int) -> None:
        sge = SGE(self.messages.buf + slot * INLINE, INLINE, self.messages.lkey)
        self.qp.post_recv(RecvWR(wr_id=slot, num_sge=1, sg=[sge]))

    def _poll(self, cq: CQ, seconds: float) -> Any:
        """The next completion. Raises Gone for one with an error, and when none comes in time."""
        deadline = time.monotonic() + seconds
        while True:
            count, completions = cq.poll()
            if count:
                if completions[0].status != e.IBV_WC_SUCCESS:
                    raise Gone(f"work completion status {completions[0].status}")
                return completions[0]
            if time.monotonic() > deadline:
                raise Gone(f"no completion in {seconds} s")
            time.sleep(0.0005)

    def bind(self, region: Region) -> None:
        """Bind a region's window."""
        work = SendWR(wr_id=1, opcode=e.IBV_WR_BIND_MW, num_sge=0, sg=None, send_flags=e.IBV_SEND_SIGNALED)
        work.set_bind_wr(region.window, MWBindInfo(region.mr, region.address, region.size, REMOTE))
        work.rkey = region.key
        self.qp.post_send(work)
        self._poll(self.send_cq, 10)

    def send(self, message: bytes) -> None:
        self.messages.write(message, len(message), RECEIVES * INLINE)
        sge = SGE(self.messages.buf + RECEIVES * INLINE, len(message), self.messages.lkey)
        self.qp.post_send(SendWR(wr_id=0, num_sge=1, sg=[sge], send_flags=e.IBV_SEND_SIGNALED))
        self._poll(self.send_cq, 20)

    def receive(self, seconds: float = 30) -> tuple[bytes, int | None]:
        """(message, key the server's Send invalidated or None)."""
        completion = self._poll(self.receive_cq, seconds)
        message = bytes(self.messages.read(completion.byte_len, completion.wr_id * INLINE))
        self._post_receive(completion.wr_id)
        # libsiw does not tell: there the key is known to be invalid by trying it (step_invalidated_key_is_dead)
        invalidated = None
        if completion.wc_flags & e.IBV_WC_WITH_INV:
            invalidated = completion.imm_data
        return message, invalidated

    def call(
        self,
        program: int,
        version: int,
        procedure: int,
        arguments: bytes,
        *,
        reads: Sequence[tuple[int, Segment]] = (),
        writes: Sequence[Chunk] = (),
        reply: Chunk = (),
        asked: int = 32,
    ) -> "Reply":
        """One RPC. ``reads``: (position in the RPC message after the call header, segment). Returns a Reply."""
        self.xid += 1
        rpc = struct.pack(">IIIIII", self.xid, 0, 2, program, version, procedure)
        rpc += struct.pack(">II", 1, 20) + struct.pack(">IIIII", 0, 0, 0, 0, 0)  # AUTH_SYS: root, no name, no groups
        rpc += struct.pack(">II", 0, 0)
        header = struct.pack(">IIII", self.xid, 1, asked, RDMA_MSG)
        for position, (handle, length, offset) in reads:
            header += struct.pack(">IIIIQ", 1, len(rpc) + position, handle, length, offset)
        header += struct.pack(">I", 0)
        for chunk in writes:
            header += struct.pack(">II", 1, len(chunk)) + b"".join(struct.pack(">IIQ", *segment) for segment in chunk)
        header += struct.pack(">I", 0)
        if reply:
            header += struct.pack(">II", 1, len(reply)) + b"".join(struct.pack(">IIQ", *segment) for segment in reply)
        else:
            header += struct.pack(">I", 0)
        self.send(header + rpc + arguments)
        message, invalidated = self.receive()
        return Reply(self, message, invalidated)

    def close(self) -> None:
        self.cmid.disconnect()


class Reply:
    """A reply's transport header taken apart; ``rpc`` is the RPC reply where it came inline."""

    def __init__(self, connection: Connection, message: bytes, invalidated: int | None) -> None:
        self.invalidated = invalidated
        xid, version, self.credits, self.kind = struct.unpack_from(">IIII", message)
        assert (xid, version) == (connection.xid, 1), (hex(xid), version)
        at = 16
        self.error = struct.unpack_from(">I", message, at)[0] if self.kind == RDMA_ERROR else None
        self.writes: list[list[Segment]] = []
        self.reply: list[Segment] | None = None
        self.rpc = b""
        self.connection = connection
        if self.kind == RDMA_ERROR:
            return
        assert struct.unpack_from(">I", message, at)[0] == 0, "a reply has no Read list"
        at += 4
        while struct.unpack_from(">I", message, at)[0]:
            chunk, at = self._segments(message, at + 4)
            self.writes.append(chunk)
        at += 4
        present = struct.unpack_from(">I", message, at)[0]
        at += 4
        if present:
            self.reply, at = self._segments(message, at)
        self.rpc = message[at:]

    @staticmethod
    def _segments(message: bytes, at: int) -> tuple[list[Segment], int]:
        (count,) = struct.unpack_from(">I", message, at)
        segments = [struct.unpack_from(">IIQ", message, at + 4 + 16 * number) for number in range(count)]
        return segments, at + 4 + 16 * count

    def results(self, rpc: bytes | None = None) -> bytes:
        """The results behind an accepted, successful RPC reply."""
        rpc = self.rpc if rpc is None else rpc
        xid, direction, state, flavor, length, accepted = struct.unpack_from(">IIIIII", rpc)
        assert (xid, direction, state, flavor, length, accepted) == (self.connection.xid, 1, 0, 0, 0, 0)
        return rpc[24:]


def mount(address: str, port: int, path: bytes) -> bytes:
    """The root file handle, from MOUNT over TCP with record marking."""
    call = struct.pack(">IIIIII", 7, 0, 2, MOUNT, 3, 1) + struct.pack(">II", 1, 20) + bytes(20) + bytes(8)
    call += opaque(path)
    with socket.create_connection((address, port), 20) as sock:
        sock.sendall(struct.pack(">I", 0x80000000 | len(call)) + call)
        stream = sock.makefile("rb")
        (mark,) = struct.unpack(">I", stream.read(4))
        answer = stream.read(mark & 0x7FFFFFFF)
    status, length = struct.unpack_from(">II", answer, 24)
    assert status == 0, status
    return answer[32 : 32 + length]


def skip_attributes(data: bytes, at: int) -> int:
    """Behind a post_op_attr (84 octets of fattr3)."""
    return at + 4 + (84 if struct.unpack_from(">I", data, at)[0] else 0)


def skip_wcc(data: bytes, at: int) -> int:
    at += 4 + (24 if struct.unpack_from(">I", data, at)[0] else 0)
    return skip_attributes(data, at)


def create(connection: Connection, root: bytes, name: bytes) -> bytes:
    """NFSv3 CREATE, UNCHECKED, mode 0644: the new file's handle."""
    attributes = struct.pack(">II", 1, 0o644) + struct.pack(">IIIII", 0, 0, 0, 0, 0)
    reply = connection.call(NFS, 3, 8, opaque(root) + opaque(name) + struct.pack(">I", 0) + attributes)
    results = reply.results()
    status, follows, length = struct.unpack_from(">III", results)
    assert (status, follows) == (0, 1), status
    return results[12 : 12 + length]


def write_arguments(handle: bytes, length: int, offset: int = 0, stable: int = 2) -> bytes:
    """WRITE3args up to and with the length of the data, which a Read chunk carries."""
    return opaque(handle) + struct.pack(">QIII", offset, length, stable, length)


def read_arguments(handle: bytes, length: int, offset: int = 0) -> bytes:
    return opaque(handle) + struct.pack(">QI", offset, length)


def pattern(length: int, seed: int) -> bytes:
    """Octets that differ everywhere."""
    return bytes((seed + number * 7 + (number >> 8) * 13) & 0xFF for number in range(251)) * (length // 251 + 1)


class Session:
    """What the steps share."""

    def __init__(self, address: str, port: int, mountd: int) -> None:
        self.address, self.port = address, port
        self.root = mount(address, mountd, b"/export")
        self.seen: dict[str, Any] = {}

    def connect(self, offered: bytes | None = None) -> Connection:
        return Connection(self.address, self.port, private_data() if offered is None else offered)


def step_private_data(session: Session) -> dict[str, Any]:
    """What the server sends with its accept, and an inline NULL."""
    connection = session.connect()
    reply = connection.call(NFS, 3, 0, b"")
    device = connection.context.name
    seen: dict[str, Any] = {
        "device": device.decode() if isinstance(device, bytes) else device,
        "windows": connection.windows,
        "accepted": connection.accepted.hex(),
        "null": [reply.kind, len(reply.results()), reply.invalidated],
        "credits": reply.credits,
    }
    connection.close()
    return seen


def step_write_and_read(session: Session) -> dict[str, Any]:
    """WRITE by a Read chunk, READ by a Write chunk of two segments; both keys come back invalidated."""
    connection = session.connect()
    handle = create(connection, session.root, b"peer")
    length = 300_001
    data = pattern(length, 1)[:length]
    source = Region(connection, length)
    source.write(data)
    arguments = write_arguments(handle, length)
    wrote = connection.call(NFS, 3, 7, arguments, reads=[(len(arguments), source.segment())])
    results = wrote.results()
    assert struct.unpack_from(">I", results)[0] == 0, results[:4]
    count, committed = struct.unpack_from(">II", results, skip_wcc(results, 4))
    sink = Region(connection, 400_000)
    split = 131_072
    chunk = [sink.segment(0, split), sink.segment(200_000, 200_000)]
    got = connection.call(NFS, 3, 6, read_arguments(handle, length), writes=[chunk])
    results = got.results()
    assert struct.unpack_from(">I", results)[0] == 0, results[:4]
    at = skip_attributes(results, 4)
    read_count, eof, data_length = struct.unpack_from(">III", results, at)
    seen: dict[str, Any] = {
        "written": [count, committed],
        "write_invalidated": wrote.invalidated == source.key,
        "read": [read_count, eof, data_length],
        "inline_rest": len(results) - at - 12,
        "lengths": [segment[1] for segment in got.writes[0]],
        "handles_kept": [segment[0] for segment in got.writes[0]] == [sink.key, sink.key],
        "data_right": sink.read(split) + sink.read(length - split, 200_000) == data,
        "gap_untouched": sink.read(200_000 - split, split) == bytes(200_000 - split),
        "read_invalidated": got.invalidated == sink.key,
    }
    connection.close()
    return seen


def step_invalidated_key_is_dead(session: Session) -> dict[str, Any]:
    """After the server's Send has invalidated a key, an RPC that offers it again cannot move data; the connection dies.

    The control is the first READ through the same key.
    """
    connection = session.connect()
    handle = create(connection, session.root, b"peer")
    sink = Region(connection, 65536)
    first = connection.call(NFS, 3, 6, read_arguments(handle, 65536), writes=[[sink.segment()]])
    moved = sink.read(65536) != bytes(65536)
    sink.write(bytes(65536))
    seen: dict[str, Any] = {"first_moved_data": moved, "first_invalidated": first.invalidated == sink.key, "lost": ""}
    try:
        connection.call(NFS, 3, 6, read_arguments(handle, 65536), writes=[[sink.segment()]])
    except Gone as gone:
        seen["lost"] = str(gone)
    seen["second_moved_data"] = sink.read(65536) != bytes(65536)
    return seen


def step_two_keys(session: Session) -> dict[str, Any]:
    """A Read chunk of one key and a Reply chunk of another: at most one of them can be invalidated."""
    connection = session.connect()
    handle = create(connection, session.root, b"peer2")
    source, spare = Region(connection, 8192), Region(connection, 8192)
    source.write(b"z" * 8192)
    arguments = write_arguments(handle, 8192)
    reply = connection.call(NFS, 3, 7, arguments, reads=[(len(arguments), source.segment())], reply=[spare.segment()])
    seen: dict[str, Any] = {
        "kind": reply.kind,
        "reply_chunk": None if reply.reply is None else [segment[1] for segment in reply.reply],
        "invalidated": {source.key: "source", spare.key: "reply chunk", None: "nothing"}.get(
            reply.invalidated, "alien"
        ),
    }
    connection.close()
    return seen


def step_reply_chunk(session: Session) -> dict[str, Any]:
    """A reply too long for a Receive goes into the Reply chunk: READ of 64 KiB without a Write chunk."""
    connection = session.connect()
    handle = create(connection, session.root, b"peer")
    sink = Region(connection, 80_000)
    reply = connection.call(NFS, 3, 6, read_arguments(handle, 65536), reply=[sink.segment()])
    lengths = [segment[1] for segment in reply.reply or []]
    rpc = sink.read(sum(lengths))
    results = reply.results(rpc)
    at = skip_attributes(results, 4)
    count, _, length = struct.unpack_from(">III", results, at)
    data = results[at + 12 : at + 12 + length]
    seen: dict[str, Any] = {
        "kind": reply.kind,
        "inline_rest": len(reply.rpc),
        "count": count,
        "length_fits": lengths == [24 + at + 12 + length],
        "data_right": data == pattern(300_001, 1)[:65536],
        "invalidated": reply.invalidated == sink.key,
    }
    connection.close()
    return seen


def step_without_reply_chunk(session: Session) -> dict[str, Any]:
    """No chunk for a long reply: RDMA_ERROR with ERR_CHUNK (2), and the connection lives (RFC 8166 section 4.5.3)."""
    connection = session.connect()
    handle = create(connection, session.root, b"peer")
    reply = connection.call(NFS, 3, 6, read_arguments(handle, 65536))
    again = connection.call(NFS, 3, 0, b"")
    seen = {"kind": reply.kind, "error": reply.error, "then": again.kind}
    connection.close()
    return seen


def step_no_remote_invalidation(session: Session) -> dict[str, Any]:
    """A peer without R in its private data, and one without any private data: nothing is invalidated."""
    seen: dict[str, Any] = {}
    for name, offered in (("without_r", private_data(False)), ("alien", b"\x01\x02\x03\x04abcd")):
        connection = session.connect(offered)
        handle = create(connection, session.root, b"peer")
        sink = Region(connection, 8192)
        twice = []
        for _ in range(2):  # the same key serves again
            sink.write(bytes(8192))
            reply = connection.call(NFS, 3, 6, read_arguments(handle, 8192), writes=[[sink.segment()]])
            twice.append([reply.invalidated, sink.read(8192) == pattern(300_001, 1)[:8192]])
        seen[name] = {"accepted": connection.accepted[:8].hex(), "reads": twice}
        connection.close()
    return seen


def step_many_connections(session: Session) -> dict[str, Any]:
    """Connections opened, used and closed one after the other."""
    for _ in range(10):
        connection = session.connect()
        assert connection.call(NFS, 3, 0, b"").kind == RDMA_MSG
        connection.close()
    return {"connections": 10}


def main() -> None:
    address, port, mountd, *steps = sys.argv[1:]
    steps = steps or [name.removeprefix("step_") for name in globals() if name.startswith("step_")]
    session = Session(address, int(port), int(mountd))
    for step in steps:
        signal.alarm(60)  # RDMA-CM's events are waited for in C, holding the interpreter: only a signal ends that
        session.seen[step] = globals()[f"step_{step}"](session)
        print(f"{step}: {session.seen[step]}", file=sys.stderr, flush=True)
    print(json.dumps(session.seen), flush=True)
    os._exit(0)  # pyverbs' destructors run in no order that rdma-core likes


if __name__ == "__main__":
    main()
