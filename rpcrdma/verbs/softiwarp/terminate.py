"""What a Terminate says, in words.

Owns RFC 5040 section 4.8 (Figure 9), RFC 5041 section 7.2, RFC 5044 section 8 and RFC 6581 section 8 as one table
(RFC 6580 is their registry). Imports the provider interface only.
"""

from __future__ import annotations

from rpcrdma.verbs.interface import RemoteAccessError

_LAYERS = {0: "RDMAP", 1: "DDP", 2: "LLP"}

_WORDS: dict[tuple[int, int, int], str] = {
    (0, 1, 0x00): "invalid STag",
    (0, 1, 0x01): "base or bounds violation",
    (0, 1, 0x02): "access rights violation",
    (0, 1, 0x03): "STag not associated with the stream",
    (0, 1, 0x04): "tagged offset wraps",
    (0, 1, 0x09): "STag cannot be invalidated",
    (0, 1, 0xFF): "unspecified protection error",
    (0, 2, 0x05): "invalid RDMAP version",
    (0, 2, 0x06): "unexpected opcode",
    (0, 2, 0x07): "catastrophic error, localized to the stream",
    (0, 2, 0x08): "catastrophic error, global",
    (0, 2, 0x09): "STag cannot be invalidated",
    (0, 2, 0xFF): "unspecified operation error",
    (1, 1, 0x00): "invalid STag",
    (1, 1, 0x01): "base or bounds violation",
    (1, 1, 0x02): "STag not associated with the stream",
    (1, 1, 0x03): "tagged offset wraps",
    (1, 1, 0x04): "invalid DDP version",
    (1, 2, 0x01): "invalid queue number",
    (1, 2, 0x02): "no buffer available for the message",
    (1, 2, 0x03): "message sequence number out of range",
    (1, 2, 0x04): "invalid message offset",
    (1, 2, 0x05): "message too long for the buffer",
    (1, 2, 0x06): "invalid DDP version",
    (2, 0, 0x01): "TCP connection lost",
    (2, 0, 0x02): "CRC mismatch",
    (2, 0, 0x03): "Marker and ULPDU length disagree",
    (2, 0, 0x04): "invalid MPA frame",
    (2, 0, 0x05): "local catastrophic error",
    (2, 0, 0x06): "insufficient IRD resources",
    (2, 0, 0x07): "no matching RTR option",
}


def describe(layer: int, etype: int, code: int) -> str:
    """Return the layer and the words for a Terminate control field."""
    name = _LAYERS.get(layer, f"layer {layer}")
    if (layer, etype) in ((0, 0), (1, 0)):
        # RFC 5040 Figure 9: any value of the code is acceptable here.
        return f"{name}: local catastrophic error"
    return f"{name}: {_WORDS.get((layer, etype, code), f'error type {etype}, code {code:#04x}')}"


def describe_received(first: int, code: int) -> str:
    """Return the words for a received Terminate whose control field starts with octets ``first`` and ``code``.

    Linux siw writes the two nibbles of the first octet in its bit-field order, which on little-endian hosts is the
    reverse of RFC 5040's, so whichever order makes a known error is taken, the RFC's first.
    """
    layer, etype = first >> 4, first & 0xF
    if (layer, etype, code) not in _WORDS and (etype, layer, code) in _WORDS:
        layer, etype = etype, layer
    return describe(layer, etype, code)


_CONTROL, _SEGMENT_LENGTH, _TAGGED_HEADER, _UNTAGGED_HEADER = 4, 2, 14, 18
_READ_REQUEST = 1


def refusal(message: bytes, words: str) -> RemoteAccessError | None:
    """What a received Terminate refuses, or None when it is not about access to memory (RFC 5040 section 4.8).

    Behind the control field and the segment length stands the header of what was refused: of an RDMA Write, or of an
    RDMA Read Request, whose source is meant. Peers may leave it out, and the flags that say so come in siw's reversed
    order too, so it is recognized by its own T bit and opcode.
    """
    layer, etype, code = message[0] >> 4, message[0] & 0xF, message[1]
    if (layer, etype, code) not in _WORDS:
        layer, etype = etype, layer
    # RDMAP's remote protection errors but for failed invalidations, and DDP's tagged buffer errors but for the version.
    if (layer, etype) not in ((0, 1), (1, 1)) or (layer, code) in ((0, 0x09), (1, 0x04)):
        return None
    header = message[_CONTROL + _SEGMENT_LENGTH :]
    handle = None
    if len(header) >= _TAGGED_HEADER and header[0] & 0x80:
        handle = int.from_bytes(header[2:6], "big")
    elif len(header) >= _UNTAGGED_HEADER + 20 and header[1] & 0xF == _READ_REQUEST:
        handle = int.from_bytes(header[_UNTAGGED_HEADER + 16 : _UNTAGGED_HEADER + 20], "big")
    return RemoteAccessError(words, handle)
