from collections.abc import Callable

from nfsd.state.clients import Client
from nfsd.state.owners import SeqidOwner
from nfsd.state.records import StateEntry

class StateEntries:
    """The table of all stateids: base of :class:`~nfsd.state.stateids.StateidTable`."""

    def __init__(self, epoch: bytes, random: Callable[[int], bytes]) -> None:
        """``epoch``: what every stateid begins with, 4 octets."""

    @property
    def entries(self) -> dict[bytes, StateEntry]:
        """By ``other``; for reading elsewhere; always this very dict."""

    @property
    def counts(self) -> list[int]:
        """How many there are of each kind."""

    @property
    def _closed(self) -> dict[bytes, SeqidOwner]: ...
    @property
    def _epoch(self) -> bytes: ...
    def new_other(self, client: Client) -> bytes:
        """Twelve octets that name nothing."""

    def add(self, entry: StateEntry) -> None:
        """Enter a new state, or one that was revoked."""

    def remove(self, entry: StateEntry) -> None:
        """Forget a state."""

    def owner_of(self, other: bytes) -> SeqidOwner:
        """v4.0: the owner behind a stateid, one just closed included; its client's lease is renewed. Raises as
        :meth:`StateidTable.locate`, and BAD_STATEID for what has no owner."""

    def remember_closed(self, other: bytes, owner: SeqidOwner) -> None:
        """v4.0: keep the way from a closed stateid to its owner, for the replay of the CLOSE."""

    def forget_closed(self, owner: SeqidOwner) -> None:
        """The owner has gone on, or is gone."""
