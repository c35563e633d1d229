"""OPEN (RFC 8881 section 18.16; RFC 7530 section 16.16): what is done to a file that has been found or made, and the
rare ways to find it.

Owns :func:`open_file`, the one way for every OPEN from there on, and :func:`open_rarely`; the arguments are read and
the results written by :mod:`nfsd.v4.opens`, which finds most files itself. Imports the state engine, the file service
and :mod:`nfsd.v4.giving`.

An OPEN looks at everything that can refuse it before it changes anything: grace, owner, the name, then the share
reservation, which is taken before the file is opened or truncated and given back if that fails.
"""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from typing import NamedTuple

from nfsd.matching import peer_of
from nfsd.protocol import nfs4 as p
from nfsd.state import Nfs4Error
from nfsd.state.clients import Client
from nfsd.state.errors import DelegationConflict
from nfsd.state.opens import OpenReservation
from nfsd.state.owners import OpenOwner
from nfsd.state.records import Delegation, OpenState
from nfsd.state.types import Stateid, StateidLike
from nfsd.v4.arrivals import Barred
from nfsd.v4.attributes import EXCLUSIVE_CREATE, mask_of
from nfsd.v4.giving import SIGNALS, Named, give
from nfsd.v4.name_errands import clear_names, tell
from nfsd.v4.names import check_name
from nfsd.v4.notifying import ADD, Event, added
from nfsd.v4.opened import open_already, rflags, take_over
from nfsd.v4.pseudofs import PseudoNode
from nfsd.v4.server import Nfs4Server
from nfsd.v4.settable import settable_on
from nfsd.v4.shortages import shortage_told
from nfsd.vfs.service import Node, OpenFile
from nfsd.vfs.types import Credential, FileType, SetAttributes
from rpcrdma.rpc.program import RpcCredential, Transport
from rpcrdma.xdr import Decoder

_WANT = p.OPEN4_SHARE_ACCESS_WANT_DELEG_MASK
"""Wishes about delegations (4.1)."""
WISHES: int = _WANT | SIGNALS
_READ, _WRITE, _BOTH = p.OPEN4_SHARE_ACCESS_READ, p.OPEN4_SHARE_ACCESS_WRITE, p.OPEN4_SHARE_ACCESS_BOTH
_TIMES = 1 << p.FATTR4_TIME_ACCESS | 1 << p.FATTR4_TIME_MODIFY
_KINDS = p.open_claim_type4
_TYPES = p.open_delegation_type4
_WHY = p.why_no_delegation4

Opened = tuple[Stateid, int, Delegation | p.why_no_delegation4]
"""What an OPEN grants: the stateid, rflags, and a delegation or why there is none (why_no_delegation4)."""


class Asked(NamedTuple):
    """Who asks for what."""

    server: Nfs4Server
    client: Client
    owner: OpenOwner | bytes
    """In v4.0 the owner, whose turn it is; in 4.1 its name."""
    caller: RpcCredential
    access: int
    """OPEN4_SHARE_ACCESS_*, without wishes."""
    deny: int
    want: int
    """The wish about a delegation; 0 in v4.0."""
    request: tuple[bytes, int, int] | None
    """The session, slot and sequence id; None in v4.0."""
    either: bool = False
    """Whether a delegation is to take the place of an open stateid (RFC 9754 section 4)."""
    times: bool = False
    """Whether a delegation is to be one of the file's times, too (RFC 9754 section 5)."""
    named: Named | None = None
    """The name by which the file was found; None: by its handle."""


class Claim(NamedTuple):
    """What is out of the ordinary about an OPEN."""

    known: bool = False
    """The client has the file open already, before a restart or under a delegation: whatever its mode is by now."""
    delegable: bool = True
    """Whether a delegation may be given."""
    reclaim: int | None = None
    """CLAIM_PREVIOUS: the type of the delegation (OPEN_DELEGATE_*) that the client had."""
    size: int | None = None
    """What the file's size is to be set to once its share reservation stands."""


