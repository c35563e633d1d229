"""What is remembered of one directory for a moment. Implemented in ``recent_listing.pyx``."""

from nfsd.vfs.nodes import NodeTable

class RecentListing:
    """Entries of a directory: names, and of files that nobody uses handles and attributes, too."""

    ctime: int
    """The directory's, in nanoseconds: with another one it has other names, or other permissions."""
    octets: int
    """Of memory."""
    count: int
    """Of entries."""
    heard: int
    """How many changes have been told."""
    recalled: int
    """Entries that have been listed from here."""
    def __init__(self, ctime: int, most: int, nodes: NodeTable) -> None:
        """``most``: no more is added when this many octets are reached."""
    def forget(self) -> None:
        """Forget it all: to those who list it at the moment, too."""
    def forget_used(self, nodes: NodeTable) -> bool:
        """Forget what is known of files that nodes have been made of since. False: of too many, forget it all."""
    def forget_name(self, name: bytes) -> None:
        """Somebody has changed the file of this name."""
