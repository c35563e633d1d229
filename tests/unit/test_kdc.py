"""The tests' own realm: tickets for its users, keytabs for its services, and clocks that differ."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import kdc

pytestmark = pytest.mark.skipif(not kdc.PRESENT, reason=kdc.WITHOUT_KDC)


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kdc.Realm]:
    with kdc.realm(tmp_path_factory.mktemp("realm")) as made:
        made.add("ann")
        yield made


def test_a_user_gets_a_ticket_for_a_service_by_password(realm: kdc.Realm) -> None:
    realm.keytab("nfs/localhost")
    cache = realm.ticket("ann")
    assert "nfs/localhost@EXAMPLE.ORG" in realm.run("kvno", "nfs/localhost", env=cache)


def test_a_ticket_lasts_no_longer_than_asked_for(realm: kdc.Realm) -> None:
    cache = realm.ticket("ann", life="1h")
    with pytest.raises(AssertionError, match="expired"):
        realm.run("kvno", "krbtgt/EXAMPLE.ORG", "nfs/localhost", env={**cache, **kdc.faked(2 * 3600)})


def test_the_keys_of_a_keytab_are_a_service_s(realm: kdc.Realm) -> None:
    keytab = realm.keytab("host/client.example.org", path=realm.directory / "client")
    cache = realm.ticket("host/client.example.org", keytab=keytab)
    assert "host/client.example.org@EXAMPLE.ORG" in realm.run("klist", env=cache)


def test_rotated_keys_replace_the_old_ones(realm: kdc.Realm, tmp_path: Path) -> None:
    old = realm.keytab("host/rotated", path=tmp_path / "old")
    new = realm.keytab("host/rotated", path=tmp_path / "new")
    realm.rotate("host/rotated", new)
    with pytest.raises(AssertionError, match=r"Preauthentication failed|Password incorrect"):
        realm.ticket("host/rotated", keytab=old)
    realm.ticket("host/rotated", keytab=new)


def test_a_clock_that_is_far_ahead_is_not_believed(realm: kdc.Realm) -> None:
    with pytest.raises(AssertionError, match="skew"):
        realm.ticket("ann", clock=3600)
    realm.ticket("ann", clock=60)


def test_without_its_kdc_a_realm_gives_no_tickets(tmp_path: Path) -> None:
    with kdc.realm(tmp_path, "ELSEWHERE.ORG") as other:
        other.add("ann")
        other.ticket("ann")
        other.stop()
        with pytest.raises(AssertionError, match="Cannot contact any KDC"):
            other.ticket("ann")
        other.start()
        other.ticket("ann")


def test_the_machine_s_own_settings_are_not_read(realm: kdc.Realm) -> None:
    out = subprocess.run(
        ["env", "-i", *(f"{k}={v}" for k, v in realm.environment.items()), "/usr/bin/klist"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert str(realm.directory) in out.stderr
