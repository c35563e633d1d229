"""Extended attributes over NFSv4.2 (RFC 8276), on disk file systems, in memory, and where there are none."""

import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nfsd.backends.local import file_systems
from nfsd.protocol import nfs4 as p
from tests.support.nfs4 import Client4, Failed, mode, values, wanted
from tests.unit.v42_support import handle_of, place_on, status_on, with_clients

EITHER, CREATE, REPLACE = p.setxattr_option4
XAREAD, XAWRITE, XALIST = p.ACCESS4_XAREAD, p.ACCESS4_XAWRITE, p.ACCESS4_XALIST
ALL_BITS = XAREAD | XAWRITE | XALIST


@pytest.fixture(params=["disk", "memory"])
def place(request, tmp_path):
    with place_on(request.param, tmp_path) as path:
        yield path


def set_args(name, value, how=EITHER):
    return (p.OP_SETXATTR, p.SETXATTR4args(how, name, value))


def get_args(name):
    return (p.OP_GETXATTR, p.GETXATTR4args(name))


def remove_args(name):
    return (p.OP_REMOVEXATTR, p.REMOVEXATTR4args(name))


def list_args(cookie=0, maxcount=65536):
    return (p.OP_LISTXATTRS, p.LISTXATTRS4args(cookie, maxcount))


async def get(client, handle, name):
    [result] = await client.on(handle, get_args(name))
    return bytes(result.gxr_value)


async def names(client, handle, maxcount=65536):
    """All names, page by page."""
    found, cookie = [], 0
    while True:
        [result] = await client.on(handle, list_args(cookie, maxcount))
        page = result.lxr_value
        found += [bytes(name) for name in page.lxr_names]
        assert 16 + sum(4 + (len(name) + 3 & ~3) for name in page.lxr_names) <= maxcount
        if page.lxr_eof:
            return found
        assert page.lxr_names, "a page that leads nowhere"
        cookie = page.lxr_cookie


async def change_of(client, handle):
    [result] = await client.on(handle, (p.OP_GETATTR, wanted(p.FATTR4_CHANGE)))
    return values(result.resok4.obj_attributes).uint64()


@pytest.mark.parametrize("kind", ["file", "directory"])
def test_attributes_are_set_read_listed_and_removed(place, tmp_path, kind):
    path = f"{place}/{kind}"
    os.mkdir(path) if kind == "directory" else open(path, "w").close()

    async def test(server, client):
        handle = await handle_of(client, kind)
        assert await names(client, handle) == []
        [made] = await client.on(handle, set_args(b"colour", b"blue\0green"))
        assert os.getxattr(path, "user.colour") == b"blue\0green"
        assert made.sxr_info.atomic
        assert made.sxr_info.before < made.sxr_info.after == await change_of(client, handle)
        assert await get(client, handle, b"colour") == b"blue\0green"
        await client.on(handle, set_args(b"empty", b""))
        assert await get(client, handle, b"empty") == b""
        assert sorted(await names(client, handle)) == [b"colour", b"empty"]
        [removed] = await client.on(handle, remove_args(b"colour"))
        assert removed.rxr_info.before < removed.rxr_info.after == await change_of(client, handle)
        assert os.listxattr(path) == ["user.empty"]
        for gone in (get_args(b"colour"), remove_args(b"colour")):
            assert await status_on(client, handle, gone) == p.NFS4ERR_NOXATTR

    with_clients(place, tmp_path, test)


def test_options_create_and_replace(place, tmp_path):
    async def test(server, client):
        _, handle = await client.open("/0", b"f", create=mode(0o644))
        assert await status_on(client, handle, set_args(b"a", b"1", REPLACE)) == p.NFS4ERR_NOXATTR
        assert await status_on(client, handle, set_args(b"a", b"1", CREATE)) == p.NFS4_OK
        assert await status_on(client, handle, set_args(b"a", b"2", CREATE)) == p.NFS4ERR_EXIST
        assert await get(client, handle, b"a") == b"1"
        assert await status_on(client, handle, set_args(b"a", b"3", REPLACE)) == p.NFS4_OK
        assert await get(client, handle, b"a") == b"3"

    with_clients(place, tmp_path, test)


def test_names_and_values_that_cannot_be(place, tmp_path):
    async def test(server, client):
        _, handle = await client.open("/0", b"f", create=mode(0o644))
        longest = b"n" * 250
        assert await status_on(client, handle, set_args(longest, b"1")) == p.NFS4_OK
        assert await names(client, handle) == [longest]
        for wrong, status in ((b"n" * 251, p.NFS4ERR_NAMETOOLONG), (b"", p.NFS4ERR_INVAL)):
            for operation in (set_args(wrong, b"1"), get_args(wrong), remove_args(wrong)):
                assert await status_on(client, handle, operation) == status
        assert await status_on(client, handle, set_args(b"a\0b", b"1")) == p.NFS4ERR_BADCHAR
        assert await status_on(client, handle, remove_args(b"a\0b")) == p.NFS4ERR_BADCHAR
        assert await status_on(client, handle, get_args(b"a\0b")) == p.NFS4ERR_INVAL
        assert await status_on(client, handle, set_args(b"a", bytes(65537))) == p.NFS4ERR_XATTR2BIG
        assert os.listxattr(f"{place}/f") == ["user." + "n" * 250]

    with_clients(place, tmp_path, test)


