"""TLS on TCP (RFC 9289) with Linux's client: its kernel enciphers, and tlshd of Debian's ktls-utils makes its
handshakes. One boot."""

from __future__ import annotations

import datetime
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from tests.support.tls import list_of
from tests.vm.build import chosen_kernel
from tests.vm.guest import Guest, Result
from tests.vm.mounts import complaints, umount
from tests.vm.network import Network
from tests.vm.server import MOUNTD_PORT, TCP_PORT, Server
from tests.vm.test_callbacks import append, wait_for_recalls
from tests.vm.test_long_copies import counters
from tests.vm.tls_client import put, start_tlshd
from tests.vm.work import Client, fio_verified

pytestmark = pytest.mark.skipif(chosen_kernel() == "6.1", reason="Linux knows TLS for RPC from 6.5 on (GUEST=6.12)")

POINT = "/mnt/nfs"
VERSIONS = ("3", "4.2")
FIO_JOBS = (("write", "1m", "16m", 4), ("randrw", "4k", "2m", 4))
REFUSED = r"RPC call returned error 13$"
"""What the client's kernel says when a mount that it has is let in no more: EACCES."""


def long_ago(days: int) -> datetime.datetime:
    """A time that is over."""
    return datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=days)


class Site:
    """The authority that both sides believe, a server with two exports that demand TLS, and a client."""

    def __init__(self, directory: Path, network: Network, guest: Guest) -> None:
        self.guest, self.directory = guest, directory
        self.authority, self.stranger = trustme.CA(), trustme.CA()
        self.authority.cert_pem.write_to_path(str(directory / "roots.pem"))
        secret = directory / "secret"
        secret.mkdir()
        (secret / "file").write_text("secret\n")
        self.revoked = directory / "revoked.pem"
        self.revoke()
        files = {
            "certificate": "server.pem", "key": "server.key", "client_roots": "roots.pem", "revoked": self.revoked.name,
        }  # fmt: skip
        self.server = Server(
            directory / "server",
            network,
            server={"tls": {key: str(directory / name) for key, name in files.items()}},
            export={"xprtsec": ["tls", "mtls"]},
            more=[{"path": str(secret), "pseudo": "/secret", "clients": ["*"], "xprtsec": ["mtls"]}],
        )
        self.certify()

    def certify(self, authority: trustme.CA | None = None, *, expired: bool = False) -> None:
        """Give the server a certificate."""
        made = self.certificate(authority or self.authority, self.server.address, expired)
        # As renewing programs do: a reader finds the old file or the new one.
        for name, blob in (("server.key", made.private_key_pem), ("server.pem", made.cert_chain_pems[0])):
            blob.write_to_path(str(self.directory / "new"))
            (self.directory / "new").rename(self.directory / name)

    @staticmethod
    def certificate(authority: trustme.CA, name: str, expired: bool) -> trustme.LeafCert:
        """One that is valid, or was."""
        if expired:
            return authority.issue_cert(name, not_before=long_ago(9), not_after=long_ago(2))
        return authority.issue_cert(name)

    def revoke(self, certificate: trustme.LeafCert | None = None) -> None:
        """Have the server believe this one no more, and all others."""
        lost = self.directory / "lost.pem"
        if certificate is not None:
            certificate.cert_chain_pems[0].write_to_path(str(lost))
        (self.directory / "new").write_bytes(list_of(self.authority, *([str(lost)] if certificate else [])))
        (self.directory / "new").rename(self.revoked)

    def client_believes(self, authority: trustme.CA) -> None:
        """Have the client believe this one and no other."""
        put(self.guest, "roots.pem", authority.cert_pem)

    def client_shows(self, authority: trustme.CA, *, expired: bool = False) -> trustme.LeafCert:
        """Give the client a certificate."""
        made = self.certificate(authority, "client.example.org", expired)
        put(self.guest, "client.pem", made.cert_chain_pems[0])
        put(self.guest, "client.key", made.private_key_pem)
        return made

    def mount(self, version: str, security: str, name: str = "/export", *, check: bool = True) -> Result:
        """Mount; the result says what the user of the client sees."""
        options = f"proto=tcp,port={TCP_PORT},vers={version},retry=0,xprtsec={security}"
        if version == "3":
            options += f",nolock,mountproto=tcp,mountport={MOUNTD_PORT},mountvers=3"
        command = f"mount -t nfs -o {options} {self.server.address}:{name} {POINT}"
        done = self.guest.run(f"timeout 100 {command}", timeout=120, check=check, label=command)
        if done.rc == 0:
            shown = self.guest.run(f"grep ' {POINT} ' /proc/mounts").output
            assert f"vers={version}" in shown
            assert (f"xprtsec={security}" in shown) == (security != "none")
        return done

    def refused(self, version: str, security: str, name: str = "/export") -> str:
        """What the user of the client sees when a mount comes to nothing."""
        done = self.mount(version, security, name, check=False)
        if done.rc == 0:
            done = self.guest.run(f"ls {POINT} && cat {POINT}/file", check=False)
            umount(self.guest)
        assert done.rc not in (0, 124), f"not refused: {done}"
        return done.output

    def logged(self, text: str) -> bool:
        """Whether the server has logged this. It names a client once, and says little of what comes often."""
        return text in self.server.log.read_text()


