"""docs/administration.md: the keys and the commands that it names are there."""

import dataclasses
import re
from pathlib import Path

import pytest

from nfsd import cli, config

DOCUMENT = Path(__file__).parents[2] / "docs" / "administration.md"
SECTIONS = {
    "server": config.Server,
    "nfs4": config.Nfs4,
    "nfs4.limits": config.Nfs4Limits,
    "limits": config.Limits,
    "log": config.Log,
    "audit": config.Audit,
    "metrics": config.Metrics,
}


def here() -> list[str]:
    """What stands in the right column of the tables, in code."""
    rows = re.findall(r"^\|.*\| ([^|]*(?:\\\|[^|]*)*) \|$", DOCUMENT.read_text(), re.MULTILINE)
    return [code for row in rows for code in re.findall(r"`([^`]+)`", row)]


def keys(section: type) -> set[str]:
    return {{"asynchronous": "async"}.get(field.name, field.name) for field in dataclasses.fields(section)}


def test_keys() -> None:
    dotted = [code for code in here() if re.fullmatch(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+", code)]
    assert len(dotted) > 15
    for code in dotted:
        section, _, key = code.rpartition(".")
        assert key in keys(SECTIONS[section]), code
    plain = {code for code in here() if re.fullmatch(r"[a-z]+(_[a-z]+)+|anonuid|anongid|squash|clients|umask", code)}
    known = keys(config.Server) | keys(config.Listen) | keys(config.ExportEntry) | keys(config.Client)
    assert {"max_read", "manage_gids", "state_dir"} <= plain
    assert plain <= known | {"no_acl"}


def test_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    shown = capsys.readouterr().out
    commands = {match for code in here() for match in re.findall(r"^rdma-nfsd ([a-z-]+)", code)}
    assert {"reload", "drain", "evict", "exports", "stats"} <= commands
    for command in commands:
        assert re.search(rf"^ +{command}\b", shown, re.MULTILINE), command
