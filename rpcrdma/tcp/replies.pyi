"""Where the replies of native calls are written. Implemented in ``replies.pyx``; of use to native code only."""

from rpcrdma.place import Place

class NativeReplies(Place):
    """The buffer in which the replies of native calls are gathered; beside it one large payload of the present one."""
