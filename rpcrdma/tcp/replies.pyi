"""Where the replies of direct calls are written. Implemented in ``replies.pyx``; of use to native code only."""

from rpcrdma.place import Place

class DirectReplies(Place):
    """The buffer in which the replies of direct calls are gathered; beside it one large payload of the present one."""
