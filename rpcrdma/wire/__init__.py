"""Transport headers, chunk lists and CM private data of RPC-over-RDMA.

``rpc.pxd``, ``rdma.pxd`` and ``chunk_lists.pxd`` beside this file have the numbers of RPC, of both versions and of
chunk lists for native code. They are generated when the extensions are built (:mod:`rpcrdma.xdr.generate`), and are not
under version control.
"""

from typing import Final

FORMATS: Final[dict[str, tuple[str, list[str], str]]] = {
    "rpc": ("rpcrdma.rpc.messages", [], "ONC RPC (RFC 5531)."),
    "rdma": ("rpcrdma.wire.header", [], "RPC-over-RDMA versions One (RFC 8166) and Two (draft-cel)."),
    "chunk_lists": ("rpcrdma.wire.chunks", [], "Chunk lists (RFC 8166 section 4.3)."),
}
"""Name of the file: the module of declarations, the types, and what it is."""
