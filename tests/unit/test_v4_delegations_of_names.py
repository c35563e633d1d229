"""Files whose names change while an OPEN is under way: what is opened and delegated (RFC 8881 section 10.4.1)."""

import asyncio

import pytest

from nfsd.protocol import nfs4 as p
from nfsd.v4 import giving, name_errands, opening
from nfsd.v4.ops import delegations
from nfsd.vfs.types import Credential
from tests.support.delegations import BOTH, NONE, READ, delegated, prepared, with_two
from tests.support.nfs4 import mode

MINORS = [0, 1, 2]
BY_HANDLE = p.open_claim4(p.open_claim_type4.CLAIM_FH)

CHANGES = {
    "REMOVE": (p.OP_REMOVE, p.REMOVE4args(b"f")),
    "RENAME away": (p.OP_RENAME, p.RENAME4args(b"f", b"n")),
    "RENAME onto": (p.OP_RENAME, p.RENAME4args(b"old", b"f")),
}
OF_ANOTHER_NAME = (p.OP_RENAME, p.RENAME4args(b"old", b"n"))


@pytest.fixture
def before_giving(monkeypatch):
    """What is put in here is awaited when the client has its file, but no delegation yet."""
    steps = []

    def delayed(give):
        async def later(*args, **options):
            while steps:
                # In a task of its own: the OPEN waits before another call is looked at, and is not one.
                await asyncio.ensure_future(steps.pop())
            return await give(*args, **options)

        return later

    for module in (opening, delegations):
        monkeypatch.setattr(module, "give", delayed(module.give))
    return steps


async def opened_by_handle(client):
    """What delegation comes with an OPEN of ``f``, by the handle that the client has."""
    args = client.open_args(b"f", access=READ, owner=b"other")
    args = p.OPEN4args(args.seqid, args.share_access, 0, args.owner, args.openhow, BY_HANDLE)
    return (await client.on(client.handles[b"f"], (p.OP_OPEN, args)))[-1].resok4.delegation


@pytest.mark.parametrize("minor", MINORS)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("access", [READ, BOTH])
@pytest.mark.parametrize("made", [False, True])
def test_a_file_that_has_lost_its_name_is_not_delegated(tmp_path, before_giving, minor, change, access, made):
    @prepared
    async def test(server, export, one, two):
        (export / "old").write_bytes(b"")
        await delegated(one)  # of this one nothing is told below: it is removed
        (export / "f").unlink()
        if not made:
            (export / "f").write_bytes(b"")
        before_giving.append(two.run(*two.path("/0"), p.OP_SAVEFH, CHANGES[change]))
        opened = await one.opening(b"f", access, create=mode(0o644) if made else None)
        assert not before_giving
        assert opened.delegation.delegation_type == NONE
        assert server.engine.delegations.count == 1

    with_two(tmp_path, minor, test)


@pytest.mark.parametrize("minor", MINORS)
@pytest.mark.parametrize("made", [False, True])
def test_changes_of_other_names_keep_no_file_from_being_delegated(tmp_path, before_giving, minor, made):
    @prepared
    async def test(server, export, one, two):
        (export / "old").write_bytes(b"")
        await delegated(one)
        before_giving.append(two.run(*two.path("/0"), p.OP_SAVEFH, OF_ANOTHER_NAME))
        if not made:
            (export / "g").write_bytes(b"")
        await delegated(one, b"g", BOTH, create=mode(0o644) if made else None)
        assert not before_giving

    with_two(tmp_path, minor, test)


@pytest.mark.parametrize("wanted", [False, True], ids=["OPEN", "WANT_DELEGATION"])
def test_a_file_without_any_name_is_not_delegated_by_its_handle(tmp_path, before_giving, wanted):
    @prepared
    async def test(server, export, one, two):
        stateid = (await one.opening(b"f", want=p.OPEN4_SHARE_ACCESS_WANT_NO_DELEG)).stateid
        handle = one.handles[b"f"]
        before_giving.append(two.run(*two.path("/0"), CHANGES["REMOVE"]))
        if wanted:
            claim = p.deleg_claim4(p.open_claim_type4.CLAIM_FH)
            args = p.WANT_DELEGATION4args(p.OPEN4_SHARE_ACCESS_WANT_READ_DELEG, claim)
            given = (await one.on(handle, (p.OP_WANT_DELEGATION, args)))[-1].wdr_resok4
        else:
            given = await opened_by_handle(one)
        assert not before_giving
        assert given.delegation_type in (NONE, p.open_delegation_type4.OPEN_DELEGATE_NONE_EXT)
        await one.on(handle, (p.OP_CLOSE, p.CLOSE4args(0, stateid)))

    with_two(tmp_path, 1, test)


