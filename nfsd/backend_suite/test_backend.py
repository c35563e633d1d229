"""Each scenario, over each transport and version of NFS."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from nfsd.backend_suite.plugin import entry_of
from nfsd.backend_suite.scenarios import Scenario
from nfsd.backend_suite.trying import Entry, Way, serving

PATIENCE = 300


async def go_through(directory: Path, entry: Entry, scenario: Scenario, way: Way) -> None:
    """One scenario, in a directory of its own where one can be made, with a server of its own."""
    async with asyncio.timeout(PATIENCE), serving(directory, entry) as server, server.connect(way) as fs:
        place = scenario.__name__ if entry.writable else ""
        if entry.writable:
            await fs.mkdir(place)
            await fs.write_bytes(f"{place}.file", b"some data")
        await scenario(entry.trial(fs, place))
        if entry.writable:
            await fs.remove(f"{place}.file")
            await fs.rmtree(place)


def test_backend(scenario: Scenario, way: Way, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """What the scenario says."""
    mask = os.umask(0o022)
    try:
        asyncio.run(go_through(tmp_path, entry_of(pytestconfig), scenario, way))
    finally:
        os.umask(mask)
