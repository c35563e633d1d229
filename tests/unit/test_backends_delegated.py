"""Delegations of files in stores: none where others change the same files and nobody would tell (docs/backends.md)."""

import pytest

from nfsd.exported import BackendChoice, Export
from nfsd.protocol import nfs4 as p
from tests.support.delegations import NONE, NONE_EXT, with_two
from tests.support.directories import asked
from tests.support.nfs4 import mode

ALONE, SHARED = ("memory", ""), ("python", "tests.unit.backend_plugins:Shared")
WANTED = p.OPEN4_SHARE_ACCESS_WANT_READ_DELEG


def with_store(tmp_path, minor, kind, test):
    store = Export(9, "", "/store", squash="none", backend=BackendChoice(*kind))
    with_two(tmp_path, minor, test, more=[store])


async def opened(client, name=b"f", want=0, **how):
    """What the second OPEN of a file gives, once its owner is known."""
    _, handle = await client.open("/store", name, create=mode(0o644), **how)
    args = client.open_args(name, access=p.OPEN4_SHARE_ACCESS_READ | want, **how)
    *_, found = await client.run(*client.path("/store"), (p.OP_OPEN, args))
    return found.resok4.delegation, handle


@pytest.mark.parametrize("minor", [0, 1, 2])
def test_a_file_that_others_change_is_not_delegated(tmp_path, minor):
    async def test(server, export, one, two):
        given, _ = await opened(one)
        assert given.delegation_type == NONE
        if minor:
            given, handle = await opened(one, want=WANTED)
            assert given.delegation_type == NONE_EXT
            assert given.od_whynone.ond_why == p.why_no_delegation4.WND4_NOT_SUPP_FTYPE
            claim = p.deleg_claim4(p.open_claim_type4.CLAIM_FH)
            [wanted] = await one.on(handle, (p.OP_WANT_DELEGATION, p.WANT_DELEGATION4args(WANTED, claim)))
            assert wanted.wdr_resok4.od_whynone.ond_why == p.why_no_delegation4.WND4_NOT_SUPP_FTYPE
            answer = await asked(one, "/store")
            assert answer.gddrnf_status == p.gddrnf4_status.GDD4_UNAVAIL
        assert server.engine.delegations.count == 0

    with_store(tmp_path, minor, SHARED, test)


@pytest.mark.parametrize("minor", [0, 1, 2])
def test_a_file_that_only_this_server_changes_is_delegated(tmp_path, minor):
    async def test(server, export, one, two):
        await opened(one)
        assert server.engine.delegations.count == 1
        if minor:
            answer = await asked(one, "/store")
            assert answer.gddrnf_status == p.gddrnf4_status.GDD4_OK

    with_store(tmp_path, minor, ALONE, test)


@pytest.mark.parametrize("kind", [ALONE, SHARED])
@pytest.mark.parametrize("minor", [0, 1])
def test_names_are_looked_at_where_their_files_may_be_delegated(tmp_path, monkeypatch, minor, kind):
    """Before one is removed, also while nothing is delegated yet; in a store that others change that is of no use."""

    async def test(server, export, one, two):
        making = p.CREATE4args(p.createtype4(p.nfs_ftype4.NF4DIR), b"f", mode(0o755))
        await one.run(*one.path("/store"), (p.OP_CREATE, making))
        looked_up, lookup = [], server.service.lookup

        async def noting(credential, directory, name):
            looked_up.append(name)
            return await lookup(credential, directory, name)

        monkeypatch.setattr(server.service, "lookup", noting)
        await two.run(*two.path("/store"), (p.OP_REMOVE, p.REMOVE4args(b"f")))
        assert (b"f" in looked_up) == (kind == ALONE)

    with_store(tmp_path, minor, kind, test)
