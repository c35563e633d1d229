"""When certificates and revocation lists expire (RFC 5280 sections 4.1.2.5 and 5.1.2.5).

Owns :func:`expiry_of`; imports nothing of the project. Python's ssl tells this of no certificate of one's own. So the
times are read where they stand in the DER; whatever else is there is passed over, and nothing is verified.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import re
from collections.abc import Iterator
from typing import Final

_BLOCK: Final = re.compile(
    rb"-----BEGIN (?:TRUSTED |X509 )?(?:CERTIFICATE|CRL)-----(.*?)-----END [A-Z0-9 ]+-----", re.DOTALL
)
_SEQUENCE: Final = 0x30
_TIMES: Final = (0x17, 0x18)
"""UTCTime and GeneralizedTime."""


def expiry_of(pem: bytes) -> float:
    """When the first of the certificates or lists in a file expires (time.time); infinite: none does, or none can be
    read."""
    found = (_expiry(block[1]) for block in _BLOCK.finditer(pem))
    return min(found, default=float("inf"))


def _expiry(block: bytes) -> float:
    """Of what is between BEGIN and END."""
    try:
        ((_, whole),) = _parts(base64.b64decode(block))
        _, signed = next(_parts(whole))
        times = []
        for tag, content in _parts(signed):
            if tag in _TIMES:
                times.append(_time(tag, content))
            elif tag == _SEQUENCE and content[:1] and content[0] in _TIMES:
                times += [_time(*part) for part in _parts(content)]  # a certificate's have a sequence of their own
    except (ValueError, IndexError, StopIteration, binascii.Error):
        return float("inf")
    return times[1] if len(times) > 1 else float("inf")


def _parts(octets: bytes) -> Iterator[tuple[int, bytes]]:
    """Tags and contents of what stands one behind the other. Raises IndexError, ValueError."""
    at = 0
    while at < len(octets):
        tag, length = octets[at], octets[at + 1]
        at += 2
        if length >= 0x80:
            size = length & 0x7F
            length = int.from_bytes(octets[at : at + size], "big")
            at += size
        if at + length > len(octets):
            raise ValueError("it is cut short")
        yield tag, octets[at : at + length]
        at += length


def _time(tag: int, content: bytes) -> float:
    """Raises ValueError."""
    text = content.decode("ascii")
    if tag == _TIMES[0]:
        text = ("19" if text[:2] >= "50" else "20") + text  # section 4.1.2.5.1
    return datetime.datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=datetime.UTC).timestamp()
