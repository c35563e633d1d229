"""From the kernel's ``struct statx`` to :class:`Attributes`. Implemented in ``attributes.pyx``."""

from nfsd.vfs.change import ChangeRecord
from nfsd.vfs.mounts import Mount
from nfsd.vfs.records import Inode
from nfsd.vfs.types import Attributes, FileType

def statx_buffer() -> bytearray:
    """Room for a ``struct statx``."""

def raw_type(buffer: bytearray) -> FileType:
    """The file's type."""

def raw_nlink(buffer: bytearray) -> int:
    """The file's link count."""

def raw_uid(buffer: bytearray) -> int:
    """The file's owner."""

def changed_between(inode: Inode, before: bytearray, after: bytearray) -> None:
    """Tell the file's record of a change of ours between these two looks: another mode or owner shows somebody else's."""

def raw_fileid(buffer: bytearray) -> int:
    """The inode number."""

def raw_size(buffer: bytearray) -> int:
    """The file's size."""

def raw_ctime(buffer: bytearray) -> int:
    """ctime in nanoseconds."""

def raw_device(buffer: bytearray) -> tuple[int, int]:
    """Major and minor number of the device the file is on."""

def raw_mount(buffer: bytearray) -> int:
    """The id of the mount through which the file was reached."""

def attributes_of(buffer: bytearray, mount: Mount, record: ChangeRecord, *, changed: bool = False) -> Attributes:
    """The attributes in a filled ``struct statx``. ``changed``: the server changed the file since the last look."""
