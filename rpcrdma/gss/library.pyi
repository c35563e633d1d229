"""The system's GSS-API library, MIT's, loaded when it is first needed."""

LIBRARY: str

class Unavailable(OSError):
    """The library is not there, or too old; the text says what to install."""

class GssError(Exception):
    """The mechanism has refused. The text is the library's."""

    major: int
    minor: int
    def __init__(self, text: str, major: int = 0, minor: int = 0) -> None:
        """``major`` and ``minor`` status are those of RFC 2744."""

def available() -> bool:
    """Whether there is a library to be used."""
