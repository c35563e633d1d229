"""CPU time of the embedded iWARP provider per operation: ``python bench/softiwarp.py [--seconds S]``.

A client process keeps N requests of 128 octets outstanding; the server answers each as asked: with a Send of 4 KiB, an
RDMA Write of 4 KiB and a Send (an NFS READ), a Write of 1 MiB and a Send, or a Read of 1 MiB and a Send. Printed are
operations per second and the server's CPU microseconds (user, system) per operation.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import resource
import struct
from multiprocessing.connection import Connection
from typing import Any

import uvloop

from rpcrdma.memory import Pool
from rpcrdma.verbs.interface import ListenAddress, RdmaRead, RdmaWrite, Send
from rpcrdma.verbs.softiwarp import SoftIwarp, SoftIwarpOptions

REQUEST = struct.Struct(">IQ")
KINDS = {"send 4k": 4096, "write 4k": 4096, "write 1M": 1 << 20, "read 1M": 1 << 20}


class Server:
    def __init__(self, kind: str) -> None:
        self.kind, self.size = kind.split()[0], KINDS[kind]
        self.data = memoryview(bytearray(KINDS[kind]))
        self.served = 0
        self.endpoint: Any = None

    def received(self, messages: Any) -> None:
        post = self.endpoint.post
        leases = []
        for lease, _, _ in messages:
            handle, offset = REQUEST.unpack_from(lease.view)
            if self.kind == "send":
                post((), Send((self.data,)), None)
            elif self.kind == "write":
                post((RdmaWrite(handle, offset, self.data),), Send((lease.view[:128],)), None)
            else:
                self.endpoint.post_reads((RdmaRead(handle, offset, self.data),), True)
            leases.append(lease)
        self.served += len(leases)
        self.endpoint.post_receives(leases)

    def completed(self, token: object, ok: bool) -> None:
        if token:
            self.endpoint.post((), Send((self.data[:128],)), None)

    def disconnected(self, reason: str) -> None:
        self.endpoint = None


def serve(kind: str, options: SoftIwarpOptions, pipe: Connection) -> None:
    async def main() -> None:
        pool = Pool(64 << 20)
        account = pool.account(64 << 20)
        server = Server(kind)

        def accept(request: Any) -> None:
            leases = [account.lease(4096) for _ in range(256)]
            server.endpoint = request.accept(server, b"", leases, initiator_depth=16)

        provider = SoftIwarp(pool, options)
        listener = await provider.listen(ListenAddress("127.0.0.1", 0), accept)
        pipe.send(listener.address)
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()

        def command() -> None:
            if pipe.recv() == "stop":
                stop.set()
            else:
                usage = resource.getrusage(resource.RUSAGE_SELF)
                pipe.send((server.served, usage.ru_utime, usage.ru_stime, provider.statistics()))

        loop.add_reader(pipe.fileno(), command)
        await stop.wait()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


class Client:
    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.endpoint: Any = None
        self.requests: list[bytes] = []
        self.running = True

    def received(self, messages: Any) -> None:
        self.endpoint.post_receives([message[0] for message in messages])
        if self.running:
            for _ in messages:
                self.endpoint.post((), Send((self.requests[0],)), None)

    def completed(self, token: object, ok: bool) -> None:
        pass

    def disconnected(self, reason: str) -> None:
        self.running = False


async def measure(
    address: ListenAddress, pipe: Connection, kind: str, depth: int, seconds: float
) -> tuple[float, float, float, dict[str, float]]:
    pool = Pool(64 << 20)
    account = pool.account(64 << 20)
    provider = SoftIwarp(pool)
    client = Client(depth)
    leases = [account.lease(4096) for _ in range(128)]
    endpoint, _ = await provider.connect(address, client, b"", leases, initiator_depth=16)
    client.endpoint = endpoint
    memory = memoryview(bytearray(KINDS[kind]))
    handle, base = endpoint.register(memory, remote_read=True, remote_write=True)
    client.requests = [REQUEST.pack(handle, base) + bytes(116)]
    for _ in range(depth):
        endpoint.post((), Send((client.requests[0],)), None)
    await asyncio.sleep(0.3)
    pipe.send("sample")
    before = pipe.recv()
    await asyncio.sleep(seconds)
    pipe.send("sample")
    after = pipe.recv()
    count = after[0] - before[0]
    calls = {name: (after[3][name] - before[3][name]) / count for name in ("send_calls", "receive_calls", "fpdus_out")}
    endpoint.close(abort=True)
    await asyncio.sleep(0.05)
    return count / seconds, (after[1] - before[1]) / count * 1e6, (after[2] - before[2]) / count * 1e6, calls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--crc", action="store_true")
    parser.add_argument("--only", choices=KINDS)
    parser.add_argument("--depth", type=int)
    arguments = parser.parse_args()
    options = SoftIwarpOptions(crc="always" if arguments.crc else "auto")
    print(
        f"{'':10} {'depth':>5} {'op/s':>9} {'user µs':>8} {'sys µs':>8} {'sends/op':>9} {'recvs/op':>9} {'FPDUs/op':>9}"
    )
    for kind in [arguments.only] if arguments.only else KINDS:
        for depth in [arguments.depth] if arguments.depth else (1, 16, 32):
            ours, theirs = multiprocessing.Pipe()
            process = multiprocessing.Process(target=serve, args=(kind, options, theirs))
            process.start()
            address = ours.recv()
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                rate, user, system, calls = runner.run(measure(address, ours, kind, depth, arguments.seconds))
            ours.send("stop")
            process.join()
            print(
                f"{kind:10} {depth:5} {rate:9.0f} {user:8.2f} {system:8.2f}"
                f" {calls['send_calls']:9.2f} {calls['receive_calls']:9.2f} {calls['fpdus_out']:9.2f}"
            )


if __name__ == "__main__":
    main()
