"""Security contexts of the Kerberos mechanism: made, and used on octets."""

from rpcrdma.gss.library import GssError as GssError

class Credential:
    """What one side proves itself with. Acquired with the library's own means; takes as long as reading files."""

    def __new__(cls, service: str = "", store: dict[str, str] | None = None, accepts: bool = False) -> Credential:
        """``service`` is a host-based service: ``nfs@host``, or ``nfs`` for any host's; or a principal with a slash; empty
        for whatever there is. ``store`` is a credential store in the library's words (``keytab``, ``rcache``, ``ccache``,
        ``client_keytab``). One that ``accepts`` reads its keytab again each time. Raises GssError, Unavailable."""

class Making:
    """A context that is being made. Its steps may take long, and are taken without the interpreter's lock."""

    made: bool
    major: int
    minor: int
    flags: int
    lifetime: int
    """Seconds that the context lasts; 0xFFFFFFFF without end."""
    principal: str
    """The initiator, once an acceptor has ``made`` the context."""
    def export(self) -> bytes:
        """The context made, for any number of sealers; here nothing is left. Raises GssError."""

class Acceptance(Making):
    """The acceptor's side."""

    failed: bool
    why: str | None
    """In words, once it has ``failed``: peers have chosen some of them."""
    def step(self, credential: Credential, token: bytes) -> bytes:
        """Take the initiator's token; ours for it, which may tell an error: see ``failed`` and ``made``."""

class Initiation(Making):
    """The initiator's side."""

    def __init__(self, target: str, credential: Credential | None = None, extra: int = 0) -> None:
        """``target`` is ``service@host``, or a principal with a slash: ``service/host@REALM``. ``extra``: more of RFC 2744's
        flags to ask for."""
    def step(self, token: bytes) -> bytes:
        """Take the acceptor's token (none at first); ours for it. Raises GssError."""

class Sealer:
    """One side of an established context, for one thread at a time; may be imported as often as is wanted.

    What is long is done without the interpreter's lock.
    """

    def __new__(cls, exported: bytes) -> Sealer:
        """Raises GssError, Unavailable."""
    def verify(self, octets: bytes | bytearray | memoryview, mic: bytes | memoryview) -> bool:
        """Whether ``mic`` is the other side's, of these octets."""
    def sign(self, *pieces: bytes | bytearray | memoryview) -> bytes:
        """Our MIC of the octets of these pieces, one behind the other. Raises GssError."""
    def room(self, size: int) -> tuple[int, int, int]:
        """Octets before, and the padding and the rest behind so many octets that :meth:`wrap` encrypts."""
    def wrap(self, into: bytearray | memoryview, room: tuple[int, int, int], size: int) -> int:
        """Encrypt ``size`` octets that stand in ``into`` behind ``room[0]`` others, in place; the length of what
        ``into`` begins with then. Raises GssError, ValueError."""
    def unwrap(self, token: bytearray | memoryview) -> tuple[int, int]:
        """Decrypt in place: where the octets begin, and their length. Raises GssError for what was not encrypted by the
        other side."""
