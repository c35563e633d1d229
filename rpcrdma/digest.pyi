"""A 64-bit digest of octets, of use within one process. Implemented in ``digest.pyx``."""

def digest_of(*pieces: bytes | bytearray | memoryview) -> int:
    """The digest of the pieces, one behind the other."""
