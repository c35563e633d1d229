"""Turns on one file. Implemented in ``serial.pyx``."""

class Serial:
    """A first-come first-served lock."""

    busy: bool
    """Whether somebody has the turn."""
    writing: bool
    """Whether whoever has the turn writes: what is seen of the file meanwhile may be its doing."""
    waited_for: bool
    """Whether others wait for it."""
    async def acquire(self) -> None:
        """Wait for the turn."""
    def release(self) -> None:
        """Hand the turn to whoever has waited longest."""

async def take_both(one: Serial, other: Serial) -> None:
    """Wait for the turns on two files, in this order."""
