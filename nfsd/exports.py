"""Exports: to whom directories are offered (:mod:`nfsd.exported`), and as whom callers act.

Owns the choice among ``clients`` and squashing of credentials (exports(5) semantics). Imports the VFS's types, the
matching of one entry and the name services (:mod:`nfsd.names`).

Which entry of ``clients`` counts when several match: the most specific one, in this order: a single address, a host
name, a network (the longer prefix first), a host name with wildcards, a netgroup, any certificate, ``*``. Names in
certificates come before all of these: exact ones, then those with wildcards. Among equals the first.
Nothing here waits for the DNS except :meth:`ExportTable.admit`, which the dispatcher awaits once per new peer.
"""

from __future__ import annotations

import ipaddress
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, Protocol

from nfsd.edition import Edition
from nfsd.exported import ANY_SECURITY, SECURITY
from nfsd.exported import ClientOverride as ClientOverride
from nfsd.exported import Export as Export
from nfsd.exported import Place as Place
from nfsd.exported import derive_id as derive_id
from nfsd.matching import RESERVED_PORTS, Access, Connection, Pattern, peer_of
from nfsd.matching import canonical_address as canonical_address
from nfsd.names import GroupLists, HostNames
from nfsd.pricing import Prices
from nfsd.usage import Usage
from nfsd.versions import ALL
from nfsd.vfs.types import Credential
from rpcrdma.addresses import host_of
from rpcrdma.paces import NO_BOUND, Bound, Paces
from rpcrdma.rpc.program import RPCSEC_GSS
from rpcrdma.rpc.tally import Tally

_log = logging.getLogger(__name__)

_AUTH_NONE = 0
_AUTH_SYS_GROUPS = 16
"""As many supplementary groups as AUTH_SYS carries (RFC 5531 appendix A); a caller with that many may have more."""
_CACHE_LIMIT = 4096
_MOST_NAMED = 64
"""Clients of one export that the log names for their ports."""
NOT_A_CLIENT = "no export is for it"
NOT_AMONG_CLIENTS = "it is not among its clients"
NOT_BY_VERSION = "it is not served by this version of NFS"
REFUSALS: Final = ("clients", "versions", "sec", "xprtsec", "secure")
"""Keys of an export that a call may not be as they demand."""


class Observer:
    """Hears of what clients do with exports; this one does nothing about it."""

    def mounted(self, export: Export, transport: Connection, path: str) -> None:
        """MOUNT has given out a handle."""

    def used(self, export: Export, transport: Connection, version: str) -> None:
        """A client acts on an export. Called often: it must take next to no time for one that is known."""

    def unmounted(self, peer_address: str, path: str) -> None:
        """A client has said that it does not use a directory any more; an empty path: nor any other."""

    def refused(
        self, transport: Connection, path: str, version: str, exports: Sequence[Export], why: str, remedy: str = ""
    ) -> None:
        """A client was not let to a path; any of these ``exports`` would have to be for it, if that would help, or
        ``remedy`` would."""

    def denied(self, peer_address: str, path: str, why: str, remedy: str) -> None:
        """A client was refused, and the log has been told."""


class Caller(Protocol):
    """Who calls, as the RPC header says."""

    @property
    def flavor(self) -> int:
        """Of RFC 5531: AUTH_NONE, AUTH_SYS, RPCSEC_GSS."""

    @property
    def uid(self) -> int | None:
        """None: nobody's."""

    @property
    def gid(self) -> int | None:
        """Likewise."""

    @property
    def gids(self) -> tuple[int, ...]:
        """Ids only."""

    @property
    def security(self) -> str:
        """How the caller is known: a word of :data:`nfsd.exported.SECURITY`."""


