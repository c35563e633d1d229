"""Stable storage for calls that are answered natively. Implemented in ``flushes.pyx``."""

from collections.abc import Callable

on_fsync: Callable[[int], object] | None
"""Called with each descriptor that is going to be synchronised; None: nobody looks on."""
