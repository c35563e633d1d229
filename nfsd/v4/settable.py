"""Attributes from clients: what the values of a fattr4 mean that are rare (RFC 8881 section 5).

Owns what names in them mean, and ACLs; imports the decoding of values (:mod:`nfsd.v4.given`), the ACL mapping and the
VFS's types. Names are looked up before anything is done: :func:`settable` waits for the name service where it must.
"""

from __future__ import annotations

from dataclasses import replace

from nfsd.idnames import Answer, IdNames, Question
from nfsd.protocol import nfs4 as p
from nfsd.v4 import acl
from nfsd.v4.acl import Ace
from nfsd.v4.attributes import DELEGATED_TIMES, MODE_MASKED, NEED_ACLS, NEED_LABEL, NEED_QUOTA, mask_of
from nfsd.v4.given import decoded
from nfsd.vfs.posix_acl import Acls, AclTag
from nfsd.vfs.service import FileService, Node
from nfsd.vfs.types import Attributes, FileType, SetAttributes
from rpcrdma.xdr import Decoder


class AttributeError4(Exception):
    """Attributes that cannot be set; ``status`` is the nfsstat4."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class _Names:
    """Whose ids the names in one fattr4 stand for, with the answers learnt so far."""

    def __init__(self, names: IdNames) -> None:
        self.missing: list[Question] = []
        self._names = names
        self._answers: dict[Question, Answer] = {}

    async def learn(self) -> None:
        """Have those answered that are missing. Raises OSError(ETIMEDOUT)."""
        self._answers = await self._names.learn(self.missing)
        self.missing = []

    def identity(self, text: bytes, *, group: bool) -> int:
        """The id an owner string stands for; 0 while its name is in ``missing``. Raises BADOWNER."""
        meant = self._names.question(text, group=group)
        if isinstance(meant, Question):
            if meant not in self._answers:
                self.missing.append(meant)
                return 0
            found = self._answers[meant]
        else:
            found = meant
        if not isinstance(found, int):
            raise AttributeError4(p.NFS4ERR_BADOWNER)
        return found

    def owner(self, given: int | bytes | None, *, group: bool) -> int | None:
        """An owner or owner_group."""
        return self.identity(given, group=group) if isinstance(given, bytes) else given

    def aces(self, octets: bytes) -> list[Ace]:
        """An ACL's entries."""
        decoder = Decoder(octets)
        aces = []
        for _ in range(decoder.uint32()):
            kind, flag, mask, who = decoder.uint32(), decoder.uint32(), decoder.uint32(), decoder.opaque(len(octets))
            tag = acl.SPECIAL.get(who)
            if tag is not None:
                # RFC 8881 section 6.2.1.5: IDENTIFIER_GROUP means nothing with them.
                aces.append(Ace(kind, flag & ~p.ACE4_IDENTIFIER_GROUP, mask, tag))
                continue
            group = bool(flag & p.ACE4_IDENTIFIER_GROUP)
            aces.append(Ace(kind, flag, mask, AclTag.GROUP if group else AclTag.USER, self.identity(who, group=group)))
        return aces


async def not_kept(service: FileService, node: Node) -> int:
    """The attributes that are not kept where a file is."""
    missing = 0 if await service.supports_acls(node) else NEED_ACLS
    if not await service.supports_quotas(node):
        missing |= NEED_QUOTA
    if not await service.supports_labels(node):
        missing |= NEED_LABEL
    return missing


async def settable_on(
    service: FileService,
    names: IdNames,
    minor: int,
    given: p.fattr4,
    where: Node,
    kind: FileType,
    current: Attributes | None = None,
    barred: int = DELEGATED_TIMES,
) -> SetAttributes:
    """As :func:`settable`, for a file of this ``kind`` that is, or is to be made, on ``where``'s file system.
    ``barred``: what cannot be set in this way."""
    missing = barred
    if mask_of(given.attrmask) & (NEED_ACLS | NEED_LABEL):
        missing |= await not_kept(service, where)
        if kind is FileType.LNK:
            missing |= NEED_ACLS  # links show an ACL, that of their mode, but take none
    return await settable(names, minor, given, kind, lacks=missing, current=current)


async def settable(
    names: IdNames,
    minor: int,
    given: p.fattr4,
    kind: FileType,
    *,
    lacks: int = 0,
    current: Attributes | None = None,
) -> SetAttributes:
    """The attributes of a fattr4, for a file of this ``kind``. ``lacks``: what its file system does not have;
    ``current``: the state of a file that is there already, for MODE_SET_MASKED.

    Raises AttributeError4: ATTRNOTSUPP for what is not known or not kept here, INVAL for what can only be read or is
    out of range, BADOWNER, BADXDR when the values do not fill their octets exactly; OSError(ETIMEDOUT) when the name
    service is silent.
    """
    if mask_of(given.attrmask) & lacks:
        raise AttributeError4(p.NFS4ERR_ATTRNOTSUPP)
    failure, changes, owner, owner_group, entries, masked = decoded(names, minor, given)
    if failure:
        raise AttributeError4(failure)
    known = _Names(names)
    while True:
        acls = _posix(known.aces(entries), kind) if entries is not None else None
        uid, gid = known.owner(owner, group=False), known.owner(owner_group, group=True)
        if not known.missing:
            break
        await known.learn()
    mode = changes.mode
    if mask_of(given.attrmask) & MODE_MASKED:
        mode = (current.mode if current is not None else 0) & ~masked[1] | masked[0]
    access_acl = acls.access if acls is not None else None
    # Without entries to hand down a directory loses the default ACL it has, or was just given by its parent.
    default_acl = (acls.default or ()) if acls is not None and kind is FileType.DIR else None
    return replace(changes, mode=mode, uid=uid, gid=gid, access_acl=access_acl, default_acl=default_acl)


def _posix(aces: list[Ace], kind: FileType) -> Acls:
    try:
        return acl.to_posix(aces, directory=kind is FileType.DIR)
    except acl.Unsupported:
        raise AttributeError4(p.NFS4ERR_ATTRNOTSUPP) from None