class ExportTable:
    """All exports."""

    exports: tuple[Export, ...]
    """Those that are served here."""
    referrals: tuple[Export, ...]
    """Those that lead elsewhere."""

    def __init__(
        self,
        exports: Iterable[Export],
        *,
        names: HostNames | None = None,
        groups: GroupLists | None = None,
        prices: Prices | None = None,
    ) -> None:
        self.prices = prices or Prices(Paces())
        self._names = names or HostNames()
        self._groups = groups or GroupLists()
        self._accesses: dict[tuple[int, str], Access | None] = {}
        self._credentials: dict[tuple[object, ...], Credential] = {}
        self._named: dict[int, set[str]] = {}
        """Clients with ports that will not do, by export."""
        self.edition = Edition()
        """Of what :meth:`access` and :meth:`standing` say."""
        self._changed: list[Callable[[], None]] = []
        self.observer = Observer()
        self.refusals: Counter[str] = Counter()
        """Calls that were not let to an export, by :data:`REFUSALS`."""
        self.usage = Usage()
        self.usage.on_forgotten = self._forget_tallies
        self.replace(exports)
        self._names.on_change(self._forget_accesses)
        self._groups.on_change(self._forget_accesses)

    def replace(self, exports: Iterable[Export]) -> None:
        """Have these exports and no others, from now on."""
        everything = tuple(exports)
        self.exports = tuple(export for export in everything if not export.referral)
        self.referrals = tuple(export for export in everything if export.referral)
        self.by_id = {export.id: export for export in self.exports}
        self.usage.keep(self.by_id)
        self._patterns = {export.id: _patterns(export) for export in everything}
        self._certified = {one for one, patterns in self._patterns.items() if any(p.certificate for p in patterns)}
        """Exports that are for some clients by their certificates."""
        self._named.clear()
        self._own = {export.id: _own_access(export) for export in self.exports}
        named = [p for patterns in self._patterns.values() for p in patterns if p.name not in ("", "*")]
        self._names.watch(
            {p.name for p in named if not (p.is_wildcard or p.netgroup)},
            reverse=any(p.is_wildcard for p in named),
            netgroups={p.netgroup for p in named if p.netgroup},
        )
        self.uses_names = bool(named)
        """Whether any client is given by name; if not, :meth:`admit` has nothing to do."""
        self._groups.forget()
        self.edition.ages = self.uses_names or any(export.manage_gids for export in self.exports)
        accesses = [pattern.access for patterns in self._patterns.values() for pattern in patterns]
        self._ports_matter = any(access.secure for access in accesses)
        self._security_matters = any(access.xprtsec != ANY_SECURITY for access in accesses)
        rates = [one.rate for export in self.exports for one in export.overrides] + [one.rate for one in self.exports]
        weights = [one.weight for export in self.exports for one in export.overrides]
        self.prices.changed(
            any(rate not in (None, NO_BOUND) for rate in rates), any(one not in (None, 1) for one in weights)
        )
        self._forget_accesses()

    def _forget_accesses(self) -> None:
        self._accesses.clear()
        self.edition.number += 1
        for callback in self._changed:
            callback()

    def _forget_tallies(self) -> None:
        self.edition.number += 1

    def tally(self, export: Export, peer_address: str) -> Tally:
        """Where calls of a client on an export are counted; good for an edition."""
        address = canonical_address(peer_address)
        tally = self.usage.of(address, export.id)
        if tally.priced != self.edition.number or (tally.dues is not None and tally.dues.pace.gone):
            tally.priced = self.edition.number
            self.prices.price(tally, address, export.id, export, self.access(export, peer_address))
        return tally

    def moved(self, export: Export, peer_address: str, *, read: int = 0, written: int = 0) -> None:
        """Count octets that no call of the client's counts, and charge them."""
        tally = self.tally(export, peer_address)
        tally.read += read
        tally.written += written
        tally.leave()

    def set_client_rate(self, rate: Bound) -> None:
        """Let each client do so much in a second from now on."""
        if rate != self.prices.client_rate:
            self.prices.client_rate = rate
            self.replace((*self.exports, *self.referrals))

    def on_change(self, callback: Callable[[], None]) -> None:
        """Have ``callback`` run whenever there is another ``edition``."""
        self._changed.append(callback)

    def standing(self, export: Export, caller: Caller, transport: Connection) -> tuple[Credential, bool] | None:
        """A caller as it acts on an export, and whether only to read; None when it may not use it, or not as it is
        known, or when that cannot be said at once or may change (groups the server looks up): :meth:`admit` and
        :meth:`credential` can."""
        peer_address = transport.peer_address
        if self.admit(peer_address) is not None:
            return None
        access = self.access(export, peer_of(transport))
        if access is None or not access.takes(transport) or caller.security not in access.sec:
            return None
        if caller.flavor == _AUTH_NONE or access.squash == "all":
            self.observer.used(export, transport, "")
            return self._anonymous(access, peer_address), access.read_only
        gids: tuple[int, ...] | None = caller.gids
        if caller.flavor == RPCSEC_GSS:
            pass  # the mapping has all groups of the user, as this system knows them
        elif access.manage_gids and caller.uid is not None:
            gids = self._groups.known(caller.uid, None, peer_address)
        elif len(caller.gids) >= _AUTH_SYS_GROUPS:
            return None
        if gids is None:
            return None
        self.observer.used(export, transport, "")
        return self._squashed(access, caller.uid, caller.gid, gids, peer_address), access.read_only

    def admit(self, peer_address: str) -> Awaitable[None] | None:
        """Make sure the names this peer may go by are known. None: they are; otherwise wait for what is returned (a
        few seconds at most; a name service that fails or is late leaves the peer without a name)."""
        return self._names.learn(canonical_address(peer_address)) if self.uses_names else None

    def access(self, export: Export, peer: str) -> Access | None:
        """How this client may use the export; None: not at all."""
        key = (export.id, peer)
        try:
            return self._accesses[key]
        except KeyError:
            pass
        if len(self._accesses) >= _CACHE_LIMIT:
            self._accesses.clear()
        found = self._accesses[key] = self._find_access(export, peer)
        return found

    def _find_access(self, export: Export, peer: str) -> Access | None:
        host, certified = canonical_address(peer), peer.split(" ")[1:]
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            address = None  # a transport without addresses (the loopback provider): only "*" and names match
        for pattern in self._patterns.get(export.id, ()):
            if pattern.matches(address, host, self._names, certified):
                return pattern.access
        return None

    def takes(self, export: Export, transport: Connection, *, secured: bool = True) -> bool:
        """Whether a client that may use the export may do so on the connection it has: from its port, and secured as it
        must be if that is asked. The log names it once if not."""
        access = self.access(export, peer_of(transport))
        if access is None or (access.takes(transport) if secured else access.has_port(transport)):
            return True
        if access.has_port(transport):
            key, why = "xprtsec", f"its connection has {transport.security} and needs {' or '.join(access.xprtsec)}"
        else:
            key, why = "secure", f"port {transport.peer_port} is not below {RESERVED_PORTS}"
        self.refusals[key] += 1
        named = self._named.setdefault(export.id, set())
        if transport.peer_address not in named and len(named) < _MOST_NAMED:
            named.add(transport.peer_address)
            origin = export.origin or "in the configuration"
            _log.warning(
                "%s %s is refused %s: %s (%s: %s)",
                transport.netid, transport.peer_address, export.pseudo, why, key, origin,
            )  # fmt: skip
            self.observer.denied(transport.peer_address, export.pseudo, why, f"{key}: {export.origin}")
        return False

    def is_secured(self, export: Export, transport: Connection) -> bool:
        """Whether a client that may use the export has its connection secured as it must be."""
        access = self.access(export, peer_of(transport))
        return access is None or access.is_secured(transport)

    def believes(self, export: Export, caller: Caller, transport: Connection) -> bool:
        """Whether a client that may use the export is known as it must be, in this call."""
        access = self.access(export, peer_of(transport))
        return access is None or caller.security in access.sec

    def disbelieve(self, export: Export, caller: Caller, transport: Connection, version: str) -> None:
        """Note that a client was not let to an export that it may use: its caller is not known as it must be."""
        peer, way = peer_of(transport), caller.security
        access, ways = self.access(export, peer), self.ways(export, peer)
        if access is None or way in ways:
            return
        self.refusals["sec"] += 1
        where = f" ({export.origin})" if export.origin else ""
        if access.sec == export.sec:
            written = f"write for {export.pseudo}{where}: sec: [{', '.join((*ways, way))}]"
        else:
            written = f"add {way} to sec: of its entry in clients: of {export.pseudo}{where}"
        why = f"it calls with sec={way}, and the export takes {' or '.join(ways)}"
        remedy = f"mount with sec={ways[0]}, or {written}"
        self.observer.refused(transport, export.pseudo, version, [], why, remedy)

    def ways(self, export: Export, peer: str) -> tuple[str, ...]:
        """How callers of this client may be known on the export, the strongest way first; none: it may not use it."""
        access = self.access(export, peer)
        return () if access is None else tuple(way for way in SECURITY if way in access.sec)

    def mount_ways(self, export: Export, peer: str) -> tuple[str, ...]:
        """Likewise, of one that may only be told the export's handle: as any with a certificate."""
        certified = (pattern.access for pattern in self._patterns[export.id] if pattern.certificate)
        sec = {way for access in certified for way in access.sec}
        return self.ways(export, peer) or tuple(way for way in SECURITY if way in sec)

    def refuse(self, export: Export, transport: Connection, version: str) -> None:
        """Note that a client was not let to an export that it asked for: it is for others."""
        known = self.visible(export, peer_of(transport))
        self.refusals["versions" if known else "clients"] += 1
        if known:
            self.observer.refused(transport, export.pseudo, version, [], NOT_BY_VERSION)
        else:
            self.observer.refused(transport, export.pseudo, version, [export], NOT_AMONG_CLIENTS)

    def visible(self, export: Export, peer: str, version: int = ALL) -> bool:
        """Whether this client may use the export by this version of NFS, or by any of several."""
        return export.versions & version != 0 and self.access(export, peer) is not None

    def mountable(self, export: Export, peer: str) -> bool:
        """Whether this client may be told the export's handle: it may use the export, or might with a certificate,
        which clients' mount(8) does not show to MOUNT."""
        return export.id in self._certified or self.access(export, peer) is not None

    def may_mount(self, peer: str) -> bool:
        """Whether this client may be told any handle."""
        return self.knows(peer) or any(self.mountable(export, peer) for export in self.exports)

    def knows(self, peer: str) -> bool:
        """Whether this client may use anything here, a referral included."""
        return any(self.visible(export, peer) for export in (*self.exports, *self.referrals))

    def speaker(self, transport: Connection) -> str:
        """For whom a caller speaks where state is concerned: its host, or some user of it."""
        host = canonical_address(transport.peer_address)
        anybody_does = not self._ports_matter and not self._security_matters
        return host if anybody_does or self.speaks_for_host(transport) else f"{host}!"

    def speaks_for_host(self, transport: Connection) -> bool:
        """Whether a caller may be its host's kernel. Where nothing may be used from the port it has, or on a connection
        that is secured no better, it is not: it could otherwise put an end to the state of one that is."""
        has_port = not self._ports_matter or 0 < transport.peer_port < RESERVED_PORTS
        if has_port and not self._security_matters:
            return True
        accesses = [self.access(export, peer_of(transport)) for export in self.exports]
        known = [access for access in accesses if access is not None]
        return not known or any(access.takes(transport) for access in known)

    def read_only(self, export: Export, peer: str) -> bool:
        """Whether the export is read-only for this client (it is for one that may not use it at all)."""
        access = self.access(export, peer)
        return access is None or access.read_only

    async def credential(
        self,
        export: Export,
        flavor: int,
        uid: int | None,
        gid: int | None,
        gids: tuple[int, ...],
        peer: str | None = None,
    ) -> Credential:
        """The caller as it acts on this export: squashed; with 16 groups in AUTH_SYS the server's own group list of
        that user is used instead, if it has one, with ``manage_gids`` always (cached; looked up off the loop). Whom
        RPCSEC_GSS knows has been mapped to a user with all groups. AUTH_NONE acts as the anonymous user, and so does
        nobody (None), as user and as group.

        ``peer`` selects the settings of that client; None takes those of the export itself. A client that the
        export is not for acts as the anonymous user."""
        peer_address = None if peer is None else peer.partition(" ")[0]
        if peer is None:
            access: Access | None = self._own.get(export.id) or _own_access(export)
        else:
            access = self.access(export, peer)
        if access is None:
            return Credential(export.anonuid, export.anongid)
        if flavor == _AUTH_NONE or access.squash == "all":
            return self._anonymous(access, peer_address)
        if uid is not None and flavor != RPCSEC_GSS and (access.manage_gids or len(gids) >= _AUTH_SYS_GROUPS):
            own = None if access.manage_gids else access.anongid if gid is None else gid
            known = self._groups.known(uid, own, peer_address or "")
            if known is None:
                known = await self._groups.look_up(uid, own, peer_address or "")
            gids = known or (() if access.manage_gids else gids)
        return self._squashed(access, uid, gid, gids, peer_address)

    def _squashed(
        self, access: Access, uid: int | None, gid: int | None, gids: tuple[int, ...], peer_address: str | None
    ) -> Credential:
        key = (access, uid, gid, gids, peer_address)
        found = self._credentials.get(key)
        if found is None:
            uid = access.anonuid if uid is None else uid
            gid = access.anongid if gid is None else gid
            if access.squash == "root":
                # As the kernel's server does it: each identity 0 by itself, the others stay.
                uid = access.anonuid if uid == 0 else uid
                gid = access.anongid if gid == 0 else gid
                gids = tuple(access.anongid if g == 0 else g for g in gids)
            if len(self._credentials) >= _CACHE_LIMIT:
                self._credentials.clear()
            found = self._credentials[key] = Credential(uid, gid, gids, _host(peer_address), access.umask)
        return found

    def _anonymous(self, access: Access, peer_address: str | None) -> Credential:
        return self._squashed(access, access.anonuid, access.anongid, (), peer_address)

    async def close(self) -> None:
        """Stop refreshing names and groups."""
        await self._names.close()
        await self._groups.close()


