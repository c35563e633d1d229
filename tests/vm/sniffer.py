"""``python -m tests.vm.sniffer DEVICE FILE``: writes what passes a network device to a pcap file, until SIGTERM.

It needs nothing but the socket (packet(7)), and stamps each frame with the kernel's time of its coming or going. At the
end it prints how many frames there were, and how many the kernel had to drop.
"""

from __future__ import annotations

import signal
import socket
import struct
import sys
from contextlib import suppress
from pathlib import Path

_ETH_P_ALL = 3
_SO_RCVBUFFORCE, _SO_TIMESTAMPNS = 33, 35
_SOL_PACKET, _PACKET_STATISTICS = 263, 6
_ROOM = 64 << 20
_LONGEST = 1 << 18
_HEADER = struct.pack("=IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, _LONGEST, 1)
"""pcap with nanoseconds, Ethernet."""


def sniff(device: str, path: Path) -> tuple[int, int]:
    """Write frames until SIGTERM; how many there were, and how many were dropped."""
    going = [True]
    signal.signal(signal.SIGTERM, lambda *_: going.clear())
    count = 0
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL)) as source, path.open("wb") as file:
        source.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _ROOM)
        source.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        source.bind((device, 0))
        source.settimeout(0.2)
        file.write(_HEADER)
        print("sniffing", flush=True)
        while going:
            with suppress(TimeoutError):
                frame, more, _, _ = source.recvmsg(_LONGEST, 64)
                seconds, nanoseconds = struct.unpack("=qq", more[0][2][:16])
                file.write(struct.pack("=IIII", seconds, nanoseconds, len(frame), len(frame)) + frame)
                count += 1
        _, dropped = struct.unpack("=II", source.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8))
    return count, dropped


if __name__ == "__main__":
    print("{} frames, {} dropped".format(*sniff(sys.argv[1], Path(sys.argv[2]))))
