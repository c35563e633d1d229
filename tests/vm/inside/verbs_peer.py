"""Steps of an independent RPC-over-RDMA requester (verbs_connection.py), with as much NFSv3 as they need.

Runs under the interpreter that has pyverbs (Debian: /usr/bin/python3), without any code of this project's.

    python3 -m tests.vm.inside.verbs_peer ADDRESS PORT MOUNTD_PORT [STEP...]

runs the steps (all of them where none is named), each a function below, and prints one JSON object with what each saw.
"""

import itertools
import json
import os
import signal
import socket
import struct
import sys
from typing import Any

from tests.vm.inside.verbs_connection import (
    MOUNT,
    NFS,
    RDMA_MSG,
    Connection,
    Gone,
    Region,
    opaque,
    private_data,
    rpc_call,
)


def mount(address: str, port: int, path: bytes) -> bytes:
    """The root file handle, from MOUNT over TCP with record marking."""
    call = rpc_call(7, MOUNT, 3, 1) + opaque(path)
    with socket.create_connection((address, port), 20) as sock:
        sock.sendall(struct.pack(">I", 0x80000000 | len(call)) + call)
        stream = sock.makefile("rb")
        (mark,) = struct.unpack(">I", stream.read(4))
        answer = stream.read(mark & 0x7FFFFFFF)
    status, length = struct.unpack_from(">II", answer, 24)
    assert status == 0, status
    return answer[32 : 32 + length]


def skip_attributes(data: bytes, at: int) -> int:
    """Behind a post_op_attr (84 octets of fattr3)."""
    return at + 4 + (84 if struct.unpack_from(">I", data, at)[0] else 0)


def skip_wcc(data: bytes, at: int) -> int:
    at += 4 + (24 if struct.unpack_from(">I", data, at)[0] else 0)
    return skip_attributes(data, at)


def create(connection: Connection, root: bytes, name: bytes) -> bytes:
    """NFSv3 CREATE, UNCHECKED, mode 0644: the new file's handle."""
    attributes = struct.pack(">II", 1, 0o644) + struct.pack(">IIIII", 0, 0, 0, 0, 0)
    reply = connection.call(NFS, 3, 8, opaque(root) + opaque(name) + struct.pack(">I", 0) + attributes)
    results = reply.results()
    status, follows, length = struct.unpack_from(">III", results)
    assert (status, follows) == (0, 1), status
    return results[12 : 12 + length]


def write_arguments(handle: bytes, length: int, offset: int = 0, stable: int = 2) -> bytes:
    """WRITE3args up to and with the length of the data, which a Read chunk carries."""
    return opaque(handle) + struct.pack(">QIII", offset, length, stable, length)


def read_arguments(handle: bytes, length: int, offset: int = 0) -> bytes:
    return opaque(handle) + struct.pack(">QI", offset, length)


