"""Run in the server's guest: ``early_message.py ADDRESS PORT PID``. An iWARP requester, octet by octet, whose first
message is there before the server (process PID) accepts the connection.

Linux's siw, on the accepting side, overlooks such a message. That also happens to a message which comes in time, on a
busy host and rarely; here it happens always. Prints the operations that came from the server, and the reply's XID.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import sys
import time

# MPA Request: revision 2, no markers, no CRC; IRD 128, ORD 0; the private data of RFC 8797.
REQUEST = bytes.fromhex("4d504120494420526571204672616d65 1002 000c 0080 0000 f6ab0e1801010303")
READ_REQUEST, SEND = 1, 3
XID = 0x0EA71E57


def fpdu(ulpdu: bytes) -> bytes:
    """Length, ULPDU, padding, and a CRC that nobody asked for (RFC 5044 section 4)."""
    return struct.pack(">H", len(ulpdu)) + ulpdu + bytes(-(2 + len(ulpdu)) % 4) + bytes(4)


def null_call() -> bytes:
    """RPC-over-RDMA's header without chunks, and a NULL call of NFSv3."""
    return struct.pack(">7I", XID, 1, 8, 0, 0, 0, 0) + struct.pack(">10I", XID, 0, 2, 100003, 3, 0, 0, 0, 0, 0)


def main(host: str, port: int, server: int) -> None:
    """Connect while the server stands still, send, and have it go on."""
    operations = []
    with socket.create_connection((host, port), timeout=30) as sock:
        stream = sock.makefile("rb")
        os.kill(server, signal.SIGSTOP)
        try:
            sock.sendall(REQUEST)
            time.sleep(1)  # the kernel has taken the request by then, and tells the server of it
            # Untagged, last, Send; queue 0, message 1, offset 0 (RFC 5041 section 4.3).
            sock.sendall(fpdu(bytes.fromhex("4143 00000000 00000000 00000001 00000000") + null_call()))
            time.sleep(0.5)
        finally:
            os.kill(server, signal.SIGCONT)
        reply = stream.read(20)
        assert reply[:16] == b"MPA ID Rep Frame", reply
        stream.read(struct.unpack_from(">H", reply, 18)[0])
        while SEND not in operations:
            (length,) = struct.unpack(">H", stream.read(2))
            rest = stream.read(length + (-(2 + length) % 4) + 4)
            operations.append(rest[1] & 15)
            if operations[-1] == READ_REQUEST:
                sink, place, size = struct.unpack_from(">IQI", rest, 18)
                assert size == 0, "there is nothing here to be read"
                sock.sendall(fpdu(bytes.fromhex("c142") + struct.pack(">IQ", sink, place)))
        print(json.dumps({"operations": operations, "xid": struct.unpack_from(">I", rest, 18)[0]}))


main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
