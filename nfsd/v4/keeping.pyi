from typing import Self

from nfsd.vfs.records import OpenFile
from rpcrdma.rpc.program import RpcCredential

class Descriptors:
    """What an open state or a delegation keeps open: a descriptor for each access it has been granted."""

    def __init__(self, host: str) -> None:
        """``host``: the client's, as in its credentials."""

    @property
    def host(self) -> str: ...
    @property
    def read(self) -> OpenFile | None: ...
    @property
    def reader(self) -> RpcCredential | None:
        """Who was allowed to read."""

    @property
    def write(self) -> OpenFile | None: ...
    @property
    def writer(self) -> RpcCredential | None: ...
    def add(self, opened: OpenFile, access: int, caller: RpcCredential) -> None:
        """Take over one count of ``opened``, which was opened for ``caller``, for the access not served so far."""

    def serving(self, caller: RpcCredential, *, write: bool) -> OpenFile | None:
        """The descriptor for I/O of a caller, if it is the one that opened it: holding a stateid is no permission, and
        the server has to check the access of every READ and WRITE (RFC 7530 section 16.16.5)."""

    def keep(self, access: int) -> None:
        """Give up what a downgrade leaves no right to."""

    @property
    def export_id(self) -> int | None:
        """The export through which the file was opened."""

    def copy(self) -> Self:
        """The same again, with counts of its own."""

    def release(self) -> None:
        """Give up everything."""
