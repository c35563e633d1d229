"""The objects of a store that fsspec reaches, and what it has said of them lately.

Owns :class:`Objects`; imports fsspec when one is made. Paths are names with slashes between them, the root's empty.
"""

from __future__ import annotations

import contextlib
import errno
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from nfsd.backends.paths import joined
from nfsd.backends.simple import error
from nfsd.vfs.types import FileType

_MOST_LISTINGS: Final = 1024
_MOST_SEEN: Final = 1 << 16
_MOST_EMPTY: Final = 1 << 16
"""Directories that are in this process only."""
_UNKNOWN: Final = -1
"""The size of a file that the store has listed without it."""
_SECOND: Final = 1_000_000_000


class Seen(NamedTuple):
    """What a store says of a file. Two that are equal are of the same content."""

    type: FileType
    size: int = 0
    mtime: int = 0
    """Nanoseconds since 1970; 0 where the store does not say."""
    tag: str = ""


DIRECTORY: Final = Seen(FileType.DIR)


class _Listing:
    """A directory's names, and when the store has told them."""

    __slots__ = ("files", "look", "when")

    def __init__(self, files: dict[str, Seen]) -> None:
        self.files = files
        self.when = time.monotonic()
        self.look = 0
        """Another one whenever the names are others."""
        for name in files:
            self.look ^= hash(name)

    def put(self, name: str, seen: Seen) -> None:
        """A name that we have made."""
        if name not in self.files:
            self.look ^= hash(name)
        self.files[name] = seen

    def take(self, name: str) -> None:
        """One that we have removed."""
        if self.files.pop(name, None) is not None:
            self.look ^= hash(name)


