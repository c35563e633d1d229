"""SEQUENCE: the next request of a slot, or one that has been before. Implemented in ``sequence.pyx``."""

from nfsd.state.engine import StateEngine
from nfsd.state.records import Slot
from nfsd.state.sessions import Session, SessionTable
from nfsd.state.types import Connection

class Sequencer:
    """SEQUENCE, of all sessions."""

    def __init__(self, engine: StateEngine, table: SessionTable) -> None: ...
    def sequence(
        self,
        connection: Connection,
        sessionid: bytes,
        sequenceid: int,
        slotid: int,
        highest_slotid: int,
        cachethis: bool,
        fingerprint: int = 0,
        operations: int = 0,
        request_octets: int = 0,
    ) -> tuple[Session, Slot, int]:
        """SEQUENCE. Returns (session, slot, verdict NEW | REPLAY | UNCACHED); renews the lease; binds the connection's
        fore channel implicitly (RFC 8881 section 2.10.3.1, SP4_NONE). ``fingerprint`` (any 32-bit digest of principal
        and request) tells a false retry; the COMPOUND's ``operations`` and RPC message size are held against the fore
        channel. Raises BADSESSION, BADSLOT, BAD_HIGH_SLOT, TOO_MANY_OPS, REQ_TOO_BIG, SEQ_MISORDERED, SEQ_FALSE_RETRY,
        DELAY (the original is still executing); the slot is then as it was."""
