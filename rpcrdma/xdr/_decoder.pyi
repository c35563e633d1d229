"""The native decoder has the reference decoder's interface, to the letter."""

from rpcrdma.xdr.codec import Decoder as Decoder
from rpcrdma.xdr.results import ResultDecoder as ResultDecoder