USUAL = Claim()
NO_STATEID = Stateid(0, bytes(12))


async def open_file(
    asked: Asked, credential: Credential, node: Node, opened: OpenFile | None = None, created: bool = False,
    claim: Claim = USUAL,
) -> Opened:  # fmt: skip
    """Open a regular file at which the caller has looked just now. ``opened``: what its creation has left open, with a
    count that is taken over. A caller that has ``created`` the file may open it whatever its mode. Raises SHARE_DENIED,
    DELAY while another client's delegation is being recalled, what :meth:`OpenTable.reserve` raises, and OSError."""
    server, access = asked.server, asked.access
    trusted = created or claim.known
    # Others may have removed by now what has been created. It is open all the same, as after open(2): a client that is
    # told that it is stale makes it a second time.
    node.inode.used_count += created
    try:
        reservation = await _reserve(asked, credential, node, created, claim)
        try:
            if opened is not None and access == _READ and server.leases:
                # What is open for reading only may be delegated: the lease needs a descriptor that cannot write.
                opened.release()
                opened = None
            patient = opened is None
            if opened is None:
                opened = await _open(asked, credential, node, trusted=trusted)
            if claim.size is not None:
                through = opened if opened.writable else None
                await server.service.set_attributes(credential, node, SetAttributes(size=claim.size), opened=through)
            state = reservation.commit()
        except BaseException:
            reservation.abort()
            raise
    except BaseException:
        if opened is not None:
            opened.release()
        raise
    finally:
        node.inode.used_count -= created
    take_over(state, opened, node, access, asked.caller, credential.host)
    del opened  # if the state had one before, this one may have to go for a lease
    if claim.reclaim is not None:
        reservation.owner.confirmed = True  # RFC 7530 section 9.1.11: a reclaim MUST NOT need an OPEN_CONFIRM
    reachable = asked.client.minor > 0 and server.callbacks.client_can_be_called(asked.client)
    return await delegated(asked, node, state, rflags(state, reachable), claim, patient=patient)


async def delegated(
    asked: Asked, node: Node, state: OpenState, flags: int, claim: Claim = USUAL, *, patient: bool
) -> Opened:
    """What an open grants that has been granted but for its delegation. Unless ``patient``, nothing is waited for:
    nobody else can have a new file open yet but a local process, which keeps it from being delegated at once."""
    server, stateid, reclaim = asked.server, state.stateid, claim.reclaim
    given: Delegation | p.why_no_delegation4
    if reclaim in (_TYPES.OPEN_DELEGATE_NONE, _TYPES.OPEN_DELEGATE_NONE_EXT):
        given = _WHY.WND4_NOT_WANTED
    elif reclaim is not None:
        # What the client had, whatever it wishes.
        given = await give(server, state.client, node, state.opened, state.access, 0, asked.request, reclaim=reclaim)
    elif not claim.delegable or not state.owner.confirmed:
        # A v4.0 owner that must yet confirm may be a stray retransmission's; under a delegation there is one already.
        given = _WHY.WND4_RESOURCE
    else:
        given = await give(
            server, state.client, node, state.opened, state.access, asked.want, asked.request,
            named=asked.named, times=asked.times, patient=patient,
        )  # fmt: skip
    # An open that was there before keeps its stateid: the client may be using it.
    if asked.either and isinstance(given, Delegation) and state.stateid == stateid and stateid.seqid == 1:
        server.engine.opens.release(state)
        return NO_STATEID, flags | p.OPEN4_RESULT_NO_OPEN_STATEID, given
    return stateid, flags, given


