# ruff: noqa: F403, F405
"""NFSv3 (RFC 1813): every name of the protocol in one place, and the table of procedures.

Imports the modules that declare them.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from nfsd.protocol.nfs3_dirs import *
from nfsd.protocol.nfs3_files import *
from nfsd.protocol.nfs3_names import *
from nfsd.protocol.nfs3_types import *

NFS_PROGRAM: Final = 100003
NFS_V3: Final = 3

NFSPROC3_NULL: Final = 0
NFSPROC3_GETATTR: Final = 1
NFSPROC3_SETATTR: Final = 2
NFSPROC3_LOOKUP: Final = 3
NFSPROC3_ACCESS: Final = 4
NFSPROC3_READLINK: Final = 5
NFSPROC3_READ: Final = 6
NFSPROC3_WRITE: Final = 7
NFSPROC3_CREATE: Final = 8
NFSPROC3_MKDIR: Final = 9
NFSPROC3_SYMLINK: Final = 10
NFSPROC3_MKNOD: Final = 11
NFSPROC3_REMOVE: Final = 12
NFSPROC3_RMDIR: Final = 13
NFSPROC3_RENAME: Final = 14
NFSPROC3_LINK: Final = 15
NFSPROC3_READDIR: Final = 16
NFSPROC3_READDIRPLUS: Final = 17
NFSPROC3_FSSTAT: Final = 18
NFSPROC3_FSINFO: Final = 19
NFSPROC3_PATHCONF: Final = 20
NFSPROC3_COMMIT: Final = 21


class ProcedureTypes(NamedTuple):
    """One procedure: its name and the types of its arguments and results (None: void)."""

    name: str
    arguments: Any
    results: Any


PROCEDURES: Final[dict[int, ProcedureTypes]] = {
    NFSPROC3_NULL: ProcedureTypes("NULL", None, None),
    NFSPROC3_GETATTR: ProcedureTypes("GETATTR", GETATTR3args, GETATTR3res),
    NFSPROC3_SETATTR: ProcedureTypes("SETATTR", SETATTR3args, SETATTR3res),
    NFSPROC3_LOOKUP: ProcedureTypes("LOOKUP", LOOKUP3args, LOOKUP3res),
    NFSPROC3_ACCESS: ProcedureTypes("ACCESS", ACCESS3args, ACCESS3res),
    NFSPROC3_READLINK: ProcedureTypes("READLINK", READLINK3args, READLINK3res),
    NFSPROC3_READ: ProcedureTypes("READ", READ3args, READ3res),
    NFSPROC3_WRITE: ProcedureTypes("WRITE", WRITE3args, WRITE3res),
    NFSPROC3_CREATE: ProcedureTypes("CREATE", CREATE3args, CREATE3res),
    NFSPROC3_MKDIR: ProcedureTypes("MKDIR", MKDIR3args, MKDIR3res),
    NFSPROC3_SYMLINK: ProcedureTypes("SYMLINK", SYMLINK3args, SYMLINK3res),
    NFSPROC3_MKNOD: ProcedureTypes("MKNOD", MKNOD3args, MKNOD3res),
    NFSPROC3_REMOVE: ProcedureTypes("REMOVE", REMOVE3args, REMOVE3res),
    NFSPROC3_RMDIR: ProcedureTypes("RMDIR", RMDIR3args, RMDIR3res),
    NFSPROC3_RENAME: ProcedureTypes("RENAME", RENAME3args, RENAME3res),
    NFSPROC3_LINK: ProcedureTypes("LINK", LINK3args, LINK3res),
    NFSPROC3_READDIR: ProcedureTypes("READDIR", READDIR3args, READDIR3res),
    NFSPROC3_READDIRPLUS: ProcedureTypes("READDIRPLUS", READDIRPLUS3args, READDIRPLUS3res),
    NFSPROC3_FSSTAT: ProcedureTypes("FSSTAT", FSSTAT3args, FSSTAT3res),
    NFSPROC3_FSINFO: ProcedureTypes("FSINFO", FSINFOargs, FSINFO3res),
    NFSPROC3_PATHCONF: ProcedureTypes("PATHCONF", PATHCONF3args, PATHCONF3res),
    NFSPROC3_COMMIT: ProcedureTypes("COMMIT", COMMIT3args, COMMIT3res),
}
