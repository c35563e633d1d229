"""What NFSv4's native changes of names have the file service do (RFC 8881 sections 18.4, 18.9, 18.25 and 18.26).

Owns :class:`Done`; imports the file service, the recalls and the attributes to be set. These are the rare cases of
CREATE, REMOVE, RENAME and LINK: devices, attributes such as ACLs or owners by name, files that are delegated, names
that lead elsewhere by the time of their change, file systems without file handles or where every look at a file may
wait, a shortage of descriptors. The native operation has judged its arguments, and writes the result.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple, ParamSpec

from nfsd.protocol import nfs4 as p
from nfsd.state import Nfs4Error
from nfsd.state.clients import Client
from nfsd.v4.errors import failure_of
from nfsd.v4.notifying import ADD, REMOVE, RENAME, Event, added, removed, renamed
from nfsd.v4.server import Nfs4Server
from nfsd.v4.settable import AttributeError4, settable_on
from nfsd.vfs.service import Node
from nfsd.vfs.types import BadHandle, Change, Credential, CrossingRefused, FileType
from rpcrdma.log_limits import limited_logger
from rpcrdma.memory import OutOfMemory
from rpcrdma.xdr import Decoder, XdrError

log = limited_logger(__name__)


_KINDS: dict[int, FileType] = {
    p.nfs_ftype4.NF4DIR: FileType.DIR,
    p.nfs_ftype4.NF4BLK: FileType.BLK,
    p.nfs_ftype4.NF4CHR: FileType.CHR,
    p.nfs_ftype4.NF4LNK: FileType.LNK,
    p.nfs_ftype4.NF4SOCK: FileType.SOCK,
    p.nfs_ftype4.NF4FIFO: FileType.FIFO,
}


_NOTHING_DONE = (FileExistsError, FileNotFoundError, Nfs4Error)
"""What a change fails with before it is made."""


class Done(NamedTuple):
    """What has been done."""

    changes: tuple[tuple[int, int], ...]
    """The change attributes of the directories, before and after, in the order of the result."""
    node: Node | None = None
    """What was made."""


P = ParamSpec("P")


def _told(run: Callable[P, Awaitable[Done]]) -> Callable[P, Coroutine[Any, Any, Done | int]]:
    """An errand. What it fails with is an answer, too: an nfsstat4."""

    async def told(*args: P.args, **options: P.kwargs) -> Done | int:
        try:
            return await run(*args, **options)
        except (Nfs4Error, OSError, BadHandle, AttributeError4, XdrError, CrossingRefused, OutOfMemory) as error:
            return failure_of(error)
        except Exception:
            log.exception("a change of names failed")
            return int(p.NFS4ERR_SERVERFAULT)

    return told


def _around(*changes: Change) -> tuple[tuple[int, int], ...]:
    return tuple((change.before.change, change.after.change) for change in changes)


async def _recall(
    server: Nfs4Server, client: Client | None, hold: ExitStack, credential: Credential, *places: tuple[Node, bytes]
) -> list[bool]:
    """No other client has a delegation of the files of these names until ``hold`` is closed: their holders rely on the
    names too (RFC 8881 section 10.4.1). That nothing is delegated yet does not matter: it might be before the name is
    changed. Says which of the names there are, where files are delegated at all. Raises DELAY, and OSError where it
    cannot be known which files those are: a shortage may be over before the change."""
    there = []
    for directory, name in places:
        if not server.recalls.may_stand(directory):
            there.append(False)
            continue
        try:
            node, _ = await server.service.lookup(credential, directory, name)
        except (FileNotFoundError, PermissionError):
            there.append(False)  # the change will say so
            continue
        there.append(True)
        await _clear(server, client, hold, node)
    return there


async def _clear(server: Nfs4Server, client: Client | None, hold: ExitStack, node: Node) -> None:
    hold.enter_context(server.recalls.hold(node.key))
    await server.recalls.clear(node.key, client, write=True)


async def clear_names(
    server: Nfs4Server,
    client: Client | None,
    hold: ExitStack,
    credential: Credential,
    *changes: tuple[Node, p.notify_type4],
) -> None:
    """No client but this one, and those who will be told, relies on the names in these directories until ``hold`` is
    closed (RFC 8881 section 10.9.2). For a caller that may not change them, nothing is recalled. Raises DELAY."""
    for directory, kind in sorted(changes, key=lambda change: change[0].key):
        hold.enter_context(server.recalls.hold(directory.key))
        if directory.inode.delegated and await server.service.access(credential, directory) & p.ACCESS4_MODIFY:
            await server.recalls.clear_name(directory.key, client, kind)
            await server.recalls.notifications.turn(directory.key, hold)
            hold.push(partial(_failed, server, client, directory))


def _failed(
    server: Nfs4Server, client: Client | None, directory: Node, _: object, error: BaseException | None, __: object
) -> None:
    """It is not known how much of a change was made that has failed: who would have been told of it is recalled."""
    if error is not None and not isinstance(error, _NOTHING_DONE):
        server.recalls.changed(directory.key, client, None)


def tell(server: Nfs4Server, client: Client | None, directory: Node, event: Event | None) -> None:
    """Names in a directory have been changed: other clients that have it delegated are told, or recalled (None)."""
    if directory.inode.delegated:
        server.recalls.changed(directory.key, client, event)


@_told
async def create(
    server: Nfs4Server,
    client: Client | None,
    minor: int,
    credential: Credential,
    directory: Node,
    name: bytes,
    kind: int,
    text: bytes,
    device: tuple[int, int],
    attributes: bytes,
) -> Done:
    """Anything but a regular file. ``kind``: an nfs_ftype4; ``text``: of a symbolic link; ``attributes``: a fattr4."""
    service, made = server.service, _KINDS.get(kind)
    given = Decoder(attributes).decode(p.fattr4)
    wanted = await settable_on(service, server.names, minor, given, directory, made or FileType.REG)
    if made is None:
        raise Nfs4Error(p.NFS4ERR_BADTYPE)
    with ExitStack() as hold:
        await clear_names(server, client, hold, credential, (directory, ADD))
        if made is FileType.DIR:
            node, _, change = await service.mkdir(credential, directory, name, wanted)
        elif made is FileType.LNK:
            node, _, change = await service.symlink(credential, directory, name, text, wanted)
        else:
            node, _, change = await service.mknod(credential, directory, name, made, device, wanted)
        tell(server, client, directory, added(name))
    return Done(_around(change), node)


@_told
async def remove(
    server: Nfs4Server, client: Client | None, credential: Credential, directory: Node, name: bytes
) -> Done:
    """A name goes, whatever it stands for."""
    with ExitStack() as hold:
        await clear_names(server, client, hold, credential, (directory, REMOVE))
        await _recall(server, client, hold, credential, (directory, name))
        change = await server.service.remove(credential, directory, name, directory_wanted=None)
        tell(server, client, directory, removed(name))
    return Done(_around(change))


@_told
async def rename(
    server: Nfs4Server,
    client: Client | None,
    credential: Credential,
    source: Node,
    old: bytes,
    target: Node,
    new: bytes,
) -> Done:
    """A file is moved, perhaps in the place of another."""
    within = source.key == target.key
    kinds = ((source, RENAME),) if within else ((source, REMOVE), (target, ADD))
    with ExitStack() as hold:
        await clear_names(server, client, hold, credential, *kinds)
        _, over = await _recall(server, client, hold, credential, (source, old), (target, new))
        changes = await server.service.rename(credential, source, old, target, new)
        if changes[0].before.change == changes[0].after.change:
            pass  # both are names of one file: they stay
        elif within:
            tell(server, client, source, renamed(old, new, over=over))
        else:
            tell(server, client, source, removed(old))
            tell(server, client, target, added(new, over=over))
    return Done(_around(*changes))


@_told
async def link(
    server: Nfs4Server, client: Client | None, credential: Credential, node: Node, directory: Node, name: bytes
) -> Done:
    """A further name for a file."""
    with ExitStack() as hold:
        await clear_names(server, client, hold, credential, (directory, ADD))
        await _clear(server, client, hold, node)
        _, change = await server.service.link(credential, node, directory, name)
        tell(server, client, directory, added(name))
    return Done(_around(change))
