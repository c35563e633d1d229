"""Object stores and other remote stores, by fsspec: S3, GCS, HTTP, SFTP, archives. Needs fsspec, and what it needs.

What is read comes from the store, piece by piece. A file that is written to is a draft on this host's disk
(:mod:`nfsd.backends.drafts`) until a client commits it, or leaves it alone for a while: then the store gets it whole.

Stores keep neither modes nor owners: the export's options say them for all files. Many keep no empty directories: those
last until the server ends. Times that clients set do too.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, ClassVar, Final

from nfsd.backends.drafts import Draft, Drafts
from nfsd.backends.objects import DIRECTORY, Objects, Seen
from nfsd.backends.paths import PathBackend
from nfsd.backends.simple import New, SetAttributes, SetTo, Status, Time, error
from nfsd.vfs.types import FileType
from rpcrdma.firewall import report

_LEFT_ALONE: Final = 5.0
"""Seconds after which a draft is given to the store though nobody has asked for it."""
_AT_HAND: Final = 30.0
"""Seconds for which a draft stays that the store has whole."""
_MOST_MOVED: Final = 1000
"""Files that a directory may have below it to be renamed; others are moved by the client, name by name."""
_MOST_TIMES: Final = 1 << 16
"""Files whose times are remembered."""


class FsspecBackend(PathBackend):
    """See the module."""

    threads: ClassVar[int] = 8

    def __init__(
        self, *, url: str, storage: dict[str, Any] | None = None, writable: bool = False, uid: int = 0, gid: int = 0,
        mode: int = 0o644, directory_mode: int = 0o755, drafts: str | None = None, room: int = 1 << 30,
        fresh: float = 2.0,
    ) -> None:  # fmt: skip
        """``url``: as fsspec has it (``s3://bucket/below``); ``storage``: what its file system is made with.
        ``uid``, ``gid``, ``mode``, ``directory_mode``: of all files. ``drafts``: a directory of this host; ``room``:
        octets of all drafts. ``fresh``: for how many seconds what the store has said is not asked again."""
        super().__init__()
        self.writable = writable
        self._objects = Objects(url, storage or {}, fresh)
        self._owner = uid, gid
        self._modes = {FileType.REG: mode, FileType.DIR: directory_mode}
        self._drafts = Drafts(drafts, room) if writable else None
        self._kept: set[int] = set()
        """Files without a name that are still open."""
        self._times: OrderedDict[int, tuple[Seen, int | None, int]] = OrderedDict()
        """Access and modification, as clients have set them, of what was in the store then."""
        self._looks: OrderedDict[int, tuple[object, int]] = OrderedDict()
        """What each file was when its status was asked for last, and its ctime then."""
        self._moving = threading.Lock()
        """One thread at a time holds several drafts."""
        self._began = time.time_ns()
        self._ending = threading.Event()
        if writable:
            threading.Thread(target=self._look_after_drafts, name="FsspecBackend drafts", daemon=True).start()

    def close(self) -> None:
        """Give the store what it lacks."""
        self._ending.set()
        if self._drafts is not None:
            self._upload_all(float("inf"))
            self._drafts.close()

    # -- reading -------------------------------------------------------------------------------------------------
    def status(self, key: bytes) -> Status:
        """See :class:`SimpleBackend`."""
        number = int.from_bytes(key, "big")
        if number in self._kept:
            with self._hold(number) as draft:
                if draft is None:
                    raise error(errno.ESTALE)
                return self._status(FileType.REG, number, draft.size, draft.written, draft.written, 0)
        return super().status(key)

    def status_at(self, path: str, number: int) -> Status:
        """See :class:`PathBackend`."""
        seen = self._objects.seen(path)
        if seen.type is FileType.DIR:
            moment = self._ctime(number, self._objects.names_look(path) if number else 0, self._began)
            return self._status(FileType.DIR, number, 0, moment, moment, 2)
        size, moment, atime = seen.size, seen.mtime, None
        with self._hold(number, seen) as draft:
            if draft is not None:
                size, moment = draft.size, draft.written
            times = self._times.get(number)
            if times is not None and (times[0] == seen or (draft is not None and draft.dirty)):
                _, atime, moment = times
        ctime = self._ctime(number, (size, moment, atime, seen.tag), moment)
        return self._status(FileType.REG, number, size, moment, ctime, 1, atime)

    def names_in(self, path: str) -> list[str]:
        """See :class:`PathBackend`."""
        return self._objects.names(path)

    def read(self, key: bytes, offset: int, size: int) -> bytes:
        """See :class:`SimpleBackend`."""
        number = int.from_bytes(key, "big")
        path = "" if number in self._kept else self.path_of(key)
        seen = self._objects.seen(path) if path else None
        if seen is not None and seen.type is FileType.DIR:
            raise error(errno.EISDIR)
        with self._hold(number, seen) as draft:
            if draft is not None:
                return os.pread(draft.descriptor, size, offset)
        if seen is None:
            raise error(errno.ESTALE)
        return self._objects.read(path, offset, min(size, max(0, seen.size - offset)))

    # -- changing ------------------------------------------------------------------------------------------------
    def make(self, directory: bytes, name: bytes, new: New, uid: int, gid: int) -> bytes:
        """See :class:`SimpleBackend`. Modes and owners are those of all files."""
        path = self.path_in(directory, name)
        if new.type is FileType.DIR:
            self._objects.make_directory(path)
        elif new.type is FileType.REG:
            self._objects.write(path, b"")
        else:
            raise error(errno.EOPNOTSUPP)
        return self.key_at(path)

    def remove(self, directory: bytes, name: bytes) -> None:
        """See :class:`SimpleBackend`."""
        path = self.path_in(directory, name)
        if self._objects.seen(path).type is FileType.DIR:
            if self._objects.names(path):
                raise error(errno.ENOTEMPTY)
            self._objects.remove_directory(path)
            self._lost(path)
            return
        with self._hold(self.number_at(path)):  # what gives the draft to the store holds it, too
            self._objects.remove(path)
            self._lost(path)

    def keep(self, key: bytes) -> None:
        """See :class:`SimpleBackend`: its octets become a draft, since the store will not have them."""
        number, seen = int.from_bytes(key, "big"), self._objects.seen(self.path_of(key))
        if seen.type is FileType.REG:
            self._filled(number, self.path_of(key), seen)
            self._kept.add(number)

    def forget(self, key: bytes) -> None:
        """See :class:`SimpleBackend`."""
        number = int.from_bytes(key, "big")
        self._kept.discard(number)
        self._forget(number)

    def rename(self, directory: bytes, name: bytes, target: bytes, new_name: bytes) -> None:
        """See :class:`SimpleBackend`. Stores copy what is moved, and a directory's files one by one. EXDEV for large
        directories: clients then do that themselves."""
        old, new = self.path_in(directory, name), self.path_in(target, new_name)
        moved, replaced = self._objects.seen(old), self._objects.there(new)
        with self._moving, contextlib.ExitStack() as held:
            for path in (*self.met_below(old), old, new):
                held.enter_context(self._hold(self.number_at(path)))
            if moved.type is FileType.DIR:
                if replaced is not None and self._objects.names(new):
                    raise error(errno.ENOTEMPTY)
                self._objects.move_directory(old, new, _MOST_MOVED)
            else:
                self._objects.move(old, new)
            if replaced is not None:
                self._lost(new)
            self.renamed(old, new)

    def write(self, key: bytes, offset: int, data: bytes) -> int:
        """See :class:`SimpleBackend`."""
        number = int.from_bytes(key, "big")
        if number not in self._kept:
            path = self.path_of(key)
            self._filled(number, path, self._objects.seen(path))
        with self._hold(number) as draft:
            if draft is None:
                raise error(errno.ESTALE)
            if offset + len(data) > draft.size:
                self._room().resize(draft, offset + len(data))
            done = os.pwrite(draft.descriptor, data, offset)
            self._changed(number, draft)
        return done

    def set_attributes(self, key: bytes, changes: SetAttributes) -> None:
        """See :class:`SimpleBackend`. The store has no modes and owners. EPERM for another owner or group; another mode
        has no effect: clients set one as a part of making a file."""
        now = self.status(key)
        wanted = (changes.uid, now.uid), (changes.gid, now.gid)
        if any(one is not None and one != other for one, other in wanted):
            raise error(errno.EPERM)
        number = int.from_bytes(key, "big")
        if changes.size is not None:
            self._set_size(key, number, changes.size)
        if changes.atime is not None or changes.mtime is not None:
            atime = now.atime if changes.atime is None else _nanoseconds(changes.atime)
            mtime = now.mtime if changes.mtime is None else _nanoseconds(changes.mtime)
            seen = DIRECTORY if number in self._kept else self._objects.seen(self.path_of(key))
            self._remember(number, seen, atime, mtime)

    def sync(self, key: bytes) -> None:
        """See :class:`SimpleBackend`."""
        self._upload(int.from_bytes(key, "big"))

    # -- drafts --------------------------------------------------------------------------------------------------
    def _room(self) -> Drafts:
        if self._drafts is None:
            raise error(errno.EROFS)
        return self._drafts

    @contextlib.contextmanager
    def _hold(self, number: int, seen: Seen | None = None) -> Iterator[Draft | None]:
        """The draft of a file that counts, if any: not one that the store's file has left behind (``seen``)."""
        if self._drafts is None or not number:
            yield None
            return
        with self._drafts.hold(number) as draft:
            if draft is None or seen is None or draft.dirty or draft.seen == seen:
                yield draft
                return
            self._drafts.drop(number)
            yield None

    def _filled(self, number: int, path: str, seen: Seen) -> None:
        """Have a draft of a file, with the store's octets to begin with."""
        if seen.type is FileType.DIR:
            raise error(errno.EISDIR)
        with self._hold(number, seen) as draft:
            if draft is not None:
                return
        with self._room().hold(number, make=True) as draft:
            if draft is None or draft.dirty or draft.seen is not None:
                return  # another thread was here first
            try:
                self._room().resize(draft, seen.size)
                if seen.size:
                    self._objects.download(path, draft.path)
                    self._room().resize(draft, os.fstat(draft.descriptor).st_size)
            except BaseException:
                self._room().drop(number)
                raise
            draft.seen, draft.written = seen, seen.mtime

    def _set_size(self, key: bytes, number: int, size: int) -> None:
        if size and number not in self._kept:
            path = self.path_of(key)
            self._filled(number, path, self._objects.seen(path))
        with self._room().hold(number, make=not size) as draft:
            if draft is None:
                raise error(errno.ESTALE)
            self._room().resize(draft, size)
            self._changed(number, draft)

    def _changed(self, number: int, draft: Draft) -> None:
        draft.dirty = True
        draft.written = max(time.time_ns(), draft.written + 1)
        self._times.pop(number, None)

    def _upload(self, number: int) -> None:
        """Give the store what it lacks of a file."""
        with self._hold(number) as draft:
            if draft is None or not draft.dirty or number in self._kept:
                return
            path = self.path_of(number.to_bytes(8, "big"))
            seen = draft.seen = self._objects.upload(path, draft.path)
            draft.dirty = False
            _, atime, mtime = self._times.get(number, (seen, None, draft.written))
            self._remember(number, seen, atime, mtime)  # clients need not see another time when the draft goes

    def _upload_all(self, since: float) -> None:
        for number in self._room().dirty(since):
            try:
                self._upload(number)
            except Exception as failure:
                # A client that commits is told. Others' octets stay, and this is tried again.
                report(f"giving {self._objects} a file", failure)

    def _look_after_drafts(self) -> None:
        while not self._ending.wait(1):
            now = time.monotonic()
            self._upload_all(now - _LEFT_ALONE)
            self._room().drop_unused(now - _AT_HAND)

    # -- parts of these ------------------------------------------------------------------------------------------
    def _lost(self, path: str) -> None:
        """There is nothing at a path any more."""
        number = self.number_at(path)
        self.gone(path)
        if number and number not in self._kept:
            self._forget(number)

    def _forget(self, number: int) -> None:
        self._times.pop(number, None)
        self._looks.pop(number, None)
        if self._drafts is not None:
            self._drafts.drop(number)

    def _remember(self, number: int, seen: Seen, atime: int | None, mtime: int) -> None:
        self._times[number] = seen, atime, mtime
        if len(self._times) > _MOST_TIMES:
            self._times.popitem(last=False)

    def _status(
        self, kind: FileType, number: int, size: int, mtime: int, ctime: int, nlink: int, atime: int | None = None
    ) -> Status:
        uid, gid = self._owner
        return Status(kind, number, self._modes[kind], nlink, uid, gid, size, mtime, max(ctime, mtime), atime)

    def _ctime(self, number: int, look: object, moment: int) -> int:
        """When a file became what it is: when the store says, or when it was first seen to be another."""
        known = self._looks.get(number)
        if known is None or known[0] != look:
            known = (look, moment if known is None else time.time_ns())
            if number:
                self._looks[number] = known
                if len(self._looks) > _MOST_TIMES:
                    self._looks.popitem(last=False)
        return known[1]


def _nanoseconds(moment: Time | SetTo) -> int:
    if isinstance(moment, SetTo):
        return time.time_ns()
    return moment.seconds * 1_000_000_000 + moment.nanoseconds
