"""Client records when the number of processes changes: each goes to the process that its client will come to.

Records lie in the database of each process (:mod:`nfsd.stable.sqlite`). After another number of processes has been
configured, clients come to other processes, and may reclaim there only what is on record there. So before any process
starts, the former databases are read, and those of the new number written. A file in the state directory says for how
many processes the records lie there. It is changed last, in one step, so a crash on the way loses nothing.

A record names its client's address. One from which no address can be read goes to every process: it may be reclaimed
by whoever shows the name, once, and goes at the end of the grace period.

Owns :func:`settle`. Imports the recovery store's format.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator

from nfsd.portions import state_dir_of
from nfsd.stable.sqlite import FILE_NAME, Records, read_records, write_records
from nfsd.state.recovery import ClientRecord
from nfsd.state.types import NLM
from rpcrdma.server.spread import place_of

_log = logging.getLogger(__name__)

MARK = "processes"


def settle(state_dir: str, count: int) -> None:
    """Have the records where ``count`` processes look for them. The caller holds the directory's lock. Raises
    OSError."""
    former = _former(state_dir)
    if former == count:
        return
    found = [read_records(_database(state_dir, index, former)) for index in range(former)]
    records = [record for one in found for record in one.records]
    epoch, lease = max(one.epoch for one in found), max(one.lease for one in found)
    for index in range(count):
        path = _database(state_dir, index, count)
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        for leftover in (path, f"{path}-wal", f"{path}-shm"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(leftover)
        mine = tuple(record for record in records if index in _homes(record, count))
        if epoch:
            write_records(path, Records(epoch, lease, mine))
    _set_mark(state_dir, count)
    _log.info("%d client records of %d processes are those of %d now", len(records), former, count)


def _database(state_dir: str, index: int, count: int) -> str:
    return os.path.join(state_dir_of(state_dir, index, count), FILE_NAME)


def _former(state_dir: str) -> int:
    """How many processes there were."""
    try:
        with open(os.path.join(state_dir, MARK)) as file:
            return int(file.read(16))
    except FileNotFoundError:
        return 1
    except ValueError as error:
        raise OSError(f"{state_dir}/{MARK} names no number of processes; remove it, or write the last one") from error


def _set_mark(state_dir: str, count: int) -> None:
    path = os.path.join(state_dir, MARK)
    with open(os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "w") as file:
        file.write(f"{count}\n")
        file.flush()
        os.fsync(file.fileno())
    os.rename(path + ".new", path)
    directory = os.open(state_dir, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _homes(record: ClientRecord, count: int) -> Iterator[int]:
    """The processes that this client may come to."""
    words = record.principal.split(" ")
    # NLM's has the client's address and ours; NFSv4's ends with address and verifier (nfsd/state/clients.py).
    address = words[0] if record.minor == NLM else words[-2] if len(words) > 1 else ""
    try:
        yield place_of(address.removesuffix("!"), count)
    except ValueError:
        yield from range(count)
