"""Kerberos with Linux's client: MIT's KDC on the host's side of the network, rpc.gssd in the guest. One boot."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import kdc
from tests.vm.guest import Guest, Result
from tests.vm.kerberos_client import HOST, KDC_PORT, join
from tests.vm.mounts import VERSIONS, complaints, load_siw, umount
from tests.vm.network import Network
from tests.vm.server import MOUNTD_PORT, RDMA_PORT, TCP_PORT, Server

pytestmark = [
    pytest.mark.skipif(not kdc.PRESENT, reason=kdc.WITHOUT_KDC),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root acts as other users"),
]

POINT = "/mnt/nfs"
SECURITIES = ("krb5", "krb5i", "krb5p")
ANN, BOB, NOBODY = 1, 2, 65534
"""Debian's ``daemon`` and ``bin``, who are ann and bob of the realm; and who the server takes for nobody."""
TICKETLESS = 3
EXPIRING = 4
"""``sync``, who is carol."""
USERS = {"ann@EXAMPLE.ORG": "daemon", "bob@EXAMPLE.ORG": "bin", "carol@EXAMPLE.ORG": "sync"}


class Site:
    """A realm, a server that has a key of it, and a client that has another and knows three users."""

    def __init__(self, directory: Path, network: Network, guest: Guest, realm: kdc.Realm) -> None:
        self.guest, self.realm = guest, realm
        keytab = realm.keytab(f"nfs/{HOST}", path=directory / "server.keytab")
        self.server = Server(
            directory / "server",
            network,
            server={"kerberos": {"keytab": str(keytab), "principal": f"nfs/{HOST}", "users": USERS}},
            export={"sec": list(reversed(SECURITIES)), "squash": "root"},
        )
        self.server.export.chmod(0o777)
        for name in ("ann", "bob", "carol"):
            realm.add(name)

    def login(self, uid: int, name: str, life: str = "1h") -> None:
        """Get a user a ticket."""
        self.act(uid, f"kinit -l {life} {name} <<<{kdc.PASSWORD}")

    def act(self, uid: int, script: str, *, check: bool = True, timeout: float = 120) -> Result:
        """Do something as a user."""
        whole = f"exec setpriv --reuid {uid} --regid {uid} --clear-groups bash -e <<'USER'\n{script}\nUSER\n"
        return self.guest.run(whole, timeout=timeout, check=check, label=f"as {uid}: {script[:80]}")

    def denied(self, uid: int, script: str) -> None:
        """Try to do something that a user must not."""
        done = self.act(uid, script, check=False)
        assert done.rc != 0
        assert "Permission denied" in done.output

    def mount(self, version: str, security: str, transport: str, *, check: bool = True) -> Result:
        """Mount by the server's name, as root of the client, who has its key."""
        port = RDMA_PORT if transport == "rdma" else TCP_PORT
        options = f"sec={security},proto={transport},port={port},vers={version},retry=0"
        if version == "3":
            options += f",nolock,mountproto=tcp,mountport={MOUNTD_PORT},mountvers=3"
        command = f"mount -t nfs -o {options} {HOST}:/export {POINT}"
        done = self.guest.run(f"timeout 100 {command}", timeout=120, check=check, label=command)
        if done.rc == 0:
            shown = self.guest.run(f"grep ' {POINT} ' /proc/mounts").output
            for option in (f"vers={version}", f"sec={security},", f"proto={transport},"):
                assert option in shown
        return done

    def owner(self, name: str) -> int:
        """Whose a file is on the server's side."""
        return (self.server.export / name).stat().st_uid


@pytest.fixture(scope="module")
def site(network: Network, directory: Path) -> Iterator[Site]:
    realm = kdc.realm(directory / "realm", host=network.listen_address, port=KDC_PORT, enter=network.enter)
    with realm as found, pytest.MonkeyPatch.context() as patch:
        for name, value in found.environment.items():
            patch.setenv(name, value)
        with Guest("client", network, time_limit=1500) as guest:
            made = Site(directory, network, guest, found)
            join(guest, found, made.server.address)
            guest.run(f"mkdir -p {POINT}")
            made.login(ANN, "ann")
            made.login(BOB, "bob")
            load_siw(guest)
            guest.run("head -c 3000001 /dev/urandom >/tmp/data; chmod 644 /tmp/data", label="data")
            with made.server:
                try:
                    yield made
                finally:
                    if guest.alive():
                        print(guest.run("tail -n 200 /tmp/gssd", check=False).output)


@pytest.fixture(autouse=True)
def all_is_well(site: Site) -> Iterator[None]:
    """Every test leaves no mount and no complaint behind."""
    yield
    site.guest.run(f"! mountpoint -q {POINT} || umount -f {POINT} || umount -l {POINT}")
    site.server.assert_running()
    assert complaints(site.guest) == []


