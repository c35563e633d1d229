"""TLS on TCP (RFC 9289): our client and server, and peers that do not keep to it."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import os
import socket
import ssl
import struct
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from nfsd.client import NfsClientError
from nfsd.config_file import ConfigError, load
from nfsd.findings import examine
from rpcrdma.tls import handshakes
from rpcrdma.tls.certificates import ALPN
from tests.unit.nfs_client_support import Rig

NULL_TLS = struct.pack(">10I", 7, 0, 2, 100003, 4, 0, 7, 0, 0, 0)
PROBE = struct.pack(">I", 0x80000000 | len(NULL_TLS)) + NULL_TLS
STARTTLS = struct.pack(">5I8sI", 7, 1, 0, 0, 8, b"STARTTLS", 0)


class Secured(Rig):
    """A rig whose server has a certificate, and whose clients use it."""

    def __init__(self, base: Path, version: str = "4.1", entry: str = "", *, mtls: bool = False) -> None:
        super().__init__(base, "tls", version)
        self.authority = trustme.CA()
        self.roots = base / "roots.pem"
        self.authority.cert_pem.write_to_path(str(self.roots))
        self.certify(self.authority)
        self.entry = entry
        roots = f", client_roots: {self.roots}" if mtls else ""
        self.extra += f"  tls: {{certificate: {base}/server.pem, key: {base}/server.key{roots}}}\n"

    def certify(self, authority: trustme.CA, name: str = "127.0.0.1") -> None:
        """Give the server a certificate."""
        made = authority.issue_cert(name)
        made.cert_chain_pems[0].write_to_path(str(self.base / "server.pem"))
        made.private_key_pem.write_to_path(str(self.base / "server.key"))

    def own(self, authority: trustme.CA, name: str = "client.example.org") -> str:
        """A certificate of a client."""
        path = self.base / f"{name}.pem"
        authority.issue_cert(name).private_key_and_cert_chain_pem.write_to_path(str(path))
        return str(path)

    def connect(self, path: str = "", **changes: Any) -> Any:
        """A client that believes the authority."""
        return super().connect(path, **{"tls_roots": str(self.roots), **changes})

    def securities(self) -> list[str]:
        """How the connections that there are, are secured."""
        (started,) = [one for one in self.daemon.listeners.of("nfs") if one.tcp is not None]
        assert started.tcp is not None
        return [connection.security for connection in started.tcp.connections]


def at_once(rig: Secured) -> None:
    """Have the client give up what cannot be connected to at the first attempt."""
    object.__setattr__(rig.options.rpc, "reconnect", 0.0)


@pytest.mark.parametrize("version", ["3", "4.1"])
def test_files_are_written_and_read_over_tls(tmp_path: Path, version: str) -> None:
    rig = Secured(tmp_path, version, ", xprtsec: [tls]")
    data = os.urandom(5 << 20)

    async def test() -> None:
        async with rig.connect() as files:
            await files.write_bytes("file", data)
            assert await files.read_bytes("file") == data
            assert sorted([name async for name in _names(files)]) == ["file"]
            assert "tls" in rig.securities()

    rig.run(test)
    assert (rig.export / "file").read_bytes() == data


async def _names(files: Any) -> Any:
    for name in await files.listdir(""):
        yield name


def test_nothing_of_a_file_is_seen_in_the_clear(tmp_path: Path) -> None:
    """Somebody on the way sees the probe, and no name and no data behind it."""
    rig = Secured(tmp_path)
    seen = bytearray()

    async def test() -> None:
        async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while octets := await reader.read(65536):
                seen.extend(octets)
                writer.write(octets)
            writer.close()

        async def between(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            to, back = await asyncio.open_connection("127.0.0.1", port)
            await asyncio.gather(pump(reader, back), pump(to, writer))

        port = rig.ports["tcp"]
        async with await asyncio.start_server(between, "127.0.0.1", 0) as middle:
            rig.ports["tcp"] = middle.sockets[0].getsockname()[1]
            async with rig.connect() as files:
                await files.write_bytes("a name of a file", b"what is in the file" * 100)
            rig.ports["tcp"] = port

    rig.run(test)
    assert STARTTLS[-12:] in seen
    assert len(seen) > 4000
    assert b"a name of a file" not in seen
    assert b"what is in the file" not in seen


@pytest.mark.parametrize("version", ["3", "4.1"])
def test_what_demands_tls_is_refused_in_the_clear(
    tmp_path: Path, version: str, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Secured(tmp_path, version, ", xprtsec: [tls, mtls]")
    (rig.export / "file").write_bytes(b"x")

    async def test() -> None:
        rig.transport = "tcp"
        with pytest.raises(PermissionError):
            async with rig.connect() as files:
                await files.read_bytes("file")
        rig.transport = "rdma"  # nothing secures it
        with pytest.raises(PermissionError):
            async with rig.connect() as files:
                await files.read_bytes("file")

    with caplog.at_level(logging.INFO):
        rig.run(test)
    assert "its connection has none and needs tls or mtls (xprtsec: " in caplog.text


def test_certificates_of_clients_are_demanded_where_they_must_be(tmp_path: Path) -> None:
    rig = Secured(tmp_path, entry=", xprtsec: [mtls]", mtls=True)
    (rig.export / "file").write_bytes(b"x")
    own, foreign = rig.own(rig.authority), rig.own(trustme.CA(), "stranger.example.org")
    at_once(rig)

    async def test() -> None:
        async with rig.connect(tls_certificate=own) as files:
            assert await files.read_bytes("file") == b"x"
            assert "mtls" in rig.securities()
        with pytest.raises(PermissionError):
            async with rig.connect() as files:
                await files.read_bytes("file")
        with pytest.raises((NfsClientError, OSError)):
            async with rig.connect(tls_certificate=foreign) as files:
                await files.read_bytes("file")

    rig.run(test)


def test_a_revoked_certificate_is_not_believed(tmp_path: Path) -> None:
    rig = Secured(tmp_path, entry=", xprtsec: [mtls]", mtls=True)
    (rig.export / "file").write_bytes(b"x")
    good, bad = rig.own(rig.authority, "good.example.org"), rig.own(rig.authority, "bad.example.org")
    at_once(rig)
    revoked = tmp_path / "revoked.pem"
    revoked.write_bytes(_list_of(rig.authority, Path(bad)))
    rig.extra = rig.extra.replace(f"client_roots: {rig.roots}", f"client_roots: {rig.roots}, revoked: {revoked}")

    async def test() -> None:
        async with rig.connect(tls_certificate=good) as files:
            assert await files.read_bytes("file") == b"x"
        with pytest.raises((NfsClientError, OSError)):
            async with rig.connect(tls_certificate=bad) as files:
                await files.read_bytes("file")

    rig.run(test)


def _list_of(authority: trustme.CA, revoked: Path) -> bytes:
    key = serialization.load_pem_private_key(authority.private_key_pem.bytes(), None)
    issuer = x509.load_pem_x509_certificate(authority.cert_pem.bytes())
    which = x509.load_pem_x509_certificate(revoked.read_bytes())
    now = datetime.datetime.now(datetime.UTC)
    one = x509.RevokedCertificateBuilder().serial_number(which.serial_number).revocation_date(now).build()
    made = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(issuer.subject)
        .last_update(now - datetime.timedelta(days=1))
        .next_update(now + datetime.timedelta(days=1))
        .add_revoked_certificate(one)
        .sign(key, hashes.SHA256())  # type: ignore[arg-type]
    )
    return made.public_bytes(serialization.Encoding.PEM)


def test_the_server_must_be_who_it_should_be(tmp_path: Path) -> None:
    rig = Secured(tmp_path)
    other = tmp_path / "other.pem"
    trustme.CA().cert_pem.write_to_path(str(other))
    at_once(rig)

    async def test() -> None:
        with pytest.raises(NfsClientError, match=r"self-signed certificate|unable to get local issuer"):
            async with rig.connect(tls_roots=str(other)):
                pass
        rig.certify(rig.authority, "elsewhere.example.org")
        with pytest.raises(NfsClientError, match=r"IP address mismatch|127\.0\.0\.1"):
            async with rig.connect():
                pass

    rig.run(test)


def test_a_renewed_certificate_is_used_by_the_next_handshake(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rig = Secured(tmp_path)
    newer = trustme.CA()
    at_once(rig)

    async def test() -> None:
        async with rig.connect() as files:
            await files.write_bytes("file", b"1")
            rig.certify(newer)
            newer.cert_pem.write_to_path(str(rig.roots))
            async with rig.connect() as others:
                assert await others.read_bytes("file") == b"1"
            assert await files.read_bytes("file") == b"1"
            (tmp_path / "server.key").write_text("no key")
            async with rig.connect() as others:
                assert await others.read_bytes("file") == b"1"

    with caplog.at_level(logging.INFO):
        rig.run(test)
    assert "is used from now on" in caplog.text
    assert "what was read before stays in use" in caplog.text


class Raw:
    """A socket that is told octet by octet what to do."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port))
        self.sock.settimeout(30)

    def probe(self, more: bytes = b"") -> bytes:
        """Ask for TLS; the reply's record."""
        self.sock.sendall(PROBE + more)
        return self.exactly(4 + len(STARTTLS))[4:]

    def exactly(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            octets = self.sock.recv(size - len(found))
            if not octets:
                raise ConnectionError(found)
            found += octets
        return found

    def ends(self) -> bool:
        """Whether the server closes the connection without another octet in the clear but an alert."""
        with contextlib.suppress(ConnectionError):
            while octets := self.sock.recv(4096):
                assert octets[0] == 21, octets  # TLS: alert
        return True


def raw(rig: Secured, work: Callable[[int], Any]) -> Callable[[], Awaitable[None]]:
    """A test that does what blocks beside the daemon, and then uses it as everybody does."""

    async def test() -> None:
        await asyncio.to_thread(work, rig.ports["tcp"])
        async with rig.connect() as files:
            await files.write_bytes("after", b"served")
        assert (rig.export / "after").read_bytes() == b"served"

    return test


def test_octets_behind_the_probe_are_not_taken_for_the_peers(tmp_path: Path) -> None:
    """Whoever is on the way could put a call before the peer's own."""
    rig = Secured(tmp_path)

    def work(port: int) -> None:
        for more in (PROBE, b"\x80", PROBE + PROBE[:9]):
            one = Raw(port)
            with contextlib.suppress(ConnectionError):
                one.probe(more)
            assert one.ends()

    rig.run(raw(rig, work))


def test_the_reply_is_the_one_of_the_rfc(tmp_path: Path) -> None:
    rig = Secured(tmp_path)

    def work(port: int) -> None:
        assert Raw(port).probe() == STARTTLS

    rig.run(raw(rig, work))


@pytest.mark.parametrize(
    "octets", [b"GET / HTTP/1.1\r\n\r\n", bytes(300), PROBE, b"\x16\x03\x01\xff\xff" + bytes(70000)]
)
def test_what_is_no_handshake_ends_the_connection(tmp_path: Path, octets: bytes) -> None:
    rig = Secured(tmp_path)

    def work(port: int) -> None:
        one = Raw(port)
        one.probe()
        with contextlib.suppress(OSError):  # it is closed already
            one.sock.sendall(octets)
            one.sock.shutdown(socket.SHUT_WR)
        assert one.ends()

    rig.run(raw(rig, work))


def test_older_versions_are_refused_and_the_protocol_is_named(tmp_path: Path) -> None:
    rig = Secured(tmp_path)

    def work(port: int) -> None:
        context = ssl.create_default_context(cafile=str(rig.roots))
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        one = Raw(port)
        one.probe()
        with pytest.raises((ssl.SSLError, ConnectionError)):
            context.wrap_socket(one.sock, server_hostname="127.0.0.1")
        newer = ssl.create_default_context(cafile=str(rig.roots))
        newer.set_alpn_protocols([ALPN])
        two = Raw(port)
        two.probe()
        secured = newer.wrap_socket(two.sock, server_hostname="127.0.0.1")
        assert secured.version() == "TLSv1.3"
        assert secured.selected_alpn_protocol() == "sunrpc"
        # There is TLS already: asked again, the server says no.
        secured.sendall(PROBE)
        assert secured.recv(4096)[8:16] == struct.pack(">II", 1, 1)
        secured.close()

    rig.run(raw(rig, work))


def test_handshakes_that_do_not_end_keep_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshakes, "HOST_HANDSHAKES", 4)
    monkeypatch.setattr(handshakes, "HANDSHAKE_TIME", 0.5)
    rig = Secured(tmp_path)

    def work(port: int) -> None:
        crowd = [Raw(port) for _ in range(12)]
        for one in crowd:
            one.probe()
        for one in crowd:  # those that are too many at once, the others when their time is over
            assert one.ends()

    rig.run(raw(rig, work))


