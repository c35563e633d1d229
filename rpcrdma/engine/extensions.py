"""OPTIONAL features of version Two (draft-cel version Two, "Protocol Extensibility").

Owns the interface of an extension. Imports :mod:`rpcrdma.wire`. The registry is a mapping in the responder's options,
from rdma_opttype to extension. A message whose type is not in it is answered with RDMA2_ERR_INVAL_OPTION, from which
the peer learns that the feature is not there. No extension has been published; none is registered by the server.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rpcrdma.wire.header import Fault, OptionHeader

Extension = Callable[[OptionHeader, memoryview], bytes | None]
"""Takes an RDMA2_OPTIONAL message and what follows its header: all, a part or nothing of a payload stream. Both are
valid during the call only. Returns the rdma_optinfo of the answer, or None for no answer, or raises MalformedOption.
Messages of either direction come here; those of direction REPLY are never answered."""


class MalformedOption(Exception):
    """rdma_optinfo does not parse: answered with RDMA2_ERR_BAD_XDR."""


def ask(extensions: Mapping[int, Extension], header: OptionHeader, view: memoryview) -> Fault | bytes | None:
    """What the extension says to the message ``view``: the information of the answer, None, or what is wrong.

    A receiver that does not know the type must say so ("Optional Features"). But an error travels from Responder to
    Requester always ("Message Direction"), and to a message of direction REPLY we would be the Requester: the caller
    leaves those unanswered.
    """
    extension = extensions.get(header.opttype)
    if extension is None:
        return Fault.OPTION
    try:
        return extension(header, view[header.payload :])
    except MalformedOption:
        return Fault.HEADER