@pytest.fixture(scope="module")
def site(network: Network, directory: Path) -> Iterator[Site]:
    with Guest("tls", network, time_limit=1500) as guest:
        made = Site(directory, network, guest)
        guest.run(f"mkdir -p {POINT}")
        start_tlshd(guest)
        with made.server:
            yield made
        print(guest.run("cat /tmp/tlshd").output)


@pytest.fixture(autouse=True)
def all_is_well(site: Site) -> Iterator[None]:
    """Every test begins with certificates that are good, and leaves no mount and no complaint behind."""
    site.certify()
    site.client_believes(site.authority)
    site.client_shows(site.authority)
    site.revoke()
    yield
    site.guest.run(f"! mountpoint -q {POINT} || umount -f {POINT}")
    site.server.assert_running()
    assert complaints(site.guest, REFUSED) == []


@pytest.mark.parametrize(
    ("version", "security"),
    [("3", "tls"), ("3", "mtls"), ("4.2", "tls"), pytest.param("4.2", "mtls", marks=pytest.mark.newest)],
)
def test_files_are_written_and_read(site: Site, directory: Path, version: str, security: str) -> None:
    guest = site.guest
    client = Client(guest, site.server, version, directory, POINT, f"{security}-{version}")
    site.mount(version, security)
    guest.run(f"mkdir {client.work}")
    for direct in (0, 1):
        fio_verified(client, direct, FIO_JOBS)
    # Again, with nothing of it left in the client's caches.
    guest.run(f"head -c 3000001 /dev/urandom >/tmp/data && cp /tmp/data {client.work}/", label="copy")
    umount(guest)
    site.mount(version, security)
    guest.run(f"cmp /tmp/data {client.work}/data")
    umount(guest)


@pytest.mark.newest
def test_a_recall_reaches_the_client(site: Site) -> None:
    """Its session's connection carries the server's calls, too."""
    name = "delegated"
    (site.server.export / name).write_text("content\n")
    site.mount("4.2", "tls")
    site.guest.run(f"cd {POINT} && echo owner >own && cat own")  # an owner that is confirmed
    site.guest.run(f"sh -c 'exec 3<{POINT}/{name}; exec sleep 600' >/dev/null 2>&1 & echo $! >/tmp/reader")
    site.guest.run("until test -e /proc/$(cat /tmp/reader)/fd/3; do sleep 0.1; done", timeout=60, label="opened")
    before = counters(site.server, "callbacks").get("CB_RECALL ok", 0)
    writer = threading.Thread(target=append, args=(site.server.export / name,))
    writer.start()
    writer.join(60)
    assert not writer.is_alive(), "the lease was not broken"
    wait_for_recalls(site.server, before + 1, "TLS")
    assert "more" in site.guest.run(f"cat {POINT}/{name}").output
    site.guest.run("kill $(cat /tmp/reader)")
    umount(site.guest)


