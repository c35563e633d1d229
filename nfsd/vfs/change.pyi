"""The change attribute (implemented, and explained, in ``change.pyx``)."""

SETTLE_NS: int
"""Four times the longest tick Linux can be built with."""
SETTLED_OFFSET: int
"""Half of the shortest tick, and thousands of our own changes."""

class ChangeRecord:
    """What is remembered of one file's change attribute."""

    def observe(self, ctime: int, now: int, *, fine: bool, changed: bool) -> int:
        """The attribute for a ``ctime`` (ns) seen at ``now`` (ns). ``changed``: we changed the file since the last
        look. ``fine``: the file system's ctime is distinct for every change."""
    def settled(self, now: int) -> bool:
        """Whether no further change can carry the remembered ctime: the record may be given up."""
