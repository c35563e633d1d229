"""TLS by the kernel of the server's host, a guest. One boot; with the newest kernel, its own client as well."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from tests.vm.build import REPO, chosen_kernel
from tests.vm.guest_server import GuestServer
from tests.vm.mounts import complaints
from tests.vm.network import Namespace, Network
from tests.vm.server import TCP_PORT
from tests.vm.tls_client import put, start_tlshd

pytestmark = [pytest.mark.timeout(1800), pytest.mark.long]

REKEYS = (6, 14)
"""The first Linux that can change keys."""


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    """One on which the guest can be dialled: a namespace, which only root can make."""
    with Namespace() as made:
        yield made


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    """Whom both sides believe."""
    return trustme.CA()


@pytest.fixture(scope="module")
def server(network: Network, authority: trustme.CA) -> Iterator[GuestServer]:
    """In a guest that has the kernel's TLS."""
    names = {"certificate": "server.pem", "key": "server.key"}
    made = GuestServer(network, (), listen=[f"tcp://*:{TCP_PORT}"], server={"tls": names}, name="ktls")
    own = authority.issue_cert(made.address, "127.0.0.1")
    for name, blob in (("server.pem", own.cert_chain_pems[0]), ("server.key", own.private_key_pem)):
        made.guest.run(f"cat >/srv/nfsd/{name} <<'X'\n{blob.bytes().decode()}X\n", label=f"write {name}")
    made.guest.run("modprobe tls", label="modprobe tls")
    with made:
        yield made
        made.stop()
        assert complaints(made.guest) == []


def counter(server: GuestServer, what: str) -> int:
    """Of /proc/net/tls_stat."""
    found = re.findall(rf"{what}\s+(\d+)", server.guest.run("cat /proc/net/tls_stat").output)
    return int(found[0])


def octets_read(server: GuestServer) -> int:
    """That the server has had copied by read(2) and its like; what goes by splice(2) is not counted."""
    return int(server.guest.run(f"head -n 1 /proc/{server.pid}/io").output.split()[1])


def test_our_client_reads_what_the_kernel_enciphers(
    server: GuestServer, network: Network, authority: trustme.CA, tmp_path: Path
) -> None:
    """Files of every size, of which the large ones leave without a copy; and new keys, or an alert that says that there
    are none."""
    roots, before, copied = tmp_path / "roots.pem", counter(server, "TlsTxSw"), octets_read(server)
    authority.cert_pem.write_to_path(str(roots))
    peer = [*network.enter, sys.executable, "-m", "tests.support.tls_peer", server.address, str(TCP_PORT), str(roots)]
    done = subprocess.run(peer, cwd=REPO, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert octets_read(server) - copied < told["octets"] // 4
    assert counter(server, "TlsTxSw") >= before + 2
    assert counter(server, "TlsRxSw") == 0, "what comes is not the kernel's"
    log = server.log_tail()
    assert "TLS: the kernel enciphers what is sent" in log
    if server.guest.linux >= REKEYS:
        assert told["new keys"] == "answered"
    else:
        assert told["new keys"] == "TLSV1_ALERT_INTERNAL_ERROR"
        assert "this kernel cannot change them" in log


@pytest.mark.skipif(chosen_kernel() == "6.1", reason="Linux knows TLS for RPC from 6.5 on (GUEST=6.12)")
def test_linux_writes_and_reads_files(server: GuestServer, authority: trustme.CA) -> None:
    """The client enciphers in its kernel as well, which is the same here."""
    guest, own = server.guest, authority.issue_cert("client.example.org")
    files = {"roots.pem": authority.cert_pem, "client.pem": own.cert_chain_pems[0], "client.key": own.private_key_pem}
    start_tlshd(guest)
    for name, blob in files.items():
        put(guest, name, blob)
    before = counter(server, "TlsTxSw")
    mount = f"mount -t nfs -o vers=4.2,proto=tcp,port={TCP_PORT},xprtsec=tls 127.0.0.1:/export /mnt/nfs"
    guest.run(f"mkdir -p /mnt/nfs && timeout 100 {mount}", timeout=120, label=mount)
    guest.run("head -c 9000001 /dev/urandom >/tmp/data && cp /tmp/data /mnt/nfs/ && umount /mnt/nfs", label="write")
    guest.run(f"cmp /tmp/data /export/data && {mount} && cmp /tmp/data /mnt/nfs/data && umount /mnt/nfs", label="read")
    assert counter(server, "TlsTxSw") >= before + 2, "both ends"
