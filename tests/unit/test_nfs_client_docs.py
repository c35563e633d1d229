"""docs/client.md says what nfsd.client and the commands do."""

import argparse
import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from nfsd.client import FileSystem, Options
from nfsd.command_line import build_parser
from nfsd.commands.arguments import CLIENT_COMMANDS
from tests.unit.nfs_client_support import Rig

TEXT = (Path(__file__).parents[2] / "docs" / "client.md").read_text()
FILES = TEXT.partition("## Files in Python")[2].partition("\n## ")[0]


def test_the_options_are_those_there_are_with_their_defaults() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| `?([^`|]+?)`? \|", FILES, re.MULTILINE))
    assert rows == {field.name: str(field.default) for field in dataclasses.fields(Options)}


def test_the_functions_are_those_there_are() -> None:
    named = re.search(r"`os` and `pathlib`: (.*?)\. Errors", FILES, re.DOTALL)
    assert named is not None
    public = {name for name in vars(FileSystem) if not name.startswith("_")}
    assert set(re.findall(r"`(\w+)`", named[1])) == public - {"version", "close", "change"}


def test_every_command_and_the_letters_of_ls_are_named() -> None:
    (commands,) = (a for a in build_parser()._actions if isinstance(a, argparse._SubParsersAction))
    text = TEXT.partition("## Files in Python")[0]
    assert set(CLIENT_COMMANDS) <= set(commands.choices)
    letters = {
        option for action in commands.choices["ls"]._actions for option in action.option_strings if len(option) == 2
    }
    named = re.search(r"as ls\(1\) does: `([^`]+)`", text)
    assert named is not None
    assert set(named[1].split()) == letters


@pytest.mark.parametrize("transport", ["tcp", "rdma"])
def test_the_example_works(tmp_path: Path, transport: str, capsys: pytest.CaptureFixture[str]) -> None:
    source = FILES.partition("```python\n")[2].partition("```")[0]
    example: dict[str, Any] = {"__name__": "example"}
    exec(compile(source, "docs/client.md", "exec"), example)
    rig = Rig(tmp_path, transport)

    async def test() -> None:
        await example["main"](str(rig.url()))

    rig.run(test)
    assert capsys.readouterr().out.splitlines() == [
        "summary 11",
        repr(b"18 42 4711\n"),
        ". ['results'] []",
        "results ['monday'] []",
        "results/monday [] ['summary']",
    ]
