"""The native codec: the reference codec's objects, in C. Importing it fails where the extensions are not built."""

from __future__ import annotations

from rpcrdma.xdr._decoder import Decoder, ResultDecoder
from rpcrdma.xdr._encoder import Encoder

__all__ = ["Decoder", "Encoder", "ResultDecoder"]
