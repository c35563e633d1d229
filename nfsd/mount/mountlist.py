"""The list of mounts (RFC 1813 section 5.2.2): who has asked for which directory.

Owns the list; imports nothing of the project. It informs DUMP only, as in every server: clients that crash never say
goodbye, so nothing may depend on it. It lives in memory, and the oldest entries make room for new ones.
"""

from __future__ import annotations

from collections.abc import Container, Iterator


class MountList:
    """Pairs of client and directory, each once, oldest first; at most ``limit`` of them."""

    def __init__(self, limit: int = 4096) -> None:
        self._limit = limit
        self._entries: dict[tuple[str, bytes], None] = {}

    def add(self, client: str, directory: bytes) -> None:
        """Note a mount; one already noted becomes the newest."""
        self._entries.pop((client, directory), None)
        while len(self._entries) >= self._limit:
            del self._entries[next(iter(self._entries))]
        self._entries[client, directory] = None

    def remove(self, client: str, directory: bytes) -> None:
        """Forget a mount, if it was noted."""
        self._entries.pop((client, directory), None)

    def remove_all(self, client: str) -> None:
        """Forget all mounts of a client."""
        for entry in [entry for entry in self._entries if entry[0] == client]:
            del self._entries[entry]

    def has(self, clients: Container[str]) -> bool:
        """Whether any of these has mounted something."""
        return any(client in clients for client, _ in self._entries)

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        return iter(tuple(self._entries))

    def __len__(self) -> int:
        return len(self._entries)
