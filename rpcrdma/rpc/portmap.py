"""What rpcbind answers, for hosts where none runs: program 100000, versions 2 to 4, for this server's programs only.

Owns the read-only half of the protocol: NULL, GETPORT, GETADDR, GETVERSADDR, GETADDRLIST, DUMP, GETSTAT; nobody can
register anything, or have the server call others (CALLIT, INDIRECT): these are counted and refused.
Imports the vocabulary of programs. RFC 1833 sections 2 and 3.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Final

from rpcrdma.log_limits import limited_logger
from rpcrdma.rpc.program import Call, Procedure, ProcedureUnavailable, Program
from rpcrdma.rpc.rpcbind import RPCBPROC_GETADDR, RPCBPROG, RPCBVERS4, Service, rpcb, universal_address
from rpcrdma.xdr import chain, fixed_array, int32, opaque, struct, uint32

PMAPVERS: Final = 2
RPCBVERS3: Final = 3
PMAPPROC_GETPORT: Final = 3
PMAPPROC_DUMP: Final = 4
RPCBPROC_DUMP: Final = 4
RPCBPROC_GETVERSADDR: Final = 9
RPCBPROC_GETADDRLIST: Final = 11
RPCBPROC_GETSTAT: Final = 12
RPCBSTAT_HIGHPROC: Final = 13
PMAPPROC_HIGHEST, RPCBPROC3_HIGHEST = 5, 8
IPPROTO_TCP, IPPROTO_UDP = 6, 17
_log = limited_logger(__name__)
_PROTOCOLS: Final = {"tcp": IPPROTO_TCP, "udp": IPPROTO_UDP}
_NETIDS: Final = {number: netid for netid, number in _PROTOCOLS.items()}
_LONGEST_NETID: Final = 16
_ANY: Final = ("0.0.0.0", "::")
_MOST: Final = 1024
_MOST_COUNTED: Final = 64
"""Ways that are asked for and counted one by one: callers choose what they ask for."""
_LARGEST_COUNT: Final = 0x7FFFFFFF
"""Of an int."""


@struct
class mapping:
    """Version 2's mapping of a program to a port (section 3.1)."""

    prog: uint32
    vers: uint32
    prot: uint32
    port: uint32


@struct
class rpcb_entry:
    """One way to a program (section 2.1): an address and the transport, in netconfig(5)'s words."""

    r_maddr: Annotated[bytes, opaque(1024)]
    r_nc_netid: Annotated[bytes, opaque(1024)]
    r_nc_semantics: uint32
    r_nc_protofmly: Annotated[bytes, opaque(1024)]
    r_nc_proto: Annotated[bytes, opaque(1024)]


@struct
class rpcbs_addrlist:
    """How often a program's address was asked for (section 2.1)."""

    prog: uint32
    vers: uint32
    success: int32
    failure: int32
    netid: Annotated[bytes, opaque(1024)]


@struct
class rpcbs_rmtcalllist:
    """How often a program was called through us (section 2.1): never."""

    prog: uint32
    vers: uint32
    proc: uint32
    success: int32
    failure: int32
    indirect: int32
    netid: Annotated[bytes, opaque(1024)]


@struct
class rpcb_stat:
    """What one version of the protocol was asked (section 2.1)."""

    info: Annotated[list[int32], fixed_array(RPCBSTAT_HIGHPROC)]
    setinfo: int32
    unsetinfo: int32
    addrinfo: Annotated[list[rpcbs_addrlist], chain(_MOST_COUNTED)]
    rmtinfo: Annotated[list[rpcbs_rmtcalllist], chain(_MOST_COUNTED)]


rpcb_stat_byvers = Annotated[list[rpcb_stat], fixed_array(3)]
universal = Annotated[bytes, opaque(1024)]
_pmaplist = Annotated[list[mapping], chain(_MOST)]
_rpcblist = Annotated[list[rpcb], chain(_MOST)]
rpcb_entry_list = Annotated[list[rpcb_entry], chain(_MOST)]
_NC_TPI_CLTS, _NC_TPI_COTS_ORD = 1, 3


def port_of_universal_address(address: bytes) -> int:
    """The port of a universal address (RFC 5665 section 5.2.3); 0: there is none."""
    words = address.split(b".")[-2:]
    if len(words) < 2 or not all(word.isdigit() and len(word) <= 3 and int(word) < 256 for word in words):
        return 0
    return int(words[0]) << 8 | int(words[1])


