"""docs/backends.md: its plug-in works, and is as short as it says; its options are those there are."""

import importlib
import re
import sys
import zipfile
from pathlib import Path

import pytest

from nfsd.backend_suite.plugin import pytest_addoption
from nfsd.backend_suite.scenarios import SCENARIOS, Trial, refused
from nfsd.backend_suite.trying import WAYS, Entry
from nfsd.backends import simple
from tests.unit.test_backends_served import run

TEXT = (Path(__file__).parents[2] / "docs" / "backends.md").read_text()
PLUGIN = TEXT.partition("```python\n")[2].partition("```")[0]


def test_the_plug_in_has_fifty_lines():
    assert len([line for line in PLUGIN.splitlines() if line.strip()]) <= 50


@pytest.mark.parametrize("way", WAYS, ids="-".join)
def test_the_plug_in_serves_an_archive(tmp_path, way, monkeypatch):
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "archive.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path / "modules")
    monkeypatch.delitem(sys.modules, "archive", raising=False)
    importlib.invalidate_caches()
    data = bytes(range(256)) * 4096
    with zipfile.ZipFile(tmp_path / "old.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("top", b"first")
        archive.writestr("deep/er/data", data)
        archive.mkdir("empty")

    async def test(server):
        async with server.connect(way) as fs:
            for scenario in SCENARIOS:
                await scenario(Trial(fs, ""))
            assert sorted(await fs.listdir()) == ["deep", "empty", "top"]
            assert await fs.listdir("empty") == []
            assert await fs.read_bytes("deep/er/data") == data
            assert await fs.read_bytes("top") == b"first"
            with pytest.raises(OSError, match="Read-only"):
                await fs.write_bytes("top", b"second")
            await refused(fs.mkdir("new"), 30, 13)

    run(
        tmp_path,
        Entry({"backend": "python", "module": "archive:Archive", "options": {"file": str(tmp_path / "old.zip")}}),
        test,
    )


def test_the_options_of_the_suite_are_those_there_are():
    added = []

    class Group:
        def addoption(self, name, **_):
            added.append(name)

    class Parser:
        def getgroup(self, _):
            return Group()

    pytest_addoption(Parser())
    assert set(re.findall(r"(--backend[a-z-]*)", TEXT)) == set(added)


def test_the_methods_that_are_named_are_there():
    named = set(re.findall(r"`([a-z_]+)`", TEXT.partition("## What a plug-in promises")[2].partition("\n## ")[0]))
    assert {name for name in named if not hasattr(simple.SimpleBackend, name)} == {"threads"} - {"threads"}
