"""OPEN, OPEN_CONFIRM, OPEN_DOWNGRADE, CLOSE.

RFC 7530 sections 16.2, 16.16 to 16.19; RFC 8881 sections 18.2, 18.16, 18.18.

An OPEN looks at everything that can refuse it before it changes anything: grace, owner, the name, then the share
reservation, which is taken before the file is opened or truncated and given back if that fails.
"""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import NamedTuple

from nfsd.protocol import nfs4 as p
from nfsd.state import Nfs4Error
from nfsd.state.clients import Client
from nfsd.state.errors import DelegationConflict
from nfsd.state.opens import OpenOwner, OpenReservation, OpenState
from nfsd.state.types import Stateid
from nfsd.v4.attributes import EXCLUSIVE_CREATE, mask_of, words_of
from nfsd.v4.compound import Compound
from nfsd.v4.descriptors import Descriptors
from nfsd.v4.names import check_name
from nfsd.v4.operations import operation
from nfsd.v4.ops import delegations
from nfsd.v4.ops.attributes import given_attributes
from nfsd.v4.ops.data import regular
from nfsd.v4.ops.names import change_info
from nfsd.v4.pseudofs import PseudoNode
from nfsd.v4.server import gate
from nfsd.v4.shortages import shortage_told
from nfsd.vfs.service import Node, OpenFile
from nfsd.vfs.types import Credential, FileType, SetAttributes

_WANT = p.OPEN4_SHARE_ACCESS_WANT_DELEG_MASK
"""Wishes about delegations (4.1)."""
_SIGNALS = delegations.SIGNALS
_TIMES = 1 << p.FATTR4_TIME_ACCESS | 1 << p.FATTR4_TIME_MODIFY


class _Target(NamedTuple):
    """The file an OPEN is about, found or made."""

    node: Node
    change: p.change_info4
    created: bool
    attrset: int
    truncate: bool
    """An existing file whose size is to be set once its share reservation stands."""
    size: int
    known: bool = False
    """Opened by the client already, before a restart or under a delegation."""


@operation(p.OP_OPEN, changes=True)
async def open_(c: Compound, args: p.OPEN4args) -> p.OPEN4resok:
    """Open a regular file, creating it if asked, and go there."""
    access, deny = _shares(c, args)
    client, owner = _owner(c, args)
    claim = args.claim.claim
    reclaim = claim == p.open_claim_type4.CLAIM_PREVIOUS
    c.engine.opens.check_claim(client, reclaim=reclaim)
    target = await _target(c, args, client, access)
    node = target.node
    _openable(c, node)
    if owner is None:
        owner = c.engine.opens.owner(client, args.owner.owner)
    credential = await c.credential(node)
    reservation = await _reserve(c, owner, credential, target, (access, deny), reclaim=reclaim)
    # What was opened under a delegation, or before a restart, is open already: whatever the mode has become since.
    trusted = target.created or target.known
    try:
        opened = await _open(c, credential, node, access, trusted=trusted)
        try:
            if target.truncate:
                await c.service.set_attributes(
                    credential, node, SetAttributes(size=target.size), opened=opened if opened.writable else None
                )
            state = reservation.commit()
        except BaseException:
            opened.release()
            raise
    except BaseException:
        reservation.abort()
        raise
    if state.opened is None:
        state.opened = Descriptors(credential.host)
    state.opened.add(opened, access, c.call.credential)
    del opened  # if the state had one before, this one may have to go for a lease
    state.file.node = node
    c.go(node)
    c.stateid = state.stateid
    flags = p.OPEN4_RESULT_LOCKTYPE_POSIX
    if reclaim:
        owner.confirmed = True  # RFC 7530 section 9.1.11: a reclaim MUST NOT need an OPEN_CONFIRM
    if not owner.confirmed:
        flags |= p.OPEN4_RESULT_CONFIRM
    if c.minor and c.server.callbacks.client_can_be_called(client):
        flags |= p.OPEN4_RESULT_MAY_NOTIFY_LOCK
    answered = wire(state.stateid)
    return p.OPEN4resok(
        stateid=answered,
        cinfo=target.change,
        rflags=flags,
        attrset=words_of(target.attrset),
        delegation=await _delegation(c, args, target, state),
    )


