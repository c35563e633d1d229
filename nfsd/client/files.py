"""An open file on a server. Owns :class:`File`; imports the backends' protocol.

Reads and writes are cut into calls of the server's sizes, with several in flight. Writes are unstable. Their data are
kept until the verifier of a COMMIT shows that the server did not lose them by a restart. Lost data are written again
(RFC 1813 section 3.3.7 and 3.3.21, RFC 8881 section 18.32.4). So an error of the server's disk may come as late as
``flush`` or ``close``.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections import deque
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Final

from nfsd.client.errors import NfsClientError
from nfsd.client.pipeline import each, pieces
from nfsd.client.types import Backend, Changes, Stat

UNCOMMITTED_LIMIT: Final = 64 << 20
"""Octets that are kept for a COMMIT, at most."""
_MOST_COMMITS: Final = 16


class File:
    """One file, for reading or for both. Made by ``FileSystem.open``."""

    def __init__(self, backend: Backend, opened: Any, path: str, size: int, *, writable: bool) -> None:
        self._backend = backend
        self._opened = opened
        self.path = path
        self.writable = writable
        self._size = size
        self._position = 0
        self._uncommitted: list[tuple[int, bytes, bytes]] = []
        self._kept = 0
        self._committing = asyncio.Lock()
        self.closed = False
        self.resent = 0
        """Octets written again because the server had lost them."""

    async def __aenter__(self) -> File:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.close()
            return
        with contextlib.suppress(OSError, NfsClientError):
            await self._release()

    # -- reading -----------------------------------------------------------------------------------------------------
    async def _fill(self, offset: int, into: memoryview) -> int:
        """Read until ``into`` is full or the file ends; the octets read."""
        done = 0
        while done < len(into):
            piece = into[done : done + self._backend.read_size]
            count, eof = await self._backend.read(self._opened, offset + done, piece)
            done += count
            if eof or not count:
                break
        return done

    async def preadinto(self, buffer: bytearray | memoryview, offset: int) -> int:
        """Read at ``offset`` into a buffer, several READs at a time; how many octets there were, fewer than the buffer
        takes only where the file ends."""
        view = memoryview(buffer).cast("B")
        ends = [len(view)]

        async def read(piece: tuple[int, int]) -> None:
            at, length = piece
            if at - offset >= min(ends):
                return  # the file has ended before
            got = await self._fill(at, view[at - offset : at - offset + length])
            if got < length:
                ends.append(at - offset + got)

        with self._naming():
            count = -(-len(view) // self._backend.read_size)
            cut = pieces(offset, offset + len(view), self._backend.read_size)
            await each(cut, read, min(self._backend.depth, max(1, count)))
        return min(ends)

    async def pread(self, size: int, offset: int) -> bytes:
        """At most ``size`` octets at ``offset``."""
        buffer = bytearray(size)
        got = await self.preadinto(buffer, offset)
        return bytes(memoryview(buffer)[:got])

    async def read(self, size: int = -1) -> bytes:
        """The next ``size`` octets, or all that remain."""
        if size >= 0:
            found = await self.pread(size, self._position)
        else:
            found = b"".join([bytes(piece) async for piece in self.stream(self._position)])
        self._position += len(found)
        return found

    async def readinto(self, buffer: bytearray | memoryview) -> int:
        """The next octets into a buffer; how many."""
        got = await self.preadinto(buffer, self._position)
        self._position += got
        return got

    async def stream(self, offset: int = 0) -> AsyncIterator[memoryview]:
        """The file from ``offset`` to its end, piece by piece, with more on the way. A piece is good until the next
        one is asked for: then its memory is used again."""
        size = self._backend.read_size
        ahead: deque[tuple[asyncio.Task[int], memoryview]] = deque()
        free: list[memoryview] = []
        next_offset, made = offset, 0
        try:
            with self._naming():
                while True:
                    # Beyond the size that is known there is at most one READ, which finds the end or that there is
                    # more.
                    while (free or made < self._backend.depth) and (next_offset < self._size or not ahead):
                        if not free:
                            free.append(memoryview(bytearray(size)))
                            made += 1
                        buffer = free.pop()
                        ahead.append((asyncio.create_task(self._fill(next_offset, buffer)), buffer))
                        next_offset += size
                    task, buffer = ahead.popleft()
                    got = await task
                    if got:
                        yield buffer[:got]
                    if got < size:
                        return
                    free.append(buffer)
        finally:
            for task, _ in ahead:
                task.cancel()
            if ahead:
                await asyncio.wait([task for task, _ in ahead])

    # -- writing -----------------------------------------------------------------------------------------------------
    async def _put(self, offset: int, data: bytes) -> None:
        """Write one piece, however little the server takes at a time."""
        view = memoryview(data)
        done = 0
        while done < len(data):
            rest = data if not done else bytes(view[done:])
            count, verifier = await self._backend.write(self._opened, offset + done, rest)
            if verifier is not None:
                self._uncommitted.append((offset + done, rest if count == len(rest) else rest[:count], verifier))
                self._kept += count
            done += count

    async def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> int:
        """Write at ``offset``, several WRITEs at a time. The data are the server's when this returns, and on its disk
        after :meth:`flush`."""
        if not self.writable:
            raise OSError(errno.EBADF, "the file is open for reading only", self.path)
        view = memoryview(data).cast("B")
        size = self._backend.write_size

        async def write(piece: tuple[int, int]) -> None:
            at, length = piece
            if length == len(view) and isinstance(data, bytes):
                whole = data
            else:
                whole = bytes(view[at - offset : at - offset + length])
            await self._put(at, whole)

        with self._naming():
            cut = pieces(offset, offset + len(view), size)
            await each(cut, write, min(self._backend.depth, max(1, -(-len(view) // size))))
            if self._kept > UNCOMMITTED_LIMIT:
                await self._commit()
        self._size = max(self._size, offset + len(view))
        return len(view)

    async def write(self, data: bytes | bytearray | memoryview) -> int:
        """Write at the position, and move it."""
        count = await self.pwrite(data, self._position)
        self._position += count
        return count

    async def flush(self) -> None:
        """Have everything that was written on the server's stable storage."""
        with self._naming():
            await self._commit()

    async def _commit(self) -> None:
        """Have what was written until now on stable storage; what is written meanwhile is the next COMMIT's."""
        async with self._committing:
            for _ in range(_MOST_COMMITS):
                written, self._uncommitted = self._uncommitted, []
                if not written:
                    return
                size = sum(len(data) for _, data, _ in written)
                try:
                    verifier = await self._backend.commit(self._opened)
                except BaseException:
                    self._uncommitted += written
                    raise
                self._kept -= size
                lost = [(offset, data) for offset, data, then in written if then != verifier]
                if not lost:
                    return
                self.resent += sum(len(data) for _, data in lost)

                async def again(piece: tuple[int, bytes]) -> None:
                    await self._put(*piece)

                await each(lost, again, self._backend.depth)
            raise OSError(errno.EIO, "the server loses what it was given again and again", self.path)

    async def truncate(self, size: int) -> None:
        """Cut the file, or extend it by zeros."""
        with self._naming():
            await self._commit()
            await self._backend.setattr(self._opened.handle, Changes(size=size), self._opened)
        self._size = size

    # -- the rest ----------------------------------------------------------------------------------------------------
    def seek(self, offset: int) -> None:
        """Set the position of ``read`` and ``write``."""
        self._position = offset

    def tell(self) -> int:
        """The position."""
        return self._position

    async def stat(self) -> Stat:
        """The attributes as they are now."""
        with self._naming():
            return await self._backend.getattr(self._opened.handle)

    async def change(self, changes: Changes) -> None:
        """Set attributes. Times are set after everything is written, or writing would change them again."""
        with self._naming():
            await self._commit()
            await self._backend.setattr(self._opened.handle, changes, self._opened)

    async def close(self) -> None:
        """Flush and close. Raises OSError when something written may be lost; the file is closed then, too."""
        if self.closed:
            return
        try:
            await self.flush()
        finally:
            with self._naming():
                await self._release()

    async def _release(self) -> None:
        if not self.closed:
            self.closed = True
            await self._backend.release(self._opened)

    @contextlib.contextmanager
    def _naming(self) -> Any:
        with naming(self.path):
            yield


@contextlib.contextmanager
def naming(path: str) -> Any:
    """Errors without a file's name get this one."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            error.filename = path
        raise