def _host_of(address: str) -> str:
    return address.rsplit(".", 2)[0]


class _Statistics:
    """What one version was asked since the start."""

    def __init__(self) -> None:
        self.calls = [0] * RPCBSTAT_HIGHPROC
        """By procedure."""
        self.asked: dict[tuple[int, int, str], list[int]] = {}
        """Successes and failures by program, version and netid; of what is served first of all."""

    def looked_up(self, program: int, version: int, netid: str, *, found: bool) -> None:
        """Somebody asked for an address."""
        way = program, version, netid
        counts = self.asked.get(way)
        if counts is None:
            if len(self.asked) >= _MOST_COUNTED:
                failed = next((each for each, counts in self.asked.items() if not counts[0]), None) if found else None
                if failed is None:
                    return
                del self.asked[failed]
            counts = self.asked[way] = [0, 0]
        counts[0 if found else 1] += 1

    def encoded(self) -> rpcb_stat:
        """As GETSTAT answers it."""
        return rpcb_stat(
            [min(count, _LARGEST_COUNT) for count in self.calls],
            0,
            0,
            [
                rpcbs_addrlist(
                    program, version, min(found, _LARGEST_COUNT), min(missed, _LARGEST_COUNT), netid.encode()
                )
                for (program, version, netid), (found, missed) in self.asked.items()
            ],
            [],
        )


class Portmapper:
    """The procedures."""

    def __init__(self, services: Callable[[], Iterable[Service]]) -> None:
        """``services``: what is served now, this program itself included."""
        self._services = services
        self._statistics = {version: _Statistics() for version in (PMAPVERS, RPCBVERS3, RPCBVERS4)}

    async def counted(self, handler: Callable[..., Awaitable[Any]], call: Call, *arguments: Any) -> Any:
        """Call a procedure, and count that."""
        self._statistics[call.version].calls[call.procedure] += 1
        return await handler(call, *arguments)

    async def refuse(self, call: Call) -> None:
        """A procedure that there is, and not here."""
        raise ProcedureUnavailable

    async def getstat(self, call: Call, arguments: None) -> list[rpcb_stat]:
        """What was asked so far, by version (section 2.2.2)."""
        _refuse_datagrams(call)
        return [self._statistics[version].encoded() for version in (PMAPVERS, RPCBVERS3, RPCBVERS4)]

    async def null(self, call: Call, arguments: None) -> None:
        """Answer, and do no work at all."""

    async def getport(self, call: Call, wanted: mapping) -> int:
        """The port of a program; 0: it is not served (section 3.1)."""
        found = [
            service
            for service in self._services()
            if service.program == wanted.prog and _PROTOCOLS.get(service.netid) == wanted.prot
        ]
        # Another version of the program at least tells the caller, at that port, which ones there are.
        best = [service for service in found if service.version == wanted.vers] or found
        if (netid := _NETIDS.get(wanted.prot)) is not None:
            self._looked_up(call, wanted.prog, wanted.vers, netid, found=bool(best))
        return port_of_universal_address(best[0].uaddr.encode()) if best else 0

    async def dump(self, call: Call, arguments: None) -> list[mapping]:
        """All of them, as far as version 2 has words for them."""
        _refuse_datagrams(call)
        return [
            mapping(service.program, service.version, protocol, port_of_universal_address(service.uaddr.encode()))
            for service in self._services()
            if (protocol := _PROTOCOLS.get(service.netid)) is not None
        ]

    async def getaddr(self, call: Call, wanted: rpcb) -> bytes:
        """The address of a program, of another version of it if need be; empty: it is not served (section 2.2.1)."""
        return self._address(call, wanted, exact=False)

    async def getversaddr(self, call: Call, wanted: rpcb) -> bytes:
        """The address of this very version."""
        return self._address(call, wanted, exact=True)

    def _address(self, call: Call, wanted: rpcb, *, exact: bool) -> bytes:
        # Section 2.2.1: the transport asked over is the one that is meant, whatever r_netid says in version 3; Linux
        # and libtirpc set it to what they want to hear of.
        netid = wanted.r_netid.decode("ascii", "replace") or call.transport.netid
        found = [s for s in self._services() if s.program == wanted.r_prog and s.netid == netid]
        best = [service for service in found if service.version == wanted.r_vers]
        if not best and not exact:
            best = found
        if len(netid) <= _LONGEST_NETID:
            self._looked_up(call, wanted.r_prog, wanted.r_vers, netid, found=bool(best))
        return _as_seen(call, best[0]) if best else b""

    def _looked_up(self, call: Call, program: int, version: int, netid: str, *, found: bool) -> None:
        """Count it. The log tells of a client that looks for datagrams where there are none, as ``mount -o udp`` does:
        the client cannot say why it finds nothing."""
        self._statistics[call.version].looked_up(program, version, netid, found=found)
        if found or not netid.startswith("udp"):
            return
        others = sorted({service.netid for service in self._services() if service.program == program})
        if others:
            _log.warning(
                "%s asks for program %d version %d over UDP, which is not served: it is over %s",
                call.transport.peer_address,
                program,
                version,
                " and ".join(others),
            )

    async def getaddrlist(self, call: Call, wanted: rpcb) -> list[rpcb_entry]:
        """Every way to this very version of a program (section 2.2.1)."""
        _refuse_datagrams(call)
        return [
            rpcb_entry(
                _as_seen(call, service),
                service.netid.encode(),
                _NC_TPI_CLTS if service.netid.startswith("udp") else _NC_TPI_COTS_ORD,
                b"inet6" if service.netid.endswith("6") else b"inet",
                service.netid.removesuffix("6").encode(),
            )
            for service in self._services()
            if (service.program, service.version) == (wanted.r_prog, wanted.r_vers)
        ]

    async def dump4(self, call: Call, arguments: None) -> list[rpcb]:
        """All of them."""
        _refuse_datagrams(call)
        return [rpcb(s.program, s.version, s.netid.encode(), s.uaddr.encode(), b"superuser") for s in self._services()]


