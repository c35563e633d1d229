"""What the load generators send is what they were given, large pieces included, which leave from where they are."""

import itertools
import random
import socket
import struct
import threading

import pytest

from bench.generator import Generator
from bench.rdma_generator import RdmaGenerator

ACCEPTED = struct.pack(">6I", 1, 0, 0, 0, 0, 0)
PIECE = 777_777


@pytest.fixture
def serve():
    """Runs a server on the other end of a connection; what it raises fails the test. Returns our end."""
    threads, problems, ends = [], [], []

    def begin(work):
        ours, theirs = socket.socketpair()

        def run():
            try:
                with theirs:
                    work(theirs)
            except Exception as problem:
                problems.append(problem)

        threads.append(threading.Thread(target=run))
        threads[-1].start()
        ends.append(ours)
        return ours

    yield begin
    for end in ends:
        end.close()
    for thread in threads:
        thread.join()
    assert not problems


def exactly(sock, size):
    """So many octets; none at the end."""
    data = bytearray()
    while len(data) < size:
        more = sock.recv(size - len(data))
        if not more:
            assert not data
            return b""
        data += more
    return bytes(data)


@pytest.mark.parametrize("depth", [1, 3, 40])
def test_calls_of_any_size_over_tcp(serve, depth):
    rng = random.Random(depth)
    templates = [bytes(4) + rng.randbytes(size) for size in (36, 1020, 1021, 16_384, 17_404, 17_405, 50_000, PIECE)]
    seen = []

    def server(sock):
        while head := exactly(sock, 4):
            (mark,) = struct.unpack(">I", head)
            call = exactly(sock, mark & 0x7FFFFFFF)
            assert mark >> 31
            assert call[4:] == templates[len(seen) % len(templates)][4:]
            seen.append(call[:4])
            sock.sendall(struct.pack(">I", 1 << 31 | 28) + call[:4] + ACCEPTED)

    ours = serve(server)
    assert Generator(ours.fileno(), templates, depth).run(60, 100)[0] == 100
    assert len(set(seen)) == 100


def fpdu(sock):
    """The next FPDU from its control octets on; its pad and its CRC, which are zero, are taken off."""
    (size,) = struct.unpack(">H", exactly(sock, 2) or bytes(2))
    rest = exactly(sock, size + -(size + 2) % 4 + 4) if size else b""
    assert not any(rest[size:])
    return rest[:size]


@pytest.mark.parametrize("size", [4096, 16_384, 60_000, 60_001, PIECE, 1 << 20])
def test_what_a_server_reads(serve, size):
    bulk = random.Random(size).randbytes(size)
    head = struct.pack(">4I", 0, 1, 32, 0) + struct.pack(">IIIIQ", 1, 40, 0, size, 0) + bytes(12)
    answers = []

    def read(sock, handle, number, begin, length):
        request = struct.pack(">IQIIQ", 0x77, 1000, length, handle, begin)
        ulpdu = b"\x41\x41" + struct.pack(">4I", 0, 1, number, 0) + request
        sock.sendall(struct.pack(">H", len(ulpdu)) + ulpdu + bytes(4))
        data = b""
        while True:
            part = fpdu(sock)
            assert part[1] == 0x42
            assert struct.unpack(">IQ", part[2:14]) == (0x77, 1000 + len(data))
            data += part[14:]
            assert (part[0] == 0xC1) == (len(data) == length)
            if len(data) == length:
                return data

    def server(sock):
        number = 0
        while call := fpdu(sock):
            (xid,) = struct.unpack(">I", call[18:22])
            (handle,) = struct.unpack(">I", call[18 + 24 : 18 + 28])
            for begin, length in ((0, size), (size // 3, size - size // 3)):
                number += 1
                answers.append(read(sock, handle, number, begin, length) == bulk[begin : begin + length])
            reply = struct.pack(">4I", xid, 1, 32, 0) + bytes(12) + struct.pack(">I", xid) + ACCEPTED
            ulpdu = b"\x41\x43" + struct.pack(">4I", 0, 0, number, 0) + reply
            sock.sendall(struct.pack(">H", len(ulpdu)) + ulpdu + bytes(-(len(ulpdu) + 2) % 4 + 4))

    ours = serve(server)
    load = RdmaGenerator(ours.fileno(), [head + bytes(40)], 1, rpc_at=len(head), handle_at=24, bulk=bulk)
    assert load.run(60, 5)[0] == 5
    assert answers == [True] * 10


@pytest.mark.parametrize("cuts", [(), (20,), (60,), (12, 40)])
def test_replies_in_segments(serve, cuts):
    """A sender may cut a message anywhere (RFC 5041 section 5.2)."""
    head = struct.pack(">4I", 0, 1, 32, 0) + bytes(12)

    def server(sock):
        number = 0
        while call := fpdu(sock):
            number += 1
            reply = call[18:22] + struct.pack(">3I", 1, 32, 0) + bytes(12) + call[18:22] + ACCEPTED + bytes(8)
            for begin, end in itertools.pairwise((0, *cuts, len(reply))):
                control = b"\x41" if end == len(reply) else b"\x01"
                ulpdu = control + b"\x43" + struct.pack(">4I", 0, 0, number, begin) + reply[begin:end]
                sock.sendall(struct.pack(">H", len(ulpdu)) + ulpdu + bytes(-(len(ulpdu) + 2) % 4 + 4))

    ours = serve(server)
    load = RdmaGenerator(ours.fileno(), [head + bytes(40)], 1, rpc_at=len(head))
    assert load.run(60, 5)[0] == 5


def test_what_is_wrong_is_shown(serve):
    head = struct.pack(">4I", 0, 1, 32, 0) + bytes(12)

    def server(sock):
        call = fpdu(sock)
        error = call[18:22] + struct.pack(">4I", 1, 32, 4, 2)  # RDMA_ERROR, ERR_CHUNK (RFC 8166 section 4.2.4)
        ulpdu = b"\x41\x43" + struct.pack(">4I", 0, 0, 1, 0) + error
        sock.sendall(struct.pack(">H", len(ulpdu)) + ulpdu + bytes(-(len(ulpdu) + 2) % 4 + 4))

    ours = serve(server)
    load = RdmaGenerator(ours.fileno(), [head + bytes(40)], 1, rpc_at=len(head))
    with pytest.raises(RuntimeError, match=r"a short reply, .* 00001000 00000001 00000020 00000004 00000002$"):
        load.run(60, 5)
