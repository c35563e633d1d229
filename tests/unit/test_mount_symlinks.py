"""MNT through symbolic links: resolved as by a local process, never out of the export."""

import os
from pathlib import Path
from typing import Any

import pytest

from nfsd.protocol.mount3 import mountstat3
from tests.nfs3_client import Nfs3Failure
from tests.support.served import Served, run

LINKS = {
    "relative": "a/b",
    "dots": "a/../a/./b",
    "deep/up": "../a/b",
    "chain": "relative",
    "into": "a",
    "absolute": "{top}/a/b",
    "root": ".",
    "outside": "{outside}",
    "above": "..",
    "above/x": "",
    "sideways": "../outside",
    "sneaky": "a/../../outside",
    "absolute_sneaky": "{top}/../outside",
    "prefix": "{top}2",
    "etc": "/etc",
    "loop": "loop",
    "ping": "pong",
    "pong": "ping",
    "nothing": "missing",
    "to_file": "a/file",
}


def prepare(tmp_path: Path) -> Path:
    top, outside = tmp_path / "export", tmp_path / "outside"
    for directory in (top / "a" / "b", top / "deep", outside, tmp_path / "export2"):
        directory.mkdir(parents=True)
    (top / "a" / "file").touch()
    for name, target in LINKS.items():
        if target:
            (top / name).symlink_to(target.format(top=top, outside=outside))
    (top / "a" / "b" / "here").touch()
    return top


GOOD = ("relative", "dots", "deep/up", "chain", "into/b", "absolute", "root/root/a/b", "root/relative", "a/b")
BAD = {
    "outside": mountstat3.MNT3ERR_ACCES,
    "above": mountstat3.MNT3ERR_ACCES,
    "above/export/a/b": mountstat3.MNT3ERR_ACCES,
    "sideways": mountstat3.MNT3ERR_ACCES,
    "sneaky": mountstat3.MNT3ERR_ACCES,
    "absolute_sneaky": mountstat3.MNT3ERR_ACCES,
    "prefix": mountstat3.MNT3ERR_ACCES,
    "etc": mountstat3.MNT3ERR_ACCES,
    "etc/passwd": mountstat3.MNT3ERR_ACCES,
    "loop": mountstat3.MNT3ERR_NOTDIR,
    "ping/x": mountstat3.MNT3ERR_NOTDIR,
    "nothing": mountstat3.MNT3ERR_NOENT,
    "to_file": mountstat3.MNT3ERR_NOTDIR,
    "to_file/x": mountstat3.MNT3ERR_NOTDIR,
}


@pytest.mark.parametrize("way", ["direct", "by a link"])
def test_a_running_server(tmp_path: Path, caplog: pytest.LogCaptureFixture, way: str) -> None:
    top = prepare(tmp_path)
    path = str(top)
    if way == "by a link":  # the directory of the configuration has a link in its own path
        (tmp_path / "alias").symlink_to(tmp_path)
        path = str(tmp_path / "alias" / "export")

    async def test(server: Served) -> None:
        client = await server.nfs3()
        for prefix in ("/pseudo", path):
            there = await server.mount(f"{prefix}/a/b")
            for name in GOOD:
                mounted = await server.mount(f"{prefix}/{name}")
                assert mounted == there, name
            assert await client.lookup(there, b"here")
            for name, status in BAD.items():
                with pytest.raises(Nfs3Failure) as caught:
                    await server.mount(f"{prefix}/{name}")
                assert caught.value.status == status, name

    run(tmp_path, f"  - path: {path}\n    pseudo: /pseudo\n", test)
    assert any("leads out of the export" in record.getMessage() for record in caplog.records)


def test_a_way_of_many_links_ends(tmp_path: Path) -> None:
    top = tmp_path / "export"
    (top / "end").mkdir(parents=True)
    os.symlink("end", top / "l0")
    for number in range(1, 60):
        os.symlink(f"l{number - 1}", top / f"l{number}")

    async def test(server: Served) -> None:
        assert await server.mount("/export/l39") == await server.mount("/export/end")
        with pytest.raises(Nfs3Failure) as caught:
            await server.mount("/export/l40")
        assert caught.value.status == mountstat3.MNT3ERR_NOTDIR

    run(tmp_path, "  - path: export\n", test)


def test_links_lead_no_longer_way_than_is_looked_up_in_a_moment(tmp_path: Path) -> None:
    """Forty links of a PATH_MAX each would be some 30 000 look-ups, for one call of 100 octets."""
    top = tmp_path / "export"
    (top / "d").mkdir(parents=True)
    for number in range(20):
        (top / f"long{number}").symlink_to("d/../" * 250 + (f"long{number + 1}" if number < 19 else "d"))
    looked_up = 0

    async def test(server: Served) -> None:
        nonlocal looked_up
        service = server.daemon.service
        lookup = service.lookup

        def counted(*arguments: Any) -> Any:
            nonlocal looked_up
            looked_up += 1
            return lookup(*arguments)

        service.lookup = counted  # type: ignore[method-assign]
        assert await server.mount("/pseudo/long19") == await server.mount("/pseudo/d")
        looked_up = 0
        with pytest.raises(Nfs3Failure) as caught:
            await server.mount("/pseudo/long0")
        assert caught.value.status == mountstat3.MNT3ERR_NOTDIR
        assert looked_up < 1024

    run(tmp_path, f"  - path: {top}\n    pseudo: /pseudo\n", test)