def _as_seen(call: Call, service: Service) -> bytes:
    """A service's address; for one that listens on all of the host's, the one that the caller has asked."""
    host, port = _host_of(service.uaddr), port_of_universal_address(service.uaddr.encode())
    if host in _ANY and (":" in call.transport.local_address) == service.netid.endswith("6"):
        host = call.transport.local_address
    return universal_address(host, port).encode()


def _refuse_datagrams(call: Call) -> None:
    """A list is many times as long as the call for it, and nobody knows where a datagram comes from. The refusal is
    shorter than the call, and the caller need not wait for what will not come."""
    if call.transport.netid.startswith("udp"):
        raise ProcedureUnavailable


def portmap_program(services: Callable[[], Iterable[Service]]) -> Program:
    """The program for the dispatcher."""
    mapper = Portmapper(services)
    null = Procedure("NULL", mapper.null)
    version3: dict[int, Procedure] = {
        0: null,
        RPCBPROC_GETADDR: Procedure("GETADDR", mapper.getaddr, rpcb, universal),
        RPCBPROC_DUMP: Procedure("DUMP", mapper.dump4, None, _rpcblist),
    }
    version4: dict[int, Procedure] = {
        **version3,
        RPCBPROC_GETVERSADDR: Procedure("GETVERSADDR", mapper.getversaddr, rpcb, universal),
        RPCBPROC_GETADDRLIST: Procedure("GETADDRLIST", mapper.getaddrlist, rpcb, rpcb_entry_list),
        RPCBPROC_GETSTAT: Procedure("GETSTAT", mapper.getstat, None, rpcb_stat_byvers),
    }
    version2: dict[int, Procedure] = {
        0: null,
        PMAPPROC_GETPORT: Procedure("GETPORT", mapper.getport, mapping, uint32),
        PMAPPROC_DUMP: Procedure("DUMP", mapper.dump, None, _pmaplist),
    }
    return Program(
        RPCBPROG,
        "rpcbind",
        {
            PMAPVERS: _all_counted(mapper, version2, PMAPPROC_HIGHEST),
            RPCBVERS3: _all_counted(mapper, version3, RPCBPROC3_HIGHEST),
            RPCBVERS4: _all_counted(mapper, version4, RPCBPROC_GETSTAT),
        },
    )


def _all_counted(mapper: Portmapper, served: Mapping[int, Procedure], highest: int) -> dict[int, Procedure]:
    """The whole table of a version, what is refused included."""
    refused = Procedure("UNAVAILABLE", mapper.refuse, raw=True)
    table = {number: served.get(number, refused) for number in range(highest + 1)}
    return {
        number: replace(procedure, handler=partial(mapper.counted, procedure.handler))
        for number, procedure in table.items()
        if procedure.handler is not None
    }
