"""Events of clients: mounts, refusals, departures, restarts, and recalls without an answer. Each is a line of the log,
and of the audit log if there is one.

Owns :class:`Events`, to which the exports and the state engine report. Imports the exports, records of the state
engine, and the audit log. Text that peers choose (paths, names of clients) is shortened and escaped. The lines of one
cause are limited, and so are those of one host in the audit log. A refusal is reported once for each client, path
and reason until the exports change.

NFSv4 has no mount operation. So a client's first use of an export counts as its mount, and the end of its last client
record as its departure. Both are remembered by host (an address or an IPv6 /64), for a bounded number of hosts.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

import yaml

from nfsd.audit import Audit
from nfsd.exports import Export, ExportTable, Observer, canonical_address
from nfsd.matching import Connection, peer_of
from nfsd.state import StateEngine
from nfsd.state.clients import Client
from nfsd.state.records import Delegation
from nfsd.state.types import NLM, Gone
from nfsd.without_file import NAME as COMMAND_LINE
from rpcrdma.addresses import host_of
from rpcrdma.log_limits import limited_logger
from rpcrdma.shown import many, path_shown, shown

_log = limited_logger(__name__)

_REMEMBERED: Final = 8192
"""Clients, and refusals, that are remembered; the oldest are forgotten."""
_TOLD_OF_ONE: Final = 300
"""Lines about one host that go into the audit log within..."""
_WHILE: Final = 60.0
"""...so many seconds."""
_SHOWN: Final = 3
"""Exports named as a place to admit a client."""
_SQUASH: Final = {"root": "root squashed", "all": "all squashed", "none": "nobody squashed"}


class Events(Observer):
    """The one that is told."""

    def __init__(self, exports: ExportTable, audit: Audit | None = None) -> None:
        self._exports = exports
        self._audit = audit
        self._uses: dict[str, dict[int, str]] = {}
        """How each host first used each export, by id."""
        self._refusals: dict[tuple[str, str, str], None] = {}
        self._told: dict[str, tuple[float, int]] = {}
        """Since when how many events of each host, the one heard of longest ago first."""
        self._clock = time.monotonic
        exports.observer = self
        exports.on_change(self._refusals.clear)

    def watch(self, engine: StateEngine) -> None:
        """Hear of the clients of NFSv4 and of NFSv3's lock manager."""
        engine.on_gone = self.gone
        engine.on_away = self.away
        engine.on_moved = self.moved
        engine.delegations.on_overdue = self.overdue
        self._engine = engine

    def tell(self, event: str, **facts: object) -> None:
        """Put an event into the audit log."""
        if self._audit is not None:
            self._audit.tell(event, **facts)

    def _tell_of(self, event: str, client: str, **facts: object) -> None:
        """Put what a client did into the audit log. Of one host so many lines in a while, then their number: what it
        can bring about without end would push out what is there of others, or of what it did before."""
        if self._audit is None:
            return
        host, now = host_of(client.removesuffix("!")), self._clock()
        began, lines = self._told.get(host, (now, 0))
        if now >= began + _WHILE:
            if lines > _TOLD_OF_ONE:
                self.tell("left_out", client=host, lines=lines - _TOLD_OF_ONE)
            began, lines = now, 0
        self._told.pop(host, None)
        if len(self._told) >= _REMEMBERED:
            del self._told[next(iter(self._told))]
        self._told[host] = began, lines + 1
        if lines < _TOLD_OF_ONE:
            self.tell(event, client=client, **facts)
        elif lines == _TOLD_OF_ONE:
            self.tell("too_many", client=host, seconds=round(began + _WHILE - now))

    # -- exports -------------------------------------------------------------------------------------------------
    def mounted(self, export: Export, transport: Connection, path: str) -> None:
        """MOUNT has given out a handle."""
        self._note(export, transport, "NFSv3")
        self._tell_mount(export, transport, path, "NFSv3")

    def used(self, export: Export, transport: Connection, version: str) -> None:
        """A client acts on an export. NFSv4 clients mount so; one of NFSv3 was told a handle before, perhaps by an
        earlier instance of this server."""
        uses = self._uses.get(_host(transport))
        if uses is not None and export.id in uses:
            return
        self._note(export, transport, version)
        if version.startswith("NFSv4"):
            self._tell_mount(export, transport, export.pseudo, version)
            return
        client = canonical_address(transport.peer_address)
        _log.info("%s goes on with %s, which it mounted earlier, over %s", client, export.pseudo, transport.netid)
        self._tell_of(
            "mount", client=client, export=export.pseudo, version=version, netid=transport.netid, earlier=True
        )

    def _note(self, export: Export, transport: Connection, version: str) -> None:
        host = _host(transport)
        if host not in self._uses and len(self._uses) >= _REMEMBERED:
            del self._uses[next(iter(self._uses))]
        self._uses.setdefault(host, {})[export.id] = version

    def _tell_mount(self, export: Export, transport: Connection, path: str, version: str) -> None:
        client, access = canonical_address(transport.peer_address), self._exports.access(export, peer_of(transport))
        read_only = access is None or access.read_only
        squash = export.squash if access is None else access.squash
        ways = self._exports.mount_ways(export, peer_of(transport))
        how = f", to be used with sec={':'.join(ways)}" if version == "NFSv3" and "sys" not in ways else ""
        _log.info(
            "%s mounts %s: %s over %s, %s, %s",
            client,
            path_shown(path),
            version,
            transport.netid,
            "read-only" if read_only else "read-write",
            _SQUASH[squash] + (f", as {transport.certified}" if transport.certified else "") + how,
        )
        self._tell_of(
            "mount",
            client=client,
            export=export.pseudo,
            path=shown(path),
            version=version,
            netid=transport.netid,
            port=transport.peer_port,
            **({"certificate": transport.certified} if transport.certified else {}),
            read_only=read_only,
            squash=squash,
        )

    def unmounted(self, peer_address: str, path: str) -> None:
        """A client of NFSv3 has said that it does not use a directory any more; an empty path: nor any other."""
        client = canonical_address(peer_address)
        if path:
            _log.info("%s unmounts %s", client, path_shown(path))
        else:
            _log.info("%s unmounts all that it had mounted with NFSv3", client)
        self._tell_of("unmount", client=client, path=shown(path))
        if not path:
            self._forget(host_of(client), "NFSv3")

    def refused(
        self, transport: Connection, path: str, version: str, exports: Sequence[Export], why: str, remedy: str = ""
    ) -> None:
        """A client was not let to a path."""
        client = canonical_address(transport.peer_address)
        key = host_of(client), shown(path), why  # cut short: names may have 64 KiB
        if key in self._refusals:
            return
        if len(self._refusals) >= _REMEMBERED:
            del self._refusals[next(iter(self._refusals))]
        self._refusals[key] = None
        remedy = remedy or remedy_of(client, exports)
        to_admit = f"; to admit it, {remedy}" if remedy else ""
        _log.warning(
            "%s is refused %s (%s over %s): %s%s", client, path_shown(path), version, transport.netid, why, to_admit
        )
        self._tell_of(
            "refused", client=client, path=shown(path), version=version, netid=transport.netid, why=why, remedy=remedy
        )

    def denied(self, peer_address: str, path: str, why: str, remedy: str) -> None:
        """A client was refused, and the log knows."""
        self._tell_of("refused", client=canonical_address(peer_address), path=path, why=why, remedy=remedy)

    # -- clients of NFSv4 and of the lock manager ------------------------------------------------------------------
    def gone(self, client: Client, why: Gone) -> None:
        """A client's record goes."""
        if client.minor == NLM and why not in (Gone.RESTARTED, Gone.EVICTED):
            return  # it has no lease: it is forgotten when it holds nothing
        what = holdings(client)
        if why is Gone.RESTARTED:
            _log.info("%s has restarted; what it had before is released: %s", described(client), what)
            self._tell_of("restarted", **_facts(client), held=what)
            return
        _log.info("%s is gone: %s; released: %s", described(client), why.value, what)
        self._tell_of("departed", **_facts(client), why=why.value, held=what)
        for host in {host_of(host.removesuffix("!")) for host in client.hosts}:
            accounts = (self._engine.ledger.hosts.get(payer) for payer in (host, host + "!"))
            others = (other for account in accounts if account is not None for other in account.clients)
            if all(other is client or other.expired for other in others):
                self._forget(host, "NFSv4")

    def _forget(self, host: str, version: str) -> None:
        """Let the next use of an export by a host be a mount again."""
        left = {id_: how for id_, how in self._uses.pop(host, {}).items() if not how.startswith(version)}
        if left:
            self._uses[host] = left

    def away(self, client: Client) -> None:
        """A client's lease is over."""
        _log.info(
            "%s has not been heard of for its lease; it keeps what it has while nobody else wants it: %s",
            described(client),
            holdings(client),
        )
        self._tell_of("away", **_facts(client), held=holdings(client))

    def moved(self, client: Client, host: str) -> None:
        """A client has shown itself at another address."""
        _log.info("%s is now at %s too: it has shown that it is the same", described(client), host)
        self._tell_of("moved", **_facts(client), to=host)

    def overdue(self, delegation: Delegation) -> None:
        """A delegation is taken from a client that has not given it back."""
        client = delegation.client
        file = delegation.handle.hex()
        word = "write" if delegation.write else "read"
        _log.warning(
            "%s has not answered the recall of a %s delegation in time: it is revoked (file handle %s)",
            described(client),
            word,
            file,
        )
        self._tell_of("recall_unanswered", **_facts(client), delegation=word, handle=file)


