"""A call as far as rules ask about it, and the calls and replies that are made of it.

Owns :class:`Asked`, which is read from an RPC message; imports the declarations of the protocols. Nothing here trusts
the message: what cannot be read has no names, and is left to the server to refuse.

An operation of a COMPOUND fails by being cut off. The server is given the operations before it, so that a session's
slot, the current file and what these have changed are as they would be. Its result, and nothing of those behind it, is
then put behind theirs (RFC 8881 section 16.2.3).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from nfsd.protocol import mount3, nfs3, nfs4, nfsacl, nlm4
from nfsd.protocol.nfs4 import OP_PUTFH
from nfsd.protocol.nfs4_ops import OPERATIONS
from nfsd.vfs.handles import HandleCodec
from rpcrdma.faults.plan import Message
from rpcrdma.rpc.call_header import CallHeader
from rpcrdma.rpc.messages import accept_stat
from rpcrdma.rpc.program import RPCSEC_GSS, RpcReply
from rpcrdma.rpc.refusals import accepted
from rpcrdma.xdr import Decoder, XdrError, schema
from rpcrdma.xdr.schema import Node, node_of

PROGRAMS: Final = {
    "nfs": nfs3.NFS_PROGRAM,
    "mountd": mount3.MOUNT_PROGRAM,
    "nfsacl": nfsacl.NFSACL_PROGRAM,
    "nlm": nlm4.NLM_PROGRAM,
}
_OTHERS: Final = {
    "mountd": ("NULL", "MNT", "DUMP", "UMNT", "UMNTALL", "EXPORT"),
    "nfsacl": ("NULL", "GETACL", "SETACL"),
    "nlm": tuple(
        name.removeprefix("NLMPROC4_")
        for _, name in sorted((number, name) for name, number in vars(nlm4).items() if name.startswith("NLMPROC4_"))
    ),
}
_NLM_NUMBERS: Final = {
    number: name.removeprefix("NLMPROC4_") for name, number in vars(nlm4).items() if name.startswith("NLMPROC4_")
}
_MOST_OPERATIONS: Final = 1024
_STATEID_AND_OFFSET: Final = 16 + 8
ATTRIBUTES: Final = {
    name.removeprefix("FATTR4_"): number for name, number in vars(nfs4).items() if name.startswith("FATTR4_")
}
"""Those of NFSv4, by name."""
_BITMAP_AT: Final = {"GETATTR": 4, "READDIR": 4 + 8 + 8 + 4 + 4}
"""Where an operation that tells attributes names them, counted from its number (RFC 8881 sections 18.7, 18.23)."""
_RESULTS: Final = 24
"""Where the results begin in an accepted reply with an empty verifier (RFC 5531 section 9)."""


def names_of(programs: Iterable[str]) -> set[str]:
    """The names that calls of these programs may have: of procedures, and of NFSv4's operations."""
    names: set[str] = set()
    for program in programs:
        if program == "nfs":
            names.update(row.name for row in nfs3.PROCEDURES.values())
            names.update(row.name for row in OPERATIONS.values())
            names.add("COMPOUND")
        else:
            names.update(_OTHERS.get(program, ()))
    return names


class Operation(NamedTuple):
    """One operation of a COMPOUND."""

    number: int
    name: str
    start: int
    """Where its number stands in the message."""
    unreduced: int
    """Likewise, in the message with everything that Read chunks took out."""
    handle: bytes
    """Of the last PUTFH up to here; empty if there is none."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One call. For a procedure of NFSv3 and others there is one name; for a COMPOUND, one of each operation."""

    message: Message
    xid: int
    program: str
    version: int
    procedure: int
    name: str
    arguments: int
    """Where they begin."""
    handle: bytes = b""
    """The first argument, if that is a file's handle."""
    operations: tuple[Operation, ...] = ()
    count_at: int = 0
    """Where a COMPOUND's number of operations stands."""
    tag: bytes = b""
    minor: int | None = None

    @property
    def version_names(self) -> set[str]:
        """Of the program's version, and with a COMPOUND's minor one."""
        names = {str(self.version)}
        return names if self.minor is None else names | {f"{self.version}.{self.minor}"}

    def export_ids(self) -> Iterator[int]:
        """Of the exports whose files the call names."""
        handles = [self.handle, *(operation.handle for operation in self.operations)]
        for handle in dict.fromkeys(one for one in handles if one):
            claimed = HandleCodec.claimed(handle)
            if claimed is not None:
                yield claimed[0]

    # What is executed instead

    def reading_at_most(self, index: int, most: int) -> Message | None:
        """The same call with a READ of no more than ``most`` octets; None: it reads no more anyway."""
        data, chunks = self.message
        if self.operations:
            at = self.operations[index].start + 4 + _STATEID_AND_OFFSET
        else:
            at = self.arguments + 4 + (len(self.handle) + 3 & ~3) + 8
        if at + 4 > len(data) or int.from_bytes(data[at : at + 4], "big") <= most:
            return None
        shorter = bytearray(data)
        struct.pack_into(">I", shorter, at, most)
        return memoryview(shorter), chunks

    def leaving_out(self, names: Iterable[str]) -> Message:
        """The same COMPOUND, asking for none of these attributes: so they are not told."""
        data, chunks = self.message
        fewer = bytearray(data)
        for operation in self.operations:
            if operation.name in _BITMAP_AT:
                at = operation.start + _BITMAP_AT[operation.name]
                (words,) = struct.unpack_from(">I", fewer, at)
                for word, bit in (divmod(ATTRIBUTES[name], 32) for name in names):
                    if word < words:
                        where = at + 4 + 4 * word
                        (asked,) = struct.unpack_from(">I", fewer, where)
                        struct.pack_into(">I", fewer, where, asked & ~(1 << bit))
        return memoryview(fewer), chunks

    def failed(self, error: int, index: int) -> RpcReply | tuple[Message, partial[RpcReply]]:
        """What makes the call, or its operation ``index``, fail: a reply, or the call to be executed in its place and
        what its reply is to be made of."""
        if not self.operations:
            result = least(node_of(nfs3.PROCEDURES[self.procedure].results), error)
            return RpcReply(self.xid, _head(self.xid) + result, [])
        operation = self.operations[index]
        result = struct.pack(">I", operation.number) + least(node_of(OPERATIONS[operation.number].results), error)
        if index == 0:
            tag = struct.pack(">II", error, len(self.tag)) + self.tag + bytes(-len(self.tag) & 3)
            return RpcReply(self.xid, _head(self.xid) + tag + struct.pack(">I", 1) + result, [])
        data, chunks = self.message
        cut = bytearray(data[: operation.start])
        struct.pack_into(">I", cut, self.count_at, index)
        kept = [chunk for chunk in chunks if chunk[0] < operation.unreduced]
        return (memoryview(cut), kept), partial(_with_failure, error=error, result=result)