async def _reserve(asked: Asked, credential: Credential, node: Node, created: bool, claim: Claim) -> OpenReservation:
    """The share reservation; who may not open the file learns nothing of what others do with it, and has nothing
    recalled."""
    server = asked.server
    engine, recalls, deadline = server.engine, server.recalls, None
    if engine.delegations.count and engine.delegations.in_the_way(node.key, asked.client, write=True) is not None:
        deadline = recalls.deadline()
        (await _open(asked, credential, node, trusted=created)).release()
    while True:
        # Found each time: in 4.1 an owner goes with its last open, which may be closed while this one waits.
        owner = engine.opens.owner(asked.client, asked.owner) if isinstance(asked.owner, bytes) else asked.owner
        try:
            return engine.opens.reserve(
                owner, node.key, asked.access, asked.deny,
                reclaim=claim.reclaim is not None, changes=claim.size is not None,
            )  # fmt: skip
        except DelegationConflict:
            if not await recalls.progress(node.key, deadline or recalls.deadline()):
                raise
        except Nfs4Error as error:
            if error.status == p.NFS4ERR_SHARE_DENIED:
                (await _open(asked, credential, node, trusted=created)).release()
            raise


async def _open(asked: Asked, credential: Credential, node: Node, *, trusted: bool) -> OpenFile:
    """The file open for this access, with a count. A caller that has just created it may open it whatever its mode;
    after that OPEN checks the mode like open(2)."""
    server, access = asked.server, asked.access
    service, exactly = server.service, server.leases
    opened = open_already(server.service.tables, server.leases, credential, node, access)
    if opened is not None:
        return opened
    with _shortage_told(server, credential.host, asked.client.minor):
        if exactly and access == _WRITE:
            # Under a write lease nothing but this descriptor may serve the client, which will want to read as well.
            with contextlib.suppress(PermissionError):
                return await service.open(credential, node, read=True, write=True, owner_override=trusted, exactly=True)
        read, write = bool(access & _READ), bool(access & _WRITE)
        return await service.open(credential, node, read=read, write=write, owner_override=trusted, exactly=exactly)


def _shortage_told(server: Nfs4Server, host: str, minor: int) -> AbstractContextManager[None]:
    return shortage_told(server.service, host, minor, p.NFS4ERR_NOSPC)


# -- the rare ways to find a file --------------------------------------------------------------------------------------
class Target(NamedTuple):
    """The file an OPEN is about, found or made, and what of that is told."""

    node: Node
    before: int
    after: int
    """The directory's change attribute."""
    claim: Claim
    created: bool = False
    attrset: int = 0


class Where(NamedTuple):
    """Where an OPEN stands in its COMPOUND."""

    transport: Transport
    minor: int
    node: Node
    """The current file."""
    credential: Credential
    """Of the caller there."""
    stateid: StateidLike | None
    """The current one; None: there is none."""


def decode(octets: memoryview) -> tuple[p.OPEN4args, int]:
    """The arguments of an OPEN, and how many octets they are. Raises XdrError."""
    decoder = Decoder(octets)
    arguments = decoder.decode(p.OPEN4args)
    return arguments, decoder.position


def shares(args: p.OPEN4args, minor: int) -> tuple[int, int]:
    """Access and deny bits. Raises INVAL."""
    access, deny = args.share_access & ~(WISHES if minor else 0), args.share_deny
    if not 1 <= access <= _BOTH or deny > p.OPEN4_SHARE_DENY_BOTH:
        raise Nfs4Error(p.NFS4ERR_INVAL)
    return access, deny


async def open_rarely(asked: Asked, where: Where, args: p.OPEN4args) -> tuple[Opened, Target]:
    """An OPEN whose file native code does not find: a claim of before, attributes that are ACLs or names, a name that
    is taken or leads to another mount, a file system where every look may wait."""
    target = await _target(asked, where, args)
    node = target.node
    if node.type is not FileType.REG:
        raise Nfs4Error(_irregular(node, where.minor))
    credential = await _credential(asked, where, node)
    if args.claim.file is not None:
        asked = asked._replace(named=Named(where.credential, where.node, args.claim.file, target.after))
    return await open_file(asked, credential, node, None, target.created, target.claim), target


def _irregular(node: Node, minor: int) -> int:
    """What a file deserves that cannot be opened."""
    if node.type is FileType.DIR:
        return p.NFS4ERR_ISDIR
    if node.type is FileType.LNK or minor == 0:
        return p.NFS4ERR_SYMLINK  # for special files too, says RFC 7530 section 16.16.5
    return p.NFS4ERR_WRONG_TYPE


