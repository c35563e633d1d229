"""Inputs of the target ``protected``: calls of NFSv3 under RPCSEC_GSS, damaged or not, with real security contexts."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass, field
from unittest import mock

from nfsd.protocol.nfs3 import NFS_PROGRAM
from rpcrdma.gss.contexts import SEQUENCE_WINDOW
from rpcrdma.gss.mechanism import Acceptance, Credential, Initiation, Sealer
from rpcrdma.rpc.gss_messages import FLAVOR, INTEGRITY, NONE, PRIVACY
from tests.fuzz.gss_model import MOST_NUMBERS, rpc_gss_cred
from tests.fuzz.nfs3_calls import GETATTR, NULL, READ, WRITE, Input, opaque
from tests.unit.gss_support import SERVICE, integrity, privacy

LONG = 40_000
"""Octets that threads protect."""
ENCTYPES = ("aes256-cts-hmac-sha1-96", "aes128-cts-hmac-sha256-128")
WORDS = (0, 1, 4, 16, 28, 36, 0x0404FFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFC, 0xFFFFFFFF)
CALLS = (
    (GETATTR, 0), (READ, 4096), (READ, 5), (READ, LONG), (WRITE, 40), (WRITE, LONG), (NULL, 0), (WRITE, 3),
)  # fmt: skip


class Key:
    """Both ends of a security context, for as many contexts with these keys as are wanted."""

    def __init__(self, keytab: str, environment: dict[str, str]) -> None:
        """Makes it, with the environment's ticket."""
        with mock.patch.dict(os.environ, environment):
            making, acceptance = Initiation(SERVICE), Acceptance()
            store = {"rcache": "none:", "keytab": f"FILE:{keytab}"}
            making.step(acceptance.step(Credential("nfs", store, True), making.step(b"")))
        self.exported = acceptance.export()
        self.client, self.server = Sealer(making.export()), Sealer(self.exported)


@dataclass
class Model:
    """A context as RFC 2203 has it."""

    handle: bytes
    key: Key
    highest: int = 0
    seen: set[int] = field(default_factory=set)

    @property
    def sealer(self) -> Sealer:
        """What reads the client's octets."""
        return self.key.server

    def fresh(self, sequence: int) -> bool:
        """Whether a call with this number may be answered (section 5.3.3.1)."""
        return self.highest - sequence < SEQUENCE_WINDOW and sequence not in self.seen

    def take(self, sequence: int) -> None:
        """Such a call has come."""
        self.seen.add(sequence)
        self.highest = max(self.highest, sequence)


def changed(octets: bytes, kind: int, value: int, at: int) -> bytes:
    """The octets with one damage."""
    out = bytearray(octets)
    at %= len(out) + 1
    word = at & ~3
    match kind % 7:
        case 0:
            out[at : at + 1] = bytes((out[at] ^ (value or 1),)) if at < len(out) else b""
        case 1:
            out[word : word + 4] = WORDS[value % len(WORDS)].to_bytes(4, "big")
        case 2:
            del out[at : at + value % 5]
        case 3:
            out[at:at] = bytes((value,)) * (value % 5)
        case 4:
            del out[at:]
        case 5:
            out += bytes((value,)) * (value % 9)
        case 6:
            more = int.from_bytes(out[word : word + 4], "big") + value - 128
            out[word : word + 4] = (more & 0xFFFFFFFF).to_bytes(4, "big")
    return bytes(out)


