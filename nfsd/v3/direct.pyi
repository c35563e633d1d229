"""The common procedures of NFSv3, answered natively. Implemented in ``direct.pyx``."""

from nfsd.v3.request import Limits
from nfsd.vfs.service import FileService
from rpcrdma.rpc.direct import DirectProgram

class Nfs3Direct(DirectProgram):
    """GETATTR, SETATTR, LOOKUP, ACCESS, READ, WRITE, CREATE, REMOVE and COMMIT of what does not wait."""

    absent: int
    """LOOKUPs of names that there are not; their replies are failures."""

    def __init__(self, service: FileService, limits: Limits | None = None) -> None: ...
