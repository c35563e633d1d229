"""Netgroups in ``clients``: the system's name service says which hosts are in one."""

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nfsd.exports import ClientOverride, Export, ExportTable
from nfsd.names import HostNames
from nfsd.netgroups import in_netgroup, is_member
from nfsd.protocol import nfs4 as p
from nfsd.protocol.mount3 import mountstat3
from nfsd.protocol.nfs3 import MKDIR3args, diropargs3, nfsstat3
from tests.nfs3_client import Nfs3Failure, attributes
from tests.support.served import Served, run

ROOT = Path(__file__).parents[2]
FILES = {
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\nnetgroup: files\n",
    "hosts": "127.0.0.1 localhost\n127.0.0.2 one.example.org one\n127.0.0.3 two.example.org\n"
    "127.0.0.4 three.elsewhere.example\n127.0.0.5 four.example.org\n",
    "netgroup": "trusted (one.example.org,,) (three,,) inner\ninner (127.0.0.3,,)\n"
    "short (one,,)\nother (four.example.org,,)\n",
    "passwd": "root:x:0:0::/:/bin/sh\n",
    "group": "root:x:0:\n",
}


def with_name_service(tmp_path: Path, function: str) -> None:
    """Run a function of this module where /etc has these files, in a mount namespace of its own."""
    etc = tmp_path / "etc"
    etc.mkdir()
    for name, text in FILES.items():
        (etc / name).write_text(text)
    if Path("/etc/ld.so.cache").exists():
        (etc / "ld.so.cache").write_bytes(Path("/etc/ld.so.cache").read_bytes())
    code = (
        f"from pathlib import Path; from tests.unit import test_netgroups as t; t.{function}(Path({str(tmp_path)!r}))"
    )
    script = f'mount --bind {etc} /etc && exec "$0" -c "$1"'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, sys.executable, code],
        check=False, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=110,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


namespaces = pytest.mark.skipif(
    subprocess.run(["unshare", "-m", "mount", "--bind", "/etc", "/etc"], check=False, capture_output=True).returncode
    != 0,
    reason="no mount namespace can be made",
)


# -- where the name service is the test's -------------------------------------------------------------------------
def the_systems_answers(tmp_path: Path) -> None:
    assert is_member("trusted", "one.example.org")
    assert is_member("trusted", "127.0.0.3")
    assert not is_member("trusted", "four.example.org")
    assert not is_member("nothing", "one.example.org")
    assert not is_member("trusted", "\udcff")


