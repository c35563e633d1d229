"""Sessions: CREATE_SESSION, SEQUENCE, BIND_CONN_TO_SESSION, BACKCHANNEL_CTL, DESTROY_SESSION.

RFC 8881 sections 2.10, 18.33, 18.34, 18.36, 18.37, 18.46.
"""

from __future__ import annotations

import zlib

from nfsd.protocol import nfs4 as p
from nfsd.state import NEW, REPLAY, Nfs4Error
from nfsd.state.types import CallbackCredential, ChannelAttributes
from nfsd.v4.compound import Compound, SlotReplay
from nfsd.v4.operations import operation
from rpcrdma.rpc.program import AUTH_NONE, AUTH_SYS, Call

FINGERPRINTED = 256
"""Octets after SEQUENCE that tell a retransmission from another request with its sequence number."""


def _attributes(wire: p.channel_attrs4) -> ChannelAttributes:
    return ChannelAttributes(
        headerpadsize=wire.ca_headerpadsize,
        maxrequestsize=wire.ca_maxrequestsize,
        maxresponsesize=wire.ca_maxresponsesize,
        maxresponsesize_cached=wire.ca_maxresponsesize_cached,
        maxoperations=wire.ca_maxoperations,
        maxrequests=wire.ca_maxrequests,
        rdma_ird=tuple(wire.ca_rdma_ird),
    )


def _wire(attributes: ChannelAttributes) -> p.channel_attrs4:
    return p.channel_attrs4(
        ca_headerpadsize=attributes.headerpadsize,
        ca_maxrequestsize=attributes.maxrequestsize,
        ca_maxresponsesize=attributes.maxresponsesize,
        ca_maxresponsesize_cached=attributes.maxresponsesize_cached,
        ca_maxoperations=attributes.maxoperations,
        ca_maxrequests=attributes.maxrequests,
        ca_rdma_ird=list(attributes.rdma_ird),
    )


def _credentials(offered: list[p.callback_sec_parms4]) -> tuple[CallbackCredential, ...]:
    """The first of the credentials offered for callbacks that this server can send; the others would be kept for
    nothing. Raises NOENT when there are only RPCSEC_GSS handles, none of which exists here (RFC 8881 sections 18.33.3
    and 18.36.3)."""
    for one in offered:
        if one.cb_secflavor == AUTH_NONE:
            return (CallbackCredential(AUTH_NONE),)
        if one.cb_secflavor == AUTH_SYS and one.cbsp_sys_cred is not None:
            sys = one.cbsp_sys_cred
            machine = bytes(sys.machinename).decode("utf-8", "replace")
            return (CallbackCredential(AUTH_SYS, machine, sys.uid, sys.gid, tuple(sys.gids)),)
    if offered:
        raise Nfs4Error(p.NFS4ERR_NOENT, "no such RPCSEC_GSS handle")
    return ()


@operation(p.OP_CREATE_SESSION, changes=True, alone=True)
async def create_session(c: Compound, args: p.CREATE_SESSION4args) -> p.CREATE_SESSION4resok:
    """Make a session; the first one confirms the client."""
    credentials = _credentials(args.csa_sec_parms)
    made = c.engine.sessions.create_session(
        clientid=args.csa_clientid,
        sequenceid=args.csa_sequence,
        flags=args.csa_flags,
        fore=_attributes(args.csa_fore_chan_attrs),
        back=_attributes(args.csa_back_chan_attrs),
        cb_program=args.csa_cb_program,
        cb_credentials=credentials,
        principal=c.principal,
        connection=c.server.connection(c.call.transport),
        # A backchannel that nothing could be sent on is not granted.
        callbacks=c.call.transport.max_backchannel_size > 0 and bool(credentials),
        minor=c.minor,
        host=c.host,
    )
    return p.CREATE_SESSION4resok(
        csr_sessionid=made.sessionid,
        csr_sequence=made.sequenceid,
        csr_flags=made.flags,
        csr_fore_chan_attrs=_wire(made.fore),
        csr_back_chan_attrs=_wire(made.back),
    )