def pattern(length: int, seed: int) -> bytes:
    """Octets that differ everywhere."""
    return bytes((seed + number * 7 + (number >> 8) * 13) & 0xFF for number in range(251)) * (length // 251 + 1)


class Session:
    """What the steps share."""

    def __init__(self, address: str, port: int, mountd: int) -> None:
        self.address, self.port = address, port
        self.root = mount(address, mountd, b"/export")
        self.seen: dict[str, Any] = {}

    def connect(self, offered: bytes | None = None) -> Connection:
        connection = Connection(self.address, self.port, private_data() if offered is None else offered)
        connection.wake()
        return connection


def step_private_data(session: Session) -> dict[str, Any]:
    """What the server sends with its accept, and an inline NULL."""
    connection = session.connect()
    reply = connection.call(NFS, 3, 0, b"")
    seen: dict[str, Any] = {
        "device": connection.device,
        "windows": connection.windows,
        "accepted": connection.accepted.hex(),
        "null": [reply.kind, len(reply.results()), reply.invalidated],
        "credits": reply.credits,
    }
    connection.close()
    return seen


def step_growing_credits(session: Session) -> dict[str, Any]:
    """One call after the other that asks for many credits: what is granted, each value once in a row."""
    connection = session.connect()
    granted = [connection.call(NFS, 3, 0, b"", asked=1024).credits for _ in range(128)]
    connection.close()
    return {"granted": [each for each, _ in itertools.groupby(granted)]}


def step_write_and_read(session: Session) -> dict[str, Any]:
    """WRITE by a Read chunk, READ by a Write chunk of two segments; both keys come back invalidated."""
    connection = session.connect()
    handle = create(connection, session.root, b"peer")
    length = 300_001
    data = pattern(length, 1)[:length]
    source = Region(connection, length)
    source.write(data)
    arguments = write_arguments(handle, length)
    wrote = connection.call(NFS, 3, 7, arguments, reads=[(len(arguments), source.segment())])
    results = wrote.results()
    assert struct.unpack_from(">I", results)[0] == 0, results[:4]
    count, committed = struct.unpack_from(">II", results, skip_wcc(results, 4))
    sink = Region(connection, 400_000)
    split = 131_072
    chunk = [sink.segment(0, split), sink.segment(200_000, 200_000)]
    got = connection.call(NFS, 3, 6, read_arguments(handle, length), writes=[chunk])
    results = got.results()
    assert struct.unpack_from(">I", results)[0] == 0, results[:4]
    at = skip_attributes(results, 4)
    read_count, eof, data_length = struct.unpack_from(">III", results, at)
    seen: dict[str, Any] = {
        "written": [count, committed],
        "write_invalidated": wrote.invalidated == source.key,
        "read": [read_count, eof, data_length],
        "inline_rest": len(results) - at - 12,
        "lengths": [segment[1] for segment in got.writes[0]],
        "handles_kept": [segment[0] for segment in got.writes[0]] == [sink.key, sink.key],
        "data_right": sink.read(split) + sink.read(length - split, 200_000) == data,
        "gap_untouched": sink.read(200_000 - split, split) == bytes(200_000 - split),
        "read_invalidated": got.invalidated == sink.key,
    }
    connection.close()
    return seen


def step_invalidated_key_is_dead(session: Session) -> dict[str, Any]:
    """After the server's Send has invalidated a key, an RPC that offers it again cannot move data; the connection dies.

    The control is the first READ through the same key.
    """
    connection = session.connect()
    handle = create(connection, session.root, b"peer")
    sink = Region(connection, 65536)
    first = connection.call(NFS, 3, 6, read_arguments(handle, 65536), writes=[[sink.segment()]])
    moved = sink.read(65536) != bytes(65536)
    sink.write(bytes(65536))
    seen: dict[str, Any] = {"first_moved_data": moved, "first_invalidated": first.invalidated == sink.key, "lost": ""}
    try:
        connection.call(NFS, 3, 6, read_arguments(handle, 65536), writes=[[sink.segment()]])
    except Gone as gone:
        seen["lost"] = str(gone)
    seen["second_moved_data"] = sink.read(65536) != bytes(65536)
    return seen


def step_two_keys(session: Session) -> dict[str, Any]:
    """A Read chunk of one key and a Reply chunk of another: at most one of them can be invalidated."""
    connection = session.connect()
    handle = create(connection, session.root, b"peer2")
    source, spare = Region(connection, 8192), Region(connection, 8192)
    source.write(b"z" * 8192)
    arguments = write_arguments(handle, 8192)
    reply = connection.call(NFS, 3, 7, arguments, reads=[(len(arguments), source.segment())], reply=[spare.segment()])
    seen: dict[str, Any] = {
        "kind": reply.kind,
        "reply_chunk": None if reply.reply is None else [segment[1] for segment in reply.reply],
        "invalidated": {source.key: "source", spare.key: "reply chunk", None: "nothing"}.get(
            reply.invalidated, "alien"
        ),
    }
    connection.close()
    return seen


def step_reply_chunk(session: Session) -> dict[str, Any]:
    """A reply too long for a Receive goes into the Reply chunk: READ without a Write chunk."""
    connection = session.connect()
    handle = create(connection, session.root, b"peer")
    sink = Region(connection, 80_000)
    reply = connection.call(NFS, 3, 6, read_arguments(handle, 65536), reply=[sink.segment()])
    lengths = [segment[1] for segment in reply.reply or []]
    rpc = sink.read(sum(lengths))
    results = reply.results(rpc)
    at = skip_attributes(results, 4)
    count, _, length = struct.unpack_from(">III", results, at)
    data = results[at + 12 : at + 12 + length]
    seen: dict[str, Any] = {
        "kind": reply.kind,
        "inline_rest": len(reply.rpc),
        "count": count,
        "length_fits": lengths == [24 + at + 12 + length],
        "data_right": data == pattern(300_001, 1)[:65536],
        "invalidated": reply.invalidated == sink.key,
    }
    connection.close()
    return seen


def step_without_reply_chunk(session: Session) -> dict[str, Any]:
    """No chunk for a long reply: RDMA_ERROR with ERR_CHUNK (2), and the connection lives (RFC 8166 section 4.5.3)."""
    connection = session.connect()
    handle = create(connection, session.root, b"peer")
    reply = connection.call(NFS, 3, 6, read_arguments(handle, 65536))
    again = connection.call(NFS, 3, 0, b"")
    seen = {"kind": reply.kind, "error": reply.error, "then": again.kind}
    connection.close()
    return seen


def step_no_remote_invalidation(session: Session) -> dict[str, Any]:
    """A peer without R in its private data, and one without any private data: nothing is invalidated."""
    seen: dict[str, Any] = {}
    for name, offered in (("without_r", private_data(False)), ("alien", b"\x01\x02\x03\x04abcd")):
        connection = session.connect(offered)
        handle = create(connection, session.root, b"peer")
        sink = Region(connection, 8192)
        twice = []
        for _ in range(2):  # the same key serves again
            sink.write(bytes(8192))
            reply = connection.call(NFS, 3, 6, read_arguments(handle, 8192), writes=[[sink.segment()]])
            twice.append([reply.invalidated, sink.read(8192) == pattern(300_001, 1)[:8192]])
        seen[name] = {"accepted": connection.accepted[:8].hex(), "reads": twice}
        connection.close()
    return seen


def step_many_connections(session: Session) -> dict[str, Any]:
    """Connections opened, used and closed one after the other."""
    for _ in range(10):
        connection = session.connect()
        assert connection.call(NFS, 3, 0, b"").kind == RDMA_MSG
        connection.close()
    return {"connections": 10}


def main() -> None:
    address, port, mountd, *steps = sys.argv[1:]
    steps = steps or [name.removeprefix("step_") for name in globals() if name.startswith("step_")]
    session = Session(address, int(port), int(mountd))
    for step in steps:
        signal.alarm(120)  # RDMA-CM's events are waited for in C, holding the interpreter: only a signal ends that
        session.seen[step] = globals()[f"step_{step}"](session)
        print(f"{step}: {session.seen[step]}", file=sys.stderr, flush=True)
    print(json.dumps(session.seen), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
