"""The commands that ask a running server, except the live screen: the request, and the answer as a table or as JSON.

Owns :func:`main`; imports the asking and the shapes. Exit status: 0, 1 when the server could not or would not, 2 for a
wrong configuration or command line.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import Any, Final

from nfsd.admin import shapes
from nfsd.admin.asking import ask, state_dir_of, told

_ROUND: Final = 3600.0
"""Seconds that a restart of all processes may take, each with its calls in flight."""


def main(parsed: argparse.Namespace) -> int:
    """Run one. Returns the exit status."""
    return told(parsed.command, lambda: _show(parsed, _answer(parsed, state_dir_of(parsed.config, parsed.state_dir))))


def _show(parsed: argparse.Namespace, answer: dict[str, Any]) -> None:
    if parsed.json:
        print(json.dumps(answer.get("rows", answer), indent=2))
    else:
        for line in shapes.SHAPES[parsed.command](answer):
            print(line)
    if answer.get("left_out"):
        print(f"… and {answer['left_out']} more; --limit shows them", file=sys.stderr)


def _answer(parsed: argparse.Namespace, state_dir: str) -> dict[str, Any]:
    command = parsed.command
    if command == "stats":
        after = ask(state_dir, command)
        if parsed.seconds > 0:
            before = after
            time.sleep(parsed.seconds)
            after = shapes.between(before, ask(state_dir, command))
        return after
    if command == "evict" or command == "forget":
        return ask(state_dir, command, client=parsed.client)
    if command == "drain":
        seconds = parsed.seconds
        return ask(state_dir, command, 60.0 + seconds, export=parsed.export, seconds=seconds, dry_run=parsed.dry_run)
    if command == "log-level":
        return ask(state_dir, command, level=parsed.level)
    if command == "reload":
        return ask(state_dir, command, dry_run=parsed.dry_run)
    if command == "read-only":
        if parsed.switch is None:
            return ask(state_dir, command)
        return ask(state_dir, command, 60.0 + parsed.seconds, on=parsed.switch == "on", seconds=parsed.seconds)
    if command == "processes":
        return ask(state_dir, command)
    if command == "restart":
        return ask(state_dir, command, _ROUND, process=parsed.process)
    if command == "faults":
        file = {} if parsed.file is None else {"file": os.path.abspath(parsed.file)}
        return ask(state_dir, command, clear=parsed.clear, **file)
    return ask(state_dir, command, limit=parsed.limit)
