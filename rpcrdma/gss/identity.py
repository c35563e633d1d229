"""As whom a principal acts here. Owns :class:`Identity` and :data:`Mapper`; imports nothing.

Whoever makes the server says who a principal is, with a mapper. It is called in a worker thread, when a context has
been made, and again when its last answer is old. So it may wait for a name service.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Identity:
    """A user of this system, with all groups that it is in."""

    uid: int
    gid: int
    gids: tuple[int, ...] = ()


Mapper = Callable[[str], Identity | None]
"""From a principal (``user@REALM``, ``nfs/host@REALM``) to whom it is here; None: nobody."""
