"""First messages that siw overlooks, on the accepting side.

Owns :func:`unread`; imports nothing of the project.

What goes wrong
    siw sends the MPA Reply before it has itself told of what arrives on the connection (``siw_accept`` in the kernel:
    ``siw_send_mpareqrep`` comes before ``siw_qp_socket_assoc``). A message that comes in between is TCP's, unread,
    until the next segment arrives; but the peer, which waits for the answer, sends none. A Linux client would connect
    again after a minute.

The remedy
    When there are octets that TCP has and siw has not read, the peer is made to send more: an RDMA Read of no octets
    has no effect, names no memory, and must be answered (RFC 5040 section 5.2.1). Before the peer's first octets are
    here nothing may be sent, so that the peer can be ready for it (RFC 5044 section 7.1.2, rule 4); siw breaks
    connections on which something follows the Reply too soon.
"""

from __future__ import annotations

import ipaddress
import sys

TABLES = {4: "/proc/net/tcp", 6: "/proc/net/tcp6"}
"""The kernel's connections, siw's among them: proc_net_tcp(5) has the format."""


def unread(local: tuple[str, int], peer: tuple[str, int]) -> int:
    """Octets that TCP has received on a connection and nobody has read; 0 too when there is no such connection."""
    try:
        with open(TABLES[ipaddress.ip_address(local[0]).version], encoding="ascii") as table:
            return unread_in(table.read(), local, peer)
    except (OSError, ValueError):
        return 0


def unread_in(table: str, local: tuple[str, int], peer: tuple[str, int]) -> int:
    """The same, of the kernel's table."""
    ends = f" {_end(*local)} {_end(*peer)} "
    at = table.find(ends)
    if at < 0:
        return 0
    # After the two ends: the state, then transmit and receive queue as XXXXXXXX:XXXXXXXX.
    queues = table[at + len(ends) :].split(maxsplit=2)[1]
    return int(queues.partition(":")[2], 16)


def _end(host: str, port: int) -> str:
    """An end as the table has it: words of the address in this machine's octet order."""
    packed = ipaddress.ip_address(host).packed
    words = (int.from_bytes(packed[at : at + 4], sys.byteorder) for at in range(0, len(packed), 4))
    return "".join(f"{word:08X}" for word in words) + f":{port:04X}"
