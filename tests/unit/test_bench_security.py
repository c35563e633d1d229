"""The study of Kerberos and TLS: its loads are secured as they say, and its figures are shown as ratios."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from unittest import mock

import pytest

from bench.limits import signatures
from bench.running import Impossible
from bench.scenarios import prepare
from bench.security import ENCTYPES, SECURITIES, Secured, SecurityStudy, ciphers, ends, headers, of, site

ROWS = [
    {"on": "", "server": "", "call": "cipher", "krb5i": 600.0, "krb5p": 1200.0, "tls": 150.0, "openssl": 300.0}
    | dict(zip(ENCTYPES, (1.25, 1.0, 5.0, 4.0), strict=True)),
    {"on": "tmpfs", "server": "rdma-nfsd", "call": "getattr"}
    | {"sys": 2.0, "krb5": 5.0, "krb5i": 6.0, "krb5p": 8.0, "tls": 3.0},
    {
        "on": "tmpfs",
        "server": "ganesha",
        "call": "read-1m-4",
        "sys": 500.0,
        "krb5": 510.0,
        "krb5i": 1000.0,
        "krb5p": 1600.0,
    },
    {"on": "tmpfs", "server": "rdma-nfsd", "call": "read-1m-4 of 2", "krb5p": 1500.0, "krb5p /s": 1250.0},
    {"on": "tmpfs", "server": "rdma-nfsd", "call": "read-4k-32 of 16", "sys": 2.0, "krb5": 5.0},
]


def test_several_clients_are_at_work_at_a_time(tmp_path: Path) -> None:
    try:
        with site(tmp_path / "realm") as realm:
            server = Secured(tmp_path / "server", realm)
            try:
                files = asyncio.run(prepare(server))
                before = server.counters()
                for security in ("krb5p", "tls", "sys"):
                    found = of(server, files, "read-1m-4", security, 0.1, clients=3)
                    assert found["cpu_us"] > 0
                    assert found["calls_per_s"] > 0
                after = server.counters()
                made = 'rdma_nfsd_gss_events_total{event="established"}'
                assert after[made] - before[made] == 3
            finally:
                server.stop()
    except Impossible as reason:
        pytest.skip(str(reason))


def of_type(realm: Path, enctype: str) -> int:
    """Octets of a signature with keys of this type."""
    with mock.patch.dict(os.environ, json.loads((realm / enctype).read_text())):
        return signatures(*ends(realm), 1)


def test_each_kind_of_security_is_what_the_server_sees(tmp_path: Path) -> None:
    try:
        with site(tmp_path / "realm") as realm:
            assert ciphers(realm).keys() == {"krb5i", "krb5p", "tls", "openssl"}
            assert all(alone > 0 for alone in headers(realm).values())
            made = [of_type(realm, enctype) for enctype in ENCTYPES]
            assert made == [16 + 12, 16 + 12, 16 + 24, 16 + 16]  # octets: RFC 3962 section 6, RFC 8009 section 5
            assert signatures(*ends(realm), 1) == made[0]
            server = Secured(tmp_path / "server", realm)
            try:
                files = asyncio.run(prepare(server))
                for security in SECURITIES:
                    before = server.counters()
                    for call in ("getattr", "write-1m-4"):
                        assert of(server, files, call, security, 0.05)["cpu_us"] > 0
                    after = server.counters()
                    made = 'rdma_nfsd_gss_events_total{event="established"}'
                    assert after[made] - before[made] == (2 if security.startswith("krb5") else 0)
            finally:
                server.stop()
    except Impossible as reason:
        pytest.skip(str(reason))


def test_figures_are_shown_as_ratios() -> None:
    study = SecurityStudy()
    lines = study.table(ROWS, {})
    assert "| tmpfs | rdma-nfsd | getattr | 2.00 | 2.50 | 3.00 | 4.00 | 1.50 |" in lines
    assert "| tmpfs | ganesha | read-1m-4 | 500.00 | 1.02 | 2.00 | 3.20 | - |" in lines
    assert "| tmpfs | ganesha | krb5i | 1000 | 600 (signing) | 0.60 |" in lines
    assert "| tmpfs | getattr | 3.00 | 1.25 | 1.00 | 5.00 | 4.00 |" in lines
    assert "| tmpfs | krb5p | 2 | 1250 | 1500 | 0.80 | 1.50 |" in lines
    assert "| tmpfs | read-4k-32 | 16 | 2.00 | 2.50 |" in lines
    assert study.watched(ROWS, {}) == {
        "getattr with krb5 on tmpfs": 2.5,
        "getattr with krb5i on tmpfs": 3.0,
        "getattr with krb5p on tmpfs": 4.0,
        "getattr with tls on tmpfs": 1.5,
    }
