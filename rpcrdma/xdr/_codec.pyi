"""The native codec has the reference codec's interface, to the letter."""

from rpcrdma.xdr.codec import Decoder as Decoder
from rpcrdma.xdr.codec import Encoder as Encoder
