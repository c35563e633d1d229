"""OpenSSL's ciphers: the very library that Python's ssl has. Implemented in ``library.pyx``."""

class Unavailable(OSError):
    """The library is not here, or is too old; the text says what is missing."""

def load_ciphers() -> None:
    """Have the ciphers there. Raises Unavailable."""
