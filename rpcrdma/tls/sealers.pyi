"""Threads that encipher and send. Implemented in ``sealers.pyx``."""

class Finished:
    """Whose job it was."""

class Sealers:
    """Threads that take what is long. They are started when they are needed."""

    def __new__(cls, most: int) -> Sealers:
        """``most``: threads. Raises OSError."""
    def fileno(self) -> int:
        """What can be read as soon as there is something for :meth:`take`."""
    def take(self) -> None:
        """Tell whose jobs have been done. To be called by the thread that has posted them."""
    def close(self) -> None:
        """End the threads. What comes later is done by who posts it."""
