"""Files of a store that takes whole objects only, while they are written to: drafts, on this host's disk.

Owns :class:`Drafts` and the room that they have together; imports the vocabulary only.
"""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator

from nfsd.backends.simple import error


class Draft:
    """The octets of one file. They are used only under ``lock`` (:meth:`Drafts.hold`)."""

    __slots__ = ("descriptor", "dirty", "ended", "lock", "path", "seen", "size", "used", "written")

    def __init__(self, descriptor: int, path: str) -> None:
        self.descriptor = descriptor
        self.path = path
        """Where they are on this host."""
        self.lock = threading.RLock()
        self.size = 0
        """Octets. All of them are on the draft's account."""
        self.ended = False
        """Whether the descriptor is somebody else's by now."""
        self.dirty = False
        """Whether the store lacks something of it."""
        self.seen: object = None
        """Of a clean one: what the store's object looked like when both were the same."""
        self.used = time.monotonic()
        self.written = time.time_ns()
        """When it was changed last, as clients are told."""


class Drafts:
    """All drafts of a store, by their files' numbers, those that were used last at the end."""

    def __init__(self, directory: str | None, room: int) -> None:
        """``directory``: in which they are made; None: where temporary files are. ``room``: octets of all together."""
        self._directory = tempfile.mkdtemp(prefix="rdma-nfsd-drafts-", dir=directory)  # nobody else can enter it
        self._room = room
        self._taken = 0
        self._lock = threading.Lock()
        self._all: OrderedDict[int, Draft] = OrderedDict()

    @contextlib.contextmanager
    def hold(self, number: int, *, make: bool = False) -> Iterator[Draft | None]:
        """The draft of a file, for whoever enters this alone; None if there is none, unless one is to be made."""
        while True:
            with self._lock:
                draft = self._all.get(number)
                if draft is None and make:
                    draft = self._all[number] = Draft(*tempfile.mkstemp(dir=self._directory))
            if draft is None:
                yield None
                return
            with draft.lock:
                if draft.ended:
                    continue  # while this waited for it
                draft.used = time.monotonic()
                with self._lock:
                    self._all.move_to_end(number)
                yield draft
                return

    def resize(self, draft: Draft, size: int) -> None:
        """Give it so many octets; new ones are zeros. ENOSPC when there is no room: then nothing has changed."""
        more = size - draft.size
        with self._lock:
            if more > 0 and self._taken + more > self._room:
                self._drop_clean(self._taken + more - self._room, draft)
            if more > 0 and self._taken + more > self._room:
                raise error(errno.ENOSPC)
            self._taken += more
        try:
            os.ftruncate(draft.descriptor, size)
        except BaseException:
            with self._lock:
                self._taken -= more
            raise
        draft.size = size

    def drop(self, number: int) -> None:
        """There is none any more."""
        with self.hold(number) as draft, self._lock:
            if draft is not None:
                del self._all[number]
                self._end(draft)

    def drop_unused(self, since: float) -> None:
        """Drop the clean ones that nobody has used since then (``time.monotonic``)."""
        with self._lock:
            self._drop_clean(self._room, None, since)

    def dirty(self, since: float) -> list[int]:
        """The numbers of those which the store lacks something of, and nobody has used since then."""
        with self._lock:
            return [number for number, draft in self._all.items() if draft.dirty and draft.used <= since]

    def close(self) -> None:
        """Remove all."""
        for number in list(self._all):
            self.drop(number)
        os.rmdir(self._directory)

    # -- with the lock held --------------------------------------------------------------------------------------
    def _drop_clean(self, wanted: int, keep: Draft | None, since: float = float("inf")) -> None:
        """Drop drafts that the store has whole, until so many octets are free."""
        for number, draft in list(self._all.items()):
            if wanted <= 0 or draft.used > since:
                return
            if draft is keep or draft.dirty or not draft.lock.acquire(blocking=False):
                continue
            try:
                if not draft.dirty:
                    del self._all[number]
                    wanted -= draft.size
                    self._end(draft)
            finally:
                draft.lock.release()

    def _end(self, draft: Draft) -> None:
        draft.ended = True
        self._taken -= draft.size
        os.close(draft.descriptor)
        os.unlink(draft.path)
