"""What the holder of a delegation changes itself: carried out natively, as if nobody had one."""

import pytest

from nfsd.protocol import nfs4 as p
from nfsd.v4 import attribute_errands, name_errands
from tests.support.delegations import BOTH, READ, delegated, prepared, with_two
from tests.support.directories import carried_out
from tests.support.nfs4 import mode
from tests.unit.test_v4_delegations import ANONYMOUS, CHANGES


@pytest.mark.parametrize("leases", [False, True])
@pytest.mark.parametrize("access", [READ, BOTH])
def test_the_holders_own_changes_go_the_short_way(tmp_path, monkeypatch, access, leases):
    """They are made natively, as if nobody had a delegation; others' wait for its return, and are errands."""
    errands = []

    def noted(module, name):
        real = getattr(module, name)

        def run(*args):
            errands.append(name)
            return real(*args)

        monkeypatch.setattr(module, name, run)

    for name in ("remove", "rename", "link"):
        noted(name_errands, name)
    noted(attribute_errands, "set_attributes")

    @prepared
    async def test(server, export, one, two):
        await delegated(one, access=access)
        found = (p.OP_PUTFH, p.PUTFH4args(one.handles[b"f"]))
        await one.run(*CHANGES["SETATTR mode"](one, found))
        await one.run(*CHANGES["LINK"](one, found))
        await one.run(*one.path("/0"), p.OP_SAVEFH, (p.OP_RENAME, p.RENAME4args(b"f", b"m")))
        await one.run(*one.path("/0"), (p.OP_REMOVE, p.REMOVE4args(b"n")))
        assert (errands, one.end.recalls, server.engine.delegations.count) == ([], 0, 1)
        assert (export / "m").stat().st_mode & 0o777 == 0o600
        await carried_out(two, found, (p.OP_SETATTR, p.SETATTR4args(ANONYMOUS, mode(0o666))))
        assert (set(errands), one.end.recalls) == ({"set_attributes"}, 1)

    with_two(tmp_path, 1, test, leases=leases)
