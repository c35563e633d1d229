"""The soak's client in a guest (tests/soak/guest.py), with its programs on a directory of this host."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.soak.guest import PROGRAM, VERSIONS, GuestClient, Programs
from tests.soak.record import Record

OPERATIONS = 800
UNTIL_FOUND = 3000
"""What a busy machine may need until two clients have the same lock at the same time."""


class _Spoiled(GuestClient):
    """One that is told something wrong by its file system."""

    wrong: tuple[str, Any] = "", None
    """A call, and what it always comes to."""

    def __init__(self, program: Any, *more: Any) -> None:
        super().__init__(program, *more)

        async def call(name: str, *arguments: object) -> Any:
            result = await program.call(name, *arguments)
            return self.wrong[1] if name == self.wrong[0] else result

        self._call = call


async def _record(directory: Path, wrong: tuple[str, Any]) -> Record:
    """Of programs on two names of one directory, until they have done enough."""
    record = Record()
    programs = Programs(record)
    port = await programs.open()
    (directory / "4.2").mkdir()
    (directory / "3").symlink_to("4.2")
    clients, processes = [], []
    for number, version in enumerate(VERSIONS * 2):
        words = [str(PROGRAM), "127.0.0.1", str(port), str(number)]
        processes.append(await asyncio.create_subprocess_exec(sys.executable, *words))
        client = _Spoiled(await programs.program(str(number)), str(directory / version), record, lambda: 0, number)
        client.wrong = wrong
        clients.append(client)
    tasks = [asyncio.ensure_future(client.live()) for client in clients]
    # There is nothing else to wait for: they work until they are cancelled.
    enough = UNTIL_FOUND if wrong[0] == "lock" else OPERATIONS
    while record.counts["guest: operations"] < enough and not any(task.done() for task in tasks):  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for process in processes:
        process.kill()
        await process.wait()
    programs.close()
    record.check(1)
    return record


@pytest.mark.parametrize(
    ("wrong", "found"),
    [
        (("", None), set()),
        (("lock", True), {"lock"}),
        (("exists", True), {"name"}),
        (("read", (7).to_bytes(8, "big").hex()), {"data", "renamed", "locked"}),
    ],
)
def test_what_a_file_system_tells_programs_in_a_guest_is_explained_unless_it_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: tuple[str, Any], found: set[str]
) -> None:
    monkeypatch.setattr("tests.soak.guest._PAST_CACHE", 0)  # which is not for eight octets on a disk
    record = asyncio.run(_record(tmp_path, wrong))
    kinds = {text.split("what happened to ")[1].split()[0] for text in record.findings}
    assert kinds == found
    assert record.checked.keys() >= {"data", "lock", "locked", "name", "renamed"} - found


def test_a_call_that_a_kernel_sends_again_may_have_been_done_twice() -> None:
    """A file is made, removed by another client, and made again by the same call, after the server was restarted."""
    for again in (False, True):
        record = Record()
        key = "name", 0, 0
        with record.operation("guest", "create", key) as made:
            with record.operation("other", "remove", key) as removed:
                removed.result = True
            made.result = True
        with record.operation("other", "look", key) as looked:
            looked.result = True
        if again:
            record.perhaps("guest'", "create", key, None, made.begun)
        record.check(1)
        assert bool(record.findings) is not again
