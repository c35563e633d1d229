"""What native operations share of the file service, in one place (contract: ``tables.pyi``).

Owns :class:`Tables`, which only leads to its parts. The records of files (:mod:`nfsd.vfs.records`) are reached through
them. There is one loop, and so no lock. With several, this is what one of them would lock before it makes native calls.
"""


cdef class Tables:
    def __init__(
        self, NodeTable nodes not None, OpenFiles open_files not None, Edition edition not None, unstable, shares, known,
        close_later,
    ):
        self.nodes, self.open_files, self.edition = nodes, open_files, edition
        self.unstable, self.shares, self.known, self.close_later = unstable, shares, known, close_later
        self.proc_fd = -1

    def started(self, Executor executor not None, int proc_fd):
        self.executor, self.switch, self.proc_fd = executor, executor.switch, proc_fd
