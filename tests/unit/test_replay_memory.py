"""What the replay cache takes of the process's memory, as the C library counts it, is what it may take."""

import os
import subprocess
import sys

import pytest

MEASURED = """
import ctypes
import gc
import sys

from rpcrdma.rpc.program import RpcReply
from rpcrdma.rpc.replay import Peer, ReplayCache, make_key
from rpcrdma.xdr.payload import Payload
from tests.unit.rpc_support import FakeTransport, call


class Figures(ctypes.Structure):
    _fields_ = [(str(number), ctypes.c_size_t) for number in range(10)]


library = ctypes.CDLL(None)
library.mallinfo2.restype = Figures


def taken():
    gc.collect()
    figures = library.mallinfo2()
    return getattr(figures, "4") + getattr(figures, "7")  # hblkhd, uordblks


most, size, hosts, payloads = map(int, sys.argv[1:])
message = call(0)


def fill():
    cache = ReplayCache(max_bytes=most)
    for xid in range(most // 150):
        transport = FakeTransport(f"2001:db8:1111:{xid % hosts:x}:2222:3333:4444:5555")
        transport.netid, transport.peer_port = "tcp6", 65535
        key = make_key(Peer(transport), xid, (400000, 3, 0), message, 40, ())
        reply = RpcReply(xid, bytes(size), [(28, Payload(bytes(400))) for _ in range(payloads)])
        cache.finish(cache.begin(key, transport), reply)
    return cache


fill()  # what is made once stays
before = taken()
cache = fill()
print(len(cache), taken() - before)
"""


@pytest.mark.parametrize("most", [1 << 20, 3 << 20])
@pytest.mark.parametrize(
    ("size", "hosts", "payloads"), [(24, 1, 0), (150, 1, 0), (4096, 1, 0), (100, 1, 1), (100, 60_000, 0)]
)
def test_what_is_accounted_is_what_is_taken(most: int, size: int, hosts: int, payloads: int) -> None:
    command = [sys.executable, "-c", MEASURED, *map(str, (most, size, hosts, payloads))]
    measured = subprocess.run(
        command, env={**os.environ, "PYTHONMALLOC": "malloc"}, check=True, capture_output=True, text=True
    )
    entries, octets = map(int, measured.stdout.split())
    assert entries > 100
    assert 0.5 * most < octets < 1.02 * most
