"""Entries of READDIR and READDIRPLUS in native code. Implemented in ``listing.pyx``."""

from nfsd.vfs.listing import Listing

ENTRY_SIZE: int
"""Octets of an entry3 besides the name: the link before it, fileid, length of the name, cookie."""

class Listing3(Listing):
    """A listing of ``room`` octets of entries at most, and, with handles and attributes (``plus``), of ``names`` octets
    without the two; but these let one entry out in any case."""

    def __init__(self, room: int, names: int = 0, *, plus: bool) -> None: ...