@operation(p.OP_SEQUENCE, alone=True)
async def sequence(c: Compound, args: p.SEQUENCE4args) -> p.SEQUENCE4resok:
    """Find the slot of a COMPOUND. A retransmission is answered from it."""
    digest, octets = _digest(c.call)
    session, slot, verdict = c.engine.sessions.sequence(
        c.call.transport,
        args.sa_sessionid,
        args.sa_sequenceid,
        args.sa_slotid,
        args.sa_highest_slotid,
        args.sa_cachethis,
        digest,
        operations=c.operations,
        request_octets=octets,
    )
    c.server.met(c.call.transport, session.client)
    if verdict == REPLAY:
        raise SlotReplay(slot.reply or b"")
    c.session, c.sequence = session, args
    if verdict == NEW:
        c.slot = slot
        _hold_to_session(c, session.fore)
    else:
        c.failure_after_sequence = p.NFS4ERR_RETRY_UNCACHED_REP
    return p.SEQUENCE4resok(
        sr_sessionid=args.sa_sessionid,
        sr_sequenceid=args.sa_sequenceid,
        sr_slotid=args.sa_slotid,
        sr_highest_slotid=session.highest_slotid,
        sr_target_highest_slotid=session.target_highest_slotid,
        sr_status_flags=session.status_flags(),
    )


def _digest(call: Call) -> tuple[int, int]:
    """What tells a retransmission from another request, and the octets of the request as XDR has it.

    Neither the RPC header, since a retransmission may have another xid (RFC 8881 section 2.10.6.1.3.1), nor how the
    request came: the same one may come by TCP, or with other Read chunks. The caller counts.
    """
    message, caller, start = call.message, call.credential, call.arguments.position
    octets = len(message)
    head = message[start : start + FINGERPRINTED]
    if call.chunks:
        octets += sum(len(view) + 3 & ~3 for _, view in call.chunks)
        head = _unreduced(call, start)
    return zlib.crc32(head, octets - start ^ caller.mark ^ caller.flavor << 28), octets


def _unreduced(call: Call, start: int) -> memoryview:
    """The first octets behind SEQUENCE, with the chunks in their places."""
    whole, at = bytearray(), start
    for position, view in call.chunks:
        # Octets of chunks before this one shift its place in what came inline.
        inline = position - start - len(whole)
        whole += call.message[at : at + inline]
        at += inline
        room = FINGERPRINTED - len(whole)
        if room <= 0:
            break
        whole += view[:room]
        if len(view) <= room:
            whole += bytes(-len(view) & 3)
    whole += call.message[at : at + max(FINGERPRINTED - len(whole), 0)]
    return memoryview(whole)[:FINGERPRINTED]


def _hold_to_session(c: Compound, fore: ChannelAttributes) -> None:
    """The bounds the session put on replies (RFC 8881 section 2.10.6.4)."""
    assert c.sequence is not None
    c.room = fore.maxresponsesize
    if c.sequence.sa_cachethis:
        c.room = min(c.room, fore.maxresponsesize_cached + c.start)


@operation(p.OP_BIND_CONN_TO_SESSION, changes=True, alone=True)
async def bind_conn_to_session(c: Compound, args: p.BIND_CONN_TO_SESSION4args) -> p.BIND_CONN_TO_SESSION4resok:
    """Use this connection for a session, in the directions asked that can be."""
    direction, rdma = c.engine.sessions.bind_connection(
        c.server.connection(c.call.transport),
        args.bctsa_sessid,
        int(args.bctsa_dir),
        args.bctsa_use_conn_in_rdma_mode,
        callbacks=c.call.transport.max_backchannel_size > 0,
    )
    c.engine.clients.meet(c.engine.sessions.by_id[args.bctsa_sessid].client, c.host)
    return p.BIND_CONN_TO_SESSION4resok(
        bctsr_sessid=args.bctsa_sessid,
        bctsr_dir=p.channel_dir_from_server4(direction),
        bctsr_use_conn_in_rdma_mode=rdma,
    )


@operation(p.OP_BACKCHANNEL_CTL, changes=True)
async def backchannel_ctl(c: Compound, args: p.BACKCHANNEL_CTL4args) -> None:
    """Replace what callbacks are sent with."""
    assert c.session is not None, "4.1 operations run in a session"
    c.engine.sessions.backchannel_ctl(c.session, args.bca_cb_program, _credentials(args.bca_sec_parms))


@operation(p.OP_DESTROY_SESSION, changes=True, alone=True)
async def destroy_session(c: Compound, args: p.DESTROY_SESSION4args) -> None:
    """Destroy a session; its own only as the last operation (RFC 8881 section 18.37.3)."""
    if c.session is not None and args.dsa_sessionid == c.session.sessionid and c.index != c.operations - 1:
        raise Nfs4Error(p.NFS4ERR_NOT_ONLY_OP)
    c.engine.sessions.destroy_session(
        args.dsa_sessionid, connection=c.server.connection(c.call.transport), own=c.session
    )