class Objects:
    """See the module. Errors are OSError with an errno."""

    def __init__(self, url: str, storage: dict[str, Any], fresh: float) -> None:
        """``url``, ``storage``: as fsspec has them. ``fresh``: seconds for which an answer of the store is good."""
        import fsspec.core

        settings = {"use_listings_cache": False, "skip_instance_cache": True, **storage}
        self._fs, root = fsspec.core.url_to_fs(url, **settings)
        self._root = str(root)
        self._prefix = self._root.rstrip("/") + "/" if self._root else ""
        self._lists_only = self._fs.protocol == "http" or "http" in self._fs.protocol
        """Whether only the directory above says what is a directory."""
        self._fresh = fresh
        self._lock = threading.Lock()
        self._listings: OrderedDict[str, _Listing] = OrderedDict()
        self._single: OrderedDict[str, tuple[float, Seen | None]] = OrderedDict()
        self._empty: dict[str, set[str]] = {}
        """By directory, the names of directories that are not in the store."""
        self._how_many_empty = 0
        try:  # so that what is wrong shows at once
            with self._asked():
                self._begin()
        except OSError as failure:
            raise OSError(failure.errno, f"{url}: {failure.strerror}") from failure

    def _begin(self) -> None:
        try:
            self._fs.ls(self._root, detail=False)
        except FileNotFoundError:
            # A bucket has nothing below a name until a file is there. What is no bucket raises again.
            self._fs.mkdir(self._root, create_parents=False)

    # -- what there is -------------------------------------------------------------------------------------------
    def seen(self, path: str) -> Seen:
        """What is at a path. ENOENT."""
        found = self.there(path)
        if found is None:
            raise error(errno.ENOENT)
        return found

    def there(self, path: str) -> Seen | None:
        """What is at a path."""
        if not path:
            return DIRECTORY
        above, _, name = path.rpartition("/")
        with self._lock:
            listing = self._listing(above)
            known = self._single.get(path)
        if listing is None and self._lists_only:
            listing = self._listed(above)
        if listing is not None:
            found = listing.files.get(name)
            if found is None or found.size != _UNKNOWN:
                return found
        elif known is not None and time.monotonic() - known[0] < self._fresh:
            return known[1]
        found = self._ask(path)
        if listing is not None and found is not None:
            listing.files[name] = found
        return found

    def names(self, path: str) -> list[str]:
        """The names in a directory."""
        return list(self._listed(path).files)

    def names_look(self, path: str) -> int:
        """Another number when its names are others."""
        return self._listed(path).look

    def read(self, path: str, offset: int, size: int) -> bytes:
        """Octets of a file, as many as there are."""
        if size <= 0:
            return b""
        with self._asked():
            found = bytes(self._fs.cat_file(self._at(path), start=offset, end=offset + size))
        # Not every web server knows ranges.
        return found if len(found) <= size else found[offset : offset + size]

    # -- changing it ---------------------------------------------------------------------------------------------
    def write(self, path: str, data: bytes) -> None:
        """Make a file with these octets."""
        with self._asked():
            self._fs.pipe_file(self._at(path), data)
        self._refresh(path)

    def upload(self, path: str, source: str) -> Seen:
        """Make a file of one of this host."""
        with self._asked():
            self._fs.put_file(source, self._at(path))
        return self._refresh(path)

    def download(self, path: str, target: str) -> None:
        """Fill a file of this host."""
        with self._asked():
            self._fs.get_file(self._at(path), target)

    def make_directory(self, path: str) -> None:
        """A directory: in this process only, where the store keeps none without files."""
        with self._asked(), contextlib.suppress(FileExistsError):
            self._fs.mkdir(self._at(path), create_parents=False)
        if self._ask(path) is None:
            self._add_empty(path)
        self._put(path, DIRECTORY)

    def remove(self, path: str) -> None:
        """Remove a file."""
        with self._asked():
            self._fs.rm_file(self._at(path))
        self._take(path)
        self._keep_directory(path.rpartition("/")[0])

    def remove_directory(self, path: str) -> None:
        """Remove a directory without names."""
        above, _, name = path.rpartition("/")
        with self._lock:
            ours = self._empty.get(above, set())
            known = name in ours
            if known:
                self._drop_empty(above, name)
        if not known:
            with self._asked(), contextlib.suppress(FileNotFoundError):
                self._fs.rmdir(self._at(path))
        with self._lock:
            self._listings.pop(path, None)
        self._take(path)
        self._keep_directory(above)

    def move(self, old: str, new: str) -> None:
        """Move a file, over whatever file is there."""
        with self._asked():
            self._fs.cp_file(self._at(old), self._at(new))
        self._refresh(new)
        self.remove(old)

    def move_directory(self, old: str, new: str, most: int) -> None:
        """Move a directory and what is in it. EXDEV, and nothing has changed, if that is more than ``most`` names."""
        directories, files = [old], list[str]()
        for directory in directories:
            for name, seen in self._listed(directory).files.items():
                (directories if seen.type is FileType.DIR else files).append(joined(directory, name))
                if len(directories) + len(files) > most:
                    raise error(errno.EXDEV)
        for directory in directories:
            if self.there(new + directory[len(old) :]) is None:
                self.make_directory(new + directory[len(old) :])
        for file in files:
            target = new + file[len(old) :]
            with self._asked():
                self._fs.cp_file(self._at(file), self._at(target))
            self._refresh(target)
        for file in files:
            self.remove(file)
        for directory in reversed(directories):
            self.remove_directory(directory)

    # -- parts of these ------------------------------------------------------------------------------------------
    def _at(self, path: str) -> str:
        """The store's name for a path. EINVAL for what is no text that can be printed: stores list their names as XML
        or JSON."""
        if not path.isprintable():
            raise error(errno.EINVAL)
        return self._prefix + path if path else self._root

    @contextlib.contextmanager
    def _asked(self) -> Iterator[None]:
        """Around a call of the store, whose errors need not have an errno."""
        try:
            yield
        except NotImplementedError:
            raise error(errno.EROFS) from None
        except OSError as failure:
            if failure.errno is None:
                for kind, number in _ERRORS:
                    if isinstance(failure, kind):
                        raise error(number) from failure
                raise OSError(errno.EIO, f"{failure}") from failure
            raise

    def _listing(self, path: str) -> _Listing | None:
        """What is known of a directory's names and still good. With the lock."""
        listing = self._listings.get(path)
        return listing if listing is not None and time.monotonic() - listing.when < self._fresh else None

    def _listed(self, path: str) -> _Listing:
        with self._lock:
            if (listing := self._listing(path)) is not None:
                return listing
        here, files = self._at(path), dict[str, Seen]()
        try:
            with self._asked():
                entries = self._fs.ls(here, detail=True)
        except FileNotFoundError:
            entries = []
        for entry in entries:
            where = str(entry["name"]).rstrip("/")
            above, _, name = where.rpartition("/")
            if name and above.strip("/") == here.strip("/"):
                files[name] = _seen(entry)
        with self._lock:
            for name in self._empty.get(path, ()):
                files.setdefault(name, DIRECTORY)
            listing = self._listings[path] = _Listing(files)
            self._listings.move_to_end(path)
            if len(self._listings) > _MOST_LISTINGS:
                self._listings.popitem(last=False)
        return listing

    def _ask(self, path: str) -> Seen | None:
        """What the store says is at a path, or this process if it keeps a directory there."""
        found: Seen | None = None
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), self._asked():
            found = _seen(self._fs.info(self._at(path)))
            if found.size == _UNKNOWN:
                raise error(errno.EIO)
        above, _, name = path.rpartition("/")
        with self._lock:
            if found is None and name in self._empty.get(above, ()):
                found = DIRECTORY
            self._single[path] = time.monotonic(), found
            self._single.move_to_end(path)
            if len(self._single) > _MOST_SEEN:
                self._single.popitem(last=False)
        return found

    def _refresh(self, path: str) -> Seen:
        """What is at a path where we have just made something."""
        found = self._ask(path)
        if found is None:
            raise error(errno.EIO)
        self._put(path, found)
        return found

    def _put(self, path: str, seen: Seen) -> None:
        above, _, name = path.rpartition("/")
        with self._lock:
            self._single[path] = time.monotonic(), seen
            if (listing := self._listings.get(above)) is not None:
                listing.put(name, seen)

    def _take(self, path: str) -> None:
        above, _, name = path.rpartition("/")
        with self._lock:
            self._single.pop(path, None)
            if (listing := self._listings.get(above)) is not None:
                listing.take(name)

    def _keep_directory(self, path: str) -> None:
        """A directory has lost a name, and must not go with it, as it does in stores that have files only."""
        if path and not self._listed(path).files and self._ask(path) is None:
            self._add_empty(path)
            self._put(path, DIRECTORY)

    def _add_empty(self, path: str) -> None:
        above, _, name = path.rpartition("/")
        with self._lock:
            if self._how_many_empty >= _MOST_EMPTY:
                raise error(errno.ENOSPC)
            names = self._empty.setdefault(above, set())
            if name not in names:
                names.add(name)
                self._how_many_empty += 1

    def _drop_empty(self, above: str, name: str) -> None:
        """With the lock."""
        names = self._empty[above]
        names.remove(name)
        self._how_many_empty -= 1
        if not names:
            del self._empty[above]


