"""A synthetic peer: a requester that sends any message, well-formed or not, over any provider.

:class:`Rig` is a server with an echo program; :class:`Peer` a connection to it; :func:`header` builds any version One
header, :func:`header_two` and :func:`option` any of version Two; :func:`echo_arguments` and :func:`echo_results` are
what the program takes and returns.
"""

from rpcrdma.peer.requester import FILL, Exposed, Message, Peer
from rpcrdma.peer.wire import (
    BAD_XDR,
    CALL,
    CANT_REPLY,
    DONE,
    ERR_CHUNK,
    ERR_VERS,
    ERROR,
    INVAL_OPTION,
    INVAL_PROC,
    MSG,
    MSGP,
    NOMSG,
    OPTIONAL,
    REPLY,
    ReplyHeader,
    Segment,
    header,
    header_two,
    option,
    words,
)
from tests.peer.echo import (
    CALL_HEADER,
    ECHO,
    NULL,
    ONCE,
    REPLY_HEADER,
    Arguments,
    accept_status,
    echo_arguments,
    echo_results,
    rpc_call,
)
from tests.peer.rig import LINUX, Rig, run

__all__ = [
    "BAD_XDR",
    "CALL",
    "CALL_HEADER",
    "CANT_REPLY",
    "DONE",
    "ECHO",
    "ERROR",
    "ERR_CHUNK",
    "ERR_VERS",
    "FILL",
    "INVAL_OPTION",
    "INVAL_PROC",
    "LINUX",
    "MSG",
    "MSGP",
    "NOMSG",
    "NULL",
    "ONCE",
    "OPTIONAL",
    "REPLY",
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
    "header_two",
    "option",
    "rpc_call",
    "run",
    "words",
]
