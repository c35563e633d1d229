"""Names and handles of files in stores: the store's keys as nodes.

Owns nothing; imports the contract and the tables. What is true of all names (which there can be, what is on the disk
before the reply) is in :mod:`nfsd.vfs.lookups`, :mod:`nfsd.vfs.creation` and :mod:`nfsd.vfs.namespace`, which come here
for the change itself.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from dataclasses import replace

from nfsd.backends.interface import Found, New, Store
from nfsd.backends.pool import Pool
from nfsd.exported import Export
from nfsd.reach import PATIENCE
from nfsd.vfs.attributes import raw_nlink, raw_type
from nfsd.vfs.changes import change_of
from nfsd.vfs.known_files import KnownFiles
from nfsd.vfs.open_files import OpenFiles
from nfsd.vfs.records import NO_DESCRIPTOR, Node
from nfsd.vfs.store_mounts import KIND, StoreMount
from nfsd.vfs.types import Change, Credential, FileType, SetAttributes
from nfsd.vfs.write_back import WriteBacks


def mount_of(node: Node) -> StoreMount:
    """The mount of a node in a store."""
    mount = node.mount
    assert isinstance(mount, StoreMount), "a file of the kernel's"
    return mount


class StoredNames:
    """Nodes of stores, and changes of their names."""

    def __init__(self, known: KnownFiles, open_files: OpenFiles, write_backs: WriteBacks) -> None:
        self._known = known
        self._open_files = open_files
        self._write_backs = write_backs
        self._openings: dict[int, asyncio.Future[tuple[StoreMount, Found]]] = {}
        """Stores that are being made, by export."""

    # -- nodes ---------------------------------------------------------------------------------------------------
    def node(self, mount: StoreMount, found: Found) -> Node:
        """The node of a file that a store has found."""
        handle = self._known.handle_of(mount, KIND, found.key)
        node = self._known.nodes.find(handle)
        if node is None:
            inode = self._known.nodes.inode(self._known.key_of(mount, KIND, found.key))
            node = Node(handle, inode, mount, NO_DESCRIPTOR, raw_type(found.look), _nothing_to_close)
            self._known.nodes.add(node)
        return node

    async def open_root(self, export: Export, lane: int, before: Node | None, make: Callable[[Export], Store]) -> Node:
        """The root directory of an export's store, which is made unless it was served ``before`` as it is now. Raises
        OSError; ETIMEDOUT when it does not answer, so that it holds up no other."""
        if before is not None and isinstance(before.mount, StoreMount) and before.mount.made_for == export.backend:
            return before
        opening = self._openings.get(export.id)
        if opening is None:
            opening = self._openings[export.id] = asyncio.ensure_future(self._open(export, lane, make))
        done, _ = await asyncio.wait((opening,), timeout=PATIENCE)
        if not done:
            raise OSError(errno.ETIMEDOUT, f"backend {export.backend} does not answer")
        del self._openings[export.id]
        mount, found = opening.result()
        if mount.made_for != export.backend:
            raise OSError(errno.ETIMEDOUT, f"backend {mount.made_for} has only now answered")
        return self.node(mount, found)

    async def _open(self, export: Export, lane: int, make: Callable[[Export], Store]) -> tuple[StoreMount, Found]:
        """Make a store, on a thread: a plug-in's code may wait. A root directory is to be seen there."""
        pool = Pool(f"make {export.backend}", 1)
        try:
            mount = StoreMount(export, lane, await pool.run(make, export), self._write_backs)
        finally:
            pool.close()
        found = await mount.store.names.root()
        if raw_type(found.look) is not FileType.DIR:
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        return mount, found

    async def resolve(self, root: Node, fs_id: bytes, kind: int, key: bytes) -> Node:
        """The file of a handle. Raises OSError (ESTALE)."""
        mount = mount_of(root)
        if kind != KIND or fs_id != mount.fs_id:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return self.node(mount, Found(key, await mount.store.names.find(key)))

    async def lookup(self, credential: Credential, directory: Node, name: bytes) -> tuple[Node, bytearray]:
        """What a name leads to, ``.`` and ``..`` among them, and a look at it."""
        mount = mount_of(directory)
        names = mount.store.names
        if name == b"..":
            found = await names.parent(credential, directory)
        elif name == b".":
            found = Found(directory.key[len(mount.key_prefix) + 1 :], await mount.store.files.look(directory))
        else:
            found = await names.lookup(credential, directory, name)
        return self.node(mount, found), found.look

    # -- changes, in their turns ---------------------------------------------------------------------------------
    async def make(
        self, credential: Credential, directory: Node, name: bytes, new: New, attributes: SetAttributes
    ) -> tuple[Node, bytearray, Change]:
        """Make a file that has these attributes. Returns its node, a look at it, and the directory's change."""
        mount = mount_of(directory)
        serial = directory.inode.serial
        await serial.acquire()
        try:
            made = await mount.store.names.make(credential, directory, name, new)
            change = change_of(directory, made.before, made.after)
        finally:
            serial.release()
        node, look = self.node(mount, made.file), made.file.look
        root = credential.uid == 0
        rest = replace(
            attributes,
            mode=None,
            uid=attributes.uid if root else None,
            gid=attributes.gid if root else None,
            size=attributes.size or None,
            umask=0,
        )
        if rest != SetAttributes():
            look = (await mount.store.data.set_attributes(None, node, rest)).after
        return node, look, change

    async def remove(self, credential: Credential, directory: Node, name: bytes, *, a_directory: bool) -> Change:
        """Remove a name."""
        mount = mount_of(directory)
        made = await mount.store.names.remove(credential, directory, name, a_directory=a_directory)
        self.bury(mount, made.file)
        return change_of(directory, made.before, made.after)

    async def rename(
        self, credential: Credential, source: Node, name: bytes, target: Node, new_name: bytes
    ) -> tuple[Change, Change]:
        """Rename."""
        mount = mount_of(source)
        made = await mount.store.names.rename(credential, source, name, target, new_name)
        if made.replaced is not None:
            self.bury(mount, made.replaced)
        change = change_of(source, made.source.before, made.source.after, happened=made.happened)
        if source is target:
            return change, change
        return change, change_of(target, made.target.before, made.target.after, happened=made.happened)

    async def link(self, credential: Credential, node: Node, directory: Node, name: bytes) -> tuple[bytearray, Change]:
        """A further name. Returns a look at the file, and the directory's change."""
        made = await mount_of(directory).store.names.link(credential, node, directory, name)
        return made.file.look, change_of(directory, made.before, made.after)

    def bury(self, mount: StoreMount, file: Found) -> None:
        """Let go of a file that has lost its last name."""
        if raw_nlink(file.look) and raw_type(file.look) is not FileType.DIR:
            return
        inode = self._known.nodes.known_inode(self._known.key_of(mount, KIND, file.key))
        if inode is None:
            return
        self._open_files.forget_removed_inode(inode)
        self._known.nodes.forget_removed(inode)


def _nothing_to_close(descriptor: int, lane: int) -> None:
    """There is no descriptor."""
