"""The native encoder has the reference encoder's interface, to the letter."""

from rpcrdma.xdr.codec import Encoder as Encoder
