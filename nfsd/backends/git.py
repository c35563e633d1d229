"""A git repository, read-only: branches, tags and commits as directories. Needs pygit2.

    branches/NAME/...    as the branch is now; a slash in its name is %2F here
    tags/NAME/...
    commits/ID/...       any commit by its full id; the latest are listed

Symbolic links are links, and submodules are empty directories. Modification times are those of the commit. When a
branch moves, its files' ctimes move, so that clients look again.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, ClassVar, Final
from urllib.parse import quote, unquote

from nfsd.backends.paths import PathBackend
from nfsd.backends.simple import Status, error
from nfsd.vfs.types import FileType

_KINDS: Final = {"branches": "refs/heads/", "tags": "refs/tags/", "commits": ""}
_LISTED: Final = 1000
"""Commits."""
_KEPT: Final = 64 << 20
"""Octets of blobs kept in memory, as they are read piece by piece."""
_LINK: Final = 0o120000
_EXECUTABLE: Final = 0o111
_ID: Final = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


class GitBackend(PathBackend):
    """See the module."""

    threads: ClassVar[int] = 1  # libgit2's objects are of one thread at a time

    def __init__(self, *, repository: str) -> None:
        """``repository``: its path, with or without a work tree."""
        import pygit2

        super().__init__()
        self._git: Any = pygit2
        self._repository = pygit2.Repository(repository)
        self._seen: OrderedDict[str, tuple[Any, int]] = OrderedDict()
        self._blobs: OrderedDict[Any, bytes] = OrderedDict()

    # -- reading -------------------------------------------------------------------------------------------------
    def status_at(self, path: str, number: int) -> Status:
        """What is there."""
        kind, _, rest = path.partition("/")
        if not rest:
            if path and kind not in _KINDS:
                raise error(errno.ENOENT)
            names = hash(frozenset(self.names_in(path))) if path else 0
            return self._directory(number, path, names, 0)
        commit, found = self._find(kind, rest)
        seconds = commit.commit_time
        if not isinstance(found, self._git.Blob):
            return self._directory(number, path, commit.id if found is None else found.id, seconds)
        is_link = found.filemode == _LINK
        mode = 0o777 if is_link else 0o555 if found.filemode & _EXECUTABLE else 0o444
        return Status(
            FileType.LNK if is_link else FileType.REG, number, mode, size=found.size,
            mtime=seconds * 1_000_000_000, ctime=self._ctime(path, found.id, seconds),
        )  # fmt: skip

    def names_in(self, path: str) -> Iterable[str]:
        """The names in a directory."""
        kind, _, rest = path.partition("/")
        if not path:
            return list(_KINDS)
        if rest:
            _, found = self._find(kind, rest)
            return [] if found is None else [os.fsdecode(entry.raw_name) for entry in found]
        if kind == "commits":
            return self._commits()
        prefix = _KINDS[kind]
        return [quote(name[len(prefix) :], safe="") for name in self._repository.references if name.startswith(prefix)]

    def read_at(self, path: str, offset: int, size: int) -> bytes:
        """Octets of a file."""
        kind, _, rest = path.partition("/")
        return self._content(self._find(kind, rest)[1])[offset : offset + size]

    def link_at(self, path: str) -> bytes:
        """The text of a symbolic link."""
        return self.read_at(path, 0, 1 << 16)

    # -- parts of these ------------------------------------------------------------------------------------------
    def _find(self, kind: str, rest: str) -> tuple[Any, Any]:
        """The commit that a path is in, and its tree or blob there; None in the place of a submodule's."""
        name, *parts = rest.split("/")
        commit = self._commit(kind, name)
        found = commit.tree
        for part in parts:
            if not isinstance(found, self._git.Tree):
                raise error(errno.ENOENT)
            found = self._entry(found, part)
            if found.type_str == "commit":
                found = None
        return commit, found

    @staticmethod
    def _entry(tree: Any, name: str) -> Any:
        try:
            return tree[name]
        except KeyError:
            pass
        except UnicodeError:  # it is no UTF-8
            for entry in tree:
                if os.fsdecode(entry.raw_name) == name:
                    return entry
        raise error(errno.ENOENT)

    def _commit(self, kind: str, written: str) -> Any:
        name = unquote(written)
        try:
            if kind != "commits":
                if quote(name, safe="") != written:
                    raise error(errno.ENOENT)  # another way to write it would be another directory
                return self._repository.references[_KINDS[kind] + name].peel(self._git.Commit)
            if _ID.fullmatch(name):
                found = self._repository[name]
                if isinstance(found, self._git.Commit):
                    return found
        except (KeyError, ValueError, self._git.GitError):
            pass
        raise error(errno.ENOENT)

    def _commits(self) -> list[str]:
        """The latest of all branches."""
        walker = self._repository.walk(None, self._git.enums.SortMode.TIME)
        for name in self._repository.references:
            if name.startswith(_KINDS["branches"]):
                walker.push(self._repository.references[name].peel(self._git.Commit).id)
        return [str(commit.id) for _, commit in zip(range(_LISTED), walker, strict=False)]

    def _directory(self, number: int, path: str, content: Any, seconds: int) -> Status:
        return Status(
            FileType.DIR, number, 0o555, 2, mtime=seconds * 1_000_000_000, ctime=self._ctime(path, content, seconds)
        )

    def _ctime(self, path: str, content: Any, seconds: int) -> int:
        """When what is at a path became that: its commit's time, or when it was first seen to be another."""
        known = self._seen.get(path)
        if known is None or known[0] != content:
            known = (content, seconds * 1_000_000_000 if known is None else time.time_ns())
            self._seen[path] = known
            if len(self._seen) > self.most_paths:
                self._seen.popitem(last=False)
        return known[1]

    def _content(self, blob: Any) -> bytes:
        """A blob's octets; those that were read last are at hand."""
        data = self._blobs.pop(blob.id, None)
        if data is None:
            data = blob.data
        self._blobs[blob.id] = data
        while len(self._blobs) > 1 and sum(map(len, self._blobs.values())) > _KEPT:
            self._blobs.popitem(last=False)
        found: bytes = data
        return found