@pytest.mark.parametrize("found", ["by name", "by handle", "made"])
@pytest.mark.parametrize("change", ["remove", "rename"])
def test_nothing_is_delegated_that_is_about_to_lose_its_name(tmp_path, monkeypatch, found, change):
    """The change has begun when nothing was delegated yet, and is done by the file service's general way."""

    @prepared
    async def test(server, export, one, two):
        reached, go_on = asyncio.Event(), asyncio.Event()
        do = getattr(server.service, change)

        async def later(*args, **options):
            reached.set()
            await go_on.wait()
            return await do(*args, **options)

        monkeypatch.setattr(server.service, change, later)
        await one.opening(b"f", want=p.OPEN4_SHARE_ACCESS_WANT_NO_DELEG)
        *_, root = await one.run(*one.path("/0"), p.OP_GETFH)
        directory = server.service.nodes.find(root.resok4.object)
        if found == "made":
            (export / "f").unlink()
        if change == "remove":
            errand = name_errands.remove(server.nfs4, None, Credential(0, 0), directory, b"f")
        else:
            errand = name_errands.rename(server.nfs4, None, Credential(0, 0), directory, b"f", directory, b"n")
        task = asyncio.ensure_future(errand)
        await reached.wait()
        if found == "by handle":
            given = await opened_by_handle(one)
        else:
            given = (await one.opening(b"f", create=mode(0o644) if found == "made" else None)).delegation
        assert given.delegation_type == NONE
        go_on.set()
        assert not isinstance(await task, int)
        assert server.engine.delegations.count == 0

    with_two(tmp_path, 1, test)


@pytest.mark.parametrize("minor", MINORS)
@pytest.mark.parametrize(("access", "rarely"), [(READ, False), (READ, True), (BOTH, True)])
def test_a_new_file_that_is_removed_at_once_is_open_all_the_same(tmp_path, monkeypatch, minor, access, rarely):
    """A client that is told ESTALE makes it again: two files would have been made by one open(2)."""

    @prepared
    async def test(server, export, one, two):
        reserve, shortage_told = opening._reserve, opening._shortage_told
        removals = []

        async def removed_before(*args):
            removal = two.status(*two.path("/0"), (p.OP_REMOVE, p.REMOVE4args(b"n")))
            removals.append(await asyncio.ensure_future(removal))
            return await reserve(*args)

        def gone_before(*args):
            (export / "n").unlink(missing_ok=True)
            return shortage_told(*args)

        await delegated(one)
        monkeypatch.setattr(opening, "_reserve", removed_before)
        if rarely:
            (export / "n").touch()  # it is there when OPEN looks, and not when it is to be made
            monkeypatch.setattr(opening, "_shortage_told", gone_before)
            verifier = bytes(range(8))
            how = (
                p.createhow4(p.createmode4.EXCLUSIVE4_1, ch_createboth=p.creatverfattr(verifier, mode(0o644)))
                if minor
                else p.createhow4(p.createmode4.EXCLUSIVE4, createverf=verifier)
            )
        else:
            how = p.createhow4(p.createmode4.UNCHECKED4, createattrs=mode(0o644))
        args = one.open_args(b"n", access=access)
        args = p.OPEN4args(
            args.seqid, args.share_access, 0, args.owner, p.openflag4(p.opentype4.OPEN4_CREATE, how), args.claim
        )
        *_, opened, found = await one.run(*one.path("/0"), (p.OP_OPEN, args), p.OP_GETFH)
        assert removals == [p.NFS4_OK]
        assert opened.resok4.delegation.delegation_type == NONE
        handle, stateid = found.resok4.object, opened.resok4.stateid
        *_, read = await one.on(handle, (p.OP_READ, p.READ4args(stateid, 0, 9)))
        assert (read.resok4.data, read.resok4.eof) == (b"", True)

    with_two(tmp_path, minor, test, leases=True)  # with those, what is open for reading is opened once more


@pytest.mark.parametrize("removed", [False, True])
def test_a_name_that_was_looked_up_some_time_ago_is_looked_up_again(tmp_path, removed):
    """The directory's change attribute may have had its value of now already when the name was removed."""

    @prepared
    async def test(server, export, one, two):
        *_, root = await one.run(*one.path("/0"), p.OP_GETFH)
        *_, file = await one.run(*one.path("/0"), (p.OP_LOOKUP, p.LOOKUP4args(b"f")), p.OP_GETFH)
        directory, node = (server.service.nodes.find(found.resok4.object) for found in (root, file))
        if removed:
            await two.run(*two.path("/0"), (p.OP_REMOVE, p.REMOVE4args(b"f")))
        named = giving.Named(Credential(0, 0), directory, b"f", None)
        assert await giving._is_named(server.nfs4, node, named) == (not removed)
        now = (await server.service.attributes(directory)).change
        assert await giving._is_named(server.nfs4, node, named._replace(change=now))

    with_two(tmp_path, 1, test)
