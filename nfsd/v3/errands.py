"""What NFSv3's native procedures have the file service do (RFC 1813 sections 3.3.2, 3.3.3, 3.3.8 to 3.3.15).

Owns :class:`Errands`; imports the file service. These are the rare cases: names that exist already, ``.`` and ``..``,
mounts that are crossed, devices, file systems without file handles or where every look at a file may wait, a shortage
of descriptors. Each errand is one function of the file service, once the delegations that are in its way are back; the
native procedure has judged the arguments, and writes the reply.
"""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import ExitStack, closing, suppress
from typing import Any, Concatenate, NamedTuple, ParamSpec

from nfsd.protocol.nfs3 import nfsstat3
from nfsd.v3.errors import EXPECTED, Nfs3Error, status_of
from nfsd.v3.request import Delegations, clear, clear_names
from nfsd.vfs.service import FileService, Node
from nfsd.vfs.types import Attributes, Change, Credential, SetAttributes


class Outcome(NamedTuple):
    """What has been done."""

    node: Node | None = None
    """The file that was found or made."""
    attributes: Attributes | None = None
    """Its attributes, or those of the file that has got a further name."""
    changes: tuple[Change, ...] = ()
    """Those of the directories, in the order of the reply."""
    after: Attributes | None = None
    """Of the directory of a LOOKUP."""


class Failure(NamedTuple):
    """A failure, and what the call's files look like after it, as far as that can be found out."""

    status: nfsstat3
    after: tuple[Attributes | None, Attributes | None]


P = ParamSpec("P")


def _told(
    run: Callable[Concatenate[Errands, Credential, Node, Node | None, P], Awaitable[Outcome]],
) -> Callable[Concatenate[Errands, Credential, Node, Node | None, P], Coroutine[Any, Any, Outcome | Failure]]:
    """An errand for a caller, with the first and the second file of its call. What it may fail with is an answer."""

    async def told(
        self: Errands, credential: Credential, node: Node, other: Node | None, /, *args: P.args, **options: P.kwargs
    ) -> Outcome | Failure:
        try:
            return await run(self, credential, node, other, *args, **options)
        except EXPECTED as error:
            status = status_of(error)
        return await self.failure(status, node, other)

    return told


