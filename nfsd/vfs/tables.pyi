"""What native operations share of the file service, in one place. Implemented in ``tables.pyx``."""

from collections.abc import Callable

from nfsd.edition import Edition
from nfsd.vfs.executor import Executor
from nfsd.vfs.known_files import KnownFiles
from nfsd.vfs.nodes import NodeTable
from nfsd.vfs.open_files import OpenFiles
from nfsd.vfs.shares import Shares
from nfsd.vfs.unstable import UnstableWrites

class Tables:
    """All that a native operation reads of the file service; of each service there is one."""

    nodes: NodeTable
    open_files: OpenFiles
    edition: Edition
    unstable: UnstableWrites
    shares: Shares
    known: KnownFiles
    close_later: Callable[[int, int], None]
    executor: Executor | None
    """None: the service has not started."""

    def __init__(
        self,
        nodes: NodeTable,
        open_files: OpenFiles,
        edition: Edition,
        unstable: UnstableWrites,
        shares: Shares,
        known: KnownFiles,
        close_later: Callable[[int, int], None],
    ) -> None: ...
    def started(self, executor: Executor, proc_fd: int) -> None:
        """The service works from now on. ``proc_fd``: of /proc/self/fd."""
