from collections.abc import Callable

class Registration:
    valid: bool
    handle: int
    base: int

class StagTable:
    """The memory one endpoint has exposed to its peer."""

    def __init__(self, random: Callable[[int], bytes] = ..., limit: int = 65536) -> None: ...
    def register(self, view: memoryview, remote_read: bool, remote_write: bool) -> Registration:
        """Expose ``view``. Raises BufferError when it is not contiguous or, for remote_write, not writable."""
    def invalidate(self, handle: int) -> None:
        """Withdraw a registration. Raises KeyError when there is none."""
    def clear(self) -> None:
        """Withdraw everything."""
    def __len__(self) -> int: ...