def read(message: Message) -> Asked | None:
    """A call; None: it is none that anything is known of."""
    data, chunks = message
    header = CallHeader(data)
    if header.flaw:
        return None
    number, version, procedure = header.number
    program = next((name for name, known in PROGRAMS.items() if known == number), "")
    if not program:
        return None
    call = Asked(message, header.xid, program, version, procedure, "", header.arguments)
    if header.flavor == RPCSEC_GSS:
        return call  # its arguments may be sealed, and a reply of ours would have no verifier
    try:
        return _named(call, Decoder(data, chunks, header.arguments))
    except (XdrError, ValueError):
        return call


def _named(call: Asked, decoder: Decoder) -> Asked:
    """The call with its names. Raises XdrError."""
    message, xid, program, version, procedure = call.message, call.xid, call.program, call.version, call.procedure
    if program != "nfs":
        name = _name_elsewhere(program, procedure)
        return Asked(message, xid, program, version, procedure, name, call.arguments)
    if version != 4:
        row = nfs3.PROCEDURES.get(procedure) if version == 3 else None
        if row is None:
            return call
        handle = bytes(decoder.opaque(64)) if procedure else b""
        return Asked(message, xid, program, version, procedure, row.name, call.arguments, handle)
    if procedure != 1:
        return Asked(message, xid, program, version, procedure, "NULL", call.arguments)
    tag = bytes(decoder.opaque(1024))
    minor = decoder.uint32()
    count_at = decoder.position
    count = decoder.uint32()
    if count > _MOST_OPERATIONS:
        return call
    operations = tuple(_operations(decoder, count))
    return Asked(
        message, xid, program, version, procedure, "COMPOUND", call.arguments, b"", operations, count_at, tag, minor
    )


def _operations(decoder: Decoder, count: int) -> Iterator[Operation]:
    """A COMPOUND's, as far as they can be read."""
    handle = b""
    for _ in range(count):
        start, unreduced = decoder.position, decoder.unreduced_position
        try:
            number = decoder.uint32()
            row = OPERATIONS.get(number)
            if row is None:
                return
            arguments = None if row.arguments is None else decoder.decode(row.arguments)
        except (XdrError, ValueError):
            return
        if number == OP_PUTFH and arguments is not None:
            handle = bytes(arguments.object)
        yield Operation(number, row.name, start, unreduced, handle)


def _name_elsewhere(program: str, procedure: int) -> str:
    if program == "nlm":
        return _NLM_NUMBERS.get(procedure, "")
    names = _OTHERS[program]
    return names[procedure] if procedure < len(names) else ""


def _head(xid: int) -> bytes:
    return bytes(accepted(xid, accept_stat.SUCCESS).head)


def _with_failure(reply: RpcReply, *, error: int, result: bytes) -> RpcReply:
    """The reply to the operations before the one that fails, and its ``result``. It is as it was if one of these has
    failed: the client would not have got to the other."""
    head = bytearray(reply.head)
    if len(head) < _RESULTS + 12 or any(head[12:_RESULTS]) or any(head[_RESULTS : _RESULTS + 4]):
        return reply
    count_at = _RESULTS + 8 + (int.from_bytes(head[_RESULTS + 4 : _RESULTS + 8], "big") + 3 & ~3)
    (count,) = struct.unpack_from(">I", head, count_at)
    struct.pack_into(">I", head, _RESULTS, error)
    struct.pack_into(">I", head, count_at, count + 1)
    return RpcReply(reply.xid, bytes(head + result), reply.payloads)


def least(node: Node, discriminant: int | None = None) -> bytes:
    """The shortest value of a declared type: nothing that is optional, nothing in lists, zero elsewhere.
    ``discriminant``: the first word's value, where there is one to choose; of results, that is the status."""
    if node.kind in (schema.STRUCT, schema.UNION):
        (_, first), *_ = node.fields
        begin = least(first) if discriminant is None else struct.pack(">I", discriminant)
        if node.kind == schema.STRUCT:
            return begin + b"".join(least(field) for _, field in node.fields[1:])
        arm = node.arms.get(int.from_bytes(begin, "big"), node.default)
        return begin + (least(node.fields[arm][1]) if arm else b"")
    if node.kind == schema.ENUM:
        return struct.pack(">I", min(node.members) if discriminant is None else discriminant)
    if node.kind == schema.FIXED_ARRAY:
        assert node.element is not None
        return least(node.element) * node.size
    return bytes(node.min_size)
