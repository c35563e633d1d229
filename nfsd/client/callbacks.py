"""Callbacks from an NFSv4.1 server: CB_COMPOUND answered. Owns :class:`Backchannel`; imports messages and the
protocol.

CB_SEQUENCE has a replay cache of one reply per slot (RFC 8881 section 2.10.6.1). The client answers CB_RECALL at once,
and returns the delegation with DELEGRETURN. It caches nothing under a delegation, so it has nothing to write first.
Callbacks that this client never asks for get the status that says so.

RFC 8881 section 20.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from nfsd.protocol import nfs4 as p
from rpcrdma.rpc.program import Call, GarbageArguments, Procedure, Program
from rpcrdma.xdr import Decoder, Encoder, XdrError

PROGRAM: Final = 0x40000000
"""The callback program's number: any of the transient range (RFC 5531 section 8.4)."""
SLOTS: Final = 16
SIZE: Final = 4096
_OPERATIONS: Final = 16
BACK_CHANNEL: Final = p.channel_attrs4(0, SIZE, SIZE, SIZE, _OPERATIONS, SLOTS, [])

_ANSWERS: Final[dict[int, int]] = {
    p.OP_CB_GETATTR: p.NFS4ERR_BADHANDLE,  # there are no write delegations here (section 20.1.4)
    p.OP_CB_LAYOUTRECALL: p.NFS4ERR_NOMATCHING_LAYOUT,
    p.OP_CB_NOTIFY: p.NFS4ERR_NOTSUPP,
    p.OP_CB_PUSH_DELEG: p.NFS4ERR_REJECT_DELEG,
    p.OP_CB_RECALL_ANY: p.NFS4_OK,
    p.OP_CB_RECALLABLE_OBJ_AVAIL: p.NFS4ERR_NOTSUPP,
    p.OP_CB_RECALL_SLOT: p.NFS4_OK,  # each SEQUENCE says what may be used, and that is followed
    p.OP_CB_WANTS_CANCELLED: p.NFS4ERR_NOTSUPP,
    p.OP_CB_NOTIFY_LOCK: p.NFS4_OK,
    p.OP_CB_NOTIFY_DEVICEID: p.NFS4ERR_NOTSUPP,
}
"""What there is to say to each operation but CB_SEQUENCE and CB_RECALL."""


