"""Stable storage for calls that are answered natively. Implemented in ``flushes.pyx``."""

from collections.abc import Callable

from nfsd.vfs.executor import Executor
from nfsd.vfs.mounts import Mount
from nfsd.vfs.stable import StableStorage

on_fsync: Callable[[int], object] | None
"""Called with each descriptor that is going to be synchronised, or whose file system's journal is; None: nobody looks on."""

def commit(executor: Executor, stable: StableStorage, mount: Mount, done: Callable[[int], None]) -> None:
    """Have a worker commit the journal of a file system that has one, with all changes made before it begins, and tell
    ``done`` the errno, or 0. Where that cannot be done, ``stable`` synchronises the whole file system."""
