"""What is lost of data that clients were told is written, and how they learn of it. Implemented in ``write_back.pyx``."""

class WriteBack:
    """The write verifier of one store, and what changes it."""

    verifier: bytes
    """8 octets, new at each start of the server and after each failure of write-back (RFC 1813 section 3.3.7)."""
    failures: int
    """How many there have been."""
    lanes: set[int]
    """Those that its files are closed in."""

    def renew(self) -> None:
        """What has not been committed may be lost: clients are to send it again."""
    def failed(self, error: int, descriptor: int = -1) -> None:
        """Write-back has failed, of this file if known. Clients must send unstable writes again (RFC 1813, 3.3.21)."""

class WriteBacks:
    """Those of all stores. One that was met is remembered: the same file system comes back with the same verifier,
    however long nobody has used it."""

    def of(self, store: bytes, lane: int) -> WriteBack:
        """That of the store or file system which is called this over restarts, and which is now in this lane too."""
    def failed_in(self, lane: int, error: int) -> None:
        """Write-back has failed, of a file that is known by its lane only."""
    def renew(self) -> None:
        """Each is another from now on."""
    @property
    def failures(self) -> int:
        """How many there have been, of all."""
