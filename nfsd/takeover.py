"""The command ``rdma-nfsd takeover``: have what a server has promised to its clients for this host, so that the server
can start here.

Owns its messages and exit statuses; the arguments are in :mod:`nfsd.command_line`. Imports the configuration, the state
directory and stable storage. Nothing is served here: that is for ``rdma-nfsd serve``, which then starts at once.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Final

from nfsd import state_dir
from nfsd.config import Config
from nfsd.config_file import ConfigError, load
from nfsd.config_stable import RadosPool
from nfsd.stable.rados.taking import InUse, take
from nfsd.stable.sqlite import FILE_NAME
from nfsd.state_dir import StateDirError

ELSEWHERE: Final = 3
"""Another host has it."""


class _Refused(Exception):
    """The server may not start here; the text says why."""


def main(parsed: argparse.Namespace) -> int:
    """Run the command. Returns the exit status."""
    path = parsed.config or f"/etc/rdma-nfsd/{parsed.name}.yaml"
    try:
        config = load(path)
    except ConfigError as error:
        for problem in error.problems:
            print(problem, file=sys.stderr)
        return 2
    if config.server.name != parsed.name:
        print(f"{path}: server.name is {config.server.name or 'not there'}, and not {parsed.name}", file=sys.stderr)
        return 2
    try:
        print(f"{parsed.name}: {_take_over(config, parsed.name, fence=parsed.fence)}")
    except InUse as error:
        print(f"rdma-nfsd takeover: {error.filename}: {error.strerror}", file=sys.stderr)
        print("stop the server there, or take it from that host: --fence", file=sys.stderr)
        return ELSEWHERE
    except (_Refused, StateDirError) as error:
        print(f"rdma-nfsd takeover: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"rdma-nfsd takeover: {error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    return 0


def _take_over(config: Config, name: str, *, fence: bool) -> str:
    """Returns what there is to say. Raises InUse, _Refused, StateDirError, OSError."""
    directory, pool = config.server.state_dir, config.server.stable_storage.rados
    if pool is None and not os.path.exists(os.path.join(directory, FILE_NAME)):
        raise _Refused(
            f"{directory} has no server's records: see that its disk is mounted; a server that is new needs no takeover"
        )
    if os.path.isdir(directory) and state_dir.examine(directory):
        return "runs on this host already"
    lock = state_dir.take(directory)
    try:
        if pool is None:
            return f"may start here, with the records in {directory}"
        return _from_pool(config, pool, name, fence=fence)
    finally:
        os.close(lock)


def _from_pool(config: Config, pool: RadosPool, name: str, *, fence: bool) -> str:
    taken = take(pool, name, config.server.state_dir, fence=fence)
    if taken.former:
        for export in config.exports:
            backend = export.backend
            if backend is not None and backend.kind == "cephfs" and "gateway" not in backend.options:
                text = f"nothing keeps {taken.former} from writing to {export.pseudo}: give it options.gateway"
                print(f"rdma-nfsd takeover: {text}", file=sys.stderr)
        return f"may start here; it was taken from {taken.former}"
    return "may start here" + (", for the first time" if taken.is_new else "; nobody else has it")
