"""NFS over UDP: nothing is registered, and nothing listens, so that ``mount -o udp`` fails as with Linux's server."""

import socket
from pathlib import Path
from typing import Any

import pytest

from rpcrdma.rpc.portmap import mapping, portmap_program
from rpcrdma.rpc.program import Call
from rpcrdma.xdr import Decoder, Encoder, pack, unpack
from tests.support.served import HOST, Served, run
from tests.unit.fakes.nfs3 import ROOT, FakeTransport

TCP, UDP = 6, 17
GETPORT = 3


async def port_of(server: Served, program: int, version: int, protocol: int) -> int:
    """What the server's portmapper answers, or rpcbind after the registration."""
    procedure = portmap_program(server.daemon._served).versions[2][GETPORT]
    decoder = Decoder(pack(mapping, mapping(program, version, protocol, 0)))
    call: Any = Call(FakeTransport(), 1, 100000, 2, GETPORT, ROOT, decoder, Encoder())  # type: ignore[arg-type]
    found: Any = await procedure.handler(call, decoder.decode(procedure.arguments))
    return int(unpack(procedure.results, pack(procedure.results, found)))


def test_mount_o_udp_finds_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "data").mkdir()

    async def test(server: Served) -> None:
        for program, version, service in (
            (100003, 3, "nfs"),
            (100003, 4, "nfs"),
            (100005, 3, "mountd"),
            (100021, 4, "nlm"),
        ):
            assert await port_of(server, program, version, TCP) == server.port(service)
            assert await port_of(server, program, version, UDP) == 0
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
                sock.connect((HOST, server.port(service)))
                sock.settimeout(30)
                sock.send(bytes(40))
                with pytest.raises(ConnectionRefusedError):
                    sock.recv(100)

    run(tmp_path, "  - path: data\n", test)
    for program in (100003, 100005):
        assert f"asks for program {program} version 3 over UDP, which is not served: it is over tcp" in caplog.text
    assert "over UDP, which is not served: it is over udp" not in caplog.text
