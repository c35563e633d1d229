"""Files that are known: nodes made of descriptors, and handles of nodes.

Owns the handle codec, the node table and the table of places. A node's descriptor is opened with O_PATH. Files are
found by their handles in :mod:`nfsd.vfs.finding`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from nfsd.exported import Export
from nfsd.vfs.attributes import raw_device, raw_fileid, raw_type
from nfsd.vfs.chains import Chains
from nfsd.vfs.executor import Chain, Step
from nfsd.vfs.handles import MAX_KERNEL_HANDLE, HandleCodec, load_key
from nfsd.vfs.mounts import Mount
from nfsd.vfs.nodes import NodeTable
from nfsd.vfs.places import Places
from nfsd.vfs.records import Node
from nfsd.vfs.syscalls import (
    AT_EMPTY_PATH,
    STATX_MASK,
    SYS_NAME_TO_HANDLE_AT,
    SYS_STATX,
    Naming,
    numbered,
    parse_handle,
)
from nfsd.vfs.types import FileType


def add_look(
    chain: Chain, opened: Step | int, status: bytearray, kernel: bytearray, naming: int = Naming.HANDLE
) -> None:
    """Append the two calls that tell what a descriptor names, or the one where files go by their numbers."""
    chain.add(SYS_STATX, opened, b"", AT_EMPTY_PATH, STATX_MASK, status)
    if naming:
        chain.add(SYS_NAME_TO_HANDLE_AT, opened, b"", kernel, bytearray(8), naming)


def identity(mount: Mount, status: bytearray, kernel: bytearray) -> tuple[int, bytes]:
    """What a file is called on its mount, from the buffers of a look that went as its ``naming`` says."""
    if mount.naming:
        kind, octets = parse_handle(kernel)
        if mount.naming == Naming.HANDLE or len(octets) <= MAX_KERNEL_HANDLE:
            return kind, octets
    return numbered(raw_fileid(status), raw_device(status), mount.device)


class KnownFiles:
    """Nodes and handles."""

    def __init__(self, nodes: NodeTable, chains: Chains, state_dir: str) -> None:
        self.nodes = nodes
        self._chains = chains
        self._state_dir = state_dir
        self.codec: HandleCodec
        self.places: Places | None = None
        """Where files are that cannot be opened by handle; None as long as there are none."""
        self._opening_places = asyncio.Lock()

    def start(self) -> None:
        """Open the handle key in the state directory. Raises OSError naming the path."""
        self.codec = HandleCodec(load_key(self._state_dir))

    async def use_places(self) -> str:
        """From now on it is remembered where files are. Returns the directory with the table. Raises OSError."""
        async with self._opening_places:
            if self.places is None:
                places = Places(self._state_dir)
                await places.open()
                self.places = places
        return self._state_dir

    def serve(self, export_of: Callable[[Mount], Export | None]) -> None:
        """Every node is of the export that its mount has now; those whose mount has none are not found any more."""
        for node in self.nodes.all():
            export = export_of(node.mount)
            if export is not None:
                node.export = node.mount.export = export
            else:
                self.nodes.disown(node)

    async def close(self) -> None:
        """Close the table of places."""
        if self.places is not None:
            await self.places.close()

    def shut(self) -> None:
        """Close the descriptors of all nodes, even of those that somebody still holds."""
        for node in self.nodes.clear():
            node.shut()

    def handle_of(self, mount: Mount, kind: int, octets: bytes) -> bytes:
        """The handle of a file on a mount, from its kernel handle. Raises OSError (EOVERFLOW)."""
        return self.codec.encode(mount.export.id, mount.fs_id, kind, octets)

    def adopt(
        self,
        mount: Mount,
        descriptor: int,
        status: bytearray,
        kernel: bytearray,
        directory: Node | None = None,
        name: bytes = b".",
    ) -> Node:
        """The node of an O_PATH descriptor, which is taken over (or closed, if the node is known already). It was found
        as ``name`` in ``directory``, if that is known."""
        kind, octets = identity(mount, status, kernel)
        try:
            handle = self.handle_of(mount, kind, octets)
        except OSError:
            self._chains.close_later(descriptor)
            raise
        if directory is not None:
            self.found_at(mount, handle, directory, name)
        return self.adopt_handle(mount, handle, kind, octets, descriptor, raw_type(status))

    def found_at(self, mount: Mount, handle: bytes, directory: Node, name: bytes) -> None:
        """A file was found in a directory: to be remembered where handles alone do not lead to files."""
        if mount.by_place and self.places is not None and name not in (b".", b".."):
            self.places.saw(handle, directory.handle, name)

    def adopt_handle(
        self, mount: Mount, handle: bytes, kind: int, octets: bytes, descriptor: int, file_type: FileType
    ) -> Node:
        """As ``adopt``, where the handle is known."""
        node = self.nodes.find(handle)
        if node is not None:
            # The node's own descriptor keeps the inode: this is not the last close, and waits for nothing.
            os.close(descriptor)
            return node
        inode = self.nodes.inode(self.key_of(mount, kind, octets))
        node = Node(handle, inode, mount, descriptor, file_type, self._chains.close_later)
        self.nodes.add(node)
        return node

    @staticmethod
    def key_of(mount: Mount, kind: int, octets: bytes) -> bytes:
        """The key of a file, from its kernel handle."""
        return mount.key_prefix + bytes((kind & 0xFF,)) + octets