async def _credential(asked: Asked, where: Where, node: Node) -> Credential:
    """The caller as it acts on the node's export."""
    if node.export is where.node.export:
        return where.credential
    caller = asked.caller
    return await asked.server.exports.credential(
        node.export, caller.flavor, caller.uid, caller.gid, caller.gids, peer_of(where.transport)
    )


def _changing(asked: Asked, where: Where, node: Node) -> None:
    """Raise ROFS if this client may change nothing on the node's export."""
    if asked.server.exports.read_only(node.export, peer_of(where.transport)):
        raise Nfs4Error(p.NFS4ERR_ROFS)


def _check_claim(args: p.OPEN4args, minor: int) -> None:
    """Raise what a claim deserves that there is never a file for. Raises INVAL, NOTSUPP."""
    claim = args.claim.claim
    if claim != _KINDS.CLAIM_NULL and args.openhow.opentype == p.opentype4.OPEN4_CREATE:
        raise Nfs4Error(p.NFS4ERR_INVAL)
    if not minor and claim in (_KINDS.CLAIM_FH, _KINDS.CLAIM_DELEG_CUR_FH, _KINDS.CLAIM_DELEG_PREV_FH):
        raise Nfs4Error(p.NFS4ERR_INVAL)
    if claim in (_KINDS.CLAIM_DELEGATE_PREV, _KINDS.CLAIM_DELEG_PREV_FH):
        # No delegation outlives the client that had it, hence neither this claim nor DELEGPURGE (RFC 8881 10.2.1).
        raise Nfs4Error(p.NFS4ERR_NOTSUPP)


def in_pseudo(place: PseudoNode | Barred, args: p.OPEN4args, access: int, minor: int) -> int:
    """What an OPEN deserves at a place of the pseudo file system, which is read-only and has no files, or where the
    caller is barred."""
    _check_claim(args, minor)
    if isinstance(place, Barred):
        return place.refused()
    info = args.claim.delegate_cur_info
    name = args.claim.file if info is None else info.file
    if name is None:
        return p.NFS4ERR_ROFS if access & _WRITE else p.NFS4ERR_INVAL
    check_name(name)
    if args.openhow.opentype == p.opentype4.OPEN4_CREATE:
        return p.NFS4ERR_ROFS
    return p.NFS4ERR_ISDIR if name in place.children else p.NFS4ERR_NOENT


async def _target(asked: Asked, where: Where, args: p.OPEN4args) -> Target:
    """Find or make the file."""
    _check_claim(args, where.minor)
    claim = args.claim.claim
    if claim == _KINDS.CLAIM_NULL:
        assert args.claim.file is not None
        check_name(args.claim.file)
        if args.openhow.opentype == p.opentype4.OPEN4_CREATE:
            _changing(asked, where, where.node)
            return await _create(asked, where, args, args.claim.file)
        return await _by_name(asked, where, args.claim.file, USUAL)
    if claim == _KINDS.CLAIM_DELEGATE_CUR:
        info = args.claim.delegate_cur_info
        assert info is not None
        check_name(info.file)
        found = await _by_name(asked, where, info.file, Claim(known=True, delegable=False))
        _rests_on(asked, where, found.node, info.delegate_stateid)
        return found
    node, how = where.node, USUAL
    if asked.access & _WRITE:
        _changing(asked, where, node)
    if claim == _KINDS.CLAIM_DELEG_CUR_FH:
        assert args.claim.oc_delegate_stateid is not None
        _rests_on(asked, where, node, args.claim.oc_delegate_stateid)
        how = Claim(known=True, delegable=False)
    elif claim == _KINDS.CLAIM_PREVIOUS:
        how = Claim(known=True, reclaim=int(args.claim.delegate_type or 0))
    now = (await asked.server.service.attributes(node)).change
    return Target(node, now, now, how)


