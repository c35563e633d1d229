"""What endpoints offer to native code besides :class:`rpcrdma.verbs.interface.Endpoint`. Implemented in
``native.pyx``."""

class NativeEndpoint:
    """An endpoint that native code can post replies on, without an object for each."""

ANSWERED: object
"""The token of such replies."""
