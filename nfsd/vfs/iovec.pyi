"""One ``struct iovec`` for a buffer."""

def iovec(buffer: memoryview | bytearray) -> bytes:
    """A ``struct iovec`` of a writable buffer, which the caller keeps alive while it is used."""