def test_other_name_spaces_are_out_of_reach(place, tmp_path):
    open(f"{place}/f", "w").close()
    os.setxattr(f"{place}/f", "trusted.secret", b"x")

    async def test(server, client):
        handle = await handle_of(client, "f")
        assert await names(client, handle) == []
        for name in (b"trusted.secret", b"security.capability", b"system.posix_acl_access"):
            assert await status_on(client, handle, get_args(name)) == p.NFS4ERR_NOXATTR
        await client.on(handle, set_args(b"trusted.secret", b"y"))
        assert os.getxattr(f"{place}/f", "trusted.secret") == b"x"
        assert os.getxattr(f"{place}/f", "user.trusted.secret") == b"y"

    with_clients(place, tmp_path, test)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    wanted_names=st.sets(st.binary(min_size=1, max_size=30).filter(lambda name: 0 not in name), max_size=30),
    maxcount=st.integers(52, 400),
)
def test_lists_are_whole_whatever_the_page(tmp_path_factory, wanted_names, maxcount):
    state = tmp_path_factory.mktemp("state")
    with place_on("memory", state) as place:
        open(f"{place}/f", "w").close()
        for name in wanted_names:
            os.setxattr(f"{place}/f", b"user." + name, b"1")

        async def test(server, client):
            found = await names(client, await handle_of(client, "f"), maxcount)
            assert len(found) == len(wanted_names)
            assert set(found) == wanted_names

        with_clients(place, state, test)


def test_a_list_goes_on_rightly_when_names_come_and_go(place, tmp_path):
    path = f"{place}/f"
    open(path, "w").close()
    stay = {b"stay%d" % number for number in range(20)}
    for name in stay | {b"go%d" % number for number in range(20)}:
        os.setxattr(path, b"user." + name, b"1")

    async def test(server, client):
        handle, cookie, found = await handle_of(client, "f"), 0, []
        for step in range(100):
            [result] = await client.on(handle, list_args(cookie, 80))
            found += [bytes(name) for name in result.lxr_value.lxr_names]
            cookie = result.lxr_value.lxr_cookie
            if step < 20:
                os.removexattr(path, b"user.go%d" % step)
                os.setxattr(path, b"user.came%d" % step, b"1")
            if result.lxr_value.lxr_eof:
                break
        assert len(found) == len(set(found))
        assert stay <= set(found)

    with_clients(place, tmp_path, test)


def test_a_list_says_when_nothing_fits(place, tmp_path):
    open(f"{place}/f", "w").close()
    os.setxattr(f"{place}/f", "user.12345", b"1")

    async def test(server, client):
        handle = await handle_of(client, "f")
        for maxcount in (0, 15, 16, 27):
            assert await status_on(client, handle, list_args(0, maxcount)) == p.NFS4ERR_TOOSMALL
        assert await names(client, handle, 28) == [b"12345"]

    with_clients(place, tmp_path, test)


def test_permissions_are_those_of_the_file(place, tmp_path):
    for name, bits in (("public", 0o644), ("secret", 0o600), ("open", 0o666)):
        open(f"{place}/{name}", "w").close()
        os.chmod(f"{place}/{name}", bits)
        os.setxattr(f"{place}/{name}", "user.a", b"1")
    os.mkdir(f"{place}/drop", 0o777)
    os.chmod(f"{place}/drop", 0o332)  # write, no read and no execute for others

    async def test(server, alice):
        async def allowed(handle):
            [result] = await alice.on(handle, (p.OP_ACCESS, p.ACCESS4args(ALL_BITS)))
            assert result.resok4.supported == ALL_BITS
            return result.resok4.access

        public, secret, free = [await handle_of(alice, name) for name in ("public", "secret", "open")]
        assert await allowed(public) == XAREAD | XALIST
        assert await allowed(secret) == 0
        assert await allowed(free) == ALL_BITS
        assert await allowed(await handle_of(alice, "drop")) == XAWRITE
        assert await get(alice, public, b"a") == b"1"
        assert await names(alice, public) == [b"a"]
        for operation in (set_args(b"a", b"2"), remove_args(b"a")):
            assert await status_on(alice, public, operation) == p.NFS4ERR_ACCESS
            assert await status_on(alice, secret, operation) == p.NFS4ERR_ACCESS
            assert await status_on(alice, free, operation) == p.NFS4_OK
        for operation in (get_args(b"a"), list_args()):
            assert await status_on(alice, secret, operation) == p.NFS4ERR_ACCESS
        assert os.getxattr(f"{place}/secret", "user.a") == b"1"

    with_clients(place, tmp_path, test, uids=(1001,))


