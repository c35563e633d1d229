from collections.abc import Callable

from nfsd.state.clients import Client

class GraceRules:
    """What a grace period stands in the way of: base of :class:`~nfsd.state.recovery.Grace`."""

    active: bool
    """Whether only reclaims are granted now. Without clients on record there is nothing to wait for."""
    elsewhere: bool
    """Whether clients of other servers may reclaim what they had there, so that nothing new is granted here either. Here
    nothing can be reclaimed because of that (RFC 8881 section 8.4.3)."""
    on_new_lock: Callable[[], None] | None
    """Called before a new lock is given while there are clients in ``unheard``."""
    def __init__(self, active: bool) -> None: ...
    @property
    def holds_back(self) -> bool:
        """Whether nothing new is granted."""
    @property
    def unheard(self) -> set[Client]:
        """v4.0 clients on record that came back in the grace period and have not been heard of since its end."""

    def check(self, client: Client, reclaim: bool, held: bool = False) -> None:
        """Whether a new lock (reclaim or not) may be granted to the client. ``held``: a delegation that it has gives it
        that already. Raises GRACE, NO_GRACE."""
