"""Carries out an administrator's orders: evict clients, drain an export, change the log's level, reload.

Owns :class:`Steering`, which the control socket asks; imports the inspector, the reloader and the server's parts.
Every act has a line in the log and in the audit log.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Any, Final

from nfsd.config import Config
from nfsd.config_file import ConfigError
from nfsd.events import Events, addresses_of, described, holdings
from nfsd.exports import Export, ExportTable, canonical_address
from nfsd.inspector import Inspector, Parts, Row, gently
from nfsd.reloader import Reloader, difference, waiting_keys
from nfsd.state.clients import Client
from nfsd.state.nlm import NlmClient
from nfsd.state.records import Delegation, OpenState
from nfsd.state.types import Gone
from nfsd.usage import OTHERS
from nfsd.versions import shown as shown_versions

_log = logging.getLogger(__name__)

LEVELS: Final = ("debug", "info", "warning", "error")
_LOOK_AGAIN: Final = 0.05
"""Seconds between looks for what an export is drained of."""
_CLOSING: Final = 30.0
"""Seconds that the descriptors of an export that is drained get to close: what was written must get to the disk."""
_ASKED_FOR: Final = 100
"""Clients whose names are asked for at a time, where exports go by names: a silent name service costs seconds each."""


class Steering:
    """Acts on a server."""

    def __init__(self, parts: Parts, inspector: Inspector, reloader: Reloader, events: Events) -> None:
        self._parts, self._inspector, self._reloader, self._events = parts, inspector, reloader, events

    # -- clients -------------------------------------------------------------------------------------------------
    async def evict(self, client: str) -> Row:
        """Take everything from a client, by address or clientid, and close its connections. It may come again, as long
        as an export is for it. Raises ValueError for one that is not there."""
        records, addresses = self._meant(client)
        connections = [one for one in self._inspector.connections() if canonical_address(one.peer_address) in addresses]
        if not records and not connections and not self._parts.mounts.has(addresses):
            raise ValueError(f"no client {client}: see `rdma-nfsd clients`")
        gone = [self._give_up(record, Gone.EVICTED) for record in records]
        await self._settle()
        for address in addresses:
            self._parts.mounts.remove_all(address)
        for connection in connections:
            connection.close()
        _log.warning("evicted %s: %d client records, %d connections", client, len(gone), len(connections))
        self._events.tell("evicted", client=client, records=len(gone), connections=len(connections))
        return {"records": gone, "connections": len(connections)}

    def _meant(self, client: str) -> tuple[list[Client], set[str]]:
        """The records of a client, and its addresses if it was named by one."""
        engine = self._parts.engine
        everybody: list[Client] = [*engine.clients.all(), *engine.nlm.all()]
        by_id = [one for one in everybody if f"{one.clientid:016x}" == client]
        if by_id:
            others = {address for one in everybody if one not in by_id for address in addresses_of(one)}
            return by_id, {address for one in by_id for address in addresses_of(one)} - others
        address = canonical_address(client)
        mine = [one for one in everybody if address in addresses_of(one)]
        return mine, {address}

    def _give_up(self, record: Client, why: Gone) -> Row:
        row = {"client": described(record), "held": holdings(record)}
        if isinstance(record, NlmClient):
            self._parts.engine.nlm.drop(record, why)
        else:
            self._parts.engine.expire_client(record, why)
        return row

    async def _settle(self) -> None:
        """Local locks that nobody needs any more are given up, and records taken off stable storage."""
        await self._parts.nfs4.clear_all()
        await self._parts.nfs4.store.flush(self._parts.engine)

    async def forget(self, client: str = "") -> Row:
        """Give up what clients have that are away: whose lease is over, and what they hold is kept out of courtesy; one
        of them, by clientid or address, or all. Raises ValueError for one that is not away."""
        away = [one for one in self._parts.engine.clients.all() if one.courtesy]
        if client:
            records, _ = self._meant(client)
            away = [one for one in away if one in records]
            if not away:
                raise ValueError(f"no client {client} whose lease is over: see `rdma-nfsd clients`, or evict it")
        gone = [self._give_up(record, Gone.EVICTED) for record in away]
        await self._settle()
        _log.warning("forgot %d clients that were away", len(gone))
        self._events.tell("forgotten", records=len(gone))
        return {"records": gone, "connections": 0}

    # -- exports -------------------------------------------------------------------------------------------------
    def _export(self, name: str) -> Export:
        exports = self._parts.exports.exports
        # One's name may be another's directory; the names come first.
        for export in (*(one for one in exports if one.pseudo == name), *(one for one in exports if one.path == name)):
            return export
        raise ValueError(f"no export {name}: see `rdma-nfsd exports`")

    async def drain(self, name: str, seconds: float, dry_run: bool = False) -> Row:
        """Stop serving an export until the configuration is read again, so that its file system can be unmounted:
        recall its delegations, let calls in flight end, for so many seconds; then take what is still held of it from
        clients, and wait for its descriptors to close. Raises ValueError, OSError."""
        export = self._export(name)
        if dry_run:
            return {"export": export.pseudo, "held": self._held(export.id), "lost": 0, "closed": False, "dry_run": True}
        delegations = [one for one in self._states(export.id) if isinstance(one, Delegation)]
        for delegation in delegations:
            self._parts.engine.delegations.recall(delegation)
        self._parts.nfs4.recalls.send()
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while loop.time() < until and self._busy(export, delegations):  # noqa: ASYNC110 (an act of minutes, not calls)
            await asyncio.sleep(_LOOK_AGAIN)
        held = self._held(export.id)
        service = self._parts.service
        mounts = service.mounts_of(export)
        lost = await self._reloader.withdraw(export)
        await self._settle()
        until = loop.time() + _CLOSING
        while not (closed := service.are_closed(mounts)) and loop.time() < until:  # noqa: ASYNC110 (as above)
            await asyncio.sleep(_LOOK_AGAIN)
        word = "drained" if closed else "being drained, and some of its files are open still"
        _log.warning(
            "%s is %s: not served until the configuration is read again; %d states taken", export.pseudo, word, lost
        )
        self._events.tell("drained" if closed else "draining", export=export.pseudo, lost=lost)
        return {"export": export.pseudo, "held": held, "lost": lost, "closed": closed, "dry_run": False}

    def _states(self, export_id: int) -> list[OpenState | Delegation]:
        """What clients hold of an export's files."""
        return [
            entry
            for entry in list(self._parts.engine.stateids.entries.values())
            if isinstance(entry, OpenState | Delegation) and _export_of(entry) == export_id
        ]

    def _busy(self, export: Export, delegations: list[Delegation]) -> bool:
        """Whether it is worth waiting."""
        table = self._parts.engine.delegations
        return any(map(table.holds, delegations)) or any(
            row["export"] == export.pseudo for row in self._inspector.calls()
        )

    def _held(self, export_id: int) -> list[Row]:
        """Who holds how much of an export."""
        found: dict[Client, Row] = {}
        for entry in self._states(export_id):
            row = found.setdefault(entry.client, {"client": described(entry.client), "opens": 0, "delegations": 0})
            row["opens" if isinstance(entry, OpenState) else "delegations"] += 1
        return list(found.values())

    # -- the log and the configuration ------------------------------------------------------------------------------
    async def log_level(self, level: str = "") -> Row:
        """Set the log's level, until the configuration is read again; empty: say which it is. Raises ValueError."""
        root = logging.getLogger()
        if level:
            if level not in LEVELS:
                raise ValueError(f"no level {level}; write one of {', '.join(LEVELS)}")
            root.setLevel(level.upper())
            _log.info("the log's level is %s now", level)
        return {"level": logging.getLevelName(root.level).lower()}

    async def reload(self, dry_run: bool = False) -> Row:
        """Read the configuration again; with ``dry_run`` only say what would change, for whom. Raises ValueError for a
        configuration that is wrong, OSError."""
        before = self._reloader.config
        try:
            after = await self._reloader.read()
        except ConfigError as error:
            raise ValueError("\n".join(map(str, error.problems))) from None
        changes = await self._changes(before, after)
        if not dry_run and not await self._reloader.reload():
            raise ValueError("not reloaded; the server's log says why")
        return {"dry_run": dry_run, **changes}

    async def _changes(self, before: Config, after: Config) -> Row:
        absent = [one.export for one in self._parts.service.absent.values()]
        served = (*self._parts.exports.exports, *self._parts.exports.referrals, *absent)  # some may have been drained
        return {
            "file": after.file,
            "exports": difference(served, self._reloader.served(after)),
            "level": [before.server.log.level, after.server.log.level],
            "at_restart": waiting_keys(before.server, after.server),
            "clients": await self._affected(after),
        }

    async def _affected(self, after: Config) -> list[Row]:
        """What would change for clients that there are now."""
        table = ExportTable(self._reloader.served(after))
        try:
            rows = []
            clients = sorted(await self._addresses())
            lost = await self._lost({export.id for export in table.exports})
            for number, client in enumerate(clients):
                if not number % _ASKED_FOR:
                    asked = map(table.admit, clients[number : number + _ASKED_FOR])
                    await asyncio.gather(*(learning for learning in asked if learning is not None))
                await asyncio.sleep(0)  # exports may be many, too
                changes = self._changed_for(client, table, lost)
                if changes:
                    rows.append({"client": client, "changes": changes})
            return rows
        finally:
            await table.close()

    async def _lost(self, kept: set[int]) -> Counter[tuple[str, int]]:
        """Opens and delegations of exports that are not kept, by address and export: looked for once, for all clients,
        as either may be many."""
        found: Counter[tuple[str, int]] = Counter()
        gone = {export.id for export in self._parts.exports.exports} - kept
        async for entry in gently(list(self._parts.engine.stateids.entries.values()) if gone else ()):
            if (id_ := _export_of(entry)) in gone:
                found.update((address, id_) for address in addresses_of(entry.client))
        return found

    async def _addresses(self) -> set[str]:
        rows = await self._inspector.clients()
        return {row["client"] for row in rows} - {OTHERS}

    def _changed_for(self, client: str, table: ExportTable, lost: Counter[tuple[str, int]]) -> list[str]:
        """The lines of one client."""
        now = self._parts.exports
        before = {export.id: export for export in now.exports}
        after = {export.id: export for export in table.exports}
        used = now.usage.users()
        lines = []
        for id_ in {**before, **after}:
            old = now.access(before[id_], client) if id_ in before else None
            new = table.access(after[id_], client) if id_ in after else None
            name = (after.get(id_) or before[id_]).pseudo
            uses = " (in use)" if client in used.get(id_, ()) else ""
            if old is not None and new is None:
                held = lost[client, id_]
                loses = f", and loses {held} opens and delegations" if held else ""
                lines.append(f"{name}: may not use it any more{uses}{loses}")
            elif old is None and new is not None:
                lines.append(f"{name}: may use it, {'read-only' if new.read_only else 'read-write'}")
            elif old is not None and new is not None:
                if id_ in before and before[id_].pseudo != after[id_].pseudo:
                    lines.append(f"{before[id_].pseudo}: is called {name}{uses}")
                if before[id_].versions != after[id_].versions:
                    was, is_ = shown_versions(before[id_].versions), shown_versions(after[id_].versions)
                    lines.append(f"{name}: versions {was} -> {is_}{uses}")
                if old != new:
                    lines += [f"{name}: {what}{uses}" for what in _differs(old, new)]
        return lines


def _export_of(state: Any) -> int:
    """The id of the export whose file an open or a delegation is of; 0 of other states."""
    opened = state.opened if isinstance(state, OpenState | Delegation) else None
    return 0 if opened is None else opened.export_id or 0


def _differs(old: Any, new: Any) -> list[str]:
    names = (
        "read_only", "squash", "anonuid", "anongid", "secure", "xprtsec", "sec", "umask", "rate", "weight",
        "manage_gids",
    )  # fmt: skip
    return [
        f"{name} {getattr(old, name)!s} -> {getattr(new, name)!s}"
        for name in names
        if getattr(old, name) != getattr(new, name)
    ]
