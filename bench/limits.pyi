"""What the machine can do at best. Implemented in ``limits.pyx``."""

from collections.abc import Iterable

from rpcrdma.gss.mechanism import Sealer

def answer(fd: int, request: int, reply: int) -> int:
    """Answer requests one by one until the peer closes."""

def ask(fd: int, request: int, reply: int, outstanding: int, seconds: float) -> tuple[int, float]:
    """Keep requests outstanding. Returns (answered, seconds)."""

def drain(fd: int) -> int:
    """Receive until the peer closes."""

def store(fd: int, file: int, size: int, header: int, reply: int, room: int, by_worker: bool = False) -> int:
    """Put the data of requests into a file until the peer closes."""

def fetch(fd: int, file: int, size: int, request: int, reply: int, room: int) -> int:
    """Answer requests with octets of a file until the peer closes."""

def look(directory: str) -> int:
    """The attributes of everything in a directory. Returns how many."""

def stream(fd: int, seconds: float) -> float:
    """Send. Returns octets per second."""

def file_calls(fd: int, offsets: Iterable[int], write: bool, size: int = 4096) -> int:
    """One pread or pwrite at each offset."""

def copying(seconds: float) -> float:
    """memcpy. Returns octets per second."""

def signatures(theirs: Sealer, ours: Sealer, times: int) -> int:
    """Verify the header of a call, and sign its reply's. Returns the octets of a signature."""
