"""Which version of the protocol a connection speaks, and what follows from it.

Owns the versions there are and :class:`Versions`. Imports :mod:`rpcrdma.wire` and this
package.

A responder learns the version from the requester's first call and answers in that version. Its first reply that is no
error settles it for the connection's remaining life (draft-cel version Two, "Protocol Version Negotiation"). A call in
another version after that gets ERR_VERS. The range in it is what this end supports, as ever (RFC 8166 section 4.5.1; in
version Two "semantics, and utilization are the same"): it is told to a requester that may choose anew on its next
connection. Backward calls keep to the settled version too (RFC 8167 section 5.1).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rpcrdma.engine.config import ResponderOptions
from rpcrdma.wire.codec import Codec
from rpcrdma.wire.private_data import Properties
from rpcrdma.wire.version_one import VersionOne
from rpcrdma.wire.version_two import INITIAL_THRESHOLD, THRESHOLD, VersionTwo

VERSION_ONE: Mapping[int, Codec] = {VersionOne.version: VersionOne()}
VERSIONS: Mapping[int, Codec] = {**VERSION_ONE, VersionTwo.version: VersionTwo()}


def final(version: int, negotiated: Properties, remote_invalidation: bool) -> Properties:
    """What holds for messages of ``version`` once it is settled, given what RFC 8797's private data says; and whether
    this end has anything against remote invalidation."""
    if version == VersionOne.version:
        return negotiated
    # "Default Values": 4096 octets are what everyone takes; who takes more may say so by other means, and private
    # data is such. Whether a handle may be invalidated, the requester says call by call.
    return Properties(
        max(THRESHOLD, negotiated.send_threshold), max(THRESHOLD, negotiated.receive_threshold), remote_invalidation
    )


class Versions:
    """The versions of one connection."""

    __slots__ = ("_negotiated", "_on_settled", "_options", "codecs", "properties", "settled", "supported", "version")

    def __init__(
        self, options: ResponderOptions, negotiated: Properties, on_settled: Callable[[int, Properties], None] | None
    ) -> None:
        """``negotiated`` is what RFC 8797's private data says, which is about version One."""
        self.codecs = VERSIONS if options.version_two else VERSION_ONE
        """The versions that the peer may use."""
        self.supported = range(min(self.codecs), max(self.codecs) + 1)
        """Those that ERR_VERS tells of."""
        self.settled: int | None = None
        self.version = VersionOne.version
        """The version of the last call, or the one that is settled; backward calls have it too."""
        self.properties = negotiated
        """What holds for that version now."""
        self._options = options
        self._negotiated = negotiated
        self._on_settled = on_settled

    def heard(self, version: int) -> None:
        """A call has come in another version than the last one; none is settled yet."""
        self.version = version
        self.properties = self.initial(version)

    def initial(self, version: int) -> Properties:
        """What holds for messages of ``version`` while it is not settled."""
        if version == VersionOne.version:
            return self._negotiated
        # The requester cannot know yet that we are more than a version One responder, and its Receives may be as small.
        receive_threshold = self._negotiated.receive_threshold
        return Properties(INITIAL_THRESHOLD, receive_threshold, self._options.remote_invalidation)

    def final(self, version: int) -> Properties:
        """What holds for messages of ``version`` once it is settled."""
        return final(version, self._negotiated, self._options.remote_invalidation)

    def settle(self, version: int) -> None:
        """A reply that is no error is about to be sent."""
        if self.settled is None:
            self.settled = self.version = version
            self.properties = self.final(version)
            self.codecs = {version: self.codecs[version]}
            if self._on_settled is not None:
                self._on_settled(version, self.properties)

    def close(self) -> None:
        """Tell nobody any more."""
        self._on_settled = None

    @property
    def max_backward_size(self) -> int:
        """Octets of the largest RPC message in either direction of a backward call without chunks.

        Backward calls follow a reply (RFC 8167 section 6), and so what counts is what holds when the connection has
        settled on the version of the last call.
        """
        properties = self.final(self.version)
        return min(properties.send_threshold, properties.receive_threshold) - VERSIONS[self.version].call_size
