"""Turns on one file. Implemented in ``serial.pyx``."""

class Serial:
    """A first-come first-served lock."""

    busy: bool
    """Whether somebody has the turn."""
    async def acquire(self) -> None:
        """Wait for the turn."""
    def release(self) -> None:
        """Hand the turn to whoever has waited longest."""
