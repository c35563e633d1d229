"""iWARP (MPA, DDP, RDMAP) in user space over ordinary TCP sockets.

Owns the embedded provider. May import :mod:`rpcrdma.memory` and :mod:`rpcrdma.verbs.interface`. Implements RFC 5040,
RFC 5041, RFC 5044 and RFC 6581. From the bottom up:

    framing (loads and stores), terminate (words), crc, stags
    chain (posted work) -> frame -> transmit, receive (the two halves; native code) -> endpoint
    mpa (negotiation, without I/O) -> listener, provider
"""

from rpcrdma.verbs.softiwarp.options import SoftIwarpOptions
from rpcrdma.verbs.softiwarp.provider import LARGEST_FPDU, SoftIwarp

__all__ = ["LARGEST_FPDU", "SoftIwarp", "SoftIwarpOptions"]
