"""The name of a call: program, procedure, and the operations of a COMPOUND, read from an RPC message.

Owns the naming, for ``rdma-nfsd decode``; imports the declarations of the protocols and the codec. It reads a message
as far as it can.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from nfsd.protocol import mount3, nfs3, nfs4, nfsacl, nlm4
from nfsd.protocol.nfs4_ops import CALLBACK_OPERATIONS, OPERATIONS, Operation
from rpcrdma.rpc.messages import accept_stat, auth_stat, msg_type, reject_stat, rpc_msg
from rpcrdma.xdr import Decoder, XdrError

_TRANSIENT = range(0x40000000, 0x60000000)
"""Program numbers of nobody (RFC 5531 section 13.3): a client's callback program is among them."""
_PROGRAMS = {
    nfs3.NFS_PROGRAM: "NFS",
    mount3.MOUNT_PROGRAM: "MOUNT",
    nfsacl.NFSACL_PROGRAM: "NFSACL",
    nlm4.NLM_PROGRAM: "NLM",
}
_PROCEDURES = {
    (nfs3.NFS_PROGRAM, 3): {number: types.name for number, types in nfs3.PROCEDURES.items()},
    (nfs3.NFS_PROGRAM, 4): {0: "NULL", 1: "COMPOUND"},
    (mount3.MOUNT_PROGRAM, 3): {0: "NULL", 1: "MNT", 2: "DUMP", 3: "UMNT", 4: "UMNTALL", 5: "EXPORT"},
    (nlm4.NLM_PROGRAM, 4): {
        number: name.removeprefix("NLMPROC4_") for name, number in vars(nlm4).items() if name.startswith("NLMPROC4_")
    },
    (nfsacl.NFSACL_PROGRAM, 3): {0: "NULL", 1: "GETACL", 2: "SETACL"},
}
_MOST_OPERATIONS = 256
_LARGEST_CHUNKS = 4 << 20


class Call(NamedTuple):
    """A call as far as it is known."""

    xid: int
    text: str
    family: str = ""
    """Whose status begins the results: ``nfs3``, ``nfs4`` or nobody's."""


class Reply(NamedTuple):
    """A reply."""

    xid: int
    text: str
    results: memoryview
    """Behind the RPC header; empty unless the call was accepted and executed."""


def read_message(data: bytes, chunks: Sequence[tuple[int, int]] = ()) -> Call | Reply | None:
    """Read an RPC message; ``chunks`` are the positions and lengths of what Read chunks took out of it. None when it is
    none."""
    if sum(length for _, length in chunks) > _LARGEST_CHUNKS:
        chunks = ()
    decoder = Decoder(data, [(position, memoryview(bytes(length))) for position, length in chunks])
    try:
        message = decoder.decode(rpc_msg)
    except (XdrError, ValueError):
        return None
    if message.body.mtype == msg_type.REPLY:
        return _reply(message, data, decoder)
    body = message.body.cbody
    if body is None:
        return None
    text, family = name_of(body.prog, body.vers, body.proc)
    if body.proc == 1 and (family == "nfs4"):
        operations = _operations(decoder, CALLBACK_OPERATIONS if body.prog in _TRANSIENT else OPERATIONS)
        text += f" ({' '.join(operations)})" if operations else ""
    return Call(message.xid, text, family)


def name_of(program: int, version: int, procedure: int) -> tuple[str, str]:
    """A procedure in words, and its family."""
    if program in _TRANSIENT and version == 1 and procedure <= 1:
        return f"NFS callback version 1 {('CB_NULL', 'CB_COMPOUND')[procedure]}", "nfs4" if procedure else ""
    name = _PROCEDURES.get((program, version), {}).get(procedure, f"procedure {procedure}")
    family = ""
    if procedure and program == nfs3.NFS_PROGRAM and version in (3, 4):
        family = "nfs3" if version == 3 else "nfs4"
    return f"{_PROGRAMS.get(program, f'program {program}')} version {version} {name}", family


def status_of(family: str, results: memoryview) -> str:
    """The status that results begin with, if they do."""
    if not family or len(results) < 4:
        return ""
    number = int.from_bytes(results[:4], "big")
    try:
        return (nfs3.nfsstat3 if family == "nfs3" else nfs4.nfsstat4)(number).name
    except ValueError:
        return f"status {number}"


def _reply(message: rpc_msg, data: bytes, decoder: Decoder) -> Reply | None:
    body = message.body.rbody
    if body is None:
        return None
    if body.areply is not None:
        accepted = body.areply.reply_data.stat
        if accepted == accept_stat.SUCCESS:
            return Reply(message.xid, "", memoryview(data)[decoder.position :])
        return Reply(message.xid, f"accepted, {accept_stat(accepted).name}", memoryview(b""))
    text = "denied"
    if body.rreply is not None:
        text += f", {reject_stat(body.rreply.stat).name}"
        if body.rreply.auth_stat is not None:
            text += f" {auth_stat(body.rreply.auth_stat).name}"
    return Reply(message.xid, text, memoryview(b""))


def _operations(decoder: Decoder, table: dict[int, Operation]) -> list[str]:
    """The names of a COMPOUND's operations, as far as they can be read."""
    names: list[str] = []
    try:
        decoder.opaque(1024)
        decoder.uint32()
        if table is CALLBACK_OPERATIONS:
            decoder.uint32()  # callback_ident
        count = decoder.uint32()
        for _ in range(min(count, _MOST_OPERATIONS)):
            operation = table.get(decoder.uint32())
            if operation is None:
                names.append("?")
                break
            names.append(operation.name)
            if operation.arguments is not None:
                decoder.decode(operation.arguments)
    except (XdrError, ValueError):
        names.append("…")
    return names