SHORT = {("4.2", "tcp", "krb5"), ("4.2", "rdma", "krb5p"), ("4.0", "tcp", "krb5i"), ("3", "rdma", "krb5")}
"""What every run of the tests has; ``make test-kerberos`` has all."""
CELLS = [
    pytest.param(
        version, transport, security, marks=[] if (version, transport, security) in SHORT else [pytest.mark.matrix]
    )
    for version, transport, security in itertools.product(VERSIONS[::-1], ("tcp", "rdma"), SECURITIES)
]


@pytest.mark.parametrize(("version", "transport", "security"), CELLS)
def test_files_are_their_users(site: Site, version: str, transport: str, security: str) -> None:
    name = f"{version}-{transport}-{security}"
    mine, others = f"{POINT}/{name}-ann", f"{POINT}/{name}-bob"
    site.mount(version, security, transport)
    site.act(ANN, f"cp /tmp/data {mine}; chmod 600 {mine}; mkdir {mine}.d; mv {mine} {mine}.d/data; ls -ln {mine}.d")
    site.act(BOB, f"echo bob >{others}; cat {others}; chmod 644 {others}")
    site.denied(BOB, f"cat {mine}.d/data")
    site.denied(TICKETLESS, f"cat {others}")
    site.denied(TICKETLESS, f"echo x >{POINT}/{name}-none")
    site.guest.run(f"echo root >{POINT}/{name}-root", label="as the machine")
    umount(site.guest)
    # Again, with nothing of it left in the client's caches.
    site.mount(version, security, transport)
    site.act(ANN, f"cmp /tmp/data {mine}.d/data; rm {mine}.d/data; cp /tmp/data {mine}.d/data; cat {others}")
    shown = site.act(ANN, f"stat -c %u {mine}.d/data {others} {POINT}/{name}-root").output.split()
    umount(site.guest)
    owners = [ANN, BOB, NOBODY]
    assert [int(word) for word in shown] == owners
    assert [site.owner(f"{name}-{end}") for end in ("ann.d/data", "bob", "root")] == owners
    assert (site.server.export / f"{name}-ann.d/data").stat().st_size == 3000001


@pytest.mark.parametrize(
    ("transport", "security"), [("tcp", "krb5p"), pytest.param("rdma", "krb5i", marks=pytest.mark.long)]
)
def test_a_restarted_server_is_gone_on_with(site: Site, transport: str, security: str) -> None:
    """The client's contexts are gone with the server: it is told so, and makes new ones by itself."""
    name = f"restarted-{transport}"
    site.mount("4.2", security, transport)
    held = site.guest.start(
        f"exec setpriv --reuid {ANN} --regid {ANN} --clear-groups bash -e <<'USER'\n"
        f"exec 5>{POINT}/{name}; umask 077; echo before >&5; sync {POINT}/{name}; echo written\n"
        f"until test -e /tmp/restarted; do sleep 0.2; done\n"
        f"echo after >&5; exec 5>&-; cat {POINT}/{name}\nUSER\n",
        timeout=300,
        label="a file held open",
    )
    held.wait_for("written\n")
    site.server.kill()
    site.server.start()
    site.guest.run("touch /tmp/restarted", label="restarted")
    assert held.wait().output.split() == ["written", "before", "after"]
    site.guest.run("rm /tmp/restarted")
    assert (site.server.export / name).read_text() == "before\nafter\n"
    assert site.owner(name) == ANN
    site.denied(TICKETLESS, f"echo x >{POINT}/{name}-none")
    umount(site.guest)


@pytest.mark.long
def test_who_has_no_ticket_any_more_is_kept_out_until_there_is_one(site: Site) -> None:
    """The context ends with the ticket, which was good for some seconds; a new one makes a new context."""
    site.mount("4.2", "krb5", "tcp")
    life = 40
    site.login(EXPIRING, "carol", f"{life}s")
    got = time.monotonic()
    site.act(EXPIRING, f"echo before >{POINT}/expired; cat {POINT}/expired")
    time.sleep(max(0.0, got + life + 5 - time.monotonic()))
    done = site.act(EXPIRING, f"timeout -s KILL 60 bash -c 'echo during >>{POINT}/expired'", check=False)
    assert "Key has expired" in done.output
    assert (site.server.export / "expired").read_text() == "before\n"
    site.login(EXPIRING, "carol")
    site.act(EXPIRING, f"echo after >>{POINT}/expired; cat {POINT}/expired")
    assert (site.server.export / "expired").read_text() == "before\nafter\n"
    assert site.owner("expired") == EXPIRING
    umount(site.guest)