def test_a_read_only_export_keeps_its_attributes(place, tmp_path):
    open(f"{place}/f", "w").close()
    os.setxattr(f"{place}/f", "user.a", b"1")

    async def test(server, client):
        handle = await handle_of(client, "f")
        assert await get(client, handle, b"a") == b"1"
        for operation in (set_args(b"a", b"2"), remove_args(b"a")):
            assert await status_on(client, handle, operation) == p.NFS4ERR_ROFS
        [result] = await client.on(handle, (p.OP_ACCESS, p.ACCESS4args(ALL_BITS)))
        assert result.resok4.access == XAREAD | XALIST

    with_clients(place, tmp_path, test, read_only=True)


def test_links_and_devices_have_none_and_take_none(place, tmp_path):
    os.symlink("nowhere", f"{place}/link")
    os.mkfifo(f"{place}/fifo")

    async def test(server, client):
        for name in ("link", "fifo"):
            handle = await handle_of(client, name)
            assert await names(client, handle) == []
            assert await status_on(client, handle, get_args(b"a")) == p.NFS4ERR_NOXATTR
            assert await status_on(client, handle, set_args(b"a", b"1")) == p.NFS4ERR_PERM
            [result] = await client.on(handle, (p.OP_ACCESS, p.ACCESS4args(ALL_BITS)))
            assert result.resok4.access == 0

    with_clients(place, tmp_path, test)


async def supported(client, *operations):
    *_, result = await client.run(*operations, (p.OP_GETATTR, wanted(p.FATTR4_XATTR_SUPPORT)))
    return values(result.resok4.obj_attributes).boolean()


def test_file_systems_without_attributes_say_so(tmp_path, monkeypatch):
    # What the kernel says of a file on a file system that has none; few of those can be exported.
    monkeypatch.setattr(file_systems, "descriptor_path", lambda descriptor: b"/proc/version")
    with place_on("memory", tmp_path) as place:
        open(f"{place}/f", "w").close()

        async def test(server, client):
            assert await supported(client, *client.path("/0/f")) is False
            assert await supported(client, p.OP_PUTROOTFH) is False
            handle = await handle_of(client, "f")
            operations = (get_args(b"a"), set_args(b"a", b"1"), list_args(), remove_args(b"a"))
            for operation in operations:
                assert await status_on(client, handle, operation) == p.NFS4ERR_NOTSUPP
                assert await client.status(p.OP_PUTROOTFH, operation) == p.NFS4ERR_NOTSUPP
            [result] = await client.on(handle, (p.OP_ACCESS, p.ACCESS4args(ALL_BITS | p.ACCESS4_READ)))
            assert (result.resok4.supported, result.resok4.access) == (p.ACCESS4_READ, p.ACCESS4_READ)

        with_clients(place, tmp_path, test)


@pytest.mark.parametrize("kind", ["disk", "memory", "xfs", "btrfs"])
def test_file_systems_with_attributes_say_so(kind, tmp_path):
    with place_on(kind, tmp_path) as place:
        open(f"{place}/f", "w").close()

        async def test(server, client):
            assert await supported(client, *client.path("/0/f")) is True
            handle = await handle_of(client, "f")
            await client.on(handle, set_args(b"a", b"x" * 1000))
            assert await get(client, handle, b"a") == b"x" * 1000

        with_clients(place, tmp_path, test)


def test_earlier_minor_versions_know_nothing_of_attributes(place, tmp_path):
    open(f"{place}/f", "w").close()

    async def test(server, client):
        handle = await handle_of(client, "f")
        for minor in (0, 1):
            older = await Client4(server, minor, name=b"older").connect()
            assert await status_on(older, handle, get_args(b"a")) == p.NFS4ERR_OP_ILLEGAL
            [result] = await older.on(handle, (p.OP_ACCESS, p.ACCESS4args(ALL_BITS | p.ACCESS4_READ)))
            assert result.resok4.supported == p.ACCESS4_READ
            [result] = await older.on(handle, (p.OP_GETATTR, wanted(p.FATTR4_XATTR_SUPPORT)))
            assert not any(result.resok4.obj_attributes.attrmask)

    with_clients(place, tmp_path, test)


def test_attributes_survive_a_restart(place, tmp_path):
    async def put(server, client):
        _, handle = await client.open("/0", b"f", create=mode(0o644))
        await client.on(handle, set_args(b"a", b"kept"))

    async def find(server, client):
        assert await get(client, await handle_of(client, "f"), b"a") == b"kept"

    with_clients(place, tmp_path, put)
    with_clients(place, tmp_path, find)


def test_a_value_that_does_not_fit_the_reply_is_refused(place, tmp_path):
    open(f"{place}/f", "w").close()
    os.setxattr(f"{place}/f", "user.a", bytes(3000))

    async def test(server, client):
        handle = await handle_of(client, "f")
        twice = ((p.OP_PUTFH, p.PUTFH4args(handle)), get_args(b"a"), get_args(b"a"))
        assert len(await client.run(*twice)) == 3
        # The session keeps replies of 4096 octets at most.
        with pytest.raises(Failed) as refused:
            await client.run(*twice, cache=True)
        assert refused.value.status == p.NFS4ERR_REP_TOO_BIG_TO_CACHE
        assert len(refused.value.results[-2][1].gxr_value) == 3000

    with_clients(place, tmp_path, test)
