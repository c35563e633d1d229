"""As whom principals of Kerberos act here: users of this system, by rule or by name.

Owns :class:`Principals`, a :data:`rpcrdma.gss.identity.Mapper`; imports :mod:`nfsd.names` for the groups of users. It
is called in threads, since name services may keep it waiting. Answers are remembered for a while, for so many
principals; squashing comes afterwards, export by export.

Rules come first, and say anything. Without a rule a user of one of the realms (``ann@EXAMPLE.ORG``) is this system's
user of that name. Machines and services (``host/name@REALM``, ``NAME$@REALM``) are nobody without one, and so is
whoever would be root: whoever administers the realm does not by that administer this host.
"""

from __future__ import annotations

import fnmatch
import pwd
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from nfsd.names import NO_ID, look_up_groups
from rpcrdma.gss.identity import Identity

NOBODY: Final = "nobody"
"""In a rule: whoever it is for acts as the anonymous user."""
_LIMIT: Final = 4096
"""Principals remembered; the one not asked for longest goes first."""
_LONGEST: Final = 1024
"""Octets of a principal's name that is looked at."""


def look_up_user(name: str) -> tuple[int, int] | None:
    """A user's id and group as this system knows them (blocking). Raises OSError when it cannot tell."""
    try:
        found = pwd.getpwnam(name)
    except (KeyError, ValueError):
        return None
    return (found.pw_uid, found.pw_gid) if 0 <= found.pw_uid < NO_ID and 0 <= found.pw_gid < NO_ID else None


def taken_apart(principal: str) -> tuple[str, str] | None:
    """Name and realm, as libraries print them: what stands behind the last @ that no backslash quotes. None: it has no
    realm, or its name has quoted characters, which no user's has."""
    found = re.fullmatch(r"([^@\\]+)@([^@\\/]+)", principal)
    return (found[1], found[2]) if found and len(principal) <= _LONGEST else None


class Principals:
    """The mapping. Used from several threads."""

    def __init__(
        self,
        realms: Iterable[str] = (),
        rules: Mapping[str, str] | None = None,
        *,
        user: Callable[[str], tuple[int, int] | None] = look_up_user,
        groups: Callable[[int, int | None], tuple[int, ...]] = look_up_groups,
        clock: Callable[[], float] = time.monotonic,
        ttl: float = 300.0,
        unknown_ttl: float = 30.0,
    ) -> None:
        """``realms``: whose users are this system's of the same name. ``rules``: from principals, or patterns with
        ``*``, to names of users or :data:`NOBODY`; a name in full goes before patterns, and these go in their order.
        ``ttl``: seconds that an answer is good for; ``unknown_ttl``, that nobody is behind a principal."""
        self._realms = frozenset(realms)
        rules = rules or {}
        self._named = {name: who for name, who in rules.items() if "*" not in name}
        self._patterns = [(name, who) for name, who in rules.items() if "*" in name]
        self._user, self._groups, self._clock = user, groups, clock
        self._ttl, self._unknown_ttl = ttl, unknown_ttl
        self._answers: OrderedDict[str, tuple[float, Identity | None]] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, principal: str) -> Identity | None:
        """As whom a principal acts; None: nobody (blocking). Raises OSError when the name service cannot tell."""
        with self._lock:
            known = self._answers.get(principal)
            if known is not None and known[0] > self._clock():
                self._answers.move_to_end(principal)
                return known[1]
        found = self._find(principal)
        with self._lock:
            self._answers[principal] = (self._clock() + (self._unknown_ttl if found is None else self._ttl), found)
            self._answers.move_to_end(principal)
            if len(self._answers) > _LIMIT:
                self._answers.popitem(last=False)
        return found

    def _find(self, principal: str) -> Identity | None:
        who = self._ruled(principal)
        if who is not None:
            return None if who == NOBODY else self._identity(who)
        parts = taken_apart(principal)
        if parts is None or parts[1] not in self._realms or "/" in parts[0] or parts[0].endswith("$"):
            return None
        found = self._identity(parts[0])
        return None if found is None or found.uid == 0 else found

    def _ruled(self, principal: str) -> str | None:
        named = self._named.get(principal)
        if named is not None or taken_apart(principal) is None:
            return named
        return next((who for name, who in self._patterns if fnmatch.fnmatchcase(principal, name)), None)

    def _identity(self, name: str) -> Identity | None:
        found = self._user(name)
        if found is None:
            return None
        uid, gid = found
        return Identity(uid, gid, self._groups(uid, gid))
