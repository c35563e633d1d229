"""Entries of ``clients`` for clients by the names in their certificates."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from nfsd.client import NfsClientError
from nfsd.config_file import ConfigError, load
from nfsd.exports import ClientOverride, Export, ExportTable
from nfsd.matching import certificate_problem
from rpcrdma.tls.certificates import peer_of
from tests.unit.test_tls import Secured, at_once


def table_of(*entries: str) -> tuple[Export, ExportTable]:
    """An export whose n-th entry makes its clients user n."""
    overrides = tuple(ClientOverride(host, anonuid=number) for number, host in enumerate(entries))
    export = Export(7, "/srv", "/srv", clients=entries, overrides=overrides)
    return export, ExportTable((export,))


def which(entries: tuple[str, ...], peer: str) -> str | None:
    """The entry that counts."""
    export, table = table_of(*entries)
    access = table.access(export, peer)
    return None if access is None else entries[access.anonuid]


@pytest.mark.parametrize(
    ("entry", "name", "matches"),
    [
        ("cert:dns:laptop.example.org", "dns:laptop.example.org", True),
        ("cert:dns:laptop.example.org", "dns:LAPTOP.Example.org", True),
        ("cert:dns:laptop.example.org", "dns:laptop.example.org.evil.net", False),
        ("cert:dns:laptop.example.org", "email:laptop.example.org", False),
        ("cert:dns:*.example.org", "dns:laptop.example.org", True),
        ("cert:dns:*.example.org", "dns:a.b.example.org", False),
        ("cert:dns:*.example.org", "dns:example.org", False),
        ("cert:dns:*.example.org", "dns:.example.org", False),
        ("cert:dns:*.example.org", "uri:x.example.org", False),
        ("cert:ip:2001:db8::1", "ip:2001:DB8:0:0:0:0:0:1", True),
        ("cert:ip:192.0.2.1", "ip:192.0.2.10", False),
        ("cert:uri:spiffe://example.org/nfs/one", "uri:spiffe://example.org/nfs/one", True),
        ("cert:uri:spiffe://example.org/nfs/one", "uri:spiffe://example.org/nfs/ONE", False),
        ("cert:email:ann@example.org", "email:Ann@example.org", True),
        ("cert:*", "uri:urn:any", True),
    ],
)
def test_names_in_certificates(entry: str, name: str, matches: bool) -> None:
    assert not certificate_problem(entry)
    assert which((entry,), f"192.0.2.1 uri:urn:first {name}") == (entry if matches or entry == "cert:*" else None)
    assert which((entry,), "192.0.2.1") is None


def test_a_certificate_counts_before_an_address() -> None:
    entries = ("*", "cert:*", "192.0.2.0/24", "192.0.2.1", "cert:dns:*.example.org", "cert:dns:a.example.org")
    for number in range(len(entries), 0, -1):
        assert which(entries[:number], "192.0.2.1 dns:a.example.org") == entries[number - 1]
    assert which(entries, "192.0.2.1") == "192.0.2.1"
    assert which(entries, "198.51.100.1") == "*"


@pytest.mark.parametrize(
    "entry", ["cert:", "cert:dns:", "cert:dns:*", "cert:dns:a*.example.org", "cert:dns:*.*.org", "cert:dns:a b",
              "cert:ip:10.0.0.0/8", "cert:host", "cert:email:ann", "cert:uri:", "cert:uri:a b:c", "cert:email:*@x"],
)  # fmt: skip
def test_what_is_no_entry(entry: str) -> None:
    assert certificate_problem(entry)


class Shown:
    """The end of a handshake with a certificate."""

    def __init__(self, *names: tuple[str, str]) -> None:
        self._shown = {"subject": ((("commonName", "x"),),), "subjectAltName": names, "serialNumber": "01"}

    context = None

    def cipher(self) -> tuple[str]:
        return ("a cipher",)

    def getpeercert(self) -> dict[str, Any]:
        return self._shown


def test_a_name_cannot_be_read_as_two() -> None:
    """Whoever has a certificate made with a space in a name has not all the names that it could be split into."""
    names = [
        ("URI", "urn:x dns:root.example.org"), ("DNS", "*.example.org"), ("DNS", "a\0b"), ("email", "x\ty@z"),
        ("DirName", "x"), ("DNS", "n" * 513), ("DNS", ""), ("IP Address", "192.0.2.7"),
    ]  # fmt: skip
    assert peer_of(cast(Any, Shown(*names))).names == ("ip:192.0.2.7",)
    assert len(peer_of(cast(Any, Shown(*(("DNS", f"h{number}") for number in range(100))))).names) == 32


def test_the_configuration_says_what_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    file = tmp_path / "exports.yaml"

    def problems(tls: str, entry: str) -> str:
        file.write_text(
            f"server:\n  listen: [tcp://127.0.0.1:0]\n{tls}exports:\n  - {{path: data, clients: [{entry}]}}\n"
        )
        try:
            load(str(file))
        except ConfigError as error:
            return str(error)
        return ""

    roots = "  tls: {certificate: a, key: b, client_roots: c}\n"
    assert "set server.tls.client_roots" in problems("", "'cert:dns:a'")
    assert "set server.tls.client_roots" in problems("  tls: {certificate: a, key: b}\n", "'cert:dns:a'")
    assert problems(roots, "'cert:dns:a'") == ""
    assert "is no name in certificates; write for example cert:dns:" in problems(roots, "'cert:dns:*'")
    assert "can have no rate and no weight" in problems(roots, "{host: 'cert:dns:a', weight: 2}")


@pytest.mark.parametrize("version", ["3", "4.1"])
def test_a_client_is_let_in_by_its_certificate_wherever_it_is(
    tmp_path: Path, version: str, caplog: pytest.LogCaptureFixture
) -> None:
    clients = ", clients: ['cert:dns:laptop.example.org', {host: 'cert:dns:*.guests.example.org', access: ro}]"
    rig = Secured(tmp_path, version, clients, mtls=True)
    (rig.export / "file").write_bytes(b"x")
    own = rig.own(rig.authority, "laptop.example.org")
    guest = rig.own(rig.authority, "one.guests.example.org")
    other = rig.own(rig.authority, "desktop.example.org")
    at_once(rig)

    async def test() -> None:
        async with rig.connect(tls_certificate=own) as files:
            assert await files.read_bytes("file") == b"x"
            await files.write_bytes("new", b"y")
        async with rig.connect(tls_certificate=guest) as files:
            assert await files.read_bytes("new") == b"y"
            with pytest.raises(OSError, match="Read-only"):
                await files.write_bytes("newer", b"z")
        for shown in (other, None):
            with pytest.raises((PermissionError, FileNotFoundError, NfsClientError)):
                async with rig.connect(tls_certificate=shown) as files:
                    await files.read_bytes("file")
        async with rig.connect(tls_certificate=own) as files:  # those who were refused have changed nothing for it
            await files.write_bytes("new", b"again")

    with caplog.at_level("INFO"):
        rig.run(test)
    assert "as dns:laptop.example.org" in caplog.text
    assert not (rig.export / "newer").exists()


def test_addresses_are_what_they_were() -> None:
    assert which(("192.0.2.0/24",), "::ffff:192.0.2.1 dns:a") == "192.0.2.0/24"


def test_mnt_tells_the_flavors_of_clients_with_certificates() -> None:
    """MNT itself comes without one, and a client that is told of no flavor does not mount."""
    export, table = table_of("cert:dns:a.example.org", "192.0.2.1")
    assert table.mountable(export, "198.51.100.1")
    assert table.mount_ways(export, "198.51.100.1") == table.ways(export, "192.0.2.1") != ()
    assert table.ways(export, "198.51.100.1") == ()
    assert not table.visible(export, "198.51.100.1")
    closed, other = table_of("192.0.2.1")
    assert not other.mountable(closed, "198.51.100.1")
