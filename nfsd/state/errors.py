"""What the state engine raises: one exception carrying the nfsstat4, and the few whose results carry more.

Imports only the protocol's codes. The operations' table maps these to results at one place.
"""

from __future__ import annotations

from nfsd.protocol import nfs4 as codes


class Nfs4Error(Exception):
    """An operation's failure as the protocol names it."""

    status: int
    """nfsstat4."""

    def __init__(self, status: int, reason: str = "") -> None:
        self.status = status
        self.reason = reason

    def __str__(self) -> str:
        name = codes.nfsstat4(self.status).name
        return f"{name}: {self.reason}" if self.reason else name


class ClientInUse(Nfs4Error):
    """NFS4ERR_CLID_INUSE of SETCLIENTID, with the callback address of the client that holds the name."""

    def __init__(self, netid: str, address: str) -> None:
        super().__init__(codes.NFS4ERR_CLID_INUSE, "another principal holds this client name")
        self.netid = netid
        self.address = address


class LockDenied(Nfs4Error):
    """NFS4ERR_DENIED of LOCK and LOCKT, with the lock in the way (LOCK4denied)."""

    def __init__(self, offset: int, length: int, exclusive: bool, clientid: int, owner: bytes) -> None:
        super().__init__(codes.NFS4ERR_DENIED)
        self.offset = offset
        self.length = length
        """2**64 - 1 reaches to the end of the file."""
        self.exclusive = exclusive
        self.clientid = clientid
        self.owner = owner


class DelegationConflict(Nfs4Error):
    """Another client's delegation is in the way; it is being recalled. NFS4ERR_DELAY, unless it comes back soon."""

    def __init__(self) -> None:
        super().__init__(codes.NFS4ERR_DELAY, "recalling a delegation")
