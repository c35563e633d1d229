"""What goes wrong with Kerberos at a site: keys that change, a KDC that is down, clocks, other realms; and what each of
them costs clients of a daemon."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import PIPE
from collections.abc import Iterator
from pathlib import Path

import pytest

from rpcrdma.gss.acceptor import Acceptor
from tests.support import kdc
from tests.unit.test_kerberos import Site, run

pytestmark = [
    pytest.mark.skipif(not kdc.PRESENT, reason=kdc.WITHOUT_KDC),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root acts as other users"),
]

_SKEW = 0x96C73A25
"""KRB5KRB_AP_ERR_SKEW of MIT's library."""


@pytest.fixture
def realm(tmp_path: Path) -> Iterator[kdc.Realm]:
    """A realm of the test's own: it is about to be spoilt."""
    with kdc.realm(tmp_path / "realm") as made:
        made.keytab("nfs/localhost")
        made.add("ann")
        with pytest.MonkeyPatch.context() as patch:
            for name, value in made.environment.items():
                patch.setenv(name, value)
            yield made


def acceptor_of(site: Site) -> Acceptor:
    acceptor = site.server.daemon._gss
    assert acceptor is not None
    return acceptor


def established(site: Site) -> int:
    return acceptor_of(site).events()["established"]


def forget_contexts(site: Site) -> None:
    """As when they have expired: clients must make others."""
    table = acceptor_of(site).table
    for context in table:
        table.remove(context)


@pytest.mark.parametrize("version", [3, 4])
def test_a_keytab_is_rotated_under_a_mount(tmp_path: Path, realm: kdc.Realm, version: int) -> None:
    """Contexts that there are go on; tickets of the old key are refused, and new ones taken, without a restart."""

    async def test(site: Site) -> None:
        site.cache("ann")
        async with site.files("ann", "krb5i", version) as files:
            assert await files.read_bytes("file") == b"secret"
            before = established(site)
            realm.rotate("nfs/localhost", realm.directory / "keytab")
            assert await files.read_bytes("file") == b"secret"
            assert established(site) == before
            # The cache has a ticket of the key that is gone.
            with pytest.raises(PermissionError):
                async with site.files("ann", "krb5i", version) as refused:
                    await refused.read_bytes("file")
            assert await files.read_bytes("file") == b"secret"
            site._caches.clear()
            async with site.files("ann", "krb5i", version) as again:
                assert await again.read_bytes("file") == b"secret"
            assert established(site) > before

    run(tmp_path, realm, test)


def test_a_keytab_keeps_old_keys_for_old_tickets(tmp_path: Path, realm: kdc.Realm) -> None:
    """What kadmin's ktadd does: the new key is added."""

    async def test(site: Site) -> None:
        site.cache("ann")
        async with site.files("ann") as files:
            assert await files.read_bytes("file") == b"secret"
            realm._admin(f"ktadd -k {realm.directory}/keytab nfs/localhost")
            forget_contexts(site)
            assert await files.read_bytes("file") == b"secret"
            site._caches.clear()
            async with site.files("ann") as again:
                assert await again.read_bytes("file") == b"secret"
            assert established(site) == 3

    run(tmp_path, realm, test)


def test_a_keytab_that_is_gone_for_a_while(tmp_path: Path, realm: kdc.Realm) -> None:
    keytab = realm.directory / "keytab"

    async def test(site: Site) -> None:
        async with site.files("ann") as files:
            keytab.rename(keytab.with_suffix(".away"))
            assert await files.read_bytes("file") == b"secret"
            with pytest.raises(PermissionError):
                async with site.files("ann") as refused:
                    await refused.read_bytes("file")
            keytab.with_suffix(".away").rename(keytab)
            async with site.files("ann") as again:
                assert await again.read_bytes("file") == b"secret"

    run(tmp_path, realm, test)


def test_the_kdc_is_down(tmp_path: Path, realm: kdc.Realm) -> None:
    """The server never asks it, so that clients with tickets go on, with new contexts too."""

    async def test(site: Site) -> None:
        async with site.files("ann") as files:
            assert await files.read_bytes("file") == b"secret"
            realm.stop()
            forget_contexts(site)
            assert await files.read_bytes("file") == b"secret"
            async with site.files("ann", "krb5p") as another:
                assert await another.read_bytes("file") == b"secret"
            assert established(site) == 3
            with pytest.raises(AssertionError, match="Cannot contact any KDC"):
                realm.ticket("ann")
            realm.start()
            site._caches.clear()
            async with site.files("ann") as again:
                assert await again.read_bytes("file") == b"secret"

    run(tmp_path, realm, test)


@pytest.mark.parametrize(("clock", "good"), [(0, True), (60, True), (-60, True), (900, False)])
def test_a_clock_that_differs(tmp_path: Path, realm: kdc.Realm, clock: int, good: bool) -> None:
    """A client whose clock is so many seconds ahead has a ticket, and makes a context with it."""

    async def test(site: Site) -> None:
        env = {**os.environ, "KRB5CCNAME": site.cache("ann")}
        realm.run("kvno", "nfs/localhost", env=env)
        program = "from rpcrdma.gss.mechanism import Initiation; print(Initiation('nfs@localhost').step(b'').hex())"
        made = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, env={**env, **(kdc.faked(clock) if clock else {})}, stdout=PIPE
        )
        token = bytes.fromhex((await made.communicate())[0].decode())
        told = await acceptor_of(site).make("192.0.2.1", b"", token)
        assert (told.context is not None) == good
        if not good:
            assert told.major == 13 << 16
            assert told.minor == _SKEW
        assert acceptor_of(site).events()["refused_token"] == (not good)

    run(tmp_path, realm, test)


def test_a_ticket_of_another_realm_is_none(tmp_path: Path, realm: kdc.Realm) -> None:
    """A realm of another site has a service of the same name: its tickets are not for our key."""
    with kdc.realm(tmp_path / "other", "OTHER.ORG") as other:
        other.keytab("nfs/localhost")
        other.add("ann")

        async def test(site: Site) -> None:
            site._caches["ann"] = other.ticket("ann")["KRB5CCNAME"]
            with pytest.MonkeyPatch.context() as patch:
                for name, value in other.environment.items():
                    patch.setenv(name, value)
                with pytest.raises(PermissionError):
                    async with site.files("ann") as files:
                        await files.read_bytes("file")
            assert established(site) == 0
            site._caches.clear()
            async with site.files("ann") as files:
                assert await files.read_bytes("file") == b"secret"

        run(tmp_path, realm, test)
