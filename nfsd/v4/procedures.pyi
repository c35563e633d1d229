"""COMPOUNDs of NFSv4. Implemented in ``procedures.pyx``."""

from nfsd.v4.server import Nfs4Server
from rpcrdma.rpc.native_program import NativeProgram

class Nfs4Procedures(NativeProgram):
    """COMPOUNDs. On a transport's own path those that need no operation in Python."""

    def __init__(self, server: Nfs4Server) -> None: ...
