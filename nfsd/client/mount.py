"""MOUNT version 3 for a client (RFC 1813 section 5, appendix I), and where it is served (RFC 1833).

Owns :class:`Mounts`; imports the protocol's declarations and the calls. MOUNT is served over TCP, never over RDMA
(RFC 8267 section 5). Its port is the one given, or the one that the server's rpcbind tells, or the one that is
customary.

Which part of a path is the export: the longest name in the server's list of exports (EXPORT) that the path begins with;
from a server that does not tell, the longest part of the path that it gives a handle for.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final

from nfsd.client.errors import NfsClientError
from nfsd.client.rpc import Caller, VersionRefused
from nfsd.protocol import mount3 as m
from rpcrdma.rpc.portmap import IPPROTO_TCP, PMAPPROC_GETPORT, PMAPVERS, mapping
from rpcrdma.rpc.rpcbind import PORT as RPCBIND_PORT
from rpcrdma.rpc.rpcbind import RPCBPROG
from rpcrdma.xdr import uint32

_log = logging.getLogger(__name__)

CUSTOMARY_PORT: Final = 20048
"""Where mountd is found on most servers."""
_MOST_TRIES: Final = 64
_LIST_REPLY: Final = 1 << 20
_REPLY: Final = 1024

_ERRNO: Final = {
    m.mountstat3.MNT3ERR_PERM: errno.EPERM,
    m.mountstat3.MNT3ERR_NOENT: errno.ENOENT,
    m.mountstat3.MNT3ERR_IO: errno.EIO,
    m.mountstat3.MNT3ERR_ACCES: errno.EACCES,
    m.mountstat3.MNT3ERR_NOTDIR: errno.ENOTDIR,
    m.mountstat3.MNT3ERR_INVAL: errno.EINVAL,
    m.mountstat3.MNT3ERR_NAMETOOLONG: errno.ENAMETOOLONG,
    m.mountstat3.MNT3ERR_NOTSUPP: errno.EOPNOTSUPP,
}

Connect = Callable[[int], Awaitable[Caller]]
"""Connects to a TCP port of the server."""


class Mounts:
    """The exports that one client has mounted from one server."""

    def __init__(self, connect: Connect, server: str, port: int | None) -> None:
        """``server`` is its name for messages; ``port`` mountd's, if it is known."""
        self._connect = connect
        self._server = server
        self._port = port
        self._mounted: list[bytes] = []

    async def mount(self, names: Sequence[bytes]) -> tuple[bytes, Sequence[bytes]]:
        """The handle of the export that the path ``names`` leads into, and the rest of the path. Raises OSError for a
        path that may not be mounted, NfsClientError when there is no mountd to ask."""
        caller = await self._mountd()
        try:
            exported = await self._exports(caller)
            best = max((len(e) for e in exported if tuple(names[: len(e)]) == e), default=None)
            tries = [best] if best is not None else list(range(len(names), -1, -1))[:_MOST_TRIES]
            failure: OSError | None = None
            for length in tries:
                path = b"/" + b"/".join(names[:length])
                result = await caller.call(
                    m.MOUNT_PROGRAM, m.MOUNT_V3, m.MOUNTPROC3_MNT, (m.dirpath, path), m.mountres3, reply_max=_REPLY
                )
                if result.mountinfo is not None:
                    self._mounted.append(path)
                    return result.mountinfo.fhandle, names[length:]
                found = _ERRNO.get(result.fhs_status, errno.EREMOTEIO)
                # The first refusal that is no "there is no such thing" tells most.
                if failure is None or failure.errno in (errno.ENOENT, errno.ENOTDIR):
                    failure = OSError(found, os.strerror(found) + _remedy(found, exported, self._server))
                    failure.add_note(getattr(result.fhs_status, "name", str(result.fhs_status)))
        except (ConnectionError, VersionRefused) as error:
            raise self._no_mountd(error) from error
        finally:
            await caller.close()
        assert failure is not None
        raise failure

    async def _exports(self, caller: Caller) -> list[tuple[bytes, ...]]:
        try:
            listed = await caller.call(
                m.MOUNT_PROGRAM, m.MOUNT_V3, m.MOUNTPROC3_EXPORT, (None, None), m.exports, reply_max=_LIST_REPLY
            )
        except (OSError, VersionRefused, NfsClientError):
            return []  # a server that keeps its list to itself
        return [tuple(name for name in node.ex_dir.split(b"/") if name) for node in listed]

    async def _mountd(self) -> Caller:
        if self._port is None:
            self._port = await self._ask_rpcbind() or CUSTOMARY_PORT
        try:
            return await self._connect(self._port)
        except OSError as error:
            raise self._no_mountd(error) from error

    def _no_mountd(self, error: Exception) -> NfsClientError:
        why = getattr(error, "strerror", None) or error
        return NfsClientError(
            f"{self._server}: no mountd at TCP port {self._port} ({why}). NFSv3 needs it; name its port"
            " with --mount-port (mount_port=), or use NFSv4.1, which needs none"
        )

    async def _ask_rpcbind(self) -> int | None:
        """The port that the server's portmapper knows; None when there is none."""
        try:
            caller = await self._connect(RPCBIND_PORT)
        except OSError:
            return None
        try:
            wanted = mapping(m.MOUNT_PROGRAM, m.MOUNT_V3, IPPROTO_TCP, 0)
            port = await caller.call(RPCBPROG, PMAPVERS, PMAPPROC_GETPORT, (mapping, wanted), uint32, reply_max=_REPLY)
        except (OSError, VersionRefused, NfsClientError) as error:
            _log.info("%s: rpcbind does not tell mountd's port: %s", self._server, error)
            return None
        finally:
            await caller.close()
        return port if 0 < port < 1 << 16 else None

    async def close(self) -> None:
        """Have the server forget the mounts (UMNT); a server that is gone is no error."""
        mounted, self._mounted = self._mounted, []
        if not mounted:
            return
        with suppress(OSError, NfsClientError, VersionRefused):
            caller = await self._mountd()
            try:
                for path in mounted:
                    await caller.call(
                        m.MOUNT_PROGRAM, m.MOUNT_V3, m.MOUNTPROC3_UMNT, (m.dirpath, path), None, reply_max=_REPLY
                    )
            finally:
                await caller.close()


def _remedy(number: int, exported: list[tuple[bytes, ...]], server: str) -> str:
    if number in (errno.EACCES, errno.EPERM):
        return f" (may this host mount it? the exports of {server} say who may)"
    if number == errno.ENOENT and exported:
        listed = " ".join(os.fsdecode(b"/" + b"/".join(names)) for names in exported[:8])
        return f" ({server} exports {listed}{' …' if len(exported) > 8 else ''})"
    return ""
