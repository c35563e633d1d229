"""OPTIONAL features of version Two (draft-cel version Two, "Protocol Extensibility").

Owns the interface of an extension. Imports :mod:`rpcrdma.wire`. The registry is a mapping in the responder's options,
from rdma_opttype to extension. A message whose type is not in it is answered with RDMA2_ERR_INVAL_OPTION, from which
the peer learns that the feature is not there. No extension has been published; none is registered by the server.
"""

from __future__ import annotations

from collections.abc import Callable

from rpcrdma.wire.version_two import OptionHeader

Extension = Callable[[OptionHeader, memoryview], bytes | None]
"""Takes an RDMA2_OPTIONAL message and what follows its header: all, a part or nothing of a payload stream. Both are
valid during the call only. Returns the rdma_optinfo of the answer, or None for no answer, or raises MalformedOption.
Messages of either direction come here; those of direction REPLY are never answered."""


class MalformedOption(Exception):
    """rdma_optinfo does not parse: answered with RDMA2_ERR_BAD_XDR."""
