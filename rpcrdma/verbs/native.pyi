"""What endpoints offer to native code besides :class:`rpcrdma.verbs.interface.Endpoint`. Implemented in
``native.pyx``."""

class NativeOwner:
    """Who posts on an endpoint natively and is told of the completions."""

class NativeEndpoint:
    """An endpoint that native code can post replies and Reads on, without an object for each."""

class Fetch:
    """A call whose Read chunk is being fetched."""

    def __init__(self, *args: object, **kwargs: object) -> None: ...
