"""Values that pass between the operations and the state engine. Declarations only; imports nothing of ours."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from nfsd.state.protection import Protection

UINT32_MAX = 0xFFFFFFFF
UINT64_MAX = 0xFFFFFFFFFFFFFFFF

Connection = object
"""A connection is any hashable object of the layer above (a Transport): only its identity counts."""


class Unread(Enum):
    """What is left unread of a client."""

    NOTHING = 0
    OF_ITS_OWN = 1
    """Something on a connection that is the client's."""
    OF_ITS_HOST = 2
    """Something on another connection of its host: perhaps its own next one, perhaps a neighbour's."""


class StateidLike(Protocol):
    """Anything with the two fields of stateid4."""

    @property
    def seqid(self) -> int:
        """Its sequence number."""

    @property
    def other(self) -> bytes:
        """12 octets."""


class Stateid(NamedTuple):
    """A stateid4 as the engine hands it out."""

    seqid: int
    other: bytes
    """12 octets."""


ANONYMOUS = Stateid(0, bytes(12))
"""RFC 8881 section 8.2.3: all zeros."""
READ_BYPASS = Stateid(UINT32_MAX, b"\xff" * 12)
"""All ones."""
CURRENT = Stateid(1, bytes(12))
"""The compound's current stateid (v4.1): resolved by the operation, never looked up here."""
INVALID = Stateid(UINT32_MAX, bytes(12))
"""What a current stateid becomes once it is none."""


NLM: Final = 3
"""In place of a minor version: a client of NFSv3's lock manager."""


class Gone(StrEnum):
    """Why a client's record goes."""

    LEFT = "it said so"
    SILENT = "its lease is over"
    RESTARTED = "it has restarted"
    WANTED = "its lease is over, and another client wants what it held"
    ROOM = "its lease is over, and there was no more room"
    IDLE = "it held nothing, and there was no more room"
    EVICTED = "the administrator has evicted it"


@dataclass(frozen=True, slots=True)
class Callback40:
    """Where a v4.0 client takes callbacks (SETCLIENTID's cb_client4 and callback_ident)."""

    program: int
    netid: str
    address: str
    ident: int
    peer: str = ""
    """Where SETCLIENTID came from, without port."""
    security: str = ""
    """How that was protected, if by Kerberos (``krb5``, ``krb5i``, ``krb5p``),"""
    principal: str = ""
    """and whose it was."""


@dataclass(frozen=True, slots=True)
class ChannelAttributes:
    """channel_attrs4."""

    headerpadsize: int
    maxrequestsize: int
    maxresponsesize: int
    maxresponsesize_cached: int
    maxoperations: int
    maxrequests: int
    rdma_ird: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class CallbackCredential:
    """callback_sec_parms4 reduced to what the backchannel will send: AUTH_NONE (0), AUTH_SYS (1) with its fields, or
    RPCSEC_GSS (6) with what signs and encrypts calls."""

    flavor: int
    machine: str = ""
    uid: int = 0
    gid: int = 0
    gids: tuple[int, ...] = ()
    turned: Any = None
    """A security context of the client's."""


class ExchangeIdResult(NamedTuple):
    """What EXCHANGE_ID returns; server owner, scope and implementation are the operation's business."""

    clientid: int
    sequenceid: int
    flags: int
    protection: Protection | None = None


class CreateSessionResult(NamedTuple):
    """CREATE_SESSION4resok."""

    sessionid: bytes
    sequenceid: int
    flags: int
    fore: ChannelAttributes
    back: ChannelAttributes


class LocalRange(NamedTuple):
    """A range for FileService.set_local_lock / clear_local_lock: ``length`` 0 reaches to the end of the file."""

    start: int
    length: int
    exclusive: bool = False


class SeqidReplay(NamedTuple):
    """The result a v4.0 seqid operation gave the first time, to be given again (RFC 7530 section 9.1.9)."""

    status: int
    result: bytes
    """The operation's encoded result as the operation handed it to ``finish``."""
    filehandle: bytes | None
    """The current filehandle the operation left (OPEN), or None when it changed none."""
