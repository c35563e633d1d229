"""Asks a running server: finds its control socket, sends one request, and reads one answer.

Owns :func:`ask` and the search for the server. Imports the socket's address and the configuration.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import socket
import sys
from collections.abc import Callable
from typing import Any, Final

from nfsd.config_file import ConfigError, load
from nfsd.control import NAME, address_in

PLACES: Final = (
    "/var/lib/rdma-nfsd",
    "/var/lib/rdma-nfsd/dirs-*",
    "~/.local/state/rdma-nfsd/dirs-*",
    "state",
)
"""State directories where a server is looked for: of the package, of ``serve DIR``, and beside a configuration."""
_LONGEST: Final = 64 << 20


class NotAnswered(Exception):
    """There is no server, or it refuses; the text says why."""


def told(command: str, act: Callable[[], None]) -> int:
    """Act, and tell what is wrong with the configuration, or why there is no answer. Returns the exit status."""
    try:
        act()
    except ConfigError as error:
        for problem in error.problems:
            print(problem, file=sys.stderr)
        return 2
    except NotAnswered as error:
        print(f"rdma-nfsd {command}: {error}", file=sys.stderr)
        return 1
    return 0


def state_dir_of(config: str | None, state_dir: str | None) -> str:
    """Where the server's socket is. Raises NotAnswered, ConfigError."""
    if state_dir is not None:
        return state_dir
    if config is not None:
        return load(config).server.state_dir
    found = [place for pattern in PLACES for place in sorted(glob.glob(os.path.expanduser(pattern))) if _is_live(place)]
    if not found:
        raise NotAnswered("no server is found; name its configuration (--config) or state directory (--state-dir)")
    if len(found) > 1:
        raise NotAnswered(f"more than one server is running; name one: --state-dir {' or '.join(found)}")
    return found[0]


def _is_live(state_dir: str) -> bool:
    """Whether somebody listens there whom this user need not suspect: below the directory one stands in, another user
    may have put something that looks like a server, for root to ask and to believe."""
    trusted = (0, os.geteuid())
    try:
        # A link is as good as who made it.
        if os.lstat(state_dir).st_uid not in trusted or os.stat(state_dir).st_uid not in trusted:
            return False
        os.stat(os.path.join(state_dir, NAME))
    except OSError:
        return False
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        with address_in(state_dir) as address:
            probe.connect(address)
        return True
    return False


def ask(state_dir: str, command: str, patience: float = 60.0, **fields: Any) -> dict[str, Any]:
    """The answer to a request. ``patience``: seconds that it may take. Raises NotAnswered."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(patience)
            with address_in(state_dir) as address:
                connection.connect(address)
            connection.sendall(json.dumps({"command": command, **fields}).encode() + b"\n")
            line = bytearray()
            while not line.endswith(b"\n"):
                octets = connection.recv(1 << 20)
                if not octets or len(line) > _LONGEST:
                    break
                line += octets
    except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError):
        raise NotAnswered(f"no server is running with the state directory {state_dir}") from None
    except TimeoutError:
        raise NotAnswered("the server does not answer") from None
    except OSError as error:
        raise NotAnswered(f"control socket in {state_dir}: {error.strerror}") from None
    try:
        answer = json.loads(line)
    except ValueError:
        raise NotAnswered("the server gave no answer; it may have stopped") from None
    if "error" in answer:
        raise NotAnswered(str(answer["error"]))
    return dict(answer)
