"""What native GETATTR, SETATTR and ACCESS of NFSv4 have done for them (RFC 8881 sections 18.1, 18.7, 18.30).

Owns the errands of :mod:`nfsd.v4.file_attributes`, which judges the arguments and writes the results: attributes that
do not follow from a ``struct statx``, looks and permissions that may wait for a disk, delegations that are in the way,
values that name users. Imports the gathering of facts, the decoding of rare values, and the file service.
"""

from __future__ import annotations

from dataclasses import replace

from nfsd.protocol import nfs4 as p
from nfsd.state.clients import Client
from nfsd.state.records import Delegation
from nfsd.v4 import attributes
from nfsd.v4.attributes import mask_of
from nfsd.v4.delegated_times import Times, settle
from nfsd.v4.errors import status_of
from nfsd.v4.facts import Asking, encoded
from nfsd.v4.pseudofs import PseudoNode
from nfsd.v4.server import Nfs4Server
from nfsd.v4.settable import settable_on
from nfsd.vfs.service import FileService, Node, OpenFile
from nfsd.vfs.types import Credential, FileType, PartialChange, SetAttributes


async def fattr(server: Nfs4Server, asking: Asking, node: Node | PseudoNode, mask: int, client: Client | None) -> bytes:
    """The fattr4 of a file (:func:`nfsd.v4.facts.encoded`)."""
    found, _ = await encoded(server, asking, node, mask, client)
    return found


async def permissions(service: FileService, credential: Credential, node: Node, xattrs: bool) -> int:
    """Bits of ACCESS4_*: what the caller may do with a file; and, if ``xattrs`` are asked about, with its extended
    attributes where that does not follow."""
    allowed = await service.access(credential, node)
    if xattrs and await service.supports_xattrs(node) and await service.may_write_xattrs(credential, node, allowed):
        allowed |= p.ACCESS4_XAWRITE
    return allowed


async def set_attributes(
    server: Nfs4Server,
    minor: int,
    credential: Credential,
    node: Node,
    given: p.fattr4,
    opened: OpenFile | None,
    client: Client | None,
    told: tuple[Delegation, Times] | None,
) -> tuple[int, int]:
    """SETATTR, once no client but ``client`` has a delegation of the file: nfsstat4, and which attributes have been
    set. A size is set through ``opened``; without it, the mode decides. ``told``: times by who holds a delegation of
    them."""
    mask = mask_of(given.attrmask)
    if opened is not None:
        opened.retain()
    try:
        current = await server.service.attributes(node) if mask & attributes.MODE_MASKED else None
        changes = await settable_on(server.service, server.names, minor, given, node, node.type, current, barred=0)
        if node.type is FileType.LNK and changes.mode is not None:
            # The mode of a symbolic link means nothing, and Linux cannot change it: taken and ignored, as knfsd does.
            changes = replace(changes, mode=None)
        with server.recalls.hold(node.key):
            await server.recalls.clear(node.key, client, write=True)
            if changes != SetAttributes():
                await server.service.set_attributes(credential, node, changes, opened=opened)
            if told is not None:
                await settle(server.service, node, *told)
    except PartialChange as error:
        # RFC 8881 section 18.30.3: attrsset tells what has been set, also when the rest could not be.
        return status_of(error), mask & _made(error.made, changes)
    finally:
        if opened is not None:
            opened.release()
    return p.NFS4_OK, mask


async def set_times(service: FileService, credential: Credential, node: Node, times: SetAttributes) -> tuple[int, int]:
    """What is left of a SETATTR, times that are no client's own: who may write the file may set them. As
    :func:`set_attributes`, but for the attributes that had been set before."""
    await service.set_attributes(credential, node, times)
    return p.NFS4_OK, 0


_FIELDS = {
    "size": (p.FATTR4_SIZE,),
    "uid": (p.FATTR4_OWNER,),
    "gid": (p.FATTR4_OWNER_GROUP,),
    "mode": (p.FATTR4_MODE, p.FATTR4_MODE_SET_MASKED),
    "access_acl": (p.FATTR4_ACL,),
    "label": (p.FATTR4_SEC_LABEL,),
    "atime": (p.FATTR4_TIME_ACCESS_SET,),
    "mtime": (p.FATTR4_TIME_MODIFY_SET,),
}


def _made(made: SetAttributes, wanted: SetAttributes) -> int:
    """The attributes that the file service has set. An ACL has two parts there: it is set when both are."""
    bits = sum(1 << n for field, numbers in _FIELDS.items() if getattr(made, field) is not None for n in numbers)
    if made.default_acl is None and wanted.default_acl is not None:
        bits &= ~(1 << p.FATTR4_ACL)
    return bits
