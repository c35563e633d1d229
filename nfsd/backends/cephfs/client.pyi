"""Names, data and locks in a mounted CephFS file system. Implemented in ``client.pyx``; see ``mounted.pyi``."""

from nfsd.backends.cephfs.directories import Directories
from nfsd.backends.cephfs.mounted import Mounted
from nfsd.vfs.records import Credential
from nfsd.vfs.stored_files import StoredFile

class File(StoredFile):
    """A file that is open. It closes with the last reference to it, or by :meth:`close`."""

    actor: Credential | None
    """As whom it was opened."""
    access: int
    def close(self) -> None:
        """Close it. Raises what could not be written before. While it is in use, who uses it closes it when that is over."""

class Stream:
    """A directory that is being listed."""

class Client(Mounted):
    """A file system with its names and data."""

    directories: Directories
    """For workers; once it is mounted."""
    # -- names
    def make(
        self,
        credential: Credential | None,
        directory: bytes,
        name: bytes,
        mode: int,
        text: bytes | None,
        rdev: tuple[int, int],
    ) -> tuple[bytearray, bytearray, bytes, bytearray]:
        """Make what ``mode`` (as st_mode) tells, or a symbolic link of this text. Looks at the directory before and
        after that; key and look of the file."""
    def remove(
        self, credential: Credential | None, directory: bytes, name: bytes, a_directory: bool
    ) -> tuple[bytearray, bytearray, bytes, bytearray]:
        """Remove a name. Looks at the directory before and after that; key and look of what has lost it, with no links if
        it was the last one."""
    def rename(
        self, credential: Credential | None, source: bytes, name: bytes, target: bytes, new_name: bytes
    ) -> tuple[bytearray, bytearray, bytearray, bytearray]:
        """Rename. Looks at the source before and after that, then at the target."""
    def link(
        self, credential: Credential | None, key: bytes, directory: bytes, name: bytes
    ) -> tuple[bytearray, bytearray, bytearray]:
        """A further name. Looks at the directory before and after that, and at the file."""
    def open_directory(self, credential: Credential | None, key: bytes) -> Stream:
        """Begin to list a directory."""
    def seek(self, stream: Stream, cookie: int) -> None:
        """Go on behind an entry."""
    def entries(self, stream: Stream, most: int) -> list[tuple[bytes, int, bytes, bytearray]]:
        """The next entries, without ``.`` and ``..``: name, cookie, key, look. None: that was all."""
    # -- data
    def open(self, credential: Credential | None, key: bytes, access: int) -> File:
        """Open for reading (1), writing (2) or both (3)."""
    def read(self, opened: File, offset: int, sink: memoryview) -> tuple[int, bytearray]:
        """Read into ``sink``. Octets, and a look afterwards."""
    def write(
        self, opened: File, offset: int, data: memoryview, as_root: bool = True
    ) -> tuple[bytearray, bytearray, int]:
        """Write. Looks around that, and octets. A file that somebody else than root writes loses its set-ID bits."""
    def punch(self, opened: File, key: bytes, offset: int, length: int) -> tuple[bytearray, bytearray]:
        """Make a hole. Looks around that."""
    def sync(self, key: bytes, opened: list[File]) -> None:
        """The cluster has everything of a file, or of a directory's names. Raises what was lost of what was written
        through these."""
    def lock(self, opened: File, kind: int, start: int, length: int, owner: int) -> None:
        """As F_SETLK of fcntl(2): ``kind`` is F_RDLCK, F_WRLCK or F_UNLCK. EAGAIN."""
    def locked(self, opened: File, kind: int, start: int, length: int, owner: int) -> tuple[int, int, int, int] | None:
        """As F_GETLK: kind, start, length and process of what is in the way."""
