"""docs/client.md says what the client library does."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import re
import sys
from pathlib import Path
from typing import Any

from rpcrdma import client
from rpcrdma.client import ClientOptions
from tests.peer.version_two_session import server

TEXT = (Path(__file__).parents[2] / "docs" / "client.md").read_text().partition("## Remote procedure calls")[2]


def section(title: str) -> str:
    return TEXT.partition(f"### {title}\n")[2].partition("\n### ")[0]


def rows(title: str) -> list[list[str]]:
    """The cells of a section's table."""
    lines = re.findall(r"^\| (`.*) \|$", section(title), re.MULTILINE)
    return [[cell.strip() for cell in line.split(" | ")] for line in lines]


def test_the_options_are_those_there_are_with_their_defaults() -> None:
    documented = {name.strip("`"): default for name, default, _ in rows("Options")}
    assert documented == {field.name: str(field.default) for field in dataclasses.fields(ClientOptions)}


def test_the_arguments_of_connect_are_those_there_are() -> None:
    parameters = set(inspect.signature(client.connect).parameters) - {"host", "port"}
    assert {name.strip("`") for name, _ in rows("Connecting")} == parameters


def test_every_exception_is_named() -> None:
    library = {
        name for name in client.__all__
        if isinstance(value := getattr(client, name), type) and issubclass(value, Exception)
    }  # fmt: skip
    named = set(re.findall(r"`([A-Za-z]+Error|Refused|Denied|BadReply)s?`", section("Calling")))
    assert library <= named


def test_the_example_reads_a_file(tmp_path: Path) -> None:
    source = TEXT.partition("```python\n")[2].partition("```")[0]
    example: dict[str, Any] = {"__name__": "example", "sys": sys}
    exec(compile(source, "docs/client.md", "exec"), example)
    with server(tmp_path) as ports:
        data = b"The file's octets. " * 5000
        (tmp_path / "export" / "file").write_bytes(data)
        for port in (ports["two"], ports["one"]):
            assert asyncio.run(example["main"]("127.0.0.1", port, ports["mountd"])) == data
