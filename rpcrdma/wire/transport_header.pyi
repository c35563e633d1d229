"""Reading the headers of messages, and writing those of replies. Implemented in ``transport_header.pyx``.

Call these by :class:`rpcrdma.wire.codec.Codec`."""

from collections.abc import Sequence

from rpcrdma.wire.header import Header

class ChunkLists:
    """The chunk lists of a message as they came; of use to native code only."""

def decode(view: memoryview, max_segments: int) -> Header:
    """The header of a message: a Header in version One; in version Two a MessageHeader or an OptionHeader. Raises Discard
    or HeaderFault."""

def reply_size(call: Header) -> int:
    """Octets of the header of any reply to ``call``."""

def invalidated(call: Header) -> int | None:
    """The handle that the reply to ``call`` is to invalidate, where both peers can do that."""

def offers(call: Header, handle: int) -> bool:
    """Whether one of the call's chunks is in the memory that ``handle`` names."""

def encode_reply(
    buffer: memoryview, call: Header, credit_value: int, procedure: int, writes: Sequence[int], reply: int
) -> int:
    """Put a reply's header at the start of ``buffer``; returns its size. ``writes`` are the octets in the first Write
    chunks of the call, ``reply`` those in its Reply chunk, of which they are no more than there is room for. Raises
    ValueError for chunks that the call does not have, and for a buffer that is too short."""
