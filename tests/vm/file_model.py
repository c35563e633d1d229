"""Replays the lines of inside/recorder.py, and compares them with the disk that is found after a power cut.

Everything acknowledged must be there. The one operation that was under way may have happened, or not, or, a write, in
part.
"""

from __future__ import annotations

import copy
import json
import random
import tarfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Node:
    """A file, directory or symbolic link."""

    kind: str
    mode: int = 0o644
    data: bytearray = field(default_factory=bytearray)
    target: str = ""
    uid: int = 0
    """Of a link; a file's is not looked at."""


class FileModel:
    """Names and what they stand for. Two names of one file share the Node."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.acknowledged = 0
        self.pending: dict[str, Any] | None = None

    @classmethod
    def replay(cls, recorded: str) -> FileModel:
        """The model after the acknowledged operations of a recording, with the one under way as ``pending``."""
        model = cls()
        for line in recorded.splitlines(keepends=True):
            if not line.endswith("\n"):
                break  # the power went in the middle of a line
            if line.startswith("do "):
                model.pending = json.loads(line[3:])
            elif line.strip() == "ack":
                assert model.pending is not None
                model.apply(model.pending)
                model.pending = None
                model.acknowledged += 1
            else:
                raise AssertionError(f"the recorder failed: {line!r} {recorded[-2000:]}")
        return model

    def apply(self, operation: dict[str, Any]) -> None:
        """Do one operation."""
        path = operation["path"]
        match operation["op"]:
            case "create":
                self.nodes[path] = Node("file")
            case "write":
                node, offset, length = self.nodes[path], operation["offset"], operation["length"]
                node.data.extend(bytes(max(0, offset + length - len(node.data))))
                node.data[offset : offset + length] = random.Random(operation["seed"]).randbytes(length)
            case "truncate":
                data, size = self.nodes[path].data, operation["size"]
                del data[size:]
                data.extend(bytes(size - len(data)))
            case "mkdir":
                self.nodes[path] = Node("directory", 0o755)
            case "rmdir" | "remove":
                del self.nodes[path]
            case "rename":
                self.nodes[operation["to"]] = self.nodes.pop(path)
            case "link":
                self.nodes[operation["to"]] = self.nodes[path]
            case "symlink":
                self.nodes[path] = Node("link", 0o777, target=operation["target"])
            case "lchown":
                self.nodes[path].uid = operation["uid"]
            case "chmod":
                self.nodes[path].mode = operation["mode"]
            case other:
                raise ValueError(other)

    def differences(self, found: FileModel) -> list[str]:
        """What of the acknowledged state is not in ``found``; nothing when the pending operation explains it."""
        plain = self._compare(found, None)
        if not plain or self.pending is None:
            return plain
        after = copy.deepcopy(self)
        after.apply(self.pending)
        path = self.pending["path"]
        if self.pending["op"] in ("create", "mkdir") and path in found.nodes:
            # An exclusive create of NFSv3 sets the mode with a second call.
            after.nodes[path].mode = found.nodes[path].mode
        torn = self.pending if self.pending["op"] in ("write", "truncate") else None
        with_pending = after._compare(found, None)
        if not with_pending or (torn is not None and not self._compare(found, torn)):
            return []
        return plain

    def _compare(self, found: FileModel, torn: dict[str, Any] | None) -> list[str]:
        problems = [f"{name}: {self.nodes[name].kind} is missing" for name in self.nodes if name not in found.nodes]
        extra = [name for name in found.nodes if name not in self.nodes]
        problems += [f"{name}: {found.nodes[name].kind} should not be there" for name in extra]
        torn_node = self.nodes.get(torn["path"]) if torn else None
        for name, node in self.nodes.items():
            other = found.nodes.get(name)
            if other is None:
                continue
            if (node.kind, node.target) != (other.kind, other.target):
                problems.append(f"{name}: {node.kind} {node.target} is a {other.kind} {other.target}")
            elif node.uid != other.uid:
                problems.append(f"{name}: owner {node.uid} is {other.uid}")
            elif node.mode != other.mode:
                problems.append(f"{name}: mode {node.mode:o} is {other.mode:o}")
            elif torn is not None and node is torn_node:
                problems += self._compare_torn(name, node.data, other.data, torn)
            elif node.data != other.data:
                problems.append(f"{name}: {_first_difference(node.data, other.data)}")
        return problems

    @staticmethod
    def _compare_torn(name: str, before: bytearray, after: bytearray, torn: dict[str, Any]) -> list[str]:
        """Outside what a write that was under way covers, nothing may differ."""
        start: int = torn["offset"] if torn["op"] == "write" else torn["size"]
        end: int = start + torn.get("length", 1 << 40)
        keep = min(start, len(before))
        if before[:keep] != after[:keep] or before[end:] != after[end : len(before)]:
            return [f"{name}: differs outside the write that was under way"]
        return []

    @classmethod
    def from_tar(cls, path: Path, root: str) -> FileModel:
        """The model of a tree as ``tar -cf PATH ROOT`` found it."""
        model = cls()
        with tarfile.open(path) as archive:
            for info in archive:
                name = info.name.removeprefix(root).strip("/")
                if not name:
                    continue
                if info.islnk():
                    model.nodes[name] = model.nodes[info.linkname.removeprefix(root).strip("/")]
                elif info.isdir():
                    model.nodes[name] = Node("directory", info.mode)
                elif info.issym():
                    model.nodes[name] = Node("link", 0o777, target=info.linkname, uid=info.uid)
                else:
                    content = archive.extractfile(info)
                    assert content is not None
                    model.nodes[name] = Node("file", info.mode, bytearray(content.read()))
        return model


def _first_difference(expected: bytearray, found: bytearray) -> str:
    if len(expected) != len(found):
        return f"{len(found)} octets instead of {len(expected)}"
    at = next(i for i, (a, b) in enumerate(zip(expected, found, strict=True)) if a != b)
    return f"differs from octet {at} on{' (zeros)' if not any(found[at : at + 64]) else ''}"