_ERRORS: Final = (
    (FileNotFoundError, errno.ENOENT),
    (FileExistsError, errno.EEXIST),
    (PermissionError, errno.EACCES),
    (NotADirectoryError, errno.ENOTDIR),
    (IsADirectoryError, errno.EISDIR),
    (TimeoutError, errno.ETIMEDOUT),
)
_TIMES: Final = ("mtime", "LastModified", "last_modified", "modified", "updated", "created", "date_time")
_TAGS: Final = ("ETag", "etag", "md5", "checksum", "version_id", "ino")


def _seen(entry: dict[str, Any]) -> Seen:
    """Of what fsspec says."""
    if entry.get("type") == "directory":
        return DIRECTORY
    moment = next((entry[key] for key in _TIMES if entry.get(key) is not None), None)
    tag = next((str(entry[key]) for key in _TAGS if entry.get(key) is not None), "")
    size = entry.get("size")
    return Seen(FileType.REG, _UNKNOWN if size is None else int(size), _nanoseconds(moment), tag)


def _nanoseconds(moment: object) -> int:
    """Of the forms in which stores tell times."""
    if isinstance(moment, tuple) and len(moment) == 6:
        moment = datetime(*moment, tzinfo=UTC)
    if isinstance(moment, datetime):
        aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        return int(aware.timestamp()) * _SECOND + aware.microsecond * 1000
    if isinstance(moment, int | float):
        return int(moment * _SECOND)
    return 0
