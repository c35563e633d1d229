"""Pipes that carry pages of files to sockets. Implemented in ``pipes.pyx``; of use to native code only."""

class Pipe:
    """One pipe on its way between a file and a socket."""

    def release(self) -> None:
        """Give it back; what is left in it is thrown away."""

def in_use() -> int:
    """How many pipes are on their way."""

def bound(most: int) -> int:
    """Let there be at most so many pipes. Returns what the bound was."""