def _host(peer_address: str | None) -> str:
    """Whose share it is of what callers from this address keep open."""
    if peer_address is None:
        return ""
    try:
        return host_of(canonical_address(peer_address))
    except ValueError:
        return peer_address  # a transport without addresses


def _own_access(export: Export) -> Access:
    return Access(
        export.read_only,
        export.squash,
        export.anonuid,
        export.anongid,
        export.secure,
        export.umask,
        export.manage_gids,
        xprtsec=export.xprtsec,
        sec=export.sec,
    )


def _patterns(export: Export) -> list[Pattern]:
    """The entries of ``clients``, most specific first."""
    own = _own_access(export)
    changed = {override.host: override for override in export.overrides}
    patterns = []
    for host in export.clients:
        access, override = own, changed.get(host)
        if override is not None:
            access = Access(
                own.read_only if override.read_only is None else override.read_only,
                own.squash if override.squash is None else override.squash,
                own.anonuid if override.anonuid is None else override.anonuid,
                own.anongid if override.anongid is None else override.anongid,
                own.secure if override.secure is None else override.secure,
                own.umask if override.umask is None else override.umask,
                own.manage_gids,
                override.rate or NO_BOUND,
                override.weight or 1,
                override.xprtsec or own.xprtsec,
                override.sec or own.sec,
            )
        patterns.append(Pattern(host, access))
    return sorted(patterns, key=lambda pattern: pattern.specificity, reverse=True)
