"""Kerberos from the configuration to files: a real KDC, a daemon with a keytab, and our own client with tickets."""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nfsd.client import Options, connect
from nfsd.client.url import parse
from nfsd.config_file import ConfigError, load
from nfsd.config_file import parse as parse_file
from nfsd.findings import examine
from nfsd.protocol import nfs4 as p
from rpcrdma.client import ClientOptions, Gss
from tests.support import kdc, served
from tests.support.served import Served

pytestmark = [
    pytest.mark.skipif(not kdc.PRESENT, reason=kdc.WITHOUT_KDC),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root acts as other users"),
]
SECURITIES = ("krb5", "krb5i", "krb5p")
ANN, BOB = pwd.getpwnam("daemon"), pwd.getpwnam("bin")
RULES = "{ann@EXAMPLE.ORG: daemon, bob@EXAMPLE.ORG: bin, 'host/*@EXAMPLE.ORG': root, admin@EXAMPLE.ORG: root}"


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kdc.Realm]:
    with kdc.realm(tmp_path_factory.mktemp("realm")) as made:
        made.keytab("nfs/localhost")
        for name in ("ann", "bob", "admin", "stranger"):
            made.add(name)
        with pytest.MonkeyPatch.context() as patch:
            for name, value in made.environment.items():
                patch.setenv(name, value)
            yield made


class Site:
    """A daemon that serves ``/strong`` as ``sec`` says, and ``/open`` to all."""

    def __init__(self, realm: kdc.Realm, server: Served, directory: Path) -> None:
        self.realm, self.server, self.directory = realm, server, directory
        self._caches: dict[str, str] = {}

    def cache(self, name: str) -> str:
        if name not in self._caches:
            keytab = self.realm.keytab(name, path=self.directory / "client") if "/" in name else None
            self._caches[name] = self.realm.ticket(name, keytab=keytab)["KRB5CCNAME"]
        return self._caches[name]

    def files(self, name: str | None, security: Any = "krb5", version: Any = 4, transport: str = "tcp") -> Any:
        """The export, as a principal; None: by AUTH_SYS."""
        gss = None if name is None else Gss(security, "nfs@localhost", self.cache(name))
        options = Options(
            nfs_version={3: "3", 4: "4.1"}.get(version, version), patience=1,
            mount_port=self.server.port("mountd"), rpc=ClientOptions(gss=gss),
        )  # fmt: skip
        port = self.server.port("nfs", transport)
        return connect(parse(f"{transport}://127.0.0.1:{port}/strong"), options)


def run(tmp_path: Path, realm: kdc.Realm, test: Any, sec: str = "[krb5p, krb5i, krb5]", more: str = "") -> None:
    for name in ("strong", "open"):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(0o777)
    (tmp_path / "strong/file").write_bytes(b"secret")
    (tmp_path / "strong/file").chmod(0o666)
    exports = (
        f"  - {{path: strong, pseudo: /strong, sec: {sec}{more}}}\n  - {{path: open, pseudo: /open, squash: none}}\n"
    )
    kerberos = f"  kerberos:\n    keytab: {realm.directory}/keytab\n    users: {RULES}\n"
    for above in tmp_path.parents[:3]:
        if above.stat().st_uid == os.getuid() and above != Path("/tmp"):
            above.chmod(above.stat().st_mode | stat.S_IXOTH)

    async def whole(server: Served) -> None:
        await test(Site(realm, server, tmp_path))

    served.run(tmp_path, exports, whole, kerberos + "  nlm: false\n", transports=("tcp", "rdma"))


@pytest.mark.parametrize("transport", ["tcp", "rdma"])
@pytest.mark.parametrize("version", [3, 4])
@pytest.mark.parametrize("security", SECURITIES)
def test_files_are_their_principals(
    tmp_path: Path, realm: kdc.Realm, security: str, version: int, transport: str
) -> None:
    data = os.urandom(3 << 20)

    async def test(site: Site) -> None:
        async with site.files("ann", security, version, transport) as ann:
            await ann.write_bytes("mine", data)
            assert await ann.read_bytes("mine") == data
            await ann.chmod("mine", 0o600)
        async with site.files("bob", security, version, transport) as bob:
            with pytest.raises(PermissionError):
                await bob.read_bytes("mine")
            await bob.write_bytes("other", b"bob's")
        found = (tmp_path / "strong/mine").stat()
        assert (found.st_uid, found.st_gid) == (ANN.pw_uid, ANN.pw_gid)
        assert (tmp_path / "strong/mine").read_bytes() == data
        assert (tmp_path / "strong/other").stat().st_uid == BOB.pw_uid

    run(tmp_path, realm, test)


@pytest.mark.parametrize("transport", ["tcp", "rdma"])
@pytest.mark.parametrize("version", [3, 4])
def test_no_weaker_call_gets_through(tmp_path: Path, realm: kdc.Realm, version: int, transport: str) -> None:
    """The same files, hot from calls that are let to them: by AUTH_SYS, and by Kerberos without privacy."""

    async def test(site: Site) -> None:
        async with site.files("ann", "krb5p", version, transport) as ann:
            for _ in range(5):
                assert await ann.read_bytes("file") == b"secret"
            for name, security in ((None, ""), ("ann", "krb5"), ("ann", "krb5i")):
                with pytest.raises(PermissionError):
                    async with site.files(name, security, version, transport) as weak:
                        await weak.read_bytes("file")
            assert await ann.read_bytes("file") == b"secret"

    run(tmp_path, realm, test, "[krb5p]")