class Backchannel:
    """The callback program of one client."""

    def __init__(self) -> None:
        self.recall: Callable[[p.stateid4], bool] = lambda stateid: False
        """Starts to give a delegation back; False when there is no such delegation."""
        self.received: dict[str, int] = {}
        """How many operations of each kind have been executed."""
        self._sessionid = b""
        self._slots: list[tuple[int, bytes]] = []

    def session_is(self, sessionid: bytes, granted: p.channel_attrs4) -> None:
        """The session that callbacks must be of; its slots are new."""
        self._sessionid = sessionid
        self._slots = [(0, b"")] * min(SLOTS, granted.ca_maxrequests)

    def program(self) -> Program:
        """The program, for the connection."""

        async def null(call: Call, arguments: None) -> None:
            """Do nothing (section 20: CB_NULL)."""

        async def compound(call: Call) -> None:
            try:
                octets = self._compound(call.arguments)
            except XdrError as error:
                raise GarbageArguments(str(error)) from error
            call.results.append(octets)

        table = {p.CB_NULL: Procedure("CB_NULL", null), p.CB_COMPOUND: Procedure("CB_COMPOUND", compound, raw=True)}
        # Version 1, as the XDR description and every implementation have it; the prose of section 18.36.3 says 4.
        return Program(PROGRAM, "nfs callback", {p.NFS_CB: table})

    def _compound(self, decoder: Decoder) -> bytes:
        tag = decoder.opaque(1024)
        minor = decoder.uint32()
        decoder.uint32()  # callback_ident: NFSv4.0's
        count = decoder.uint32()
        if minor != 1:
            return _results(p.NFS4ERR_MINOR_VERS_MISMATCH, tag, [])
        if count > _OPERATIONS:
            return _results(p.NFS4ERR_TOO_MANY_OPS, tag, [])
        results: list[tuple[int, Any]] = []
        sequence: p.CB_SEQUENCE4args | None = None
        status: int = p.NFS4_OK
        for index in range(count):
            number = decoder.uint32()
            declared = p.CALLBACK_OPERATIONS.get(number)
            if declared is None or number == p.OP_CB_ILLEGAL or 1 not in declared.minors:
                status = p.NFS4ERR_OP_ILLEGAL
                results.append((p.OP_CB_ILLEGAL, p.CB_ILLEGAL4res(p.nfsstat4.NFS4ERR_OP_ILLEGAL)))
                break
            arguments = decoder.decode(declared.arguments)
            if (number == p.OP_CB_SEQUENCE) != (index == 0):
                # Section 20.9.3: CB_SEQUENCE comes first, and only there.
                status = p.NFS4ERR_SEQUENCE_POS if index else p.NFS4ERR_OP_NOT_IN_SESSION
                results.append((number, declared.results(p.nfsstat4(status))))
                break
            if number == p.OP_CB_SEQUENCE:
                known = self._replay(arguments)
                if known:
                    return known
                result = self._sequence(arguments)
                status = result.csr_status
                sequence = arguments if status == p.NFS4_OK else None
            else:
                status = self._execute(number, arguments)
                result = declared.results(p.nfsstat4(status))
            results.append((number, result))
            if status:
                break
        octets = _results(status, tag, results)
        if sequence is not None:
            self._slots[sequence.csa_slotid] = (sequence.csa_sequenceid, octets)
        return octets

    def _replay(self, args: p.CB_SEQUENCE4args) -> bytes:
        """The reply already given, if this is the same request again."""
        if args.csa_sessionid != self._sessionid or args.csa_slotid >= len(self._slots):
            return b""
        last, octets = self._slots[args.csa_slotid]
        return octets if args.csa_sequenceid == last else b""

    def _sequence(self, args: p.CB_SEQUENCE4args) -> p.CB_SEQUENCE4res:
        """CB_SEQUENCE (section 20.9)."""
        if args.csa_sessionid != self._sessionid:
            return p.CB_SEQUENCE4res(p.nfsstat4.NFS4ERR_BADSESSION)
        if args.csa_slotid >= len(self._slots):
            return p.CB_SEQUENCE4res(p.nfsstat4.NFS4ERR_BADSLOT)
        if args.csa_sequenceid != self._slots[args.csa_slotid][0] + 1 & 0xFFFFFFFF:
            return p.CB_SEQUENCE4res(p.nfsstat4.NFS4ERR_SEQ_MISORDERED)
        highest = len(self._slots) - 1
        resok = p.CB_SEQUENCE4resok(args.csa_sessionid, args.csa_sequenceid, args.csa_slotid, highest, highest)
        return p.CB_SEQUENCE4res(p.nfsstat4.NFS4_OK, resok)

    def _execute(self, number: int, arguments: Any) -> int:
        name = p.CALLBACK_OPERATIONS[number].name
        self.received[name] = self.received.get(name, 0) + 1
        if number == p.OP_CB_RECALL:
            # The reply to the OPEN that gave it may still be on its way: the server asks again after BAD_STATEID.
            return p.NFS4_OK if self.recall(arguments.stateid) else p.NFS4ERR_BAD_STATEID
        return _ANSWERS.get(number, p.NFS4ERR_NOTSUPP)


def _results(status: int, tag: bytes, results: list[tuple[int, Any]]) -> bytes:
    encoder = Encoder()
    encoder.uint32(status)
    encoder.opaque(tag)
    encoder.uint32(len(results))
    for number, result in results:
        encoder.uint32(number)
        encoder.encode(p.CALLBACK_OPERATIONS[number].results, result)
    return encoder.getvalue()
