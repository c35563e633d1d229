def is_available() -> bool:
    """Whether the library that computes CRC32C was found."""

def crc32c(data: bytes) -> int:
    """The CRC32C of ``data`` (RFC 3385), as a number. Raises RuntimeError without the library."""
