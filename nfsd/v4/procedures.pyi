"""The common COMPOUNDs of NFSv4.1 and 4.2, answered natively. Implemented in ``procedures.pyx``."""

from nfsd.v4.server import Nfs4Server
from rpcrdma.rpc.native import NativeProgram

class Nfs4Procedures(NativeProgram):
    """COMPOUNDs that do not wait, made of SEQUENCE, PUTFH, GETFH, LOOKUP, GETATTR, SETATTR, ACCESS, READ, WRITE,
    COMMIT, REMOVE, OPEN, CLOSE."""

    short: bool
    """Whether the latest operation was declined for want of room for its result."""

    def __init__(self, server: Nfs4Server) -> None: ...
