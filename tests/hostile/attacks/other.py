"""Attacks on what is there besides NFS: metrics, the control socket, datagrams, MOUNT's and NLM's connections."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import socket
import struct
import urllib.request
from collections.abc import Iterator

from tests.hostile.attack import Scene, attack, ignoring
from tests.hostile.peer import dial, rpc

_LIBC = ctypes.CDLL(None)


@contextlib.contextmanager
def somebody_else() -> Iterator[None]:
    """This thread opens files as nobody (setfsuid(2) is one thread's)."""
    _LIBC.setfsuid(65534)
    try:
        yield
    finally:
        _LIBC.setfsuid(os.geteuid())


@attack("HTTP", "500 connections to /metrics that send their request an octet now and then, or nothing", effect="sent")
def metrics_slowloris(scene: Scene) -> None:
    sockets = scene.many(500, scene.doors.metrics, b"GET /metrics HTTP/1.1\r\nX: ")
    asked = 0
    while not scene.over or not asked:
        for sock in sockets:
            with ignoring():
                sock.send(b"y", socket.MSG_DONTWAIT)
        try:
            with urllib.request.urlopen("http://{}:{}/metrics".format(*scene.doors.metrics), timeout=10) as answer:
                scene.must(b"rdma_nfsd_" in answer.read(), "no metrics")
        except OSError as error:
            scene.must(False, f"no metrics for others: {error}")
        asked += 1
        scene.pause(0.2)


@attack(
    "HTTP", "requests to /metrics that are none: endless lines, headers, octets of chance, other methods", effect="sent"
)
def metrics_garbage(scene: Scene) -> None:
    chance = random.Random(6)
    requests = [
        b"GET /" + b"a" * 100000,
        b"GET /metrics HTTP/1.1\r\n" + b"X: y\r\n" * 5000,
        b"POST /metrics HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n",
        b"\r\n" * 1000,
        b"DELETE / HTTP/9.9\r\n\r\n",
        b"GET /metrics?name[]=" + b"%ff" * 1000 + b" HTTP/1.0\r\n\r\n",
    ]
    for number in scene.rounds(1000):
        with ignoring():
            sock = dial(scene.doors.metrics, scene.source, patience=1)
            sock.sendall(requests[number % len(requests)] if number % 3 else chance.randbytes(300))
            sock.close()


@attack(
    "control socket",
    "another user connects; then requests that are none, from more connections than it has",
    effect="requests",
)
def control_intruder(scene: Scene) -> None:
    if os.getuid() == 0:
        with socket.socket(socket.AF_UNIX) as sock, somebody_else():
            try:
                sock.connect(scene.doors.control)
            except PermissionError:
                pass
            else:
                scene.must(False, "another user may connect to the control socket")
    for number in scene.rounds(500):
        with ignoring():
            sock = socket.socket(socket.AF_UNIX)
            sock.settimeout(1)
            scene.keep(sock)
            sock.connect(scene.doors.control)
            scene.count("requests")
            sock.sendall(
                (
                    b"{" * 100000,
                    b'{"command": "capture", "buffer": 1e999}\n',
                    b"\xff\n",
                    b"[" * 4000 + b"\n",
                    b"null\n",
                )[number % 5]
            )


@attack(
    "UDP", "datagrams of chance, of 64 KiB, calls of every procedure, replies: as fast as they go", effect="datagrams"
)
def datagrams(scene: Scene) -> None:
    chance = random.Random(7)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind((scene.source, 0))
        for number in scene.rounds(200000):
            name = b"honest".ljust(number % 1024, b"x")
            arguments = struct.pack(">I", len(name)) + name + bytes(-len(name) % 4) + bytes(4)
            data = (
                chance.randbytes(chance.randrange(1500)), bytes(65507), rpc(100024, 1, number % 8, arguments),
                rpc(100000, 2, number % 8, arguments), rpc(100024, 1, 6, struct.pack(">I", 0xFFFFFFFF)),
                b"\0\0\0\1\0\0\0\1",
            )[number % 6]  # fmt: skip
            with ignoring():
                sock.sendto(data, scene.doors.nsm)
                scene.count("datagrams")


@attack("MOUNT", "1,100 silent connections to the port of MOUNT", effect="connections")
def silent_mounts(scene: Scene) -> None:
    scene.many(1100, scene.doors.mountd)
