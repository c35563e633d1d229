"""The signatures of native calls under RPCSEC_GSS, and the headers of their replies."""

from collections.abc import Callable

from rpcrdma.crew import Crew
from rpcrdma.gss.contexts import Context

class Known:
    """The contexts of an acceptor, for native calls."""

    def __init__(
        self, contexts: dict[bytes, Context], look_up: Callable[[bytes], Context | None], crew: Crew | None = None
    ) -> None:
        """``contexts`` are those that there are, by handle, always in this very dict. ``look_up`` finds one that is not there,
        whose time is over, or whose principal is to be asked about; what it returns has credentials.
        ``crew``: what is long is its."""

    def taken(self) -> list[int]:
        """Calls that were taken with a good signature, by service."""
