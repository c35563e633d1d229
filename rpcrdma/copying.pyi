"""Copies of messages and their data within this process's memory, counted. Implemented in ``copying.pyx``."""

def copied() -> int:
    """Octets that this process has copied so far."""