def _rests_on(asked: Asked, where: Where, node: Node, stateid: StateidLike) -> None:
    """See that there is the delegation that CLAIM_DELEGATE_CUR and CLAIM_DELEG_CUR_FH rest on. Raises what its stateid
    deserves, and OPENMODE for more access than it stands for."""
    if where.minor and stateid.seqid == 1 and stateid.other == bytes(12):
        if where.stateid is None:
            raise Nfs4Error(p.NFS4ERR_BAD_STATEID)
        stateid = where.stateid
    client = asked.client if where.minor else None
    found = asked.server.engine.delegations.find(stateid, client, node.key)
    if found.client is not asked.client:
        raise Nfs4Error(p.NFS4ERR_BAD_STATEID)
    if asked.access & _WRITE and not found.write:
        raise Nfs4Error(p.NFS4ERR_OPENMODE)


async def _by_name(asked: Asked, where: Where, name: bytes, claim: Claim) -> Target:
    service = asked.server.service
    before = (await service.attributes(where.node)).change
    node, _ = await service.lookup(where.credential, where.node, name)
    if asked.access & _WRITE:
        _changing(asked, where, node)
    return Target(node, before, before, claim)


async def _is_there(server: Nfs4Server, credential: Credential, directory: Node, name: bytes) -> bool:
    """Whether a name stands for anything. Raises OSError where that cannot be known."""
    try:
        await server.service.lookup(credential, directory, name)
    except FileNotFoundError:
        return False
    return True


async def _create(asked: Asked, where: Where, args: p.OPEN4args, name: bytes) -> Target:
    """The four ways to create (RFC 8881 section 18.16.3)."""
    how, modes = args.openhow.how, p.createmode4
    assert how is not None
    server, directory, credential = asked.server, where.node, where.credential
    wanted: p.fattr4 | None = how.createattrs
    verifier: bytes | None = how.createverf
    if how.mode == modes.EXCLUSIVE4_1:
        if not where.minor:
            raise Nfs4Error(p.NFS4ERR_INVAL)
        assert how.ch_createboth is not None
        verifier, wanted = how.ch_createboth.cva_verf, how.ch_createboth.cva_attrs
        if mask_of(wanted.attrmask) & ~EXCLUSIVE_CREATE:
            raise Nfs4Error(p.NFS4ERR_INVAL)
    # The times hold the verifier: the client knows to set them (RFC 7530 section 16.16.5).
    shown = 0 if verifier is None else _TIMES
    mask, attributes = 0, SetAttributes()
    if wanted is not None:
        mask = mask_of(wanted.attrmask)
        attributes = await settable_on(server.service, server.names, where.minor, wanted, directory, FileType.REG)
    # The size waits until the share reservation stands: another open's deny must be able to refuse it.
    size, attributes = attributes.size, replace(attributes, size=None)
    refusal = server.engine.opens.refusal(asked.client, args.owner.owner)
    # An OPEN that will be refused leaves no file behind; of one that is there, the rest of OPEN decides.
    if refusal is not None and not await _is_there(server, credential, directory, name):
        raise refusal
    with _shortage_told(server, credential.host, where.minor), ExitStack() as hold:
        event: Event | None = None
        if directory.inode.delegated and not await _is_there(server, credential, directory, name):
            event = added(name)
            await clear_names(server, asked.client, hold, credential, (directory, ADD))
        node, now, change, created = await server.service.create(
            credential, directory, name, attributes, exclusive=how.mode != modes.UNCHECKED4, verifier=verifier
        )
        if created:
            tell(server, asked.client, directory, event)  # None: it was not delegated, or there, when it was looked at
    before, after = change.before.change, change.after.change
    if not created:
        # An existing file keeps its attributes; only its size is set, and only to 0 (UNCHECKED).
        resize = size == 0 and how.mode == modes.UNCHECKED4
        claim = Claim(size=0) if resize else USUAL
        return Target(node, before, after, claim, False, 1 << p.FATTR4_SIZE if resize else shown)
    claim = Claim(size=size) if size and size != now.size else USUAL
    return Target(node, before, after, claim, True, mask | shown)
