"""The common procedures of NFSv3, answered natively. Implemented in ``direct.pyx``."""

from nfsd.v3.request import Delegations, Limits
from nfsd.vfs.service import FileService
from rpcrdma.rpc.direct import DirectProgram

class Nfs3Direct(DirectProgram):
    """GETATTR, ACCESS, READ, WRITE and COMMIT; SETATTR, LOOKUP, CREATE and REMOVE as far as they are common."""

    absent: int
    """LOOKUPs of names that there are not; their replies are failures."""

    def __init__(
        self, service: FileService, limits: Limits | None = None, delegations: Delegations | None = None
    ) -> None:
        """``delegations``: those of NFSv4, if it is served too."""
