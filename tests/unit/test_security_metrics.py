"""Metrics of TLS, of Kerberos's calls, and of refusals: what really happened to real clients."""

from __future__ import annotations

import datetime
import ssl
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography import x509

from nfsd.client import NfsClientError
from rpcrdma.tls.counts import BOUNDS
from rpcrdma.tls.expiry import expiry_of
from tests.support import kdc
from tests.unit.tcp_support import until
from tests.unit.test_kerberos import Site, realm, run
from tests.unit.test_tls import at_once
from tests.unit.test_tls_trust import Demanding, list_of
from tests.unit.test_usage_metrics import METRICS, scrape

__all__ = ["realm"]


def expected(path: Path) -> float:
    """When a certificate expires, by another reading of it."""
    return x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc.timestamp()


def test_handshakes_connections_and_expiries_are_told(tmp_path: Path) -> None:
    rig = Demanding(tmp_path)
    rig.extra += METRICS
    (rig.export / "file").write_bytes(b"x")
    at_once(rig)
    rig.revoked.write_bytes(list_of(rig.authority, rig.bad))
    foreign = rig.own(trustme.CA(), "foreign.example.org")
    late = tmp_path / "late.pem"
    past = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    rig.authority.issue_cert("late.example.org", not_after=past).private_key_and_cert_chain_pem.write_to_path(str(late))

    async def test() -> None:
        for certificate in (rig.bad, foreign, str(late)):
            with pytest.raises((NfsClientError, OSError)):
                async with rig.connect(tls_certificate=certificate) as files:
                    await files.read_bytes("file")
        async with rig.connect(tls_certificate=rig.good) as files:
            assert await files.read_bytes("file") == b"x"
            found = await scrape(rig.daemon)
            assert found["rdma_nfsd_tls_connections"] == {("mtls",): len(rig.connections()), ("tls",): 0}
        results = found["rdma_nfsd_tls_handshakes_total"]
        assert [results[one,] for one in ("revoked", "untrusted", "expired")] == [1, 1, 1]
        assert results["done",] >= 1
        assert found["rdma_nfsd_tls_handshake_duration_seconds_count"][()] == results["done",]
        assert len(found["rdma_nfsd_tls_handshake_duration_seconds_bucket"]) == len(BOUNDS) + 1
        assert found["rdma_nfsd_tls_handshake_duration_seconds_sum"][()] > 0
        expiries = found["rdma_nfsd_tls_expiry_timestamp_seconds"]
        assert expiries["certificate",] == expected(tmp_path / "server.pem")
        assert expiries["client_roots",] == expected(rig.roots)
        listed = x509.load_pem_x509_crl(rig.revoked.read_bytes()).next_update_utc
        assert listed is not None
        assert expiries["revoked",] == listed.timestamp()
        await until(lambda: not rig.connections())
        assert (await scrape(rig.daemon))["rdma_nfsd_tls_connections"]["mtls",] == 0

    rig.run(test)


def test_a_client_without_a_certificate_and_one_that_goes_away(tmp_path: Path) -> None:
    rig = Demanding(tmp_path)
    rig.extra += METRICS

    async def test() -> None:
        with pytest.raises((NfsClientError, OSError)):
            async with rig.connect() as files:
                await files.read_bytes("file")
        found = await scrape(rig.daemon)
        assert found["rdma_nfsd_export_refusals_total"]["xprtsec",] >= 1
        assert found["rdma_nfsd_export_refusals_total"]["sec",] == 0

    rig.run(test)


@pytest.mark.parametrize("year", [2049, 2050, 2149])
def test_the_expiry_is_read_from_both_forms_of_time(year: int) -> None:
    """UTCTime and GeneralizedTime (RFC 5280 section 4.1.2.5), the first of several in a file."""
    end = datetime.datetime(year, 2, 3, 4, 5, 6, tzinfo=datetime.UTC)
    authority = trustme.CA()
    one = authority.issue_cert("one.example.org", not_after=end).cert_chain_pems[0].bytes()
    other = authority.issue_cert("b.example.org", not_after=end.replace(year=year + 1)).cert_chain_pems[0].bytes()
    assert expiry_of(one) == expiry_of(other + one) == end.timestamp()


@pytest.mark.parametrize("octets", [b"", b"none", b"\x30\x80", b"\x30\x03\x30\x05\x17"])
def test_what_is_no_certificate_never_expires(octets: bytes) -> None:
    pem = ssl.DER_cert_to_PEM_cert(octets).encode()
    assert expiry_of(pem) == expiry_of(octets) == float("inf")


@pytest.mark.parametrize("security", ["krb5", "krb5i", "krb5p"])
def test_calls_by_kerberos_are_counted_by_what_protects_them(tmp_path: Path, realm: kdc.Realm, security: str) -> None:
    async def test(site: Site) -> None:
        daemon: Any = site.server.daemon
        async with site.files("ann", security, 3, "tcp") as files:
            before = daemon.dispatchers["nfs"].secured.calls()
            calls = sum(row.calls for row in daemon.dispatchers["nfs"].rows.values())
            for _ in range(10):
                assert await files.read_bytes("file") == b"secret"
            after = daemon.dispatchers["nfs"].secured.calls()
            made = sum(row.calls for row in daemon.dispatchers["nfs"].rows.values()) - calls
        assert made >= 10
        assert {name: count - before[name] for name, count in after.items() if count != before[name]} == {
            security: made
        }

    run(tmp_path, realm, test)
