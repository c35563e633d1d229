"""A synthetic peer: a requester that sends any message, well-formed or not, over any provider.

:class:`Rig` is a server with an echo program; :class:`Peer` a connection to it; :func:`header` builds any version One
header; :func:`echo_arguments` and :func:`echo_results` are what the program takes and returns.
"""

from tests.peer.echo import (
    CALL_HEADER,
    ECHO,
    NULL,
    REPLY_HEADER,
    Arguments,
    accept_status,
    echo_arguments,
    echo_results,
    rpc_call,
)
from tests.peer.requester import FILL, Exposed, Message, Peer
from tests.peer.rig import LINUX, Rig, run
from tests.peer.wire import DONE, ERR_CHUNK, ERR_VERS, ERROR, MSG, MSGP, NOMSG, ReplyHeader, Segment, header, words

__all__ = [
    "CALL_HEADER",
    "DONE",
    "ECHO",
    "ERROR",
    "ERR_CHUNK",
    "ERR_VERS",
    "FILL",
    "LINUX",
    "MSG",
    "MSGP",
    "NOMSG",
    "NULL",
    "REPLY_HEADER",
    "Arguments",
    "Exposed",
    "Message",
    "Peer",
    "ReplyHeader",
    "Rig",
    "Segment",
    "accept_status",
    "echo_arguments",
    "echo_results",
    "header",
    "rpc_call",
    "run",
    "words",
]
