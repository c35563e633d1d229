"""A port for a server that a test starts, when the number has to be known before the start."""

import random
import socket
from contextlib import suppress
from pathlib import Path

_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port(host: str = "127.0.0.1") -> int:
    """A port of ``host`` that nobody has now, over TCP and over UDP.

    It lies below the ports that the kernel chooses from. Those may go to any connection of another test before the
    server has started.
    """
    lowest = int(_EPHEMERAL.read_text().split()[0])
    for port in random.sample(range(lowest // 2, lowest), 100):
        with suppress(OSError), socket.socket() as stream, socket.socket(type=socket.SOCK_DGRAM) as datagrams:
            stream.bind((host, port))
            datagrams.bind((host, port))
            return port
    raise OSError(f"none of a hundred ports of {host} is free")
