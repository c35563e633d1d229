"""Entries of READDIR in native code. Implemented in ``listing.pyx``."""

from collections.abc import Iterable

from nfsd.vfs.listing import Listing

class Listing4(Listing):
    """A listing of ``room`` octets of entries with the attributes of ``mask``, and of ``names`` octets of names and
    cookies (0: as many as there are); but these let one entry out in any case. The names of ``places`` lead on in the
    pseudo file system, and their entries are to be completed."""

    def __init__(self, mask: int, room: int, names: int, lease_time: int, places: Iterable[bytes] = ()) -> None: ...

def native(mask: int, *, numeric: bool = True) -> bool:
    """Whether native code knows all attributes of ``mask``; owners only as numbers."""
