"""RQUOTA (program 100011) answers the command ``quota`` of NFS clients, of NFSv4 too (quota(1), rpc.rquotad(8)).

Owns its procedures; imports the declarations, the file service, the exports, and MOUNT's way to a directory. The
caller must be known as the export says, and is squashed as there. Users may ask about themselves and their groups, and
root about everybody. Nobody can set quotas.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from typing import Any, Final

from nfsd.exports import Export, ExportTable
from nfsd.matching import peer_of
from nfsd.mount.paths import components, matches
from nfsd.mount.walk import LeadsOut, walk
from nfsd.protocol import rquota as r
from nfsd.vfs.service import FileService
from nfsd.vfs.types import Credential, CrossingRefused, OwnerQuota
from rpcrdma.rpc.program import Call, Procedure, Program

_BLOCK: Final = 1024
"""Octets of the kernel's blocks, the smallest that are told."""
_MOST: Final = 0xFFFFFFFF
_NO_QUOTA: Final = r.getquota_rslt(r.gqr_status.Q_NOQUOTA)
_NOT_PERMITTED: Final = r.getquota_rslt(r.gqr_status.Q_EPERM)


class QuotaService:
    """The procedures of both versions."""

    def __init__(self, service: FileService, exports: ExportTable, clock: Callable[[], float] = time.time) -> None:
        self._service, self._exports, self._clock = service, exports, clock

    async def null(self, call: Call, arguments: None) -> None:
        """Answer, and do no work at all."""

    async def get_of_user(self, call: Call, args: r.getquota_args) -> r.getquota_rslt:
        """GETQUOTA and GETACTIVEQUOTA of version 1."""
        return await self._get(call, args.gqa_pathp, r.USRQUOTA, args.gqa_uid)

    async def get(self, call: Call, args: r.ext_getquota_args) -> r.getquota_rslt:
        """GETQUOTA and GETACTIVEQUOTA of version 2."""
        return await self._get(call, args.gqa_pathp, args.gqa_type, args.gqa_id)

    async def set(self, call: Call, args: Any) -> r.getquota_rslt:
        """SETQUOTA and SETACTIVEQUOTA: refused."""
        return _NOT_PERMITTED

    async def _get(self, call: Call, path: bytes, kind: int, owner: int) -> r.getquota_rslt:
        if kind not in (r.USRQUOTA, r.GRPQUOTA) or owner == _MOST:
            return _NO_QUOTA
        # NFSv4's clients may leave out the first slash (quota -A): the path is one of NFSv4's names.
        names = components(path if path.startswith(b"/") else b"/" + path)
        peer, caller = peer_of(call.transport), call.credential
        answer = _NOT_PERMITTED  # of what is not for the client, or not for it as it comes, it learns nothing
        for export, below in matches(self._exports.exports, names) if names is not None else ():
            if not self._exports.visible(export, peer) or not self._exports.takes(export, call.transport):
                continue
            if not self._exports.believes(export, caller, call.transport):
                self._exports.disbelieve(export, caller, call.transport, "RQUOTA")
                continue
            who = await self._exports.credential(export, caller.flavor, caller.uid, caller.gid, caller.gids, peer)
            if not _may_ask(who, kind, owner):
                continue
            try:
                found = await self._ask(export, below, who, kind, owner)
            except PermissionError:
                continue  # a server that cannot act as others knows of its own quotas only
            if found is not None:
                return r.getquota_rslt(r.gqr_status.Q_OK, self._told(found))
            answer = _NO_QUOTA
        return answer

    async def _ask(
        self, export: Export, below: list[bytes], who: Credential, kind: int, owner: int
    ) -> OwnerQuota | None:
        """The quota on the file system that a directory is on. None: there is no such directory, or no quota."""
        try:
            node = await walk(self._service, export, below)
            uid, gid = (owner, who.gid) if kind == r.USRQUOTA else (who.uid, owner)
            return await self._service.owner_quota(node, kind, uid, gid)
        except (CrossingRefused, LeadsOut):
            return None
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ESTALE, errno.ENAMETOOLONG):
                return None
            raise  # of those that are no PermissionError the client is told SYSTEM_ERR, and may ask again

    def _told(self, found: OwnerQuota) -> r.rquota:
        """In 32 bits: in larger blocks where there are too many."""
        limits = [found.hard, found.soft, found.used]
        size = _BLOCK
        while max(limits) > _MOST * size:
            size *= 2
        blocks = [-(-octets // size) for octets in limits]
        files = [min(count, _MOST) for count in (found.hard_files, found.soft_files, found.used_files)]
        times = [self._left(found.octets_deadline), self._left(found.files_deadline)]
        return r.rquota(size, True, *blocks, *files, *times)

    def _left(self, deadline: int) -> int:
        return (deadline - int(self._clock())) & _MOST if deadline else 0


def _may_ask(who: Credential, kind: int, owner: int) -> bool:
    if who.uid == 0:
        return True
    return owner == who.uid if kind == r.USRQUOTA else owner in (who.gid, *who.gids)


def rquota_program(service: FileService, exports: ExportTable) -> Program:
    """The program for the dispatcher. All its procedures are idempotent."""
    quotas = QuotaService(service, exports)

    def procedures(get: Any, asked: Any, changed: Any) -> dict[int, Procedure]:
        return {
            r.RQUOTAPROC_NULL: Procedure("NULL", quotas.null),
            r.RQUOTAPROC_GETQUOTA: Procedure("GETQUOTA", get, asked, r.getquota_rslt),
            r.RQUOTAPROC_GETACTIVEQUOTA: Procedure("GETACTIVEQUOTA", get, asked, r.getquota_rslt),
            r.RQUOTAPROC_SETQUOTA: Procedure("SETQUOTA", quotas.set, changed, r.getquota_rslt),
            r.RQUOTAPROC_SETACTIVEQUOTA: Procedure("SETACTIVEQUOTA", quotas.set, changed, r.getquota_rslt),
        }

    versions = {
        r.RQUOTA_V1: procedures(quotas.get_of_user, r.getquota_args, r.setquota_args),
        r.RQUOTA_V2: procedures(quotas.get, r.ext_getquota_args, r.ext_setquota_args),
    }
    return Program(r.RQUOTA_PROGRAM, "rquota", versions)
