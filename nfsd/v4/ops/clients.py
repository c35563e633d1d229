"""Clients: SETCLIENTID and its kin (RFC 7530 sections 16.6, 16.29, 16.33, 16.34), EXCHANGE_ID, DESTROY_CLIENTID,
RECLAIM_COMPLETE, TEST_STATEID, FREE_STATEID (RFC 8881 sections 18.35, 18.38, 18.48, 18.50, 18.51)."""

from __future__ import annotations

from typing import Final

from nfsd.protocol import nfs4 as p
from nfsd.state import ClientInUse, Nfs4Error
from nfsd.state.protection import Protection, granted
from nfsd.state.types import Callback40
from nfsd.v4.attributes import mask_of, words_of
from nfsd.v4.compound import Compound
from nfsd.v4.operations import operation

_LONGEST_NETID: Final = 16
_LONGEST_ADDRESS: Final = 64
"""Octets of a universal address: an IPv6 address, its zone and a port have less (RFC 5665 section 5.2.3)."""


@operation(p.OP_SETCLIENTID, changes=True)
async def setclientid(c: Compound, args: p.SETCLIENTID4args) -> p.SETCLIENTID4resok | p.SETCLIENTID4res:
    """v4.0: introduce a client."""
    where, caller = args.callback.cb_location, c.call.credential
    # What is longer is no address, and is kept for as long as the client is.
    short = len(where.na_r_netid) <= _LONGEST_NETID and len(where.na_r_addr) <= _LONGEST_ADDRESS
    callback = Callback40(
        program=args.callback.cb_program,
        netid=where.na_r_netid.decode("ascii", "replace") if short else "",
        address=where.na_r_addr.decode("ascii", "replace") if short else "",
        ident=args.callback_ident,
        peer=c.call.transport.peer_address,
        security=caller.security if caller.principal else "",
        principal=caller.principal,
    )
    try:
        clientid, confirm = c.engine.clients.setclientid(
            owner=args.client.id,
            verifier=args.client.verifier,
            principal=c.principal,
            callback=callback,
            host=c.host,
        )
    except ClientInUse as holder:
        using = p.netaddr4(na_r_netid=holder.netid.encode(), na_r_addr=holder.address.encode())
        return p.SETCLIENTID4res(status=p.nfsstat4.NFS4ERR_CLID_INUSE, client_using=using)
    return p.SETCLIENTID4resok(clientid=clientid, setclientid_confirm=confirm)


@operation(p.OP_SETCLIENTID_CONFIRM, changes=True)
async def setclientid_confirm(c: Compound, args: p.SETCLIENTID_CONFIRM4args) -> None:
    """v4.0: the client got the answer to its SETCLIENTID."""
    client = c.engine.clients.setclientid_confirm(
        clientid=args.clientid, confirm=args.setclientid_confirm, principal=c.principal
    )
    c.server.callbacks.client_can_be_called(client)  # looks for the path, if it is not known yet


def _protected(protection: Protection | None) -> p.state_protect4_r:
    if protection is None:
        return p.state_protect4_r(spr_how=p.state_protect_how4.SP4_NONE)
    granted = p.state_protect_ops4(words_of(protection.must_enforce), words_of(protection.must_allow))
    return p.state_protect4_r(spr_how=p.state_protect_how4.SP4_MACH_CRED, spr_mach_ops=granted)


@operation(p.OP_EXCHANGE_ID, changes=True, alone=True)
async def exchange_id(c: Compound, args: p.EXCHANGE_ID4args) -> p.EXCHANGE_ID4resok:
    """v4.1: introduce a client."""
    if c.minor < 2 and args.eia_flags & p.EXCHGID4_FLAG_SUPP_FENCE_OPS:
        raise Nfs4Error(p.NFS4ERR_INVAL)  # a flag that RFC 7862 section 14.1.3 has added
    asked = args.eia_state_protect
    if asked.spa_how == p.state_protect_how4.SP4_SSV:
        raise Nfs4Error(p.NFS4ERR_ENCR_ALG_UNSUPP)  # as servers without SSV answer it
    protection = None
    if (wanted := asked.spa_mach_ops) is not None:
        protection = granted(mask_of(wanted.spo_must_enforce), mask_of(wanted.spo_must_allow), c.machine)
    made = c.engine.clients.exchange_id(
        owner=args.eia_clientowner.co_ownerid,
        verifier=args.eia_clientowner.co_verifier,
        flags=args.eia_flags,
        principal=c.principal,
        machine=c.machine,
        protection=protection,
        host=c.host,
    )
    return p.EXCHANGE_ID4resok(
        eir_clientid=made.clientid,
        eir_sequenceid=made.sequenceid,
        eir_flags=made.flags,
        eir_state_protect=_protected(made.protection),
        # One server over all its listeners: clients may trunk (RFC 8881 section 2.10.5).
        eir_server_owner=p.server_owner4(so_minor_id=0, so_major_id=c.server.owner),
        eir_server_scope=c.server.scope,
        eir_server_impl_id=[],
    )


@operation(p.OP_DESTROY_CLIENTID, changes=True, alone=True)
async def destroy_clientid(c: Compound, args: p.DESTROY_CLIENTID4args) -> None:
    """v4.1: the client goes; it must have nothing left."""
    c.engine.clients.destroy_clientid(args.dca_clientid, c.host, c.machine)


@operation(p.OP_RECLAIM_COMPLETE, changes=True)
async def reclaim_complete(c: Compound, args: p.RECLAIM_COMPLETE4args) -> None:
    """v4.1: nothing more will be reclaimed; for one file system, it is only checked that there is one."""
    if c.client is None:
        raise Nfs4Error(p.NFS4ERR_OP_NOT_IN_SESSION)
    if args.rca_one_fs:
        _ = c.here
    c.engine.clients.reclaim_complete(c.client, one_fs=args.rca_one_fs)


@operation(p.OP_TEST_STATEID)
async def test_stateid(c: Compound, args: p.TEST_STATEID4args) -> p.TEST_STATEID4resok:
    """v4.1: which stateids are still good."""
    assert c.client is not None, "4.1 operations run in a session"
    statuses = [p.nfsstat4(c.engine.stateids.test(stateid, c.client)) for stateid in args.ts_stateids]
    return p.TEST_STATEID4resok(tsr_status_codes=statuses)


@operation(p.OP_FREE_STATEID, changes=True)
async def free_stateid(c: Compound, args: p.FREE_STATEID4args) -> None:
    """v4.1: forget a stateid that stands for nothing any more."""
    assert c.client is not None, "4.1 operations run in a session"
    c.engine.stateids.free(c.given(args.fsa_stateid), c.client)
