"""NFS file handles: making them, and believing them only when they are ours.

Owns the key. Imports nothing but the vocabulary. A handle is at most 64 octets (NFS3_FHSIZE, RFC 1813 section 2.4):

    version 1 | kernel handle type 1 | export id 4 | file system 6 | kernel handle 0..40 | MAC 12

The kernel's handle (name_to_handle_at) names the inode and its generation, so it survives renames and restarts, and is
stale once the inode is gone. The file system's octets come from what identifies it on the disk (see ``mounts``), not
from device numbers. The MAC is keyed with 32 octets that never leave the state directory: a client cannot make up the
handle of a file it was never given, which is why the server need not check on each use that a file still lies below
the export (``no_subtree_check`` of exports(5)): every handle was given out for a file reached by names inside it.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import os
import struct

from nfsd.vfs.types import BadHandle

VERSION = 1
MAC_SIZE = 12
KEY_SIZE = 32
MAX_KERNEL_HANDLE = 40
"""The longest kernel handle that fits: btrfs's."""
_head = struct.Struct(">BBI6s")
_MIN_SIZE = _head.size + MAC_SIZE


class HandleCodec:
    """Makes and checks handles with one key."""

    def __init__(self, key: bytes) -> None:
        self._keyed = hashlib.blake2s(key=key, digest_size=MAC_SIZE)

    def encode(self, export_id: int, fs_id: bytes, kind: int, kernel: bytes) -> bytes:
        """The handle. Raises OSError(EOVERFLOW) when the kernel's handle is too long to fit."""
        if len(kernel) > MAX_KERNEL_HANDLE or not 0 <= kind <= 255:
            raise OSError(errno.EOVERFLOW, "the file system's handles do not fit in an NFS handle")
        body = _head.pack(VERSION, kind, export_id, fs_id) + kernel
        mac = self._keyed.copy()
        mac.update(body)
        return body + mac.digest()

    @staticmethod
    def claimed(handle: bytes) -> tuple[int, bytes] | None:
        """(export id, file system) as a handle has it, whether it is ours or not; None: it is not."""
        if len(handle) < _MIN_SIZE:
            return None
        _, _, export_id, fs_id = _head.unpack_from(handle)
        return export_id, fs_id

    def decode(self, handle: bytes) -> tuple[int, bytes, int, bytes]:
        """(export id, file system, kernel handle type, kernel handle). Raises BadHandle."""
        if not _MIN_SIZE <= len(handle) <= _MIN_SIZE + MAX_KERNEL_HANDLE or handle[0] != VERSION:
            raise BadHandle
        body = handle[:-MAC_SIZE]
        mac = self._keyed.copy()
        mac.update(body)
        if not hmac.compare_digest(mac.digest(), handle[-MAC_SIZE:]):
            raise BadHandle
        _, kind, export_id, fs_id = _head.unpack_from(body)
        return export_id, fs_id, kind, body[_head.size :]


def load_key(state_dir: str) -> bytes:
    """The server's key, made durably on the first start. Raises OSError naming the path."""
    path = os.path.join(state_dir, "handle.key")
    try:
        with open(path, "rb") as file:
            key = file.read(KEY_SIZE + 1)
    except FileNotFoundError:
        key = os.urandom(KEY_SIZE)
        _write_key(state_dir, path, key)
    if len(key) != KEY_SIZE:
        # A fresh key would silently make every client's handles bad: leave the decision to the administrator.
        raise OSError(errno.EINVAL, f"the handle key is {len(key)} octets instead of {KEY_SIZE}", path)
    return key


def _write_key(state_dir: str, path: str, key: bytes) -> None:
    """Under its name only once complete and on the disk: a crash leaves no half key."""
    draft = f"{path}.new"
    if os.path.lexists(draft):
        os.unlink(draft)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, key)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.rename(draft, path)
    directory = os.open(state_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
