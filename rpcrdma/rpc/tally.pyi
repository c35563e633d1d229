"""What calls are counted in, on both paths. Read by other threads as it stands."""

from rpcrdma.pace import Dues

BOUNDS: tuple[float, ...]
"""The buckets' upper bounds in seconds; the last bucket has none."""

class Tally:
    """What some calls amount to: those of one client on one export, for example."""

    calls: int
    errors: int
    """Calls that were answered with a failure, whatever it was."""
    read: int
    """Octets of files."""
    written: int
    seconds: float
    """From dispatch to reply, all calls together."""
    dues: Dues | None
    """What they are charged to, if there are rates."""
    priced: int
    """When that was found out, by whoever does."""

    def add(self, seconds: float, failed: bool) -> None:
        """A call is over; what it has moved has been added."""

    def leave(self) -> None:
        """A call goes on elsewhere, and is counted there: it is charged for what it has moved here."""

class Counts:
    """Calls of one procedure that are over."""

    calls: int
    native_calls: int
    """Those of them that were answered natively."""
    errors: int
    """Those of them that were answered with an RPC error, or not at all."""
    seconds: float
    """From dispatch to reply, all calls together."""

class Latencies:
    """How long calls took: 128 rows, such as procedures or operations, with a bucket for each bound."""

    def observe(self, row: int, seconds: float) -> None:
        """Count one call."""

    def of(self, row: int) -> tuple[list[int], float]:
        """A row's calls by bucket, and their seconds together."""

    def rows(self) -> dict[int, tuple[list[int], float]]:
        """The same of every row that has any."""
