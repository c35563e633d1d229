"""The configuration of ``rdma-nfsd serve DIR``, which names no file.

Owns the choice of what is served and where its state lies. Imports :mod:`nfsd.config_file`, which checks the result as
it checks a file.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import os
from typing import Any

import yaml

from nfsd.config import Config
from nfsd.config_file import ConfigError, Problem, parse

NAME = "command line"
"""Stands for the file in messages."""

LISTEN = ("rdma://127.0.0.1:20049", "tcp://127.0.0.1:2049")
"""This host only, as in the sample configuration: the network has to be asked for."""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """The arguments that stand for a file."""
    text = "a directory to export under its own name, as /NAME; instead of a configuration"
    command.add_argument("directories", nargs="*", metavar="DIR", help=text)
    text = f"with DIR: where to serve; may be repeated; the default is {' and '.join(LISTEN)}"
    command.add_argument("--listen", action="append", metavar="URL", help=text)
    text = "with DIR: an address, network or host name that may mount; may be repeated; the default is everybody"
    command.add_argument("--client", action="append", metavar="HOST", help=text)
    command.add_argument("--read-only", action="store_true", help="with DIR: clients cannot change anything")
    text = (
        "with DIR: who becomes nobody: clients' root (root, the default), no one (none: clients' root is root), or "
        "everybody (all)"
    )
    command.add_argument("--squash", choices=("root", "none", "all"), help=text)
    text = (
        "with DIR: where the keys of file handles and the records of clients are kept; the default is a directory for "
        "these DIRs below /var/lib/rdma-nfsd, or below ~/.local/state/rdma-nfsd if you are not root"
    )
    command.add_argument("--state-dir", metavar="DIR", help=text)
    text = (
        "with DIR, if you are not root: whose connections from this host are accepted; own: yours and root's (the "
        "default); all: every user's, and then every user may do with DIR what you may"
    )
    command.add_argument("--local-users", choices=("own", "all"), help=text)


def is_complete(parsed: argparse.Namespace) -> str:
    """What is wrong with the arguments taken together; empty when nothing is."""
    if bool(parsed.config) == bool(parsed.directories):
        return "name directories to serve, or --config FILE: one of the two"
    options = (parsed.listen, parsed.client, parsed.read_only, parsed.squash, parsed.state_dir, parsed.local_users)
    if parsed.config and any(options):
        return (
            "--listen, --client, --read-only, --squash, --state-dir and --local-users go with DIR; write them into the "
            "file instead"
        )
    return ""


def configuration(parsed: argparse.Namespace) -> Config:
    """The configuration that the arguments are. Raises ConfigError, naming the keys a file would have."""
    directories = [os.path.realpath(directory) for directory in parsed.directories]
    shared: dict[str, Any] = {"access": "ro" if parsed.read_only else "rw"}
    if parsed.squash:
        shared["squash"] = parsed.squash
    if parsed.client:
        shared["clients"] = parsed.client
    document = {
        "server": {
            "listen": parsed.listen or list(LISTEN),
            "local_users": parsed.local_users or "own",
            "state_dir": os.path.abspath(parsed.state_dir) if parsed.state_dir else _state_dir(directories),
        },
        "exports": [{"path": path, "pseudo": f"/{os.path.basename(path)}", **shared} for path in directories],
    }
    problems = []
    for index, path in enumerate(directories):
        if not os.path.isdir(path):  # what is typed here is there, or is mistyped
            what = "is not a directory" if os.path.lexists(path) else "does not exist"
            problems.append(Problem(NAME, 0, f"exports[{index}].path", f"{path} {what}; correct it, or create it"))
    try:
        config = parse(yaml.safe_dump(document, sort_keys=False), NAME)
    except ConfigError as error:  # lines of a text that nobody has seen say nothing
        problems = [*(dataclasses.replace(problem, line=0) for problem in error.problems), *problems]
    if problems:
        raise ConfigError(problems)
    return config


def _state_dir(directories: list[str]) -> str:
    """A directory for just these exports: handles stay good when they are served again."""
    if os.geteuid() == 0:
        base = "/var/lib/rdma-nfsd"
    else:
        base = os.path.join(os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state"), "rdma-nfsd")
    digest = hashlib.sha256("\0".join(sorted(directories)).encode(errors="surrogateescape")).hexdigest()
    return os.path.join(base, f"dirs-{digest[:16]}")