class Call:
    """One call of an input."""

    def __init__(self, source: Input, models: list[Model]) -> None:
        kind, what, number, inner = (source.octet() for _ in range(4))
        self.model, other = models[kind & 1], models[~kind & 1]
        self.service = (NONE, INTEGRITY, PRIVACY, PRIVACY)[kind >> 1 & 3]
        self.protected_as = (self.service, NONE, INTEGRITY, PRIVACY, *[self.service] * 4)[kind >> 3 & 7]
        client, reflected = self.model.key.client, self.model.key.server
        self.signer = (client, client, client, (reflected, other.key.client)[inner & 1])[kind >> 6]
        self.procedure, self.size = CALLS[what % len(CALLS)]
        self.gss = (0, 0, 0, 0, 0, 0, 3, 1)[what >> 3 & 7]
        self.sealer = (client, client, client, (reflected, other.key.client)[inner & 1])[what >> 6]
        self.sequence = self.numbers()[number % 16]
        self.inner = self.sequence + (0, 0, 0, 0, 0, 0, 1, -self.sequence)[inner >> 1 & 7] & 0xFFFFFFFF
        self.again, self.hangs_up = inner >> 4 == 7, inner >> 4 == 15
        self.damage = [
            (source.octet(), source.octet(), source.octet(), source.number()) for _ in range(source.octet() % 4)
        ]

    def numbers(self) -> list[int]:
        """Sequence numbers that are looked at in different ways; most are the next one."""
        highest = self.model.highest
        found = [highest + 1] * 5 + [highest + 2, highest + SEQUENCE_WINDOW, highest + 3 * SEQUENCE_WINDOW + 7]
        found += [highest, highest - 1, highest - SEQUENCE_WINDOW + 1, highest - SEQUENCE_WINDOW, 0]
        found += [MOST_NUMBERS - 1, MOST_NUMBERS, 0xFFFFFFFF]
        return [max(each, 0) & 0xFFFFFFFF for each in found]

    @property
    def whole(self) -> bool:
        """Whether the client has made no mistake, as far as it can tell."""
        return not self.damage and self.protected_as == self.service and self.inner == self.sequence

    def arguments(self, handle: bytes, data: bytes) -> bytes:
        """Those of the procedure; ``data`` is what is to be written."""
        if self.procedure == NULL:
            return b""
        if self.procedure == READ:
            return opaque(handle) + struct.pack(">QI", 7, self.size)
        if self.procedure == WRITE:
            return opaque(handle) + struct.pack(">QII", 0, len(data), 0) + opaque(data)
        return opaque(handle)

    def message(self, xid: int, arguments: bytes) -> bytes:
        """The octets, as damaged; XID, program, procedure and flavor stay as they are."""
        who = rpc_gss_cred(1, self.gss, self.sequence, self.service, self.model.handle)
        cred = struct.pack(">4I", 1, self.gss, self.sequence, self.service) + opaque(who.handle)
        cred = self.damaged(0, cred)
        fixed = struct.pack(">7I", xid, 0, 2, NFS_PROGRAM, 3, self.procedure, FLAVOR)
        head = struct.pack(">I", len(cred)) + cred + bytes(-len(cred) & 3)
        verifier = struct.pack(">I", FLAVOR) + opaque(self.signer.sign(fixed + head))
        return fixed + self.damaged(1, head) + self.damaged(2, verifier) + self.damaged(3, self.body(arguments))

    def body(self, arguments: bytes) -> bytes:
        """The arguments with their protection."""
        if self.protected_as == NONE:
            return arguments
        return (integrity if self.protected_as == INTEGRITY else privacy)(self, self.inner, arguments)  # type: ignore[arg-type]

    def damaged(self, part: int, octets: bytes) -> bytes:
        """A part of the message with its damage: 0 the credential before it is signed, 1 and after that, 2 the
        verifier, and 3 what follows; of that most often the begin or the end."""
        for where, kind, value, at in self.damage:
            if min(where % 8, 3) == part:
                end = len(octets)
                octets = changed(octets, kind, value, (at, at % 32, max(end - at % 48, 0))[max(where % 8 - 2, 0) // 2])
        return octets


def written(call: Call, count: int) -> bytes:
    """What a WRITE is to write: other octets each time."""
    return bytes((count * 7 + index + 1) & 0xFF for index in range(min(call.size, 64))) * (-(-call.size // 64))
