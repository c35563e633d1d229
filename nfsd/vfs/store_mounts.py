"""Stores that are no file systems of the kernel, as file systems of exports.

Owns :class:`StoreMount`, and :func:`store_of`, which tells where a file is; imports the contract. Files there have
NO_DESCRIPTOR (:mod:`nfsd.vfs.records`). Their mounts are neither ``inline`` nor ``caching``, so native operations leave
them to coroutines.
"""

from __future__ import annotations

import asyncio
import hashlib
from typing import Final, cast

from nfsd.backends.interface import KEY_MAX, Made, Store, TrainStore, Write
from nfsd.exported import Export
from nfsd.vfs.mounts import Identity, Mount
from nfsd.vfs.records import Inode, Node, OpenFile
from nfsd.vfs.serial import Serial
from nfsd.vfs.write_back import WriteBacks
from rpcrdma.rpc import eager

KIND: Final = 0xF5
"""In handles, in the place of the kernel handle's type."""


_LONGEST: Final = 64
"""Writes in one turn of a file, so that other changes get theirs."""
_Train = list[tuple[Write, "asyncio.Future[Made]"]]


def _end_turn(serial: Serial) -> None:
    serial.writing = False
    serial.release()


def _told(_: None, failure: BaseException | None) -> None:
    """Each of a train's writes is told for itself."""
    if failure is not None:
        raise failure


class StoreMount(Mount):
    """A store in an export."""

    __slots__ = ("_open", "_trains", "made_for", "store")

    def __init__(self, export: Export, lane: int, store: Store, write_backs: WriteBacks) -> None:
        name = b"store:" + store.identity
        identity = Identity(
            hashlib.blake2s(name, digest_size=6).digest(), hashlib.blake2s(name, digest_size=8).digest()
        )
        super().__init__(export, lane, -1, 0, (0, 0), 0, identity, None, lambda *_: None, write_backs)
        self.write_back.renew()  # the store of before may have gone with what it had not written
        self.store = store
        self.stored_names = getattr(store.names, "native", None)
        self.made_for = export.backend
        self._open = True
        self._trains: dict[Inode, _Train] = {}
        """Writes that wait for their file's turn."""

    def shut(self) -> None:
        """The store is of no more use."""
        if self._open:
            self._open = False
            self.store.close()

    async def read(self, opened: OpenFile, offset: int, sink: memoryview) -> tuple[int, None, bytearray]:
        """For :mod:`nfsd.vfs.transfers`: octets, no look before, the look afterwards."""
        octets, after = await self.store.data.read(opened, offset, sink)
        return octets, None, after

    async def write(self, opened: OpenFile, offset: int, data: memoryview) -> tuple[int, bytearray, bytearray]:
        """For :mod:`nfsd.vfs.transfers`, in the file's turn: octets, the looks around the write. Nobody cancels it."""
        inode, done = opened.node.inode, asyncio.get_running_loop().create_future()
        train = self._trains.get(inode)
        is_new = train is None or len(train) >= _LONGEST
        if train is None or is_new:
            train = self._trains[inode] = []
        train.append((Write(opened, offset, data), done))
        if is_new:
            eager.start(self._depart(inode, train), _told)
        made: Made = await done
        return made.octets, made.before, made.after

    async def _depart(self, inode: Inode, train: _Train) -> None:
        """Make writes that have come while others had the file's turn: all in one turn."""
        serial = inode.serial
        await serial.acquire()
        serial.writing = True
        if self._trains.get(inode) is train:
            del self._trains[inode]
        made: list[Made | Exception]
        try:
            try:
                made = await cast(TrainStore, self.store.data).write_all([one for one, _ in train])
            except Exception as failure:
                made = [failure] * len(train)
            for (_, done), one in zip(train, made, strict=True):
                if isinstance(one, Exception):
                    done.set_exception(one)
                else:
                    done.set_result(one)
        finally:
            # Behind those who are told now, and note what has become of the file before its next change.
            asyncio.get_running_loop().call_soon(_end_turn, serial)


def store_of(node: Node) -> Store | None:
    """The store that a file is in; None: it is on a file system of the kernel."""
    mount = node.mount
    return mount.store if isinstance(mount, StoreMount) else None


def is_shared(node: Node) -> bool:
    """Whether others change the file's store, and nobody tells of it."""
    store = store_of(node)
    return store is not None and store.shared


def key_of(node: Node) -> bytes:
    """What its store calls a file."""
    return node.key[len(node.mount.key_prefix) + 1 :]


def check_key(key: bytes) -> bytes:
    """A key that a handle has room for. Raises ValueError: it is the store's mistake."""
    if not 0 < len(key) <= KEY_MAX:
        raise ValueError(f"a key of {len(key)} octets; it may have 1 to {KEY_MAX}")
    return key