async def _reserve(
    c: Compound, owner: OpenOwner, credential: Credential, target: _Target, share: tuple[int, int], *, reclaim: bool
) -> OpenReservation:
    """The share reservation. Raises SHARE_DENIED, and DELAY while another client's delegation is being recalled; who
    may not open the file learns nothing of what others do with it, and has nothing recalled."""
    access, deny = share
    node, deadline = target.node, c.server.recalls.deadline()
    if c.engine.delegations.in_the_way(node.key, owner.client, write=True) is not None:
        (await _open(c, credential, node, access, trusted=target.created)).release()
    while True:
        try:
            return c.engine.opens.reserve(owner, node.key, access, deny, reclaim=reclaim, changes=target.truncate)
        except DelegationConflict:
            if not await c.server.recalls.progress(node.key, deadline):
                raise
        except Nfs4Error as error:
            if error.status == p.NFS4ERR_SHARE_DENIED:
                (await _open(c, credential, node, access, trusted=target.created)).release()
            raise


async def _delegation(c: Compound, args: p.OPEN4args, target: _Target, state: OpenState) -> p.open_delegation4:
    """The delegation that comes with an OPEN, if there is one."""
    kinds, claim = p.open_claim_type4, args.claim.claim
    want = args.share_access & _WANT if c.minor else 0
    if claim == kinds.CLAIM_PREVIOUS:
        reclaim = int(args.claim.delegate_type or 0)
        if reclaim not in (p.open_delegation_type4.OPEN_DELEGATE_READ, p.open_delegation_type4.OPEN_DELEGATE_WRITE):
            return delegations.none(c, want, p.why_no_delegation4.WND4_NOT_WANTED)
        return await delegations.delegate(c, state.client, target.node, state.opened, state.access, 0, reclaim=reclaim)
    if claim not in (kinds.CLAIM_NULL, kinds.CLAIM_FH) or not state.owner.confirmed:
        # A v4.0 owner that must yet confirm may be a stray retransmission's; under a delegation there is one already.
        return delegations.none(c, want, p.why_no_delegation4.WND4_RESOURCE)
    return await delegations.delegate(c, state.client, target.node, state.opened, state.access, want)


def wire(stateid: Stateid) -> p.stateid4:
    """A stateid of the engine as the protocol's."""
    return p.stateid4(seqid=stateid.seqid, other=stateid.other)


def _openable(c: Compound, node: Node) -> None:
    """Raise what a file that cannot be opened deserves."""
    if c.minor == 0 and node.type not in (FileType.REG, FileType.DIR):
        raise Nfs4Error(p.NFS4ERR_SYMLINK)  # for special files too, says RFC 7530 section 16.16.5
    regular(c, node)


def _shares(c: Compound, args: p.OPEN4args) -> tuple[int, int]:
    """Access and deny bits. Raises INVAL."""
    wishes = (_WANT | _SIGNALS) if c.minor else 0
    access, deny = args.share_access & ~wishes, args.share_deny
    if not 1 <= access <= p.OPEN4_SHARE_ACCESS_BOTH or deny > p.OPEN4_SHARE_DENY_BOTH:
        raise Nfs4Error(p.NFS4ERR_INVAL)
    return access, deny


def _owner(c: Compound, args: p.OPEN4args) -> tuple[Client, OpenOwner | None]:
    """The client, and in v4.0 the owner with its seqid begun (an owner of 4.1 is made later: it has no order)."""
    if c.client is not None:
        return c.client, None
    client = c.engine.clients.client40(args.owner.clientid, c.host)
    c.server.heard(c.call.transport, client)
    owner, replay = c.engine.opens.begin40(client, args.owner.owner, args.seqid)
    c.replayable(owner, replay)
    return client, owner