class Errands:
    """All of them. ``delegations``: those of NFSv4, if it is served too."""

    def __init__(self, service: FileService, delegations: Delegations | None) -> None:
        self._service = service
        self._delegations = delegations

    async def failure(self, status: int, node: Node | None, other: Node | None) -> Failure:
        """A failure that is known already. The files have yet to be looked at."""
        return Failure(nfsstat3(status), (await self._after(node), await self._after(other)))

    async def _after(self, node: Node | None) -> Attributes | None:
        """An error of this incidental step is not the operation's (section 2.6)."""
        try:
            return None if node is None else await self._service.attributes(node)
        except OSError:
            return None

    async def _clear(self, hold: ExitStack, credential: Credential, *directories: Node) -> None:
        """Nobody relies on the names in these directories until ``hold`` is closed. Raises JUKEBOX."""
        await clear_names(self._service, self._delegations, credential, directories, hold)

    async def _recall(self, hold: ExitStack, credential: Credential, *places: tuple[Node, bytes]) -> None:
        """As :meth:`_clear`; nor has anybody a delegation of the files of these names. Raises JUKEBOX, and OSError
        where it cannot be known which files those are: a shortage may be over before the change."""
        await self._clear(hold, credential, *(directory for directory, _ in places))
        if self._delegations is not None:
            found = []
            for directory, name in places:
                if not self._delegations.may_stand(directory):
                    continue
                with suppress(FileNotFoundError, PermissionError):  # which the change meets as well
                    found.append((await self._service.lookup(credential, directory, name))[0])
            await clear(self._delegations, found, True, hold)

    @_told
    async def lookup(self, credential: Credential, directory: Node, _: Node | None, name: bytes) -> Outcome:
        """The file of a name; ``..`` of the export's root is the root itself."""
        node, attributes = await self._service.lookup(credential, directory, name)
        return Outcome(node, attributes, after=await self._after(directory))

    @_told
    async def setattr(
        self,
        credential: Credential,
        node: Node,
        _: Node | None,
        attributes: SetAttributes,
        guard: tuple[int, int] | None,
    ) -> Outcome:
        """Attributes are set, if the file's ctime is ``guard`` or there is none."""
        with closing(ExitStack()) as hold:
            await clear(self._delegations, (node,), True, hold)
            try:
                change = await self._service.set_attributes(credential, node, attributes, guard_ctime=guard)
            except BlockingIOError as error:
                if guard is None or error.errno != errno.EAGAIN:
                    raise
                # The file service's word for an unequal ctime (section 3.3.2, guard).
                raise Nfs3Error(nfsstat3.NFS3ERR_NOT_SYNC) from None
        return Outcome(changes=(change,))

    @_told
    async def create(
        self,
        credential: Credential,
        directory: Node,
        _: Node | None,
        name: bytes,
        attributes: SetAttributes,
        exclusive: bool,
        verifier: bytes | None,
    ) -> Outcome:
        """A regular file, or the one that has the name already (see ``FileService.create``), which may be truncated."""
        with closing(ExitStack()) as hold:
            if exclusive:
                await self._clear(hold, credential, directory)
            else:
                await self._recall(hold, credential, (directory, name))
            node, made, change, _new = await self._service.create(
                credential, directory, name, attributes, exclusive=exclusive, verifier=verifier
            )
        return Outcome(node, made, (change,))

    @_told
    async def mkdir(
        self, credential: Credential, directory: Node, _: Node | None, name: bytes, attributes: SetAttributes
    ) -> Outcome:
        """A directory."""
        with closing(ExitStack()) as hold:
            await self._clear(hold, credential, directory)
            node, made, change = await self._service.mkdir(credential, directory, name, attributes)
        return Outcome(node, made, (change,))

    @_told
    async def symlink(
        self,
        credential: Credential,
        directory: Node,
        _: Node | None,
        name: bytes,
        text: bytes,
        attributes: SetAttributes,
    ) -> Outcome:
        """A symbolic link."""
        with closing(ExitStack()) as hold:
            await self._clear(hold, credential, directory)
            node, made, change = await self._service.symlink(credential, directory, name, text, attributes)
        return Outcome(node, made, (change,))

    @_told
    async def mknod(
        self,
        credential: Credential,
        directory: Node,
        _: Node | None,
        name: bytes,
        kind: int,
        device: tuple[int, int],
        attributes: SetAttributes,
    ) -> Outcome:
        """A device, a socket or a FIFO."""
        with closing(ExitStack()) as hold:
            await self._clear(hold, credential, directory)
            node, made, change = await self._service.mknod(credential, directory, name, kind, device, attributes)
        return Outcome(node, made, (change,))

    @_told
    async def remove(
        self, credential: Credential, directory: Node, _: Node | None, name: bytes, wanted: bool
    ) -> Outcome:
        """A name goes: that of a directory if ``wanted``, otherwise one that is no directory's."""
        with closing(ExitStack()) as hold:
            await self._recall(hold, credential, (directory, name))
            change = await self._service.remove(credential, directory, name, directory_wanted=wanted)
        return Outcome(changes=(change,))

    @_told
    async def rename(
        self, credential: Credential, source: Node, target: Node | None, old: bytes, new: bytes
    ) -> Outcome:
        """A file is moved, perhaps in the place of another."""
        assert target is not None  # the call has two
        with closing(ExitStack()) as hold:
            await self._recall(hold, credential, (source, old), (target, new))
            changes = await self._service.rename(credential, source, old, target, new)
        return Outcome(changes=changes)

    @_told
    async def link(self, credential: Credential, node: Node, directory: Node | None, name: bytes) -> Outcome:
        """A further name for a file."""
        assert directory is not None  # the call has two
        with closing(ExitStack()) as hold:
            await self._clear(hold, credential, directory)
            await clear(self._delegations, (node,), True, hold)
            attributes, change = await self._service.link(credential, node, directory, name)
        return Outcome(None, attributes, (change,))