def _host(transport: Connection) -> str:
    return host_of(canonical_address(transport.peer_address))


def version_of(client: Client) -> str:
    """What a client speaks, in words."""
    return {0: "NFSv4.0", NLM: "NFSv3 locks"}.get(client.minor, "NFSv4.1+")


def name_of(client: Client) -> str:
    """What a client calls itself; behind the name of one of the lock manager stands its address."""
    return shown(client.owner.partition(b"\0")[0] if client.minor == NLM else client.owner)


def described(client: Client) -> str:
    """A client for a line of the log."""
    return f'{client.host} "{name_of(client)}" ({version_of(client)})'


def holdings(client: Client) -> str:
    """What a client has, in words."""
    found = [
        (len(client.sessions), "session"),
        (sum(entry.kind == 1 for entry in client.states.values()), "open"),
        (client.locks, "lock"),
        (client.delegations, "delegation"),
    ]
    return ", ".join(many(count, word) for count, word in found if count) or "nothing"


def _facts(client: Client) -> dict[str, str]:
    return {"client": client.host, "name": name_of(client), "version": version_of(client)}


def remedy_of(client: str, exports: Sequence[Export]) -> str:
    """The line of the configuration that would admit a client to one of these exports."""
    places = []
    for export in exports[:_SHOWN]:
        if export.source.startswith(COMMAND_LINE + ":"):
            return f"serve with --client {client}"
        where = f" ({export.source})" if export.source else ""
        if export.overrides or len(export.clients) > 8:
            places.append(f"add {client} to clients: of {export.pseudo}{where}")
            continue
        line = yaml.safe_dump([*export.clients, client], default_flow_style=True, width=10**6).strip()
        places.append(f"write for {export.pseudo}{where}: clients: {line}")
    return " or ".join(places)


def addresses_of(client: Client) -> set[str]:
    """Where a client has shown itself, without the mark of those that do not speak for their host."""
    return {canonical_address(host.removesuffix("!")) for host in client.hosts}
