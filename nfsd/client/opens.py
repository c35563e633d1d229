"""Open files and delegations that a client of NFSv4.1 holds. Owns :class:`Opened4` and :class:`Opens`;
imports the protocol only.

Every open has an open-owner of its own, because opens of one owner and one file would be one (RFC 8881 section 9.9).
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from typing import Final

from nfsd.client.compound import Op, putfh
from nfsd.protocol import nfs4 as p

ANONYMOUS: Final = p.stateid4(0, bytes(12))
"""The special stateid of no open (RFC 8881 section 8.2.3)."""
_owners = itertools.count(1)
_PROCESS: Final = os.urandom(8)


class Opened4:
    """An open file. Its stateid changes when the server forgets it and the client opens it anew."""

    __slots__ = ("access", "delegation", "handle", "lost", "owner", "stateid")

    def __init__(self, access: int) -> None:
        self.handle = b""
        self.access = access
        self.owner = _PROCESS + next(_owners).to_bytes(8, "big")
        self.stateid = ANONYMOUS
        self.delegation: p.stateid4 | None = None
        self.lost: OSError | None = None
        """Why the file could not be opened anew after the server forgot it."""

    @property
    def current(self) -> p.stateid4:
        """The stateid for I/O: "the latest" of this open (RFC 8881 section 8.2.2, seqid of zero)."""
        if self.lost is not None:
            raise self.lost
        return p.stateid4(0, self.stateid.other)

    def open_again(self, clientid: int, *, reclaim: bool) -> list[Op]:
        """The operations that open the file by its handle: as a reclaim, or as if for the first time."""
        if reclaim:
            claim = p.open_claim4(
                p.open_claim_type4.CLAIM_PREVIOUS, delegate_type=p.open_delegation_type4.OPEN_DELEGATE_NONE
            )
        else:
            claim = p.open_claim4(p.open_claim_type4.CLAIM_FH)
        arguments = p.OPEN4args(
            0, self.access | p.OPEN4_SHARE_ACCESS_WANT_NO_DELEG, p.OPEN4_SHARE_DENY_NONE,
            p.state_owner4(clientid, self.owner), p.openflag4(p.opentype4.OPEN4_NOCREATE), claim,
        )  # fmt: skip
        return [putfh(self.handle), (p.OP_OPEN, arguments)]


class Opens:
    """All that one client has open, and the delegations that came with it."""

    def __init__(self) -> None:
        self._opened: dict[int, Opened4] = {}

    def __len__(self) -> int:
        return len(self._opened)

    def __iter__(self) -> Iterator[Opened4]:
        return iter(list(self._opened.values()))

    def add(self, opened: Opened4) -> None:
        """From now on it is opened anew when the server forgets it."""
        self._opened[id(opened)] = opened

    def discard(self, opened: Opened4) -> None:
        """It is closed."""
        self._opened.pop(id(opened), None)

    def delegated(self, stateid: p.stateid4) -> Opened4 | None:
        """The open whose delegation a callback means; sequence ids may differ by what is under way."""
        for opened in self._opened.values():
            if opened.delegation is not None and opened.delegation.other == stateid.other:
                return opened
        return None
