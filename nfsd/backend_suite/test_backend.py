"""Each scenario, over each transport and version of NFS."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from pathlib import Path

import pytest

from nfsd.backend_suite.operations import Question
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


async def ask(directory: Path, entry: Entry, question: Question) -> str:
    """One question, with a server of its own; the answer."""
    async with asyncio.timeout(PATIENCE), serving(directory, entry) as server:
        async with server.asked(writable=entry.writable) as asked:
            answer = await question(asked)
        if entry.writable:
            async with server.connect(("tcp", "4.1")) as fs:
                await fs.rmtree("questions")
        return answer


def _run(work: Coroutine[None, None, object]) -> None:
    mask = os.umask(0o022)
    try:
        asyncio.run(work)
    finally:
        os.umask(mask)


def test_backend(scenario: Scenario, way: Way, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """What the scenario says."""
    _run(go_through(tmp_path, entry_of(pytestconfig), scenario, way))


def test_operation(question: Question, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """What is declared works, and what is not is refused as the RFC says."""
    _run(ask(tmp_path, entry_of(pytestconfig), question))
