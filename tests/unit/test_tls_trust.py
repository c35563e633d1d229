"""TLS: certificates that are not believed any more, while their connections live."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

import pytest
import trustme

from nfsd.client import NfsClientError
from nfsd.config import Limits
from nfsd.listeners import host_limits
from nfsd.vfs.resources import FileLimits
from rpcrdma.tls import handshakes
from rpcrdma.tls.certificates import Certificates, Files, Peer
from tests.support.tls import list_of
from tests.unit.tcp_support import until
from tests.unit.test_tls import PROBE, STARTTLS, Raw, Secured, raw


class Demanding(Secured):
    """A server that demands certificates and has a revocation list."""

    def __init__(self, base: Path) -> None:
        super().__init__(base, entry=", xprtsec: [mtls]", mtls=True)
        self.revoked = base / "revoked.pem"
        self.revoked.write_bytes(list_of(self.authority))
        self.extra = self.extra.replace(
            f"client_roots: {self.roots}", f"client_roots: {self.roots}, revoked: {self.revoked}"
        )
        self.good, self.bad = self.own(self.authority, "good.example.org"), self.own(self.authority, "bad.example.org")
        object.__setattr__(self.options.rpc, "reconnect", 2.0)

    def connections(self) -> list[object]:
        """Those that there are."""
        (started,) = [one for one in self.daemon.listeners.of("nfs") if one.tcp is not None]
        assert started.tcp is not None
        return list(started.tcp.connections)


def test_a_client_whose_certificate_is_revoked_is_sent_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(handshakes, "LOOK", 0.1)
    rig = Demanding(tmp_path)
    (rig.export / "file").write_bytes(b"x")

    async def go_on_revoked() -> None:
        async with rig.connect(tls_certificate=rig.bad) as bad:
            assert await bad.read_bytes("file") == b"x"
            before = set(rig.connections())
            rig.revoked.write_bytes(list_of(rig.authority, rig.bad))
            await until(lambda: not before & set(rig.connections()))
            (rig.export / "file").write_bytes(b"y")
            await bad.read_bytes("file")
            raise AssertionError("it may go on")

    async def test() -> None:
        async with rig.connect(tls_certificate=rig.good) as good:
            assert await good.read_bytes("file") == b"x"
            with pytest.raises((NfsClientError, OSError)):
                await go_on_revoked()
            assert await good.read_bytes("file") == b"y"  # who is still believed comes back

    with caplog.at_level(logging.INFO):
        rig.run(test)
    assert "is to be checked again; closing" in caplog.text
    assert "no TLS: certificate revoked" in caplog.text


def test_a_client_whose_authority_is_revoked_is_not_believed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The root has let another authority issue certificates, and has revoked that one."""
    rig = Demanding(tmp_path)
    between = rig.authority.create_child_ca()
    inner, outer = rig.own(between, "inner.example.org"), tmp_path / "between.pem"
    between.cert_pem.write_to_path(str(outer))
    (rig.export / "file").write_bytes(b"x")

    async def test() -> None:
        rig.revoked.write_bytes(list_of(rig.authority) + list_of(between))
        async with rig.connect(tls_certificate=inner) as files:
            assert await files.read_bytes("file") == b"x"
        rig.revoked.write_bytes(list_of(rig.authority, str(outer)) + list_of(between))
        with pytest.raises((NfsClientError, OSError)):
            async with rig.connect(tls_certificate=inner) as files:
                await files.read_bytes("file")
        async with rig.connect(tls_certificate=rig.good) as files:
            assert await files.read_bytes("file") == b"x"

    rig.run(test)
    assert "no TLS: certificate revoked" in caplog.text


def test_a_new_certificate_of_the_server_ends_no_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(handshakes, "LOOK", 0.1)
    rig = Demanding(tmp_path)

    async def test() -> None:
        async with rig.connect(tls_certificate=rig.good) as files:
            await files.write_bytes("file", b"x")
            before = rig.connections()
            rig.certify(rig.authority)
            await until(lambda: "is used from now on" in caplog.text)  # read without a handshake
            for started in rig.daemon.listeners.of("nfs"):
                if started.tcp is not None:
                    started.tcp.check_times(asyncio.get_running_loop().time())
            assert await files.read_bytes("file") == b"x"
            assert rig.connections() == before

    with caplog.at_level(logging.INFO):
        rig.run(test)
    assert "checked again" not in caplog.text


def test_a_certificate_is_believed_until_it_expires(tmp_path: Path) -> None:
    authority = trustme.CA()
    made = authority.issue_cert("host")
    for name, blob in (("pem", made.cert_chain_pems[0]), ("key", made.private_key_pem), ("ca", authority.cert_pem)):
        blob.write_to_path(str(tmp_path / name))
    known = Certificates(Files(*(str(tmp_path / name) for name in ("pem", "key", "ca"))))
    trust, now = known._context.trust, time.time()
    assert known.believes(Peer("a cipher"))
    assert known.believes(Peer("a cipher", "x", until=now + 1000, trust=trust))
    assert not known.believes(Peer("a cipher", "x", until=now - 1, trust=trust))
    assert not known.believes(Peer("a cipher", "x", until=now + 1000))
    (tmp_path / "ca").write_bytes(authority.cert_pem.bytes())  # written again: the same
    known.look()
    assert known.believes(Peer("a cipher", "x", until=now + 1000, trust=trust))
    with open(tmp_path / "ca", "ab") as file:
        file.write(trustme.CA().cert_pem.bytes())
    known.look()
    assert not known.believes(Peer("a cipher", "x", until=now + 1000, trust=trust))


def test_tls_begins_with_the_first_call_or_not_at_all(tmp_path: Path) -> None:
    """Somebody on the way could make calls first, and what they leave would be taken for the peer's."""
    rig = Secured(tmp_path)
    null = PROBE[:28] + bytes(16)

    def work(port: int) -> None:
        one = Raw(port)
        one.sock.sendall(null)
        assert len(one.exactly(28)) == 28
        one.sock.sendall(PROBE)
        assert one.exactly(24)[8:] == bytes([0, 0, 0, 1] * 4)  # MSG_DENIED, AUTH_ERROR, AUTH_BADCRED
        assert Raw(port).probe() == STARTTLS

    rig.run(raw(rig, work))


def test_descriptors_of_connections_that_are_secured_are_counted() -> None:
    limits = Limits(connections=1024)
    assert host_limits(limits, 4096).connections == 1024
    assert host_limits(limits, 4096, 3).connections == 341
    assert FileLimits.of(65536, 1024, each=3).files == FileLimits.of(65536, 1024).files - 2048
