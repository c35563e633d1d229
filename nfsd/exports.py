"""Exports: which directory is offered under which name to whom, and as whom callers act.

Owns matching of clients and squashing of credentials (exports(5) semantics). Imports only the VFS's types.
"""

from __future__ import annotations

from dataclasses import dataclass

from nfsd.vfs.types import Credential


@dataclass(frozen=True, slots=True)
class Export:
    """One export as the configuration describes it."""

    id: int
    """Stable over restarts and edits of the configuration: derived from ``path``, or set by ``id:``."""
    path: str
    """Absolute path of the directory."""
    pseudo: str
    """Its absolute name for clients, normalised: ``/export``; ``/`` is allowed."""
    read_only: bool = False
    squash: str = "root"
    """``root``, ``none`` or ``all``."""
    anonuid: int = 65534
    anongid: int = 65534
    clients: tuple[str, ...] = ("*",)
    """Addresses, CIDR blocks, host names (with ``*`` and ``?``), ``*``."""
    asynchronous: bool = False
    """``async``: namespace changes and stable writes are not put on the disk before their reply."""
    cross_mounts: bool = True
    """Whether clients may walk into file systems mounted inside the export."""
    workers: int = 8
    """Jobs of this export that may wait for its disk at the same time."""


class ExportTable:
    """All exports."""

    exports: tuple[Export, ...]

    def __init__(self, exports: tuple[Export, ...]) -> None:
        self.exports = exports

    def visible(self, export: Export, peer_address: str) -> bool:
        """Whether this client may use the export."""
        raise NotImplementedError

    async def credential(self, export: Export, flavor: int, uid: int, gid: int, gids: tuple[int, ...]) -> Credential:
        """The caller as it acts on this export: squashed; with 16 groups in AUTH_SYS the server's own group list of
        that user is used instead (cached; looked up off the loop). AUTH_NONE acts as the anonymous user."""
        raise NotImplementedError
