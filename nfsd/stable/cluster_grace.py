"""The grace period that servers of one cluster have together: what their common record of it says, and what follows.

Owns :class:`ClusterGrace`, which is never changed: every event makes another one of it. No I/O: the keeper of the
record (:mod:`nfsd.stable.rados.together`) replaces it in one step, and looks again if another server was faster.

A server whose clients may reclaim something needs a grace period. While anybody needs one, nobody grants anything new.
A server that has come back lets its clients reclaim only when everybody holds back, since a server that does not know
yet could be giving away what is reclaimed. It needs the period until its own is over and the records of those who have
not come back are gone from stable storage. Others may give away what these had only then: otherwise they could reclaim
it after the next restart (RFC 8881 section 8.4.3, the edge conditions, across servers).

A server that has died and does not come back is given up after a time. Then nobody may reclaim what it had granted,
however late it comes back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Member:
    """A server of the cluster."""

    needs: bool = False
    """Its clients may have something to reclaim."""
    holds_back: bool = False
    """It grants nothing new, as long as somebody needs a grace period. Nor does one that has died."""
    given_up: bool = False
    """It has died, and its clients have lost what they had."""


@dataclass(frozen=True, slots=True)
class ClusterGrace:
    """What the record says."""

    members: Mapping[str, Member] = field(default_factory=dict)

    @property
    def active(self) -> bool:
        """Whether nobody may grant anything new."""
        return any(member.needs for member in self.members.values())

    @property
    def everybody_holds_back(self) -> bool:
        """Whether reclaims may be granted."""
        return all(member.holds_back or member.given_up for member in self.members.values())

    def of(self, name: str) -> Member:
        """What is said of a server."""
        return self.members.get(name, Member())

    def _with(self, name: str, **changes: bool) -> ClusterGrace:
        member = self.members.get(name)
        if member is None:
            return self
        return ClusterGrace({**self.members, name: replace(member, **changes)})

    # -- events --------------------------------------------------------------------------------------------------
    def started(self, name: str, claims: bool) -> ClusterGrace:
        """A server starts. ``claims``: its clients may have something to reclaim; not if it was given up."""
        member = Member(needs=claims, holds_back=claims or self._without(name).active)
        return ClusterGrace({**self.members, name: member})

    def died(self, name: str, claims: bool) -> ClusterGrace:
        """A server is dead, or stops: it does nothing more before it has started again."""
        if name in self.members and self.members[name].given_up:
            return self
        return self._with(name, needs=True, holds_back=True) if claims else self._without(name)

    def held_back(self, name: str) -> ClusterGrace:
        """A server grants nothing new from now on."""
        return self._with(name, holds_back=True)

    def recovered(self, name: str) -> ClusterGrace:
        """A server's own grace period is over, and what was left of its records is gone."""
        return self._with(name, needs=False)

    def resumed(self, name: str) -> ClusterGrace:
        """A server wants to grant new things again. It may not while somebody needs a grace period."""
        return self if self.active else self._with(name, holds_back=False)

    def gave_up(self, name: str) -> ClusterGrace:
        """The others have waited long enough for a server that is dead."""
        return self._with(name, needs=False, given_up=True)

    def _without(self, name: str) -> ClusterGrace:
        return ClusterGrace({key: member for key, member in self.members.items() if key != name})
