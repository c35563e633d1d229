"""A CephFS file system mounted by Ceph's own client library. Implemented in ``mounted.pyx``.

All methods wait for the cluster. They raise OSError with the library's errno. A *key* has 16 octets, a *look* is a ``struct statx``.
A credential of None is the server itself, as root.
"""

from collections.abc import Callable

from nfsd.vfs.records import Credential

NOT_OF_A_SNAPSHOT: int
DIRECTORY_OF_SNAPSHOTS: int

class Mounted:
    """One mount, of which no thread does anything any more when it is ended."""

    def __init__(self, name: bytes) -> None:
        """``name``: who it is to the cluster, without ``client.``"""
    # -- mounting: in this order, each once
    def read_configuration(self, path: bytes) -> None:
        """Read a ceph.conf."""
    def configure(self, option: bytes, value: bytes) -> None:
        """Set an option of it."""
    def configured(self, option: bytes) -> bytes:
        """What an option is."""
    def start(self) -> None:
        """Begin, with these options."""
    def select(self, file_system: bytes) -> None:
        """Name the file system to be mounted."""
    def take_over(self, name: bytes) -> None:
        """Take a name for the session, and have the cluster end one that has it already, with all that it holds."""
    def begin(self, root: bytes) -> None:
        """Mount this directory."""
    def file_system(self) -> int:
        """The number of the file system in its cluster."""
    def end(self, again: Callable[[], object] | None = None) -> bool:
        """Write what is in memory, and unmount; whether it has. Where workers are at it, which may hang, ``again`` is
        called when they have gone, on a thread of its own."""
    # -- inodes
    def root(self) -> tuple[bytes, bytearray]:
        """Key and look of the directory that is mounted."""
    def look(self, key: bytes) -> bytearray:
        """A look. ESTALE."""
    def lookup(self, credential: Credential | None, directory: bytes, name: bytes) -> tuple[bytes, bytearray]:
        """Key and look of a directory's entry, ``..`` among them."""
    def readlink(self, credential: Credential | None, key: bytes) -> bytes:
        """The text of a symbolic link."""
    def space(self, key: bytes) -> tuple[int, int, int, int, int]:
        """Octets: all, free, available. Files: all, free."""
    def set(
        self,
        credential: Credential | None,
        key: bytes,
        mode: int | None,
        uid: int | None,
        gid: int | None,
        size: int | None,
        atime: tuple[int, int, bool] | None,
        mtime: tuple[int, int, bool] | None,
    ) -> None:
        """Set those that are not None, all or none. A time: seconds, nanoseconds, and whether it is another than now."""
    def get_xattr(self, credential: Credential | None, key: bytes, name: bytes) -> bytes:
        """An extended attribute, by its whole name."""
    def list_xattrs(self, credential: Credential | None, key: bytes) -> list[bytes]:
        """The whole names of all."""
    def set_xattr(self, credential: Credential | None, key: bytes, name: bytes, value: bytes, flags: int) -> None:
        """Set one; ``flags`` as of setxattr(2)."""
    def remove_xattr(self, credential: Credential | None, key: bytes, name: bytes) -> None:
        """Remove one."""
