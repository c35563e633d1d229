"""TLS's records, enciphered and deciphered. Implemented in ``records.pyx``; of use to native code."""

from rpcrdma.tls.secrets import Secrets

MOST_EMPTY: int
"""Octets of the peer's without any data in them: keys may change, but not all the time."""

class Direction:
    """The keys of one direction."""

class Sealing(Direction):
    """What enciphers."""

class Opening(Direction):
    """What deciphers."""

    ended: bool
    """Whether the peer has said that this is the end."""

def directions(secrets: Secrets) -> tuple[Opening, Sealing]:
    """Both directions of a connection. Raises OSError: there is no library, or it does not want to."""