@pytest.mark.parametrize("version", ["3", pytest.param("4.2", marks=pytest.mark.newest)])
def test_what_demands_tls_is_refused_in_the_clear(site: Site, version: str) -> None:
    site.refused(version, "none")
    assert site.logged("has none and needs tls or mtls (xprtsec: ")


@pytest.mark.parametrize("version", ["3", pytest.param("4.2", marks=pytest.mark.newest)])
def test_what_demands_a_certificate_is_refused_without(site: Site, version: str) -> None:
    site.refused(version, "tls", "/secret")
    assert site.logged("has tls and needs mtls (xprtsec: ")
    site.mount(version, "mtls", "/secret")
    assert site.guest.run(f"cat {POINT}/file").output.strip() == "secret"
    umount(site.guest)


@pytest.mark.parametrize("version", VERSIONS)
def test_certificates_of_clients_that_are_not_believed(site: Site, version: str) -> None:
    site.client_shows(site.stranger)
    site.refused(version, "mtls", "/secret")
    assert site.logged("no TLS: unable to get local issuer certificate")
    site.client_shows(site.authority, expired=True)
    site.refused(version, "mtls", "/secret")  # (the client may have tried so often that the log only counts)


@pytest.mark.parametrize("version", ["3", "4.2"])
def test_a_client_whose_certificate_is_revoked_loses_its_mount(site: Site, version: str) -> None:
    """It comes back with another certificate only."""
    guest, name = site.guest, f"revoked-{version}"
    lost = site.client_shows(site.authority)
    site.mount(version, "mtls")
    guest.run(f"echo before >{POINT}/{name}")
    site.revoke(lost)
    guest.run(f"ss -K -t dst {site.server.address} dport = {TCP_PORT}", label="break the connection")
    writing = f"until timeout 20 sh -c 'echo after >{POINT}/{name}'; do sleep 1; done"
    guest.run(f"({writing}) >/dev/null 2>&1 & echo $! >/tmp/writer")
    deadline = time.monotonic() + 60
    while not site.logged("no TLS: certificate revoked"):
        assert time.monotonic() < deadline, "it has not tried"
        time.sleep(0.2)
    assert (site.server.export / name).read_text() == "before\n"
    site.client_shows(site.authority)
    guest.run("while test -e /proc/$(cat /tmp/writer); do sleep 0.2; done", timeout=200, label="written at last")
    assert (site.server.export / name).read_text() == "after\n"
    umount(guest)


@pytest.mark.parametrize("version", VERSIONS)
def test_certificates_of_the_server_that_are_not_believed(site: Site, version: str) -> None:
    site.certify(site.stranger)
    site.refused(version, "tls")
    site.certify(expired=True)
    site.refused(version, "tls")


@pytest.mark.parametrize("version", VERSIONS)
def test_a_certificate_is_renewed_while_there_is_a_mount(site: Site, version: str) -> None:
    """The connection that there is, goes on; the next one has the new certificate, which alone is believed then."""
    guest = site.guest
    site.mount(version, "mtls")
    guest.run(f"echo before >{POINT}/before-{version}")
    site.certify(site.stranger)
    site.client_believes(site.stranger)
    guest.run(f"echo between >{POINT}/between-{version}")
    guest.run(f"ss -K -t dst {site.server.address} dport = {TCP_PORT}", label="break the connection")
    names = " ".join(f"{POINT}/{name}-{version}" for name in ("before", "between", "after"))
    found = guest.run(f"echo after >{POINT}/after-{version} && cat {names}", timeout=200).output
    assert found.split() == ["before", "between", "after"]
    assert (site.server.export / f"after-{version}").read_text() == "after\n"
    umount(guest)
