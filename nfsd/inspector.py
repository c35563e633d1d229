"""Shows what the running server knows, in rows for people and programs: clients, sessions, opens, locks, calls,
exports.

Owns :class:`Inspector`, which the control socket asks. It reads the tables of others and changes nothing. Rows are
plain values for JSON. In a long table it lets the loop go on now and then, so its rows may be of different moments.
Imports the server's parts.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeVar

from nfsd.events import name_of, version_of
from nfsd.exports import ExportTable, canonical_address
from nfsd.listeners import Listeners
from nfsd.mount.mountlist import MountList
from nfsd.pricing import host_of_any
from nfsd.state import StateEngine
from nfsd.state.clients import Client
from nfsd.state.records import OpenState
from nfsd.state.types import NLM
from nfsd.usage import OTHERS, Amount
from nfsd.usage_metrics import operation_name
from nfsd.v4.server import Nfs4Server
from nfsd.vfs.service import FileService
from rpcrdma.paces import NO_BOUND
from rpcrdma.rpc.dispatch import Dispatcher, Execution
from rpcrdma.rpc.native_program import Waiting
from rpcrdma.rpc.program import Transport
from rpcrdma.shown import shown

Row = dict[str, Any]
T = TypeVar("T")

MOST_ROWS: Final = 1000
"""Of one answer, unless more are asked for."""
MOST_ROWS_EVER: Final = 20000
_AT_A_TIME: Final = 200
"""Entries that are looked at before the loop goes on."""
_NFS4: Final = (100003, 4)


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a server that can be looked at."""

    exports: ExportTable
    service: FileService
    nfs4: Nfs4Server
    listeners: Listeners
    dispatchers: Mapping[str, Dispatcher]
    mounts: MountList

    @property
    def engine(self) -> StateEngine:
        """The state of NFSv4 and of NFSv3's locks."""
        return self.nfs4.engine


async def gently(entries: Iterable[T]) -> AsyncIterator[T]:
    """Entries of a snapshot, with the loop's other work in between."""
    for number, entry in enumerate(entries):
        if number % _AT_A_TIME == _AT_A_TIME - 1:
            await asyncio.sleep(0)
        yield entry


