"""GETXATTR, SETXATTR, LISTXATTRS, REMOVEXATTR (RFC 8276 section 8.4)."""

from __future__ import annotations

import contextlib
import errno
import hashlib
from collections.abc import Iterator

from nfsd.protocol import nfs4 as p
from nfsd.state import Nfs4Error
from nfsd.v4.compound import Compound
from nfsd.v4.operations import operation
from nfsd.v4.pseudofs import PseudoNode
from nfsd.vfs.service import Node
from nfsd.vfs.types import Change

_STATUS = {errno.ENODATA: p.NFS4ERR_NOXATTR, errno.E2BIG: p.NFS4ERR_XATTR2BIG}
_LIST_FIXED = 8 + 4 + 4
"""Octets of LISTXATTRS4resok without names: cookie, count, eof."""


def change_info(change: Change) -> p.change_info4:
    """The change of a file; nothing of ours came between, hence atomic."""
    return p.change_info4(atomic=True, before=change.before.change, after=change.after.change)


@contextlib.contextmanager
def _own_errors() -> Iterator[None]:
    """The errors that mean something else here than elsewhere."""
    try:
        yield
    except OSError as error:
        status = _STATUS.get(error.errno or 0)
        if status is None:
            raise
        raise Nfs4Error(status) from error


async def _bearer(c: Compound, *, changing: bool = False) -> Node:
    # The pseudo file system answers xattr_support with FALSE: then none of the operations is supported (section 8.4).
    if isinstance(c.here, PseudoNode) and (c.here.export is None or c.is_closed(c.here)):
        raise Nfs4Error(p.NFS4ERR_NOTSUPP)
    return await c.node(changing=changing)


def _check_key(key: bytes) -> None:
    if b"\0" in key:
        raise Nfs4Error(p.NFS4ERR_BADCHAR)


@operation(p.OP_GETXATTR)
async def getxattr(c: Compound, args: p.GETXATTR4args) -> bytes:
    """An attribute's value. Raises NOXATTR."""
    node = await _bearer(c)
    with _own_errors():
        return await c.service.get_xattr(await c.credential(node), node, args.gxa_name)


@operation(p.OP_SETXATTR, changes=True)
async def setxattr(c: Compound, args: p.SETXATTR4args) -> p.change_info4:
    """Create or replace an attribute. Raises EXIST, NOXATTR as the option demands, XATTR2BIG."""
    node = await _bearer(c, changing=True)
    _check_key(args.sxa_key)
    with _own_errors(), c.server.recalls.hold(node.key):
        await c.server.recalls.clear(node.key, c.client, write=True)
        change = await c.service.set_xattr(
            await c.credential(node),
            node,
            args.sxa_key,
            args.sxa_value,
            create=args.sxa_option == p.setxattr_option4.SETXATTR4_CREATE,
            replace=args.sxa_option == p.setxattr_option4.SETXATTR4_REPLACE,
        )
    return change_info(change)


@operation(p.OP_REMOVEXATTR, changes=True)
async def removexattr(c: Compound, args: p.REMOVEXATTR4args) -> p.change_info4:
    """Remove an attribute. Raises NOXATTR."""
    node = await _bearer(c, changing=True)
    _check_key(args.rxa_name)
    with _own_errors(), c.server.recalls.hold(node.key):
        await c.server.recalls.clear(node.key, c.client, write=True)
        return change_info(await c.service.remove_xattr(await c.credential(node), node, args.rxa_name))


def _cookie(name: bytes) -> int:
    """Where to go on after a name: names are listed in the order of these, whatever comes and goes meanwhile."""
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "big") or 1


@operation(p.OP_LISTXATTRS)
async def listxattrs(c: Compound, args: p.LISTXATTRS4args) -> p.LISTXATTRS4resok:
    """Names from a cookie on, as many as fit. Raises TOOSMALL when not one does."""
    node = await _bearer(c)
    with _own_errors():
        names = await c.service.list_xattrs(await c.credential(node), node)
    left = min(args.lxa_maxcount, max(0, c.room_left() - 4)) - _LIST_FIXED
    if left < 0:
        raise Nfs4Error(p.NFS4ERR_TOOSMALL)
    rest = sorted((cookie, name) for name in names if (cookie := _cookie(name)) > args.lxa_cookie)
    told: list[bytes] = []
    last = args.lxa_cookie
    for cookie, name in rest:
        left -= 4 + (len(name) + 3 & ~3)
        if left < 0:
            break
        told.append(name)
        last = cookie
    if rest and not told:
        raise Nfs4Error(p.NFS4ERR_TOOSMALL)
    return p.LISTXATTRS4resok(lxr_cookie=last, lxr_names=told, lxr_eof=len(told) == len(rest))
