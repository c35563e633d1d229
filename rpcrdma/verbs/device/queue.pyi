from typing import Self

class Job:
    """Work requests that complete together, reported by ``token``."""

    token: object
    count: int
    reads: bool
    def __init__(self, token: object, count: int, reads: bool = False) -> None: ...

class SendQueue:
    """The accounting of one queue pair. What is here is for tests; an endpoint uses it from C."""

    depth: int
    max_reads: int
    free: int
    free_reads: int
    posted: int
    completed: int
    idle: bool
    """Nothing is posted and nothing waits."""
    def __new__(cls, depth: int, max_reads: int) -> Self: ...
    def put(self, job: Job) -> None:
        """Queue a job. Raises ValueError for Reads where the peer allows none."""
    def post(self) -> list[tuple[object, int, int]]:
        """What may be posted now, in order: (token, first request, number of requests) of each piece."""
    def done(self, pieces: int = 1) -> list[object]:
        """The oldest ``pieces`` have completed. Returns the tokens of the jobs that are over."""
    def done_at(self, sequence: int, flushed: bool = False) -> list[object]:
        """The piece of this sequence number has completed. Returns the tokens of the jobs that are over."""
    def refuse(self, first: int) -> list[object]:
        """The device refused the pieces from this sequence number on. Returns their tokens."""
    def abandon(self) -> list[object]:
        """Take all that waits. Returns the tokens."""
