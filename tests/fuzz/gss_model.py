"""What becomes of a call under RPCSEC_GSS, by the declared XDR types and RFC 2203.

Owns the reader of calls, and that of replies, of the targets ``gss`` and ``protected``. A context is whatever has a
``sealer``, and tells by ``fresh`` whether a sequence number may be answered.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from rpcrdma.gss.mechanism import GssError
from rpcrdma.rpc.messages import opaque_auth
from rpcrdma.xdr import Decoder, XdrError, opaque, uint32
from rpcrdma.xdr import struct as xdr_struct

MOST_NUMBERS = 1 << 31


@xdr_struct
class rpc_gss_cred:
    version: uint32
    procedure: uint32
    sequence: uint32
    service: uint32
    handle: Annotated[bytes, opaque(64)]


@xdr_struct
class rpc_gss_integ_data:
    body: Annotated[bytes, opaque(1 << 20)]
    checksum: Annotated[bytes, opaque(1 << 20)]


@dataclass
class Wanted:
    """What must become of a call."""

    outcome: str
    who: Any = None
    """Its credential, where that says something."""
    context: Any = None
    """Whose sequence number the call takes, if it takes one."""
    arguments: bytes | None = None
    """With which a procedure is carried out, as far as RPCSEC_GSS is concerned."""


def expected(message: bytes, find: Callable[[bytes], Any]) -> Wanted:
    """What becomes of a call (section 5.3.3), of the contexts that ``find`` knows by their handles."""
    decoder = Decoder(message, (), 24)
    try:
        cred = decoder.decode(opaque_auth)
        end = decoder.position
    except XdrError:
        length = int.from_bytes(message[28:32], "big")
        return Wanted("AUTH_BADCRED" if length > 400 else "GARBAGE_ARGS")
    if len(message) - end < 8:
        return Wanted("GARBAGE_ARGS")
    who = credential(bytes(cred.body))
    if who is None:
        return Wanted("AUTH_BADCRED")
    flavor, size = struct.unpack_from(">II", message, end)
    start = end + 8 + size + (-size & 3)
    if start > len(message):
        return Wanted("GARBAGE_ARGS")
    if who.procedure in (1, 2):  # no verifier here is the empty one that these have
        return Wanted("AUTH_BADVERF" if (flavor, size) != (0, 0) else "AUTH_BADCRED", who)
    context = find(bytes(who.handle))
    mic = message[end + 8 : end + 8 + size]
    if context is None or flavor != 6 or not context.sealer.verify(message[:end], mic):
        return Wanted("RPCSEC_GSS_CREDPROBLEM")
    if who.sequence >= MOST_NUMBERS:
        return Wanted("RPCSEC_GSS_CTXPROBLEM")
    if not context.fresh(who.sequence):
        return Wanted("dropped")
    if who.procedure == 3:
        return Wanted("AUTH_BADCRED" if message[20:24] != bytes(4) else "SUCCESS", who, context)
    arguments = plain(message[start:], who, context.sealer)
    return Wanted("GARBAGE_ARGS" if arguments is None else "SUCCESS", who, context, arguments)


def credential(body: bytes) -> rpc_gss_cred | None:
    """The credential in these octets, of this version; None for what is none."""
    decoder = Decoder(body)
    try:
        who: rpc_gss_cred = decoder.decode(rpc_gss_cred)
        decoder.finish(strict=True)
    except XdrError:
        return None
    if who.version != 1 or who.procedure > 3 or (who.procedure in (0, 3) and who.service not in (1, 2, 3)):
        return None
    return who


def plain(octets: bytes, who: rpc_gss_cred, sealer: Any) -> bytes | None:
    """Arguments without their protection (section 5.3.2); None: they are garbage."""
    decoder = Decoder(octets)
    try:
        if who.service == 1:
            return octets
        if who.service == 2:
            both = decoder.decode(rpc_gss_integ_data)
            decoder.finish(strict=True)
            if len(both.body) & 3 or not both.checksum or not sealer.verify(both.body, both.checksum):
                return None
            body = bytes(both.body)
        else:
            token = bytearray(decoder.opaque(1 << 20))
            decoder.finish(strict=True)
            start, length = sealer.unwrap(token)
            body = bytes(token[start : start + length])
    except (XdrError, GssError):
        return None
    return body[4:] if len(body) >= 4 and body[:4] == struct.pack(">I", who.sequence) else None


def opened(reply: bytes, who: rpc_gss_cred, sealer: Any) -> bytes:
    """The results of a reply to a call that succeeded, without their protection, which must be as it should be."""
    number = struct.pack(">I", who.sequence)
    results = behind_verifier(reply, who, sealer)[4:]
    if who.service == 1 or who.procedure:
        return results
    if who.service == 2:
        both = Decoder(results).decode(rpc_gss_integ_data)
        assert sealer.verify(both.body, both.checksum)
        body = bytes(both.body)
    else:
        token = bytearray(Decoder(results).opaque(1 << 21))
        start, length = sealer.unwrap(token)
        body = bytes(token[start : start + length])
    assert body[:4] == number
    return body[4:]


def behind_verifier(reply: bytes, who: rpc_gss_cred, sealer: Any) -> bytes:
    """What follows the verifier of an accepted reply, which must sign the call's sequence number."""
    flavor, size = struct.unpack_from(">II", reply, 12)
    assert flavor == 6, reply[:40].hex()
    assert sealer.verify(struct.pack(">I", who.sequence), reply[20 : 20 + size])
    return reply[20 + size + (-size & 3) :]
