"""Kerberos with Linux's client: MIT's KDC on the host's side of the network, rpc.gssd in the guest. One boot."""

from __future__ import annotations

import itertools
import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import kdc
from tests.vm.build import REPO
from tests.vm.file_shell import FileShell
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
TRANSPORTS = ("tcp", "rdma")
ANN, BOB, NOBODY = 1, 2, 65534
"""Debian's ``daemon`` and ``bin``, who are ann and bob of the realm; and who the server takes for nobody."""
TICKETLESS = 3
EXPIRING = 4
"""``sync``, who is carol."""
LIFE = 25
"""Seconds that a ticket of hers is good for, where it is to end."""
FIO = """\
cd {directory} && exec setpriv --reuid {uid} --regid {uid} --clear-groups fio --name=verified --rw=randrw --bs=64k \
    --size=2m --numjobs=2 --ioengine=libaio --iodepth=4 --direct=1 --end_fsync=1 --verify=crc32c --verify_fatal=1 \
    --verify_state_save=0 --loops=2
"""
FIO_FILES = ("verified.0.0", "verified.1.0")
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

    def login(self, uid: int, name: str, life: str = "8h") -> None:
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
        with Guest("client", network, time_limit=4000) as guest:
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


MARKS = {
    ("4.2", "rdma", "krb5p"): [],
    ("4.0", "tcp", "krb5i"): [],
    ("4.2", "tcp", "krb5"): [pytest.mark.long],
    ("3", "rdma", "krb5"): [pytest.mark.long],
}
"""What every run of the tests has, and what ``make test-long`` has besides; ``make test-kerberos`` has all."""
CELLS = [
    pytest.param(*cell, marks=MARKS.get(cell, [pytest.mark.matrix]))
    for cell in itertools.product(VERSIONS[::-1], TRANSPORTS, SECURITIES)
]
LONG_CELLS = [
    pytest.param(*cell.values, marks=pytest.mark.long if cell.values == ("4.2", "tcp", "krb5") else pytest.mark.matrix)
    for cell in CELLS
]
DOCUMENT = REPO / "docs" / "kerberos.md"
BEGIN, END = "<!-- matrix of kerberos -->\n", "<!-- end of the matrix -->"
Passed = defaultdict[tuple[str, str, str], list[str]]


@pytest.fixture(scope="module")
def passed(site: Site) -> Iterator[Passed]:
    """What has passed, by cell; ``make test-kerberos`` puts it into the table of docs/kerberos.md."""
    found: Passed = defaultdict(list)
    yield found
    if os.environ.get("RDMA_NFSD_WRITE_TABLE"):
        lines = [
            f"| {version} | {transport.upper()} | "
            + " | ".join(", ".join(found[version, transport, security]) or "-" for security in SECURITIES)
            + " |\n"
            for version, transport in itertools.product(VERSIONS, TRANSPORTS)
        ]
        head = f"| NFS | Transport | {' | '.join(SECURITIES)} |\n|---|---|{'---|' * len(SECURITIES)}\n"
        before, rest = DOCUMENT.read_text().split(BEGIN)
        DOCUMENT.write_text(before + BEGIN + head + "".join(lines) + END + rest.split(END, 1)[1])


@pytest.mark.parametrize(("version", "transport", "security"), CELLS)
def test_files_are_their_users(site: Site, passed: Passed, version: str, transport: str, security: str) -> None:
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
    passed[version, transport, security] += ["files", "users"]


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


@pytest.mark.parametrize(("version", "transport", "security"), LONG_CELLS)
def test_a_ticket_ends_in_the_middle_of_io(
    site: Site, passed: Passed, version: str, transport: str, security: str
) -> None:
    """A user writes line by line through one open file, until the client has no ticket of hers any more; with another
    one she writes on where she was. Meanwhile somebody else's data is verified, whose ticket is good for longer."""
    name = f"{version}-{transport}-{security}"
    site.mount(version, security, transport)
    site.act(ANN, f"mkdir {POINT}/{name}-fio")
    carol = FileShell(site.guest, uid=EXPIRING)
    site.login(EXPIRING, "carol", f"{LIFE}s")
    carol.must(f"open file {POINT}/{name}-carol rw creat")
    fio = site.guest.start(FIO.format(uid=ANN, directory=f"{POINT}/{name}-fio"), timeout=240, label="fio")
    count = 0
    while (answer := carol.do(f"write file {count * 5} {count:04},", timeout=200)) == "ok":
        count += 1
    assert count > 0
    assert answer in ("error EKEYEXPIRED", "error EACCES")  # the second where the client knows before it calls
    site.login(EXPIRING, "carol")
    carol.must(f"write file {count * 5} {count:04},", f"write file {count * 5 + 5} {count + 1:04},", "close file")
    carol.end()
    fio.wait()
    umount(site.guest)
    written = "".join(f"{number:04}," for number in range(count + 2))
    assert (site.server.export / f"{name}-carol").read_text() == written
    assert site.owner(f"{name}-carol") == EXPIRING
    assert [site.owner(f"{name}-fio/{file}") for file in FIO_FILES] == [ANN] * len(FIO_FILES)
    passed[version, transport, security] += ["fio", "ticket"]