class Inspector:
    """Looks at a server."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    # -- who -----------------------------------------------------------------------------------------------------
    def connections(self) -> list[Transport]:
        """Every connection that serves calls."""
        found: list[Transport] = []
        for started in self._parts.listeners.started:
            for server in (started.tcp, started.rdma):
                if server is not None:
                    found += server.connections
        return found

    async def clients(self) -> list[Row]:
        """Each client record of NFSv4 and of the lock manager, and each address without one that has used an export: by
        NFSv3 if it has mounted one by MOUNT, or by NFSv4 before its client left."""
        engine = self._parts.engine
        over: dict[str, Counter[str]] = {}
        for transport in self.connections():
            over.setdefault(canonical_address(transport.peer_address), Counter())[transport.netid] += 1
        usage = dict(self._parts.exports.usage.by_client())
        mounted: dict[str, list[str]] = {}
        for address, path in self._parts.mounts:
            mounted.setdefault(canonical_address(address), []).append(shown(path))
        rows = []
        named = set()
        async for client in gently([*engine.clients.all(), *engine.nlm.all()]):
            address = client.host.removesuffix("!")
            row = self._record(client, address)
            named.add(address)
            rows.append(row | _connected(over.get(address)) | _used(usage.get(address)) | self._slowed(address))
        for address in [*mounted, *(one for one in usage if one not in mounted)]:
            if (address in named and address not in mounted) or address == OTHERS:
                continue
            version = "NFSv3" if address in mounted else ""
            row = _nobody(address) | {"version": version, "name": ", ".join(mounted.get(address, ())[:3])}
            rows.append(row | _connected(over.get(address)) | _used(usage.get(address)) | self._slowed(address))
        return rows

    def _slowed(self, address: str) -> Row:
        """The client's own rates and weights by export, that for all of them as of no name; whether it goes faster than
        its rates, and for how many seconds it has been held back for that."""
        host, paces = host_of_any(address), self._parts.exports.prices.paces
        pace = paces.known(host)
        names = {export.id: export.pseudo for export in self._parts.exports.exports}
        return {
            "rates": {names.get(key, ""): str(own) for key, own in (pace.rates if pace else ())},
            "weights": {names.get(key, ""): weight for key, weight in paces.weights.all_of(host).items()},
            "slowed": pace is not None and pace.held,
            "slowed_seconds": round(pace.held_seconds, 1) if pace else 0.0,
        }

    def _record(self, client: Client, address: str) -> Row:
        sessions = list(client.sessions.values())
        version = f"NFSv4.{sessions[0].minor}" if sessions else version_of(client)
        state = "courtesy" if client.courtesy else "active" if client.confirmed else "unconfirmed"
        return {
            "client": address,
            "id": f"{client.clientid:016x}",
            "version": version,
            "name": name_of(client),
            "state": state,
            "lease": None if client.minor == NLM else round(client.lease_end - self._parts.engine.now(), 1),
            "sessions": len(sessions),
            "opens": sum(entry.kind == 1 for entry in client.states.values()),
            "locks": client.locks,
            "delegations": client.delegations,
        }

    async def sessions(self) -> list[Row]:
        """Each session of NFSv4.1 and 4.2."""
        rows = []
        async for session in gently(list(self._parts.engine.sessions.by_id.values())):
            back = session.backchannel
            rows.append(
                {
                    "session": bytes(session.sessionid).hex(),
                    "client": session.client.host,
                    "id": f"{session.client.clientid:016x}",
                    "version": f"NFSv4.{session.minor}",
                    "slots": len(session.slots),
                    "busy": sum(slot.in_use for slot in session.slots),
                    "target": session.target_highest_slotid + 1,
                    "connections": sorted(str(connection) for connection in session.connections),
                    "callbacks": "usable" if back.usable else "down" if session.wants_backchannel else "none",
                }
            )
        return rows

    # -- what they hold --------------------------------------------------------------------------------------------
    async def opens(self) -> list[Row]:
        """Each open of a file."""
        rows = []
        async for entry in gently(list(self._parts.engine.stateids.entries.values())):
            if isinstance(entry, OpenState) and not entry.status:
                access, deny = int(entry.access), int(entry.deny)
                rows.append(
                    self._holder(entry.client)
                    | self._place(entry)
                    | {"access": _SHARES[access & 3], "deny": _SHARES[deny & 3], "owner": shown(entry.owner.owner)}
                )
        return rows

    async def locks(self) -> list[Row]:
        """Each range that is locked, and each that is waited for."""
        rows: list[Row] = []
        files = {entry.file: entry for entry in list(self._parts.engine.stateids.entries.values()) if entry.file}
        async for file, entry in gently(files.items()):
            place = self._place(entry)
            if file.locks is not None:
                for owner, ranges in list(file.locks.owners.items()):
                    rows += [
                        self._holder(owner.client) | place | _range(*one) | {"held": True, "owner": shown(owner.owner)}
                        for one in ranges
                    ]
            for waiter in list(file.waiters):
                wanted = _range(*waiter.span) | {"held": False, "owner": shown(waiter.owner)}
                rows.append(self._holder(waiter.client) | place | wanted)
        return rows

    @staticmethod
    def _holder(client: Client) -> Row:
        return {"client": client.host, "id": f"{client.clientid:016x}", "version": version_of(client)}

    def _place(self, entry: Any) -> Row:
        """The export and the file of a state, by what the server has open of it."""
        opened = getattr(entry, "opened", None)
        if opened is None and (holder := getattr(entry, "open_state", None)) is not None:
            opened = holder.opened
        held = None
        if opened is not None:
            held = getattr(opened, "read", None) or getattr(opened, "write", None)
        node = held.node if held is not None else entry.file.node
        if node is None:
            return {"export": "", "file": entry.file.key.hex()}
        try:
            path = os.readlink(f"/proc/self/fd/{node.fd}")
        except OSError:
            path = entry.file.key.hex()
        return {"export": node.export.pseudo, "file": shown(path)}

    # -- what is going on ------------------------------------------------------------------------------------------
    async def inflight(self) -> list[Row]:
        """Each call that waits for something, the oldest first; and each asynchronous copy."""
        return self.calls()

    def calls(self) -> list[Row]:
        """The same, at once."""
        names = self._parts.exports.usage.names({export.id: export.pseudo for export in self._parts.exports.exports})
        now = time.perf_counter()
        rows = []
        for dispatcher in self._parts.dispatchers.values():
            rows += [_call(one, now, names.get(id(one.call.tally), "")) for one in dispatcher.running]
            rows += [_held(one, now, names.get(id(one.tally), "")) for one in dispatcher.held]
        return sorted(rows, key=lambda row: -float(row["seconds"]))

    async def exports(self) -> list[Row]:
        """Each export, and how it is used."""
        parts = self._parts
        usage = parts.exports.usage
        amounts, users = usage.by_export(), usage.users()
        opens: Counter[int] = Counter()
        async for entry in gently(list(parts.engine.stateids.entries.values())):
            if isinstance(entry, OpenState) and entry.opened is not None:
                opens[entry.opened.export_id or 0] += 1
        waiting = Counter(row["export"] for row in self.calls())
        absent = [(one.export, f"{one.why}; {one.remedy}") for one in parts.service.absent.values()]
        return [
            {
                "export": export.pseudo,
                "path": str(export.backend) if export.backend else export.path,
                "access": "ro" if export.read_only else "rw",
                "squash": export.squash,
                "rate": str(export.rate),
                "for": list(export.clients),
                "rates": {one.host: str(one.rate) for one in export.overrides if one.rate not in (None, NO_BOUND)},
                "weights": {one.host: one.weight for one in export.overrides if one.weight},
                "clients": len(users.get(export.id, ())),
                "opens": opens[export.id],
                "waiting": waiting[export.pseudo],
                "absent": why,
            }
            | _used(amounts.get(export.id))
            for export, why in [*((export, "") for export in parts.exports.exports), *absent]
        ]


_SHARES: Final = ("-", "r", "w", "rw")


_WAITS: Final = {
    "may wait": "waits for a disk",
    "data not in memory": "waits for data from a disk",
    "delegation": "waits for the return of a delegation",
}
"""For people, what native code calls by the reasons of its metrics."""


def _call(execution: Execution, now: float, export: str) -> Row:
    call, (program, version, name) = execution.call, execution.row.label
    if execution.row.number[:2] == _NFS4 and call.shown > 0:
        name = operation_name(call.shown)
    return {
        "client": canonical_address(call.transport.peer_address),
        "over": call.transport.netid,
        "xid": f"{call.xid:#010x}",
        "call": f"{program}v{version} {name}",
        "export": export,
        "seconds": round(now - execution.started, 3),
        "why": "",
    }


def _held(waiting: Waiting, now: float, export: str) -> Row:
    """A call that waits natively."""
    program, version, name = waiting.label
    if waiting.number[:2] == _NFS4:
        name = operation_name(waiting.row)
    return {
        "client": canonical_address(waiting.transport.peer_address),
        "over": waiting.transport.netid,
        "xid": f"{waiting.xid:#010x}",
        "call": f"{program}v{version} {name}",
        "export": export,
        "seconds": round(now - waiting.since, 3),
        "why": _WAITS.get(waiting.why, waiting.why),
    }


def _nobody(address: str) -> Row:
    """A client without a record."""
    counts = dict.fromkeys(("sessions", "opens", "locks", "delegations"), 0)
    return {"client": address, "id": "", "state": "", "lease": None, **counts}


def _connected(over: Counter[str] | None) -> Row:
    return {"connections": dict(over or {})}


def _used(amount: Amount | None) -> Row:
    return asdict(amount or Amount())


def _range(start: int, end: int, exclusive: bool) -> Row:
    """Octets [start, end); to the end of the file where ``length`` is None."""
    return {"start": start, "length": None if end >= 1 << 63 else end - start, "exclusive": exclusive}
