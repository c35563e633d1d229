"""Sessions: CREATE_SESSION, BIND_CONN_TO_SESSION, BACKCHANNEL_CTL, DESTROY_SESSION.

SEQUENCE is native (:mod:`nfsd.v4.sequence`). RFC 8881 sections 2.10, 18.33, 18.34, 18.36, 18.37.
"""

from __future__ import annotations

from nfsd.protocol import nfs4 as p
from nfsd.state import Nfs4Error
from nfsd.state.types import CallbackCredential, ChannelAttributes
from nfsd.v4.compound import Compound
from nfsd.v4.operations import operation
from rpcrdma.rpc.program import AUTH_NONE, AUTH_SYS, RPCSEC_GSS


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


def _credentials(c: Compound, offered: list[p.callback_sec_parms4]) -> tuple[CallbackCredential, ...]:
    """The first of the credentials offered for callbacks that this server can send; the others would be kept for
    nothing. Raises NOENT when there are only RPCSEC_GSS handles, none of which exists here as the caller's (RFC 8881
    sections 18.33.3 and 18.36.3), INVAL as :meth:`CallbackService.turned`."""
    for one in offered:
        if one.cb_secflavor == AUTH_NONE:
            return (CallbackCredential(AUTH_NONE),)
        if one.cb_secflavor == AUTH_SYS and one.cbsp_sys_cred is not None:
            sys = one.cbsp_sys_cred
            machine = bytes(sys.machinename).decode("utf-8", "replace")
            return (CallbackCredential(AUTH_SYS, machine, sys.uid, sys.gid, tuple(sys.gids)),)
        if one.cbsp_gss_handles is not None:
            turned = c.server.callbacks.turned(c.call.credential.principal, one.cbsp_gss_handles)
            if turned is not None:
                return (CallbackCredential(RPCSEC_GSS, turned=turned),)
    if offered:
        raise Nfs4Error(p.NFS4ERR_NOENT, "no such RPCSEC_GSS handle")
    return ()


@operation(p.OP_CREATE_SESSION, changes=True, alone=True)
async def create_session(c: Compound, args: p.CREATE_SESSION4args) -> p.CREATE_SESSION4resok:
    """Make a session; the first one confirms the client."""
    credentials = _credentials(c, args.csa_sec_parms)
    made = c.engine.sessions.create_session(
        clientid=args.csa_clientid,
        sequenceid=args.csa_sequence,
        flags=args.csa_flags,
        fore=_attributes(args.csa_fore_chan_attrs),
        back=_attributes(args.csa_back_chan_attrs),
        cb_program=args.csa_cb_program,
        cb_credentials=credentials,
        principal=c.principal,
        machine=c.machine,
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


@operation(p.OP_BIND_CONN_TO_SESSION, changes=True, alone=True)
async def bind_conn_to_session(c: Compound, args: p.BIND_CONN_TO_SESSION4args) -> p.BIND_CONN_TO_SESSION4resok:
    """Use this connection for a session, in the directions asked that can be."""
    direction, rdma = c.engine.sessions.bind_connection(
        c.server.connection(c.call.transport),
        args.bctsa_sessid,
        int(args.bctsa_dir),
        args.bctsa_use_conn_in_rdma_mode,
        callbacks=c.call.transport.max_backchannel_size > 0,
        machine=c.machine,
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
    c.engine.sessions.backchannel_ctl(c.session, args.bca_cb_program, _credentials(c, args.bca_sec_parms), c.machine)


@operation(p.OP_DESTROY_SESSION, changes=True, alone=True)
async def destroy_session(c: Compound, args: p.DESTROY_SESSION4args) -> None:
    """Destroy a session; its own only as the last operation (RFC 8881 section 18.37.3)."""
    if c.session is not None and args.dsa_sessionid == c.session.sessionid and c.index != c.operations - 1:
        raise Nfs4Error(p.NFS4ERR_NOT_ONLY_OP)
    c.engine.sessions.destroy_session(
        args.dsa_sessionid, connection=c.server.connection(c.call.transport), own=c.session, machine=c.machine
    )