def a_server(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    exports = '  - path: data\n    squash: none\n    clients: [{host: "@trusted", access: ro}, {host: "@short"}]\n'

    async def test(server: Served) -> None:
        for host, expected in (
            ("127.0.0.2", "may"),  # by its name
            ("127.0.0.3", "may"),  # by its address, in a netgroup that the netgroup has
            ("127.0.0.4", "may not"),  # only its name without the domain is in it, and that leads nowhere
            ("127.0.0.5", "may not"),
            ("127.0.0.6", "may not"),  # has no name
        ):
            if expected == "may not":
                with pytest.raises(Nfs3Failure) as caught:
                    await server.mount("/data", host)
                assert caught.value.status == mountstat3.MNT3ERR_ACCES
                continue
            root = await server.mount("/data", host)
            client = await server.nfs3(host=host)
            for _ in range(3):
                made = await client.nfs("MKDIR", MKDIR3args(diropargs3(root, b"d"), attributes(mode=0o755)))
                assert made.status == nfsstat3.NFS3ERR_ROFS, "the settings are the entry's"
        client4 = await server.nfs4(1, host="127.0.0.2")
        assert await client4.status(*client4.path("/data"), p.OP_GETFH) == p.NFS4_OK
        # Another netgroup counts after a reload, on connections that are there.
        await server.reload("@trusted", "@other")
        await server.mount("/data", "127.0.0.5")
        with pytest.raises(Nfs3Failure):
            await server.mount("/data", "127.0.0.3")
        await server.mount("/data", "127.0.0.2")  # by its short name, which leads to it
        # What the service says now counts after a reload.
        (tmp_path / "etc" / "netgroup").write_text(FILES["netgroup"].replace("(one,,)", "(two.example.org,,)"))
        assert await server.daemon.reload()
        await server.mount("/data", "127.0.0.3")
        with pytest.raises(Nfs3Failure):
            await server.mount("/data", "127.0.0.2")

    run(tmp_path, exports, test)


@namespaces
def test_the_system_is_asked(tmp_path: Path) -> None:
    with_name_service(tmp_path, "the_systems_answers")


@namespaces
def test_a_running_server(tmp_path: Path) -> None:
    with_name_service(tmp_path, "a_server")


# -- without one --------------------------------------------------------------------------------------------------
def table_of(*clients: str, overrides: tuple[ClientOverride, ...] = (), **settings: Any) -> tuple[Export, ExportTable]:
    export = Export(7, "/srv", "/srv", clients=clients, overrides=overrides)
    settings = {"forward": lambda name: frozenset(), "reverse": lambda address: frozenset()} | settings
    return export, ExportTable((export,), names=HostNames(**settings))


async def learn(table: ExportTable, peer: str) -> None:
    waiting = table.admit(peer)
    if waiting is not None:
        await waiting


def test_a_netgroup_comes_after_all_but_everybody() -> None:
    async def main() -> None:
        uids = {"*": 1, "@all": 2, "*.example.org": 3, "10.0.0.0/8": 4}
        overrides = tuple(ClientOverride(host, anonuid=uid) for host, uid in uids.items())
        export, table = table_of(
            *uids,
            overrides=overrides,
            reverse=lambda address: frozenset({"a.example.org"} if address == "192.0.2.3" else ()),
            member=lambda group, address, names, forward: address != "192.0.2.1",
        )
        for peer, uid in (("192.0.2.1", 1), ("192.0.2.2", 2), ("192.0.2.3", 3), ("10.0.0.1", 4)):
            await learn(table, peer)
            access = table.access(export, peer)
            assert access is not None
            assert access.anonuid == uid
        await table.close()

    asyncio.run(main())


def test_nobody_gets_into_a_netgroup_by_a_name_that_looks_like_one() -> None:
    async def main() -> None:
        export, table = table_of(
            "@trusted",
            "?trust*.example",
            reverse=lambda address: frozenset({"@trusted"}),
            member=lambda group, address, names, forward: "@trusted" in names,
        )
        await learn(table, "192.0.2.1")
        assert not table.visible(export, "192.0.2.1")
        await table.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("names", "leads", "expected"),
    [
        ({"host.example.org"}, {}, True),
        ({"other.example.org"}, {}, False),
        ({"short.example.org"}, {"short": {"192.0.2.1"}}, True),
        ({"short.evil.example"}, {"short": {"198.51.100.1"}}, False),
        ({"short.evil.example"}, {}, False),
        (set(), {}, False),
    ],
)
def test_by_which_names(
    monkeypatch: pytest.MonkeyPatch, names: set[str], leads: dict[str, set[str]], expected: bool
) -> None:
    monkeypatch.setattr("nfsd.netgroups.is_member", lambda group, host: host in ("host.example.org", "short"))
    assert in_netgroup("g", "192.0.2.1", names, lambda name: frozenset(leads.get(name, ()))) is expected


def test_a_service_that_fails_or_hangs_lets_nobody_in() -> None:
    release = threading.Event()

    def hang(*_: Any) -> bool:
        release.wait(60)
        return True

    async def main() -> None:
        export, table = table_of("@trusted", member=hang, patience=0.01)
        await learn(table, "192.0.2.1")
        assert not table.visible(export, "192.0.2.1")
        release.set()
        await table.close()

    try:
        asyncio.run(main())
    finally:
        release.set()


def test_an_answer_from_before_a_reload_does_not_count_after_it() -> None:
    """The look-up is under way when the configuration asks for another netgroup."""
    asked, release = threading.Event(), threading.Event()

    def member(group: str, address: str, names: frozenset[str], forward: Callable[[str], frozenset[str]]) -> bool:
        asked.set()
        if group == "old":
            release.wait(60)
        return group == "new"

    async def main() -> None:
        _, table = table_of("@old", member=member)
        waiting = asyncio.ensure_future(learn(table, "192.0.2.1"))
        await asyncio.to_thread(asked.wait, 60)
        new = Export(7, "/srv", "/srv", clients=("@new",))
        table.replace((new,))
        release.set()
        await waiting
        await learn(table, "192.0.2.1")
        assert table.visible(new, "192.0.2.1")
        await table.close()

    try:
        asyncio.run(main())
    finally:
        release.set()
