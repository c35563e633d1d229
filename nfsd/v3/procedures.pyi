"""NFSv3's native procedures as one program. Implemented in ``procedures.pyx``."""

from nfsd.v3.request import Delegations, Limits
from nfsd.vfs.service import FileService
from rpcrdma.rpc.native_program import NativeProgram

class Nfs3Procedures(NativeProgram):
    """All but NULL, READDIR, READDIRPLUS, FSSTAT, FSINFO and PATHCONF. Declines nothing that is well formed."""

    absent: int
    """LOOKUPs of names that there are not; their replies are failures."""

    def __init__(
        self, service: FileService, limits: Limits | None = None, delegations: Delegations | None = None
    ) -> None:
        """``delegations``: those of NFSv4, if it is served too."""
