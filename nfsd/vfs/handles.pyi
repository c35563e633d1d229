"""NFS file handles: making them, and believing them only when they are ours. Implemented in ``handles.pyx``."""

VERSION: int
MAC_SIZE: int
KEY_SIZE: int
MAX_KERNEL_HANDLE: int
"""The longest kernel handle that fits: btrfs's."""

class HandleCodec:
    """Makes and checks handles with one key."""

    def __init__(self, key: bytes) -> None: ...
    def encode(self, export_id: int, fs_id: bytes, kind: int, kernel: bytes) -> bytes:
        """The handle. Raises OSError(EOVERFLOW) when the kernel's handle is too long to fit."""
    @staticmethod
    def claimed(handle: bytes) -> tuple[int, bytes] | None:
        """(export id, file system) as a handle has it, whether it is ours or not; None: it is not."""
    def decode(self, handle: bytes) -> tuple[int, bytes, int, bytes]:
        """(export id, file system, kernel handle type, kernel handle). Raises BadHandle."""

def load_key(state_dir: str) -> bytes:
    """The server's key, made durably on the first start. Raises OSError naming the path."""
