"""Which sockets a configuration asks for, whoever makes them: the server, its supervisor, or a check that only tries.

Owns :func:`planned`; imports the configuration.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from nfsd.config import Config, Location, Server
from nfsd.versions import V3
from rpcrdma.rpc.rpcbind import PORT as PORTMAPPER_PORT


class Place(NamedTuple):
    """Where one service listens. Two entries of ``listen`` may have the same one, if the port is to be found."""

    service: str
    """``nfs``, ``mountd``, ``nlm``, ``nsm``, ``rquota`` or ``rpcbind``."""
    kind: str
    """``tcp``, ``udp``, or ``rdma``, which is RDMA over TCP or over a device."""
    host: str
    port: int
    """0: one that is free; with ``udp``, that of the service's ``tcp`` on this host."""


class Program(NamedTuple):
    """A service that goes with NFS."""

    service: str
    key: str
    """That of ``server`` which sets the port."""
    what: str
    """Its name in messages."""
    port: int
    udp: bool


def programs(server: Server) -> Iterator[Program]:
    """What is served besides NFS."""
    v3 = server.spoken & V3
    if v3:
        yield Program("mountd", "mountd_port", "MOUNT (NFSv3)", server.mountd_port, udp=False)
    if server.nlm and v3:
        yield Program("nlm", "nlm_port", "NLM (NFSv3's locks)", server.nlm_port, udp=False)
        yield Program("nsm", "nsm_port", "NSM (NFSv3's locks)", server.nsm_port, udp=True)
    if server.rquota:
        yield Program("rquota", "rquota_port", "RQUOTA", server.rquota_port, udp=True)
    if server.portmapper:
        yield Program("rpcbind", "portmapper", "the portmapper", PORTMAPPER_PORT, udp=True)


def program_hosts(server: Server) -> list[str]:
    """Where those are: on the hosts of the TCP listeners, or of all if there is none of those."""
    addresses = [entry.address for entry in server.listen]
    over_tcp = [address.host for address in addresses if address.scheme == "tcp"]
    return mount_hosts(over_tcp or [address.host for address in addresses])


def mount_hosts(hosts: Iterable[str]) -> list[str]:
    """Where MOUNT listens: each host once, and only the address for all where there is one."""
    unique = list(dict.fromkeys(hosts))
    if "::" in unique:
        return ["::"]
    if "0.0.0.0" in unique:
        return [host for host in unique if host == "0.0.0.0" or ":" in host]
    return unique


def planned(config: Config) -> Iterator[tuple[Location, Place]]:
    """All of them, with the keys that ask for them; a service's ``udp`` behind its ``tcp``."""
    server = config.server
    for index, entry in enumerate(server.listen):
        yield ("server", "listen", index), Place("nfs", *entry.address)
    for program in programs(server):
        for host in program_hosts(server):
            for kind in ("tcp", "udp") if program.udp else ("tcp",):
                yield ("server", program.key), Place(program.service, kind, host, program.port)