async def _target(c: Compound, args: p.OPEN4args, client: Client, access: int) -> _Target:
    """Find or make the file."""
    claim, create = args.claim.claim, args.openhow.opentype == p.opentype4.OPEN4_CREATE
    kinds = p.open_claim_type4
    if claim == kinds.CLAIM_NULL:
        assert args.claim.file is not None
        return await _by_name(c, args, args.claim.file, create=create)
    if create:
        raise Nfs4Error(p.NFS4ERR_INVAL)
    if not c.minor and claim in (kinds.CLAIM_FH, kinds.CLAIM_DELEG_CUR_FH, kinds.CLAIM_DELEG_PREV_FH):
        raise Nfs4Error(p.NFS4ERR_INVAL)
    if claim in (kinds.CLAIM_DELEGATE_PREV, kinds.CLAIM_DELEG_PREV_FH):
        # No delegation outlives the client that had it, hence neither this claim nor DELEGPURGE (RFC 8881 10.2.1).
        raise Nfs4Error(p.NFS4ERR_NOTSUPP)
    if claim == kinds.CLAIM_DELEGATE_CUR:
        info = args.claim.delegate_cur_info
        assert info is not None
        found = await _by_name(c, args, info.file, create=False)
        delegations.current(c, client, found.node, info.delegate_stateid, access)
        return found._replace(known=True)
    node = await c.node(changing=bool(access & p.OPEN4_SHARE_ACCESS_WRITE))
    if claim == kinds.CLAIM_DELEG_CUR_FH:
        assert args.claim.oc_delegate_stateid is not None
        delegations.current(c, client, node, args.claim.oc_delegate_stateid, access)
    now = (await c.service.attributes(node)).change
    change = p.change_info4(atomic=True, before=now, after=now)
    return _Target(node, change, False, 0, False, 0, known=claim != kinds.CLAIM_FH)


async def _by_name(c: Compound, args: p.OPEN4args, name: bytes, *, create: bool) -> _Target:
    check_name(name)
    here = c.here
    if isinstance(here, PseudoNode) and (here.export is None or c.is_closed(here)):
        raise Nfs4Error(p.NFS4ERR_ROFS if create else p.NFS4ERR_ISDIR if name in here.children else p.NFS4ERR_NOENT)
    directory = await c.node(changing=create)
    credential = await c.credential(directory)
    if create:
        return await _create(c, args, credential, directory, name)
    before = (await c.service.attributes(directory)).change
    node, _ = await c.service.lookup(credential, directory, name)
    if args.share_access & p.OPEN4_SHARE_ACCESS_WRITE:
        await c.real(node, changing=True)
    return _Target(node, p.change_info4(atomic=True, before=before, after=before), False, 0, False, 0)


async def _create(c: Compound, args: p.OPEN4args, credential: Credential, directory: Node, name: bytes) -> _Target:
    """The four ways to create (RFC 8881 section 18.16.3)."""
    how = args.openhow.how
    assert how is not None
    modes = p.createmode4
    verifier: bytes | None = None
    shown = 0
    if how.mode in (modes.UNCHECKED4, modes.GUARDED4):
        assert how.createattrs is not None
        wanted = how.createattrs
        mask = mask_of(wanted.attrmask)
    elif how.mode == modes.EXCLUSIVE4:
        verifier, mask, wanted = how.createverf, 0, None
        shown = _TIMES  # they hold the verifier: the client knows to set them (RFC 7530 section 16.16.5)
    else:
        if not c.minor:
            raise Nfs4Error(p.NFS4ERR_INVAL)
        assert how.ch_createboth is not None
        verifier, wanted = how.ch_createboth.cva_verf, how.ch_createboth.cva_attrs
        mask = mask_of(wanted.attrmask)
        if mask & ~EXCLUSIVE_CREATE:
            raise Nfs4Error(p.NFS4ERR_INVAL)
        shown = _TIMES
    attributes = await given_attributes(c, wanted, directory, FileType.REG) if wanted is not None else SetAttributes()
    size, attributes = attributes.size, _without_size(attributes)
    client = c.client or c.engine.clients.client40(args.owner.clientid, c.host)
    refusal = c.engine.opens.refusal(client, args.owner.owner)
    if refusal is not None:
        # An OPEN that will be refused leaves no file behind; of one that is there, the rest of OPEN decides.
        try:
            await c.service.lookup(credential, directory, name)
        except FileNotFoundError:
            raise refusal from None
    with _shortage_told(c, credential):
        node, now, change, created = await c.service.create(
            credential, directory, name, attributes, exclusive=how.mode != modes.UNCHECKED4, verifier=verifier
        )
    if not created:
        # An existing file keeps its attributes; only its size is set, and only to 0 (UNCHECKED).
        resize = size == 0 and how.mode == modes.UNCHECKED4
        return _Target(node, change_info(change), False, 1 << p.FATTR4_SIZE if resize else shown, resize, 0)
    resize = bool(size) and size != now.size
    return _Target(node, change_info(change), True, mask | shown, resize, size or 0)


