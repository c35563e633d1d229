"""An RPC-over-RDMA requester's connection on pyverbs: RDMA-CM, a queue pair, memory, calls and their replies.

Imports nothing but pyverbs and the standard library, so that it shares no mistake with the server: RDMA-CM with private
data (RFC 8797), RPC-over-RDMA version One (RFC 8166). The memory it offers is memory windows of type 2 where the device
has them, else memory regions: both can be invalidated by the server's Send.
"""

import os
import struct
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
IB_WC_WITH_INVALIDATE = 4
MAGIC = 0xF6AB0E18
RDMA_MSG, RDMA_NOMSG, RDMA_ERROR = 0, 1, 4
NFS, MOUNT = 100003, 100005
Segment = tuple[int, int, int]
"""Handle, length, offset (RFC 8166 section 3.4.3)."""
Chunk = Sequence[Segment]
REMOTE = e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_WRITE


KEPT: list[object] = []
"""Lives as long as the program: pyverbs' destructors come in an order in which the kernel refuses them."""


class Gone(Exception):
    """The connection was lost, or a work request failed."""


class NotYet(Gone):
    """No completion came in time."""


def opaque(data: bytes) -> bytes:
    """XDR variable-length opaque."""
    return struct.pack(">I", len(data)) + data + bytes(-len(data) % 4)


def private_data(remote_invalidation: bool = True, inline: int = INLINE) -> bytes:
    """RFC 8797 section 4: magic, version, flags (R), send and receive size in units of 1024, less one."""
    return struct.pack(">IBBBB", MAGIC, 1, int(remote_invalidation), inline // 1024 - 1, inline // 1024 - 1)


def rpc_call(xid: int, program: int, version: int, procedure: int) -> bytes:
    """The header of a call by root (AUTH_SYS, no name, no groups)."""
    return struct.pack(">IIIIII", xid, 0, 2, program, version, procedure) + struct.pack(">II", 1, 20) + bytes(28)


class Region:
    """Memory the server may reach: ``key`` and ``address`` go into chunks."""

    def __init__(self, connection: "Connection", size: int) -> None:
        access = e.IBV_ACCESS_LOCAL_WRITE | REMOTE
        if connection.windows:
            access |= e.IBV_ACCESS_MW_BIND
        self.mr = MR(connection.pd, size, access)
        KEPT.append(self)
        self.size = size
        self.address = self.mr.buf
        self.key = self.mr.rkey
        self.window = None
        if connection.windows:
            self.window = MW(connection.pd, e.IBV_MW_TYPE_2)
            connection.bind(self)

    def segment(self, start: int = 0, length: int | None = None) -> Segment:
        """(handle, length, offset) of a part."""
        return self.key, (self.size - start if length is None else length), self.address + start

    def read(self, length: int, start: int = 0) -> bytes:
        return bytes(self.mr.read(length, start))

    def write(self, data: bytes, start: int = 0) -> None:
        self.mr.write(data, len(data), start)


class Connection:
    """An RDMA-CM connection with a queue pair of ours, and calls on it, one at a time."""

    def __init__(self, address: str, port: int, offered: bytes) -> None:
        self.xid = int.from_bytes(os.urandom(3), "big") << 8
        KEPT.append(self)
        self.channel = CMEventChannel()
        self.cmid = CMID(creator=self.channel)
        target = AddrInfo(dst=address, dst_service=str(port), port_space=ce.RDMA_PS_TCP)
        self.cmid.resolve_addr(target, 5000)
        self._event(ce.RDMA_CM_EVENT_ADDR_RESOLVED)
        self.cmid.resolve_route(5000)
        self._event(ce.RDMA_CM_EVENT_ROUTE_RESOLVED)
        self.context = self.cmid.context
        name = self.context.name
        self.device = name.decode() if isinstance(name, bytes) else name
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
                raise NotYet(f"no completion in {seconds} s")
            time.sleep(0.0005)

    def bind(self, region: Region) -> None:
        """Bind a region's window, which gives it its key."""
        work = SendWR(wr_id=1, opcode=e.IBV_WR_BIND_MW, num_sge=0, sg=None, send_flags=e.IBV_SEND_SIGNALED)
        work.set_bind_wr(region.window, MWBindInfo(region.mr, region.address, region.size, REMOTE))
        region.key = work.rkey  # a type 2 window gets a key whose low octet is new; pyverbs has chosen it
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
        # libsiw does not tell: there the key is known to be invalid by trying it (step_invalidated_key_is_dead). librxe
        # hands the kernel's own flag on (IB_WC_WITH_INVALIDATE, 4), which is another number than the library's.
        invalidated = None
        flag = IB_WC_WITH_INVALIDATE if self.device == "rxe0" else e.IBV_WC_WITH_INV
        if completion.wc_flags & flag:
            invalidated = completion.imm_data  # one field in C for both
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
        rpc = rpc_call(self.xid, program, version, procedure)
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

    def wake(self) -> None:
        """Make sure that a server on siw hears us, by NULL calls.

        siw's accepting side answers the MPA request before it listens to the socket for FPDUs (siw_accept): one that
        comes in between is noticed with the next one only.
        """
        outstanding = 0
        for xid in range(0xFFFFFF00, 0xFFFFFF08):
            self.send(struct.pack(">IIIIIII", xid, 1, 32, RDMA_MSG, 0, 0, 0) + rpc_call(xid, NFS, 3, 0))
            outstanding += 1
            try:
                while outstanding:
                    self.receive(3)
                    outstanding -= 1
                return
            except NotYet:
                continue
        raise Gone("no answer to NULL")

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
