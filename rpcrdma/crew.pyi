"""Threads that do what is long, without the interpreter's lock. Implemented in ``crew.pyx``."""

import asyncio

class Finished:
    """Whose task it was."""

class Crew:
    """Threads that take what is long. They are started when they are needed."""

    def __new__(cls, most: int) -> Crew:
        """``most``: threads. Raises OSError."""
    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have the loop call :meth:`take`, until this is closed. The first that is attached does."""
    def fileno(self) -> int:
        """What can be read as soon as there is something for :meth:`take`."""
    def take(self) -> None:
        """Tell whose tasks have been done. To be called by the thread that has posted them."""
    def close(self) -> None:
        """End the threads. What comes later is done by who posts it."""
