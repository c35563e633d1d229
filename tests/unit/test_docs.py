"""The documents say what the code does: every configuration key, its default and its bounds; links lead somewhere."""

import dataclasses
import itertools
import re
import tomllib
import types
import typing
from pathlib import Path
from typing import Any

import pytest

from nfsd import config, config_stable
from nfsd.config_file import parse

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "configuration.md"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])

SECTIONS = {
    "server": config.Server,
    "server.listen[]": config.Listen,
    "server.tls": config.Tls,
    "server.kerberos": config.Kerberos,
    "server.stable_storage.rados": config_stable.RadosPool,
    "server.nfs4": config.Nfs4,
    "server.nfs4.limits": config.Nfs4Limits,
    "server.limits": config.Limits,
    "server.log": config.Log,
    "server.audit": config.Audit,
    "server.metrics": config.Metrics,
    "exports[]": config.ExportEntry,
    "exports[].clients[]": config.Client,
    "rate": config.Rate,
}
SIZES = {
    "memory", "connection_memory", "send_size", "receive_size",
    "client_cached_octets", "all_cached_octets", "cached_reply_octets", "octets", "replay_memory",
    "max_read", "max_write",
}  # fmt: skip
REQUIRED = "required"


def size(octets: int) -> str:
    return f"{octets >> 20} MiB" if octets >= 1 << 20 and octets % (1 << 20) == 0 else str(octets)


def shown(key: str, value: Any) -> str:
    """A value as the reference writes it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, tuple) and all(isinstance(one, str) for one in value):
        return "[" + ", ".join(value) + "]"
    if isinstance(value, tuple):
        return "[" + ", ".join(f'"{client.host}"' for client in value) + "]"
    return size(value) if key in SIZES else str(value)


def flattened(annotation: Any) -> list[Any]:
    """The parts of an annotation: Literals, pydantic's marks, types."""
    if typing.get_origin(annotation) in (typing.Annotated, typing.Union, types.UnionType):
        return [part for inner in typing.get_args(annotation) for part in flattened(inner)]
    if hasattr(annotation, "metadata") and not isinstance(annotation, type):
        return [part for mark in annotation.metadata for part in [mark]]
    return [annotation]


def values(key: str, annotation: Any) -> str:
    """The values a key may have, as the reference writes them: choices, or bounds; empty for all others."""
    parts = flattened(annotation)
    for part in parts:
        if typing.get_origin(part) is typing.Literal:
            return ", ".join(f"`{str(choice).lower()}`" for choice in typing.get_args(part))
    if bool in parts:
        return "`true`, `false`"
    marks = [mark for part in parts for mark in getattr(part, "metadata", [part])]
    low = next((mark.ge for mark in marks if getattr(mark, "ge", None) is not None), None)
    above = next((mark.gt for mark in marks if getattr(mark, "gt", None) is not None), None)
    high = next((mark.le for mark in marks if getattr(mark, "le", None) is not None), None)
    if low is not None:
        return f"{size(low)} to {size(high)}" if high is not None else f"at least {size(low)}"
    return f"more than {above}, up to {high}" if above is not None else ""


def expected(section: type[Any]) -> dict[str, tuple[str, str]]:
    hints = typing.get_type_hints(section, include_extras=True)
    rows = {}
    for field in dataclasses.fields(section):
        key = {"asynchronous": "async"}.get(field.name, field.name)
        if field.default is not dataclasses.MISSING:
            default = shown(key, field.default)
        elif field.default_factory is not dataclasses.MISSING:
            default = "see below"
        else:
            default = REQUIRED
        rows[key] = (default, values(key, hints[field.name]))
    return rows


def documented() -> dict[str, dict[str, tuple[str, str]]]:
    """The tables of the reference: section to key to (default, values)."""
    sections: dict[str, dict[str, tuple[str, str]]] = {}
    rows: dict[str, tuple[str, str]] = {}
    for line in REFERENCE.read_text().splitlines():
        heading = re.fullmatch(r"#+ `([^`]+)`.*", line)
        if heading:
            rows = sections.setdefault(heading[1], {})
        row = re.fullmatch(r"\| `([^`]+)` \| ([^|]*) \| ([^|]*) \| [^|]+ \|", line)
        if row:
            rows[row[1]] = (row[2].strip(), row[3].strip())
    return sections


def test_the_configuration_reference_has_every_section() -> None:
    assert list(documented()) == list(SECTIONS)


@pytest.mark.parametrize("name", list(SECTIONS))
def test_the_configuration_reference_has_every_key_with_default_and_values(name: str) -> None:
    assert documented()[name] == expected(SECTIONS[name])


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: str(document.name))
def test_the_examples_of_configurations_are_accepted(document: Path, tmp_path: Path) -> None:
    examples = [
        text for text in re.findall(r"```yaml\n(.*?)```", document.read_text(), re.DOTALL) if "exports:" in text
    ]
    assert examples or document != REFERENCE
    for text in examples:
        here = re.sub(r"path: (?:\./|/srv/)?(\S+)", rf"path: {tmp_path}/\1", text)
        for name in re.findall(rf"path: {tmp_path}/(\S+)", here):
            (tmp_path / name).mkdir(parents=True, exist_ok=True)
        parse(here, str(tmp_path / "exports.yaml"))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: str(document.name))
def test_links_between_documents_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text()):
        assert (document.parent / target).exists(), target


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: str(document.name))
def test_paths_that_documents_name_exist(document: Path) -> None:
    text = re.sub(r"```.*?```", "", document.read_text(), flags=re.DOTALL)
    for path in re.findall(r"`((?:nfsd|rpcrdma|tests|docs|systemd|bench)/[\w./-]*)`", text):
        assert (ROOT / path).exists(), path


def test_dependencies_are_all_explained() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = [*project["dependencies"], *itertools.chain(*project["optional-dependencies"].values())]
    text = (ROOT / "docs" / "dependencies.md").read_text().lower()
    assert len(declared) > 10
    for requirement in declared:
        name = re.match(r"[A-Za-z0-9_-]+", requirement)
        assert name is not None
        assert f"`{name[0].lower()}`" in text, requirement
