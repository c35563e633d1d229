"""The header of an RPC call. Implemented in ``call_header.pyx``, where native code reads it in the same way."""

from enum import IntFlag

class Flaw(IntFlag):
    """Why a message is no call that can be executed."""

    FLAWLESS = ...
    NO_CALL = ...
    """Or it is too short for that to be told."""
    OTHER_VERSION = ...
    """Of RPC."""
    CUT_SHORT = ...
    """It ends in the header."""
    LONG_CREDENTIAL = ...
    """Longer than one may be."""

class CallHeader:
    """What the header of a call says. Of one with a flaw only the XID may be asked for, unless it is no call."""

    flaw: int
    """A :class:`Flaw`, or FLAWLESS."""
    xid: int
    number: tuple[int, int, int]
    """Program, version, procedure."""
    flavor: int
    """Of the credential."""
    credential: memoryview
    """Its body."""
    signed: memoryview
    """What is in front of the verifier (RFC 2203 section 5.3.1)."""
    verifier_flavor: int
    verifier: memoryview
    """Its body, or what there is of it."""
    unverified: bool
    """Whether the verifier is AUTH_NONE's, of length zero."""
    arguments: int
    """Where they begin; perhaps behind the end of the message, if the verifier is said to be longer than that."""
    asks_for_tls: bool
    """Whether it is NULL with AUTH_TLS and nothing else (RFC 9289 section 4.1)."""
    def __init__(self, octets: memoryview) -> None: ...
