"""A provider in memory, for tests of everything above it."""

from rpcrdma.verbs.loopback.provider import LoopbackEndpoint, LoopbackListener, LoopbackProvider, LoopbackRequest

__all__ = ["LoopbackEndpoint", "LoopbackListener", "LoopbackProvider", "LoopbackRequest"]
