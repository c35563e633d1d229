"""Attributes from clients: the values of a fattr4 to be set by SETATTR, CREATE and OPEN (RFC 8881 section 5).

Owns the decoding of values and what names in them mean; imports the table of attributes, the ACL mapping and the VFS's
types. Names are looked up before anything is done: :func:`settable` waits for the name service where it must.
"""

from __future__ import annotations

from nfsd.idnames import Answer, IdNames, Question
from nfsd.protocol import nfs4 as p
from nfsd.v4 import acl
from nfsd.v4.acl import Ace
from nfsd.v4.attributes import NEED_ACLS, NEED_LABEL, NEED_QUOTA, SETTABLE, mask_of, supported
from nfsd.vfs.labels import LABEL_MAX
from nfsd.vfs.posix_acl import Acls, AclTag
from nfsd.vfs.service import FileService, Node
from nfsd.vfs.types import Attributes, FileType, SetAttributes, SetTo, Time
from rpcrdma.xdr import Decoder, XdrError

MAX_ACES = 1024
"""More than the largest ACL of any Linux file system but XFS needs; the mapping's work grows with the square."""
OWNER_LIMIT = 1024
_LABEL_LIMIT = 65536
_MINIMAL_ACE = 20


class AttributeError4(Exception):
    """Attributes that cannot be set; ``status`` is the nfsstat4."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class _Values:
    """One fattr4 being decoded, with the names learnt so far."""

    def __init__(self, values: bytes, names: IdNames, answers: dict[Question, Answer]) -> None:
        self.decoder = Decoder(values)
        self.missing: list[Question] = []
        self._names = names
        self._answers = answers

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

    def owner(self, *, group: bool) -> int:
        """An owner or owner_group."""
        text = self.decoder.opaque(OWNER_LIMIT)
        if not text:
            raise AttributeError4(p.NFS4ERR_INVAL)
        return self.identity(text, group=group)

    def time(self) -> Time | SetTo:
        """A settime4."""
        decoder = self.decoder
        how = decoder.uint32()
        if how == p.time_how4.SET_TO_SERVER_TIME4:
            return SetTo.SERVER_TIME
        if how != p.time_how4.SET_TO_CLIENT_TIME4:
            raise AttributeError4(p.NFS4ERR_BADXDR)
        seconds, nanoseconds = decoder.int64(), decoder.uint32()
        if nanoseconds >= 1_000_000_000:
            raise AttributeError4(p.NFS4ERR_INVAL)
        return Time(seconds, nanoseconds)

    def masked_mode(self, current: Attributes | None) -> int:
        """A mode_masked4 put over the current mode."""
        value, mask = self.decoder.uint32(), self.decoder.uint32()
        if value & ~mask or mask & ~0o7777:
            raise AttributeError4(p.NFS4ERR_INVAL)
        return (current.mode if current is not None else 0) & ~mask | value

    def label(self) -> bytes:
        """A sec_label4: octets of SELinux (RFC 7862 section 9.3: of no other format)."""
        decoder = self.decoder
        lfs, _ = decoder.uint32(), decoder.uint32()
        data = decoder.opaque(_LABEL_LIMIT)
        if lfs:
            raise AttributeError4(p.NFS4ERR_WRONG_LFS)
        if not data or len(data) > LABEL_MAX:
            raise AttributeError4(p.NFS4ERR_BADLABEL)
        return data

    def aces(self) -> list[Ace]:
        """An ACL's entries. Raises NOSPC for more than any file system could hold."""
        decoder = self.decoder
        count = decoder.uint32()
        if count * _MINIMAL_ACE > decoder.remaining:
            raise AttributeError4(p.NFS4ERR_BADXDR)
        if count > MAX_ACES:
            raise AttributeError4(p.NFS4ERR_NOSPC)
        aces = []
        for _ in range(count):
            kind, flag, mask, who = decoder.uint32(), decoder.uint32(), decoder.uint32(), decoder.opaque(OWNER_LIMIT)
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
    if not service.supports_labels(node):
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
) -> SetAttributes:
    """As :func:`settable`, for a file of this ``kind`` that is, or is to be made, on ``where``'s file system."""
    missing = 0
    if mask_of(given.attrmask) & (NEED_ACLS | NEED_LABEL):
        missing = await not_kept(service, where)
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
    mask = mask_of(given.attrmask)
    if mask & ~supported(minor) or mask & lacks:
        raise AttributeError4(p.NFS4ERR_ATTRNOTSUPP)
    if mask & ~SETTABLE:
        raise AttributeError4(p.NFS4ERR_INVAL)
    values = _Values(given.attr_vals, names, {})
    changes = _decode(values, mask, kind, current)
    if values.missing:
        answers = await names.learn(values.missing)
        changes = _decode(_Values(given.attr_vals, names, answers), mask, kind, current)
    return changes


def _decode(values: _Values, mask: int, kind: FileType, current: Attributes | None) -> SetAttributes:
    """The values in the order of their attributes' numbers."""
    decoder = values.decoder
    size = mode = uid = gid = None
    atime = mtime = None
    label: bytes | None = None
    umask = 0
    acls: Acls | None = None
    try:
        if mask >> p.FATTR4_SIZE & 1:
            size = decoder.uint64()
        if mask >> p.FATTR4_ACL & 1:
            acls = _posix(values.aces(), kind)
        if mask >> p.FATTR4_MODE & 1:
            mode = decoder.uint32()
            if mode & ~0o7777:
                raise AttributeError4(p.NFS4ERR_INVAL)
        if mask >> p.FATTR4_OWNER & 1:
            uid = values.owner(group=False)
        if mask >> p.FATTR4_OWNER_GROUP & 1:
            gid = values.owner(group=True)
        if mask >> p.FATTR4_TIME_ACCESS_SET & 1:
            atime = values.time()
        if mask >> p.FATTR4_TIME_MODIFY_SET & 1:
            mtime = values.time()
        if mask >> p.FATTR4_MODE_SET_MASKED & 1:
            if mode is not None:
                raise AttributeError4(p.NFS4ERR_INVAL)  # RFC 8881 section 5.12: not together with MODE
            mode = values.masked_mode(current)
        if mask >> p.FATTR4_SEC_LABEL & 1:
            label = values.label()
        if mask >> p.FATTR4_MODE_UMASK & 1:
            # RFC 8275 section 3: not together with MODE, and only where a file is created.
            if mode is not None or current is not None:
                raise AttributeError4(p.NFS4ERR_INVAL)
            mode, umask = decoder.uint32() & 0o7777, decoder.uint32() & 0o777
        if decoder.remaining:
            raise AttributeError4(p.NFS4ERR_BADXDR)
    except XdrError:
        raise AttributeError4(p.NFS4ERR_BADXDR) from None
    access_acl = acls.access if acls is not None else None
    # Without entries to hand down a directory loses the default ACL it has, or was just given by its parent.
    default_acl = (acls.default or ()) if acls is not None and kind is FileType.DIR else None
    return SetAttributes(mode, uid, gid, size, atime, mtime, access_acl, default_acl, label, umask)


def _posix(aces: list[Ace], kind: FileType) -> Acls:
    try:
        return acl.to_posix(aces, directory=kind is FileType.DIR)
    except acl.Unsupported:
        raise AttributeError4(p.NFS4ERR_ATTRNOTSUPP) from None
