"""Asynchronous copies: their stateids, and how many there may be (RFC 7862 section 4.8).

A copy's stateid is good from the reply to COPY until the client has answered CB_OFFLOAD, has cancelled the copy, or is
gone; a restart forgets it. The copying itself is the layer above's, which leaves a ``job`` here to be cancelled with
the stateid.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from nfsd.protocol import nfs4 as codes
from nfsd.state.accounts import COPY
from nfsd.state.errors import Nfs4Error
from nfsd.state.files import FileState
from nfsd.state.records import StateEntry
from nfsd.state.types import StateidLike

if TYPE_CHECKING:
    from nfsd.state.clients import Client
    from nfsd.state.engine import StateEngine

COPY_KIND = 5
"""``StateKind.COPY``, which this module is imported by."""


class Job(Protocol):
    """What does the copying."""

    def cancel(self) -> object:
        """Stop as soon as may be."""


class CopyState(StateEntry):
    """One asynchronous copy; ``file`` is the target, known by nothing but its key."""

    __slots__ = ("copied", "job", "principal", "result")

    def __init__(self, kind: int, other: bytes, client: Client, file: FileState, principal: str) -> None:
        super().__init__(kind, other, client, file)
        self.principal = principal
        """Who asked for it: nobody else may stop it (RFC 7862 section 4.1.2)."""
        self.copied = 0
        """Octets so far."""
        self.result: int | None = None
        """nfsstat4, once the copy is over."""
        self.job: Job | None = None


class CopyTable:
    """All asynchronous copies."""

    def __init__(self, engine: StateEngine) -> None:
        self._engine = engine
        self._all: set[CopyState] = set()
        self._of_client: dict[Client, int] = {}

    def __len__(self) -> int:
        return len(self._all)

    def all(self) -> list[CopyState]:
        """Every copy."""
        return list(self._all)

    def begin(self, client: Client, file_key: bytes, principal: str) -> CopyState | None:
        """The state of a new copy to a file, or None when the client, or all clients together, have as many as they
        may: it is then made at once, as far as that goes."""
        limits = self._engine.limits
        own = self._of_client.get(client, 0)
        account = client.account
        if (
            client.expired
            or own >= limits.client_copies
            or len(self._all) >= limits.copies
            or account.copies >= limits.share(limits.copies)
            or not self._engine.ledger.fits(account, COPY)
        ):
            return None
        account.copies += 1
        other = self._engine.stateids.new_other(client)
        # The record of the file is the copy's own: a copy holds no share and no lock.
        state = CopyState(COPY_KIND, other, client, FileState(file_key), principal)
        self._engine.stateids.add(state)
        self._all.add(state)
        self._of_client[client] = own + 1
        return state

    def find(self, stateid: StateidLike, client: Client | None, file_key: bytes) -> CopyState:
        """The copy of OFFLOAD_STATUS and OFFLOAD_CANCEL. Raises BAD_STATEID, OLD_STATEID."""
        if stateid.seqid == 0:
            # RFC 7862 section 4.8: "the most recent one" means nothing here.
            raise Nfs4Error(codes.NFS4ERR_BAD_STATEID, "a copy's stateid with seqid zero")
        entry = self._engine.stateids.find(stateid, client)
        if not isinstance(entry, CopyState) or entry.file.key != file_key:
            raise Nfs4Error(codes.NFS4ERR_BAD_STATEID, "not a copy to this file")
        return entry

    def release(self, state: CopyState) -> None:
        """Forget a copy, and stop it if it is not over."""
        if state not in self._all:
            return
        self._all.discard(state)
        state.client.account.copies -= 1
        left = self._of_client[state.client] - 1
        if left:
            self._of_client[state.client] = left
        else:
            del self._of_client[state.client]
        self._engine.stateids.remove(state)
        if state.job is not None:
            state.job.cancel()

    def of(self, client: Client) -> int:
        """How many copies a client has."""
        return self._of_client.get(client, 0)
