"""Clients whose state the credential of their machine protects: SP4_MACH_CRED (RFC 8881 sections 2.10.8.3 and 18.35).

Owns :class:`Protection`, which a client has from its EXCHANGE_ID on, and what it demands. Imports codes. The machine's
credential is the principal of that EXCHANGE_ID, in calls with integrity or privacy. An attacker that can read the
ids of a client or a session, but has not that principal's key, can neither end them nor use them over another
connection.

A client without protection gets none: the server MUST NOT enforce any (section 18.35.3). There ids that nobody can
guess, the principal that CREATE_SESSION asks for, and the address have to do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from nfsd.protocol import nfs4 as codes
from nfsd.state.errors import Nfs4Error

if TYPE_CHECKING:
    from nfsd.state.clients import Client

_ALWAYS: Final = (
    1 << codes.OP_BIND_CONN_TO_SESSION
    | 1 << codes.OP_EXCHANGE_ID
    | 1 << codes.OP_CREATE_SESSION
    | 1 << codes.OP_DESTROY_SESSION
    | 1 << codes.OP_DESTROY_CLIENTID
)
"""Asked for by the sections of these operations themselves, named in spo_must_enforce or not."""
_ENFORCED: Final = _ALWAYS | 1 << codes.OP_BACKCHANNEL_CTL | 1 << codes.OP_DELEGPURGE
_AT_FILES: Final = (
    1 << codes.OP_CLOSE
    | 1 << codes.OP_OPEN_DOWNGRADE
    | 1 << codes.OP_LOCKU
    | 1 << codes.OP_DELEGRETURN
    | 1 << codes.OP_COMMIT
)
"""What a client gives state up by, and COMMIT: they change nothing in the file itself."""
_ALLOWED: Final = _AT_FILES | 1 << codes.OP_TEST_STATEID | 1 << codes.OP_FREE_STATEID
"""Not WRITE: a client that is granted it sends the data of all its users so, also while they have tickets. Linux's does
that with integrity, and no more, whatever the mount was made with: where ``sec`` is krb5p what is written would not be
secret any more, and where it is krb5 not be placed directly over RDMA. Not SECINFO and SECINFO_NO_NAME, which look at
names: they are answered with every flavor (section 2.6.3.1.1), for who may look there."""


@dataclass(frozen=True, slots=True)
class Protection:
    """What a client has been granted; operations as bits 1 << number."""

    must_enforce: int
    """Refused with any other credential."""
    must_allow: int
    """Possible with the machine's credential, whoever has made the state."""

    @property
    def binds(self) -> bool:
        """Whether connections must be bound by BIND_CONN_TO_SESSION (section 2.10.3.1)."""
        return bool(self.must_enforce & 1 << codes.OP_BIND_CONN_TO_SESSION)


def granted(must_enforce: int, must_allow: int, machine: str) -> Protection:
    """The protection of a client that asks for it in a call with the credential ``machine``. Raises INVAL for a call
    that has none: section 18.35.3 has the client send it with integrity or privacy."""
    if not machine:
        raise Nfs4Error(codes.NFS4ERR_INVAL, "SP4_MACH_CRED needs RPCSEC_GSS with integrity or privacy")
    return Protection(must_enforce & _ENFORCED, must_allow & _ALLOWED)


def is_itself(client: Client, principal: str, machine: str) -> bool:
    """Whether a caller is the client's principal, known as well as its protection demands. ``machine``: the principal
    again, if the call has integrity or privacy."""
    return client.principal == (machine if client.protection is not None else principal)


def at_files(client: Client | None, machine: str) -> int:
    """The operations, as bits, that a caller may do to what users of its client have opened, without being one of them,
    and whatever calls must come with there: those that were granted to the client's machine (section 18.35.3)."""
    if client is None or client.protection is None or client.principal != machine:
        return 0
    return client.protection.must_allow & _AT_FILES


def check(client: Client, operation: int, machine: str) -> None:
    """Refuse an operation that the client's protection demands another credential for. Raises WRONG_CRED."""
    protection = client.protection
    if protection is not None and (protection.must_enforce | _ALWAYS) >> operation & 1 and client.principal != machine:
        raise Nfs4Error(codes.NFS4ERR_WRONG_CRED, "protected by another credential")
