"""A file that is removed through one export frees its space though others know it."""

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


@pytest.mark.parametrize("version", ["3", "4.1"])
@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_files_that_several_exports_have_met(tmp_path, kind, version, monkeypatch):
    monkeypatch.setattr(service, "SWEEP_SECONDS", 3600)  # which would let go of them, some seconds later
    rig = Rig(tmp_path, version=version)

    async def use(clients):
        (first, there), (second, here), _ = clients
        for client, way in clients:
            for name in FILES:
                assert await client.read_bytes(way + name) == name.encode()
        await first.remove(there + "removed")
        await second.rename(here + "moved", here + "replaced")
        await until(lambda: not deleted_files_held(str(base)))
        for client, way in clients:
            assert sorted(await client.listdir(way)) == ["replaced"]
            with pytest.raises(FileNotFoundError):
                await client.stat(way + "removed")
            assert await client.read_bytes(way + "replaced") == b"moved"

    async def main():
        options = replace(rig.options, mount_port=rig.ports["mountd"])
        async with AsyncExitStack() as stack:
            clients = []
            for number, way in enumerate(WAYS.values()):
                url = parse(f"tcp://127.0.0.1:{rig.ports['tcp']}/met{number}/")
                clients.append((await stack.enter_async_context(connect(url, options)), way))
            await use(clients)

    with ExitStack() as stack:
        base = Path(stack.enter_context(directory_on(kind, tmp_path)))
        (base / "top/one/two").mkdir(parents=True)
        for name in FILES:
            (base / "top/one/two" / name).write_bytes(name.encode())
        more = [f"{{path: {base / path}, pseudo: /met{number}, squash: none" for number, path in enumerate(WAYS)]
        rig.entry = "}\n  - " + "}\n  - ".join(more)
        rig.run(main)