def test_what_a_peer_does_not_take_is_given_up(tmp_path: Path) -> None:
    """Nothing of a connection stays when the server has closed it, whatever the peer does."""
    rig = Secured(tmp_path)
    rig.extra += "  limits: {transfer_time: 1}\n"
    (rig.export / "file").write_bytes(bytes(4 << 20))

    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    async def test() -> None:
        async with rig.connect() as files:
            await files.write_bytes("other", b"x")
        await asyncio.to_thread(_wait, lambda: descriptors() <= before)
        context = ssl.create_default_context(cafile=str(rig.roots))
        socks = []
        for _ in range(3):
            sock = await asyncio.to_thread(_greedy, rig.ports["tcp"], context)
            socks.append(sock)
        await asyncio.to_thread(_wait, lambda: descriptors() <= before + len(socks))
        for sock in socks:
            sock.close()

    def _wait(there: Callable[[], bool]) -> None:
        until = time.monotonic() + 60
        while not there():
            assert time.monotonic() < until, descriptors()
            time.sleep(0.05)

    async def start_and_test() -> None:
        nonlocal before
        async with rig.connect():
            pass  # what all clients of a process share is there from now on
        before = descriptors()
        await test()

    before = 0
    rig.run(start_and_test)


def _greedy(port: int, context: ssl.SSLContext) -> ssl.SSLSocket:
    """A connection that asks and asks, and takes nothing."""
    one = Raw(port)
    one.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    one.probe()
    secured = context.wrap_socket(one.sock, server_hostname="127.0.0.1")
    null = struct.pack(">10I", 9, 0, 2, 100003, 4, 0, 0, 0, 0, 0)
    secured.settimeout(1)
    with contextlib.suppress(OSError):
        while True:
            secured.sendall((struct.pack(">I", 0x80000000 | len(null)) + null) * 1000)
    return secured


