"""What of an export's entry is about its backend. Imports the declarations; :mod:`nfsd.config_file` uses this."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from nfsd.config import ExportEntry
from nfsd.exported import BackendChoice

_FACTORY: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def backend_of(entry: ExportEntry) -> BackendChoice | None:
    """What the export's files are in; None: a directory."""
    return None if entry.backend is None else BackendChoice(entry.backend, entry.module or "", entry.options)


def problems_of_backend(entry: ExportEntry, processes: int) -> Iterator[tuple[str, str]]:
    """What an export with a backend lacks, and what it has that is of directories: keys, and what is wrong.
    ``processes``: how many the server is to have."""
    if processes != 1:
        # Each would make a store of its own, with other files, other handles, and locks that the others do not see.
        yield "backend", "is served by one process only; set server.processes to 1"
    for key, given in (
        ("path", entry.path is not None),
        ("mountpoint", entry.mountpoint is not False),
        ("cross_mounts", entry.cross_mounts),
        ("security_labels", entry.security_labels),
    ):
        if given:
            yield key, "is of directories; remove it, or backend"
    if entry.pseudo is None:
        yield "pseudo", "is missing; give the backend's files a name, such as /memory"
    if entry.backend == "python":
        if not _FACTORY.fullmatch(entry.module or ""):
            yield "module", "must name a factory, such as package.module:Class"
    elif entry.module is not None:
        yield "module", "goes with backend: python; remove it"