@pytest.mark.parametrize("version", [3, 4])
@pytest.mark.parametrize(
    ("principal", "squash", "uid"),
    [
        ("stranger", "none", 65534),  # no user of this system
        ("host/client.example.org", "none", 0),  # by rule
        ("host/client.example.org", "root", 65534),
        ("nfs/client.example.org", "none", 65534),  # without one
        ("admin", "none", 0),
        ("admin", "root", 65534),
        ("ann", "root", ANN.pw_uid),
        ("ann", "all", 65534),
    ],
)
def test_as_whom_principals_act(
    tmp_path: Path, realm: kdc.Realm, principal: str, squash: str, uid: int, version: int
) -> None:
    async def test(site: Site) -> None:
        async with site.files(principal, version=version) as files:
            await files.write_bytes("mine", b"x")
        assert (tmp_path / "strong/mine").stat().st_uid == uid

    run(tmp_path, realm, test, more=f", squash: {squash}")


@pytest.mark.parametrize("version", [3, 4])
def test_a_reload_that_demands_more_holds_for_contexts_that_are_there(
    tmp_path: Path, realm: kdc.Realm, version: int
) -> None:
    async def test(site: Site) -> None:
        async with site.files("ann", "krb5", version) as ann, site.files("ann", "krb5p", version) as private:
            for one in (ann, private):
                assert await one.read_bytes("file") == b"secret"
            await site.server.reload("sec: [krb5, krb5p]", "sec: [krb5p]")
            with pytest.raises(PermissionError):
                await ann.read_bytes("file")
            assert await private.read_bytes("file") == b"secret"

    run(tmp_path, realm, test, "[krb5, krb5p]")


def test_secinfo_names_the_mechanism_and_the_services(tmp_path: Path, realm: kdc.Realm) -> None:
    async def test(site: Site) -> None:
        client = await site.server.nfs4(1)
        asking = (p.OP_SECINFO, p.SECINFO4args(b"strong"))
        *_, found = await client.run(p.OP_PUTROOTFH, asking)
        assert [(one.flavor, one.flavor_info and int(one.flavor_info.service)) for one in found.resok4] == [
            (6, 3), (6, 2), (6, 1), (1, None),
        ]  # fmt: skip
        assert {one.flavor_info.oid.hex() for one in found.resok4[:3]} == {"2a864886f712010202"}
        assert {one.flavor_info.qop for one in found.resok4[:3]} == {0}

    run(tmp_path, realm, test, "[sys, krb5, krb5i, krb5p]")


# -- the configuration and the check
def problems(kerberos: str, sec: str = "[krb5]") -> str:
    text = f"server: {{listen: ['tcp://127.0.0.1:0']{kerberos}}}\nexports:\n  - {{path: /srv, sec: {sec}}}\n"
    with pytest.raises(ConfigError) as error:
        parse_file(text, "/nowhere/exports.yaml")
    return str(error.value)


def test_mistakes_are_told_with_their_line_and_the_remedy() -> None:
    assert "exports.yaml:3: exports[0].sec: names krb5, which takes a keytab; set server.kerberos" in problems("")
    assert "server.kerberos.principal: 'host/a' is not" in problems(", kerberos: {principal: host/a}")
    assert "server.kerberos.keytabs: unknown key; did you mean 'keytab'?" in problems(", kerberos: {keytabs: /a}")
    assert "server.kerberos.users.ann" in problems(", kerberos: {users: {ann: daemon}}")
    assert "server.kerberos.realms[0]" in problems(", kerberos: {realms: ['a@b']}")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("keytab: none", "none: no such file or directory; it must be there"),
        ("keytab: exports.yaml", "is no keytab; make one with kadmin's ktadd"),
        ("keytab: hosts", "has no key of nfs/HOST; add one with kadmin: ktadd -k "),
        ("keytab: good, principal: nfs/elsewhere", "has no key of nfs/elsewhere; add one"),
        ("keytab: good, principal: nfs/localhost", ""),
        ("keytab: good, principal: nfs/localhost@EXAMPLE.ORG", ""),
        ("keytab: good", ""),
    ],
)
def test_check_looks_into_the_keytab(tmp_path: Path, realm: kdc.Realm, settings: str, message: str) -> None:
    realm.keytab("nfs/localhost", path=tmp_path / "good")
    realm.keytab("host/localhost", path=tmp_path / "hosts")
    (tmp_path / "export").mkdir()
    file = tmp_path / "exports.yaml"
    file.write_text(
        f"server:\n  listen: ['tcp://127.0.0.1:0']\n  mountd_port: 0\n  kerberos: {{{settings}}}\n"
        "exports:\n  - {path: export, sec: [krb5]}\n"
    )
    found = [str(one) for one in examine(load(str(file))) if one.key.startswith("server.kerberos")]
    assert len(found) == bool(message)
    if message:
        assert message in found[0]
        assert found[0].startswith(f"{file}:4: server.kerberos.keytab: ")
