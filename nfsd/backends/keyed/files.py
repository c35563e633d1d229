"""Files of a store in plain Python: looks, permissions, data, attributes. Owns nothing."""

from __future__ import annotations

import errno
from collections.abc import Sequence

from nfsd.backends.interface import Made, Write
from nfsd.backends.keyed.calls import Calls
from nfsd.backends.keyed.rules import READ, WRITE, check, check_changes, granted, is_root, without_set_ids
from nfsd.backends.looks import look_of
from nfsd.backends.simple import SetAttributes, error
from nfsd.vfs.records import Credential, Node, OpenFile
from nfsd.vfs.store_mounts import key_of


class KeyedFiles:
    """See :class:`nfsd.backends.interface.FileStore`."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def look(self, node: Node) -> bytearray:
        """A look at a file now."""
        return await self._calls.run(self._calls.look, key_of(node))

    async def permissions(self, credential: Credential | None, node: Node, asked: int) -> int:
        """What a caller may do."""
        return asked & granted(credential, await self._calls.run(self._calls.status, key_of(node)))

    async def readlink(self, credential: Credential, node: Node) -> bytes:
        """A symbolic link's text."""
        return await self._calls.run(self._calls.store.readlink, key_of(node))

    async def in_snapshot(self, node: Node) -> bool:
        """Nothing changes where nothing can be written: but who knows what changes the store from outside?"""
        return False

    def in_snapshot_at_once(self, node: Node) -> bool | None:
        """The same."""
        return False


class KeyedData:
    """See :class:`nfsd.backends.interface.DataStore`."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def open(self, credential: Credential | None, node: Node, access: int) -> None:
        """A caller is about to use a file."""
        wanted = (READ if access & 1 else 0) | (WRITE if access & 2 else 0)
        if access & 2 and not self._calls.store.writable:
            raise error(errno.EROFS)
        key = key_of(node)
        check(credential, await self._calls.run(self._calls.status, key), wanted)
        self._calls.opened(key)

    def closed(self, node: Node, stored: object) -> None:
        """It does not use it any more."""
        self._calls.closed(key_of(node))

    async def read(self, opened: OpenFile, offset: int, sink: memoryview) -> tuple[int, bytearray]:
        """Read, then look."""
        return await self._calls.run(self._read, key_of(opened.node), offset, sink)

    def _read(self, key: bytes, offset: int, sink: memoryview) -> tuple[int, bytearray]:
        with sink:
            octets = self._calls.store.read_into(key, offset, sink)
            if not 0 <= octets <= len(sink):
                raise ValueError(f"read_into has returned {octets} of {len(sink)} octets")
        return octets, self._calls.look(key)

    async def write(self, opened: OpenFile, offset: int, data: memoryview) -> Made:
        """Write a copy: the memory is somebody else's afterwards."""
        with data:
            octets = bytes(data)
        return await self._calls.run(self._write, key_of(opened.node), opened.credential, offset, octets)

    async def write_all(self, writes: Sequence[Write]) -> list[Made | Exception]:
        """Each on a thread of its own."""
        made: list[Made | Exception] = []
        for opened, offset, data in writes:
            try:
                made.append(await self.write(opened, offset, data))
            except Exception as failure:
                made.append(failure)
        return made

    def _write(self, key: bytes, credential: Credential | None, offset: int, data: bytes) -> Made:
        store, before = self._calls.store, self._calls.status(key)
        done = store.write(key, offset, data)
        if not is_root(credential) and (mode := without_set_ids(before)) is not None:
            store.set_attributes(key, SetAttributes(mode=mode))
        if not 0 < done <= len(data):
            raise ValueError(f"write has returned {done} of {len(data)} octets")
        return Made(look_of(before), self._calls.look(key), done)

    async def sync(self, node: Node) -> None:
        """It outlasts a crash."""
        if self._calls.store.writable:
            await self._calls.run(self._calls.store.sync, key_of(node))

    async def set_attributes(self, credential: Credential | None, node: Node, changes: SetAttributes) -> Made:
        """Set attributes."""
        if not self._calls.store.writable:
            raise error(errno.EROFS)
        if changes.access_acl is not None or changes.default_acl is not None or changes.label is not None:
            raise error(errno.EOPNOTSUPP)
        return await self._calls.run(self._set, key_of(node), credential, changes)

    def _set(self, key: bytes, credential: Credential | None, changes: SetAttributes) -> Made:
        before = self._calls.status(key)
        self._calls.store.set_attributes(key, check_changes(credential, before, changes))
        return Made(look_of(before), self._calls.look(key))
