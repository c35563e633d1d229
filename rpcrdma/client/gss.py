"""A client's side of RPCSEC_GSS (RFC 2203): Kerberos on any transport.

Owns :class:`Gss`, which a connection is told, and :class:`Protection`, what it makes of it. Imports :mod:`rpcrdma.gss`,
its messages and this package's. The tickets are those of the environment's credentials cache (``kinit``).
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from rpcrdma.client.errors import BadReply, Denied
from rpcrdma.client.messages import Message, Reply, decode_reply
from rpcrdma.gss.contexts import MAX_SEQUENCE
from rpcrdma.gss.mechanism import Credential, GssError, Initiation, Sealer
from rpcrdma.rpc.gss_messages import (
    CONTINUE_INIT,
    DATA,
    DESTROY,
    FLAVOR,
    INIT,
    INTEGRITY,
    NONE,
    PRIVACY,
    VERSION,
    GssCredential,
    parse_init_results,
    protected,
)
from rpcrdma.rpc.messages import auth_stat, msg_type
from rpcrdma.xdr import Encoder

_WORD: Final = struct.Struct(">I")
_SERVICES: Final = {"krb5": NONE, "krb5i": INTEGRITY, "krb5p": PRIVACY}
_MOST_STEPS: Final = 8
_OVERHEAD: Final = 512
"""Octets, at most, by which protection makes a reply longer."""
_STALE: Final = (auth_stat.RPCSEC_GSS_CREDPROBLEM, auth_stat.RPCSEC_GSS_CTXPROBLEM)


@dataclass(frozen=True, slots=True)
class Gss:
    """How the calls of a connection are secured by Kerberos."""

    security: Literal["krb5", "krb5i", "krb5p"] = "krb5"
    """Who calls is proved; with ``krb5i`` nothing can be changed on the way, and with ``krb5p`` nothing can be read."""
    service: str = ""
    """The server's, ``service@host``; empty: ``nfs`` at the host that the connection is to."""
    cache: str = ""
    """The credentials cache in Kerberos' own words (``FILE:/tmp/krb5cc_0``); empty: that of the environment."""

    def __post_init__(self) -> None:
        """Raise ValueError for what is none."""
        if self.security not in _SERVICES:
            raise ValueError(f"security is one of {', '.join(_SERVICES)}")


Read = Callable[[bytes, Sequence[tuple[memoryview, int]]], Reply]
Exchange = Callable[[Callable[[int], Message], Read], Awaitable[Reply]]
"""Sends what the first makes of an XID, and reads the reply with the second."""


class Protection:
    """The context of a connection; made when it is first needed, and made anew when the server has forgotten it."""

    def __init__(self, gss: Gss, host: str) -> None:
        self.service = _SERVICES[gss.security]
        self.target = gss.service or f"nfs@{host}"
        self._cache = gss.cache
        self._sealer: Sealer | None = None
        self._handle = b""
        self._sequence = 0
        self._made_of = (0, 0)
        self._making = asyncio.Lock()

    @property
    def whole(self) -> bool:
        """Whether messages are protected as a whole: no part of them may travel by itself."""
        return self.service != NONE

    async def ready(self, exchange: Exchange, program: int, version: int) -> Sealer:
        """Have a context, and return its sealer. Raises PermissionError if there is none to be had."""
        async with self._making:
            if self._sealer is None or self._sequence + 1 >= MAX_SEQUENCE:
                try:
                    await self._make(exchange, program, version)
                except GssError as error:
                    raise PermissionError(f"{self.target}: {error}") from error
            assert self._sealer is not None
            return self._sealer

    def forget(self, sealer: Sealer) -> None:
        """The server does not know the context of this sealer any more."""
        if self._sealer is sealer:
            self._sealer = None

    async def destroy(self, exchange: Exchange) -> None:
        """Tell the server that the context is not needed any more (section 5.4)."""
        if self._sealer is not None:
            await exchange(*self.call(self._sealer, *self._made_of, 0, b"", procedure=DESTROY))
            self._sealer = None

    async def _make(self, exchange: Exchange, program: int, version: int) -> None:
        making = await self.begin()
        token, handle, procedure = await self.step(making, b""), b"", INIT
        for _ in range(_MOST_STEPS):
            credential = GssCredential(VERSION, procedure, 0, self.service, handle).encode()
            reply = await exchange(_init_call(program, version, credential, token), decode_reply)
            try:
                handle, major, _, window, token = parse_init_results(reply.results)
            except ValueError as error:
                raise BadReply(str(error)) from error
            if major >> 16:
                raise GssError(f"the server has refused a security context, status {major:#x}", major)
            if token:
                token = await self.step(making, token)
            if making.made and not major:
                break
            procedure = CONTINUE_INIT
        else:
            raise GssError("a security context takes too many steps")
        sealer = Sealer(making.export())
        _check_verifier(sealer, reply.message, _WORD.pack(window))
        self._sealer, self._handle, self._sequence, self._made_of = sealer, handle, 0, (program, version)

    async def begin(self) -> Initiation:
        """A context with the other side, of which nothing has been sent yet. In a thread: caches are files."""
        return await asyncio.to_thread(self._initiation)

    async def step(self, making: Initiation, token: bytes) -> bytes:
        """Take its next step, in a thread: a KDC may have to be asked."""
        return await asyncio.to_thread(making.step, token)

    def _initiation(self) -> Initiation:
        return Initiation(self.target, Credential("", {"ccache": self._cache}) if self._cache else None)

    def call(
        self,
        sealer: Sealer,
        program: int,
        version: int,
        procedure_number: int,
        arguments: Encoder | bytes,
        *,
        procedure: int = DATA,
    ) -> tuple[Callable[[int], Message], Read]:
        """What makes the call's message, each time with another sequence number, and what reads the reply to the
        last."""
        sequence = 0

        def make(xid: int) -> Message:
            nonlocal sequence
            self._sequence += 1
            sequence = self._sequence
            credential = GssCredential(VERSION, procedure, sequence, self.service, self._handle).encode()
            head = _call_head(xid, program, version, procedure_number, credential)
            mic = sealer.sign(head)
            head += struct.pack(">II", FLAVOR, len(mic)) + mic + bytes(-len(mic) & 3)
            if self.service == NONE or procedure != DATA:
                return _with_arguments(xid, head, arguments)
            return Message(xid, head + _protect(sealer, self.service, _WORD.pack(sequence) + _flat(arguments)), [])

        def read(octets: bytes, places: Sequence[tuple[memoryview, int]]) -> Reply:
            if octets[8:12] == bytes(4):
                start = _check_verifier(sealer, octets, _WORD.pack(sequence))
                if self.whole and procedure == DATA and octets[start : start + 4] == bytes(4):
                    plain = _open(sealer, self.service, memoryview(octets)[start + 4 :], sequence)
                    octets = octets[:12] + bytes(12) + plain
            return decode_reply(octets, places)

        return make, read

    def reply_room(self, reply_max: int, places: Sequence[memoryview]) -> int:
        """Octets of the longest reply, where one of ``reply_max`` is expected besides what goes to ``places``."""
        return reply_max + _OVERHEAD + (sum((len(place) + 3) & ~3 for place in places) if self.whole else 0)


