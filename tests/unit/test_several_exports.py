"""A file that several exports lead to: removed through one it frees its space, and each has its own say about it."""

from contextlib import AsyncExitStack, ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from nfsd.client import connect
from nfsd.client.url import parse
from nfsd.vfs import service
from tests.unit.nfs_client_support import Rig
from tests.unit.test_stable_write_errors import until
from tests.unit.test_vfs_files import deleted_files_held
from tests.unit.vfs_support import directory_on

WAYS = {"top": "one/two/", "top/one": "two/", "top/one/two": ""}
"""Exports, each of them in the one before, and how the files are called in them."""
FILES = ("removed", "replaced", "moved")


def with_clients(rig, exports, use):
    """Run ``use`` with a client for each of these exports."""

    async def main():
        options = replace(rig.options, mount_port=rig.ports["mountd"])
        async with AsyncExitStack() as stack:
            clients = []
            for number in range(len(exports)):
                url = parse(f"tcp://127.0.0.1:{rig.ports['tcp']}/met{number}/")
                clients.append(await stack.enter_async_context(connect(url, options)))
            await use(clients)

    more = [f"{{{export}, pseudo: /met{number}, squash: none" for number, export in enumerate(exports)]
    rig.entry = "}\n  - " + "}\n  - ".join(more)
    rig.run(main)


@pytest.mark.parametrize("version", ["3", "4.1"])
@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_files_that_several_exports_have_met(tmp_path, kind, version, monkeypatch):
    monkeypatch.setattr(service, "SWEEP_SECONDS", 3600)  # which would let go of them, some seconds later
    rig = Rig(tmp_path, version=version)

    async def use(clients):
        known = list(zip(clients, WAYS.values(), strict=True))
        (first, there), (second, here), _ = known
        for client, way in known:
            for name in FILES:
                assert await client.read_bytes(way + name) == name.encode()
        await first.remove(there + "removed")
        await second.rename(here + "moved", here + "replaced")
        await until(lambda: not deleted_files_held(str(base)))
        for client, way in known:
            assert sorted(await client.listdir(way)) == ["replaced"]
            with pytest.raises(FileNotFoundError):
                await client.stat(way + "removed")
            assert await client.read_bytes(way + "replaced") == b"moved"

    with ExitStack() as stack:
        base = Path(stack.enter_context(directory_on(kind, tmp_path)))
        (base / "top/one/two").mkdir(parents=True)
        for name in FILES:
            (base / "top/one/two" / name).write_bytes(name.encode())
        with_clients(rig, [f"path: {base / path}" for path in WAYS], use)


@pytest.mark.parametrize("version", ["3", "4.1"])
@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_a_file_is_found_in_the_export_it_is_looked_up_in(tmp_path, kind, version):
    """However many others have met it: what may be done to it is what this export says."""
    rig = Rig(tmp_path, version=version)

    async def use(clients):
        writing, reading = clients
        for client, name in [(writing, "inner/file"), (reading, "file")] * 2:
            assert await client.read_bytes(name) == b"data"
        for _ in range(2):
            with pytest.raises(OSError, match=r"Read-only|Permission"):
                await reading.write_bytes("file", b"lost")
            await writing.write_bytes("inner/file", b"data")
        with pytest.raises(OSError, match=r"Read-only|Permission"):
            await reading.remove("file")

    with directory_on(kind, tmp_path) as base:
        (Path(base) / "inner").mkdir()
        (Path(base) / "inner/file").write_bytes(b"data")
        with_clients(rig, [f"path: {base}", f"path: {base}/inner, access: ro"], use)