def _without_size(attributes: SetAttributes) -> SetAttributes:
    # The size waits until the share reservation stands: another open's deny must be able to refuse it.
    return replace(attributes, size=None)


async def _open(c: Compound, credential: Credential, node: Node, access: int, *, trusted: bool) -> OpenFile:
    read, write = bool(access & p.OPEN4_SHARE_ACCESS_READ), bool(access & p.OPEN4_SHARE_ACCESS_WRITE)
    # Whoever has just created a file may open it whatever its mode; after that OPEN checks the mode like open(2).
    service, exactly = c.service, c.server.leases
    with _shortage_told(c, credential):
        if exactly and write and not read:
            # Under a write lease nothing but this descriptor may serve the client, which will want to read as well.
            with contextlib.suppress(PermissionError):
                return await service.open(
                    credential, node, read=True, write=True, owner_override=trusted, exactly=exactly
                )
        return await service.open(credential, node, read=read, write=write, owner_override=trusted, exactly=exactly)


def _shortage_told(c: Compound, credential: Credential) -> AbstractContextManager[None]:
    return shortage_told(c.service, credential.host, c.minor, p.NFS4ERR_NOSPC)


@operation(p.OP_OPEN_CONFIRM, changes=True)
async def open_confirm(c: Compound, args: p.OPEN_CONFIRM4args) -> p.OPEN_CONFIRM4resok:
    """v4.0: the new open owner's first OPEN was no stray retransmission."""
    node = await c.node()
    c.replayable(*c.engine.opens.begin_seqid(args.open_stateid, args.seqid))
    state = c.engine.stateids.find_open(args.open_stateid, None, node.key)
    return p.OPEN_CONFIRM4resok(open_stateid=wire(c.engine.opens.confirm(state)))


@operation(p.OP_OPEN_DOWNGRADE, changes=True)
async def open_downgrade(c: Compound, args: p.OPEN_DOWNGRADE4args) -> p.OPEN_DOWNGRADE4resok:
    """Give up part of the access or deny of an open."""
    node = await c.node()
    given = c.given(args.open_stateid)
    if not c.minor:
        c.replayable(*c.engine.opens.begin_seqid(given, args.seqid))
    state = c.engine.stateids.find_open(given, c.client, node.key)
    access = args.share_access & ~(_WANT | _SIGNALS if c.minor else 0)
    if not 1 <= access <= p.OPEN4_SHARE_ACCESS_BOTH or args.share_deny > p.OPEN4_SHARE_DENY_BOTH:
        raise Nfs4Error(p.NFS4ERR_INVAL)
    c.stateid = c.engine.opens.downgrade(state, access, args.share_deny)
    if state.opened is not None:
        state.opened.keep(access)
    return p.OPEN_DOWNGRADE4resok(open_stateid=wire(state.stateid))


@operation(p.OP_CLOSE, changes=True)
async def close(c: Compound, args: p.CLOSE4args) -> p.stateid4:
    """Close an open, and give up the locks under it."""
    node = await c.node()
    given = c.given(args.open_stateid)
    if not c.minor:
        c.replayable(*c.engine.opens.begin_seqid(given, args.seqid))
    state: OpenState = c.engine.stateids.find_open(given, c.client, node.key)
    file = state.file
    async with gate(file):
        stateid = c.engine.opens.close(state)
        await c.server.clear_local(file)
    c.stateid = stateid
    return wire(stateid)
