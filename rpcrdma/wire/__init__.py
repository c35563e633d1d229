"""Transport headers, chunk lists and CM private data of RPC-over-RDMA.

``rpc.pxd`` and ``rdma1.pxd`` beside this file have the numbers of RPC and of version One for native code. They are
generated when the extensions are built (:mod:`rpcrdma.xdr.generate`), and are not under version control.
"""

from typing import Final

FORMATS: Final[dict[str, tuple[str, list[str], str]]] = {
    "rpc": ("rpcrdma.rpc.messages", [], "ONC RPC (RFC 5531)."),
    "rdma1": ("rpcrdma.wire.version_one", [], "RPC-over-RDMA version One (RFC 8166)."),
}
"""Name of the file: the module of declarations, the types, and what it is."""