def is_stale(error: Denied) -> bool:
    """Whether the context is to be made anew, and the call to be sent again (section 5.3.3.3)."""
    return error.auth_stat in _STALE


def _call_head(xid: int, program: int, version: int, procedure: int, credential: bytes) -> bytes:
    """The header up to the verifier: what that signs."""
    fields = (xid, msg_type.CALL, 2, program, version, procedure, FLAVOR, len(credential))
    return struct.pack(">8I", *fields) + credential


def _init_call(program: int, version: int, credential: bytes, token: bytes) -> Callable[[int], Message]:
    body = bytes(8) + _WORD.pack(len(token)) + token + bytes(-len(token) & 3)
    return lambda xid: Message(xid, _call_head(xid, program, version, 0, credential) + body, [])


def _with_arguments(xid: int, head: bytes, arguments: Encoder | bytes) -> Message:
    if isinstance(arguments, bytes):
        return Message(xid, head + arguments, [])
    payloads = [(len(head) + offset, payload) for offset, payload in arguments.payloads]
    return Message(xid, head + arguments.getvalue(), payloads)


def _flat(arguments: Encoder | bytes) -> bytes:
    """The arguments with all payloads in their places."""
    if isinstance(arguments, bytes):
        return arguments
    octets, at, parts = arguments.getvalue(), 0, []
    for offset, payload in arguments.payloads:
        parts += [octets[at:offset], bytes(payload.view), bytes(-len(payload) & 3)]
        at = offset
    return b"".join((*parts, octets[at:]))


def _protect(sealer: Sealer, service: int, body: bytes) -> bytes:
    """rpc_gss_integ_data or rpc_gss_priv_data (section 5.3.2)."""
    if service == INTEGRITY:
        mic = sealer.sign(body)
        return _WORD.pack(len(body)) + body + _WORD.pack(len(mic)) + mic + bytes(-len(mic) & 3)
    room = sealer.room(len(body))
    token = bytearray(sum(room) + len(body))
    token[room[0] : room[0] + len(body)] = body
    length = sealer.wrap(token, room, len(body))
    return _WORD.pack(length) + token[:length] + bytes(-length & 3)


def _check_verifier(sealer: Sealer, octets: bytes, signed: bytes) -> int:
    """Where an accepted reply goes on behind its verifier. Raises BadReply unless that is the server's."""
    flavor, length = int.from_bytes(octets[12:16], "big"), int.from_bytes(octets[16:20], "big")
    if flavor != FLAVOR or not sealer.verify(signed, octets[20 : 20 + length]):
        raise BadReply("the reply is not signed by the server")
    return 20 + length + (-length & 3)


def _open(sealer: Sealer, service: int, results: memoryview, sequence: int) -> bytes:
    """The results of a reply without their protection. Raises BadReply."""
    parts = protected(results, 0, service)
    if parts is None:
        raise BadReply("the results are not protected as they should be")
    body, mic = parts
    if service == INTEGRITY:
        good = sealer.verify(body, mic)
        plain = bytes(body)
    else:
        ground = bytearray(body)
        try:
            start, length = sealer.unwrap(ground)
        except GssError as error:
            raise BadReply(f"the results cannot be decrypted: {error}") from error
        good, plain = True, bytes(ground[start : start + length])
    if not good or plain[:4] != _WORD.pack(sequence):
        raise BadReply("the results are not those that the server has signed for this call")
    return plain[4:]
