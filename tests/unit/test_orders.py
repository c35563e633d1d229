"""Orders to several processes: what the supervisor does with those that refuse, answer half, or have ended."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from nfsd.control import NAME
from nfsd.supervising.requests import Requests
from nfsd.web.app import App

Answering = Callable[[dict[str, Any]], bytes]
"""What a process answers to a request."""


def good(asked: dict[str, Any]) -> bytes:
    """As one does that has obeyed, or serves."""
    answer = {"ready": True, "listeners": [], "failures": [], "read_only": False, "level": "info", "closed": True}
    return json.dumps(answer).encode() + b"\n"


def half(asked: dict[str, Any]) -> bytes:
    """As one does that is killed while it answers."""
    return good(asked)[:10]


def refusing(asked: dict[str, Any]) -> bytes:
    return b'{"error": "not I"}\n'


class Few:
    """A supervisor of processes that are none."""

    def __init__(self, tmp_path: Path, *answering: Answering) -> None:
        self._answering = answering
        self._directories = {index: str(tmp_path / str(index)) for index in range(len(answering))}
        self.life = dict.fromkeys(self._directories, 1)
        self.remembered: list[object] = []
        self._servers: list[asyncio.Server] = []
        for directory in self._directories.values():
            os.mkdir(directory)

    async def start(self) -> None:
        for index, answering in enumerate(self._answering):

            async def answer(
                reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answering: Answering = answering
            ) -> None:
                writer.write(answering(json.loads(await reader.readline())))
                writer.close()

            path = f"{self._directories[index]}/{NAME}"
            self._servers.append(await asyncio.start_unix_server(answer, path))

    def close(self) -> None:
        for server in self._servers:
            server.close()

    def directories(self) -> Mapping[int, str]:
        return self._directories

    def lives(self) -> Mapping[int, int]:
        return dict(self.life)

    def rows(self) -> list[dict[str, Any]]:
        return [{"process": index, "state": "serving"} for index in self._directories]

    def set_read_only(self, on: bool) -> None:
        self.remembered.append(on)

    def drained(self, export: str) -> None:
        self.remembered.append(export)

    async def reload(self) -> None:
        self.remembered.append("file")

    async def restart(self, index: int | None) -> int:
        raise NotImplementedError


def run(few: Few, test: Callable[[Requests], Awaitable[None]]) -> None:
    async def whole() -> None:
        await few.start()
        try:
            await test(Requests(few))
        finally:
            few.close()

    asyncio.run(whole())


ORDERS: list[tuple[str, dict[str, Any]]] = [
    ("reload", {}),
    ("read-only", {"on": True, "seconds": 1}),
    ("drain", {"export": "/e", "seconds": 1}),
    ("log-level", {"level": "info"}),
    ("evict", {"client": "192.0.2.1"}),
    ("forget", {}),
]


@pytest.mark.parametrize(("command", "fields"), ORDERS)
def test_an_order_is_not_said_to_be_done_where_a_process_that_serves_has_not_answered(
    tmp_path: Path, command: str, fields: dict[str, Any]
) -> None:
    async def test(requests: Requests) -> None:
        with pytest.raises(ValueError, match="process 1 has not answered"):
            await requests.commands()[command](dict(fields))

    run(Few(tmp_path, good, half), test)


@pytest.mark.parametrize(("command", "fields"), ORDERS)
def test_a_process_that_has_ended_meanwhile_will_know_of_the_order(
    tmp_path: Path, command: str, fields: dict[str, Any]
) -> None:
    def ended(asked: dict[str, Any]) -> bytes:
        few.life[1] += 1
        return half(asked)

    async def test(requests: Requests) -> None:
        await requests.commands()[command](dict(fields))

    few = Few(tmp_path, good, ended)
    run(few, test)


def test_a_reload_that_one_process_refuses_has_failed(tmp_path: Path) -> None:
    def changed(asked: dict[str, Any]) -> bytes:
        return good(asked) if asked.get("dry_run") else refusing(asked)

    async def test(requests: Requests) -> None:
        with pytest.raises(ValueError, match="process 1: not I"):
            await requests.commands()["reload"]({})

    run(Few(tmp_path, good, changed), test)


@pytest.mark.parametrize(
    ("command", "fields"),
    [
        ("read-only", {"on": True, "seconds": 7200}),
        ("read-only", {"on": True, "for": "ever"}),
        ("drain", {"export": "/e", "seconds": 7200}),
        ("drain", {"export": "/nothing"}),
    ],
)
def test_an_order_that_is_refused_is_not_remembered_for_processes_to_come(
    tmp_path: Path, command: str, fields: dict[str, Any]
) -> None:
    async def test(requests: Requests) -> None:
        with pytest.raises(ValueError, match=r"not I|seconds must|not a request"):
            await requests.commands()[command](dict(fields))

    few = Few(tmp_path, refusing, refusing)
    run(few, test)
    assert few.remembered == []


def test_the_server_is_not_ready_while_a_process_does_not_answer(tmp_path: Path) -> None:
    async def test(requests: Requests) -> None:
        found = await requests.readiness()
        assert found["ready"] is False

    run(Few(tmp_path, good, half), test)


def test_the_page_says_so_when_no_process_answers(tmp_path: Path) -> None:
    async def test(requests: Requests) -> None:
        app = App(asyncio.get_running_loop(), [], requests.statistics, requests.readiness)
        for path in ("/stats.json", "/readyz"):
            statuses: list[str] = []
            asked = {"PATH_INFO": path, "REQUEST_METHOD": "GET"}
            await asyncio.to_thread(app, asked, lambda status, headers, said=statuses: said.append(status))
            assert statuses == ["503 Service Unavailable"]

    run(Few(tmp_path, half, half), test)