def test_without_a_certificate_there_is_none(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    denied: list[bytes] = []

    def work(port: int) -> None:
        one = Raw(port)
        one.sock.sendall(PROBE)
        denied.append(one.exactly(24)[8:])

    async def test() -> None:
        await asyncio.to_thread(work, rig.ports["tcp"])
        rig.transport = "tls"
        object.__setattr__(rig.options.rpc, "reconnect", 0.0)
        with pytest.raises(NfsClientError, match="the server has no TLS"):
            async with rig.connect():
                pass

    rig.run(test)
    assert denied == [struct.pack(">4I", 1, 1, 1, 1)]  # MSG_DENIED, AUTH_ERROR, AUTH_BADCRED


def test_the_configuration_says_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    file = tmp_path / "exports.yaml"

    def problems(server: str, entry: str) -> str:
        file.write_text(f"server:\n  listen: [tcp://127.0.0.1:0]\n{server}exports:\n  - {{path: data{entry}}}\n")
        try:
            found = examine(load(str(file)))
        except ConfigError as error:
            return str(error)
        return "\n".join(map(str, found))

    assert "exports[0].xprtsec: demands TLS" in problems("", ", xprtsec: [tls]")
    assert "exports[0].clients[0].xprtsec: demands TLS" in problems("", ", clients: [{host: '*', xprtsec: [mtls]}]")
    tls = f"  tls: {{certificate: {tmp_path}/none.pem, key: {tmp_path}/none.key}}\n"
    assert "set server.tls.client_roots" in problems(tls, ", xprtsec: [mtls]")
    assert "none.pem: No such file or directory; it must be there" in problems(tls, "")
    authority = trustme.CA()
    for name in ("one", "two"):
        authority.issue_cert(name).private_key_pem.write_to_path(str(tmp_path / f"{name}.key"))
    authority.issue_cert("one").cert_chain_pems[0].write_to_path(str(tmp_path / "one.pem"))
    tls = f"  tls: {{certificate: {tmp_path}/one.pem, key: {tmp_path}/two.key}}\n"
    assert "is not the key of" in problems(tls, "")
