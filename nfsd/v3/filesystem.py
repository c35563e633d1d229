"""FSSTAT, FSINFO, PATHCONF (RFC 1813 sections 3.3.18 to 3.3.20): the truth about the file system a file is on.

Owns these procedures; imports the declarations, the conversions and the request.
"""

from __future__ import annotations

from typing import Final

from nfsd.protocol.nfs3 import (
    FSF3_CANSETTIME,
    FSF3_HOMOGENEOUS,
    FSF3_LINK,
    FSF3_SYMLINK,
    NFSPROC3_FSINFO,
    NFSPROC3_FSSTAT,
    NFSPROC3_PATHCONF,
    FSINFO3res,
    FSINFO3resfail,
    FSINFO3resok,
    FSINFOargs,
    FSSTAT3args,
    FSSTAT3res,
    FSSTAT3resfail,
    FSSTAT3resok,
    PATHCONF3args,
    PATHCONF3res,
    PATHCONF3resfail,
    PATHCONF3resok,
    nfsstat3,
)
from nfsd.v3.convert import time3
from nfsd.v3.request import Aftermath, Demands, Operation, Request


async def fsstat3(request: Request, args: FSSTAT3args) -> FSSTAT3res:
    """Space and file slots."""
    node, _ = await request.resolve(args.fsroot.data)
    status = await request.service.status(node)
    return FSSTAT3res(
        nfsstat3.NFS3_OK,
        resok=FSSTAT3resok(
            await request.after(node),
            status.total_bytes,
            status.free_bytes,
            status.available_bytes,
            status.total_files,
            status.free_files,
            status.available_files,
            0,  # invarsec: any file may change at any moment
        ),
    )


def _fsstat3_failed(status: nfsstat3, after: Aftermath) -> FSSTAT3res:
    return FSSTAT3res(status, resfail=FSSTAT3resfail(after))


async def fsinfo3(request: Request, args: FSINFOargs) -> FSINFO3res:
    """Transfer sizes and what the file system can do."""
    request.demands = Demands.BELOW_ROOT
    node, _ = await request.resolve(args.fsroot.data)
    names = await request.service.limits(node)
    properties = FSF3_HOMOGENEOUS | FSF3_CANSETTIME
    if names.link_max > 1:
        # FAT and its kin have one name per file, and no symbolic links either (Linux's server draws the same line).
        properties |= FSF3_LINK | FSF3_SYMLINK
    sizes = request.limits
    read_max, write_max = min(sizes.read_max, node.export.max_read), min(sizes.write_max, node.export.max_write)
    return FSINFO3res(
        nfsstat3.NFS3_OK,
        resok=FSINFO3resok(
            await request.after(node),
            read_max,
            read_max,
            sizes.multiple,
            write_max,
            write_max,
            sizes.multiple,
            sizes.directory_preferred,
            names.max_file_size,
            time3(names.time_delta),
            properties,
        ),
    )


def _fsinfo3_failed(status: nfsstat3, after: Aftermath) -> FSINFO3res:
    return FSINFO3res(status, resfail=FSINFO3resfail(after))


async def pathconf3(request: Request, args: PATHCONF3args) -> PATHCONF3res:
    """What names may be."""
    node, _ = await request.resolve(args.object.data)
    names = await request.service.limits(node)
    return PATHCONF3res(
        nfsstat3.NFS3_OK,
        resok=PATHCONF3resok(
            await request.after(node),
            min(names.link_max, 0xFFFFFFFF),
            names.name_max,
            names.no_trunc,
            names.chown_restricted,
            names.case_insensitive,
            names.case_preserving,
        ),
    )


def _pathconf3_failed(status: nfsstat3, after: Aftermath) -> PATHCONF3res:
    return PATHCONF3res(status, resfail=PATHCONF3resfail(after))


OPERATIONS: Final = (
    Operation(NFSPROC3_FSSTAT, fsstat3, _fsstat3_failed),
    Operation(NFSPROC3_FSINFO, fsinfo3, _fsinfo3_failed),
    Operation(NFSPROC3_PATHCONF, pathconf3, _pathconf3_failed),
)
