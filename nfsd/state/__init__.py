"""NFSv4 state: clients, sessions, opens, locks, recovery. State machines without I/O; clock and RNG are injected.

:class:`StateEngine` owns everything. Operations call its tables, which answer at once or raise :class:`Nfs4Error`
(``.status``); nothing here awaits, so one call is atomic. Where the file system must be asked in the middle of a change
(OPEN, LOCK), the engine first *reserves*, and the operation then commits or aborts::

    # SEQUENCE
    session, slot, verdict = engine.sessions.sequence(transport, sessionid, seqid, slotid, highest, cachethis, digest,
                                                      operations=count, request_octets=len(message))
    if verdict == REPLAY: send slot.reply                    # octets of COMPOUND4res
    ...run the other operations, encode...
    if not engine.stable: await store.flush(engine)          # what the reply promises is on stable storage
    slot.finish(encoded if cachethis and small enough else None)

    # OPEN (v4.1); in v4.0 engine.opens.begin40(client, owner, seqid) first, owner.finish(...) last
    engine.opens.check_claim(client, reclaim=False)          # before creating anything
    owner = engine.opens.owner(client, owner_octets)
    reservation = engine.opens.reserve(owner, node.key, access, deny, reclaim=False)
    try: opened = await files.open(...)
    except BaseException: reservation.abort(); raise
    state = reservation.commit(); state.opened = ...         # answer state.stateid

    # READ
    state = engine.stateids.check_io(args.stateid, session.client, node.key, write=False)   # None: special stateid

    # LOCK, under the gate of the file
    plan = engine.locks.lock_new(open_state, owner_octets, exclusive, offset, length, reclaim=False, wait=False)
    try:
        r = plan.local
        if r: await files.set_local_lock(node, r.start, r.length, exclusive=r.exclusive)
    except OSError: plan.abort(); ...                        # EAGAIN: NFS4ERR_DENIED
    stateid = plan.commit()

    # LOCKU, CLOSE, under the gate of the file
    stateid = engine.locks.unlock(lock_state, offset, length)
    for r in engine.locks.local_clears(lock_state.file): await files.clear_local_lock(node, r.start, r.length)

``session.client`` is passed as ``client`` in v4.1 and later; v4.0 passes None and the stateid tells the client.
The daemon runs ``handle_timer`` at ``get_timer``, and after it clears ``files_to_clear()`` and flushes the store.
What the layer above queues operations on (open owner, lock owner, file) carries a ``gate`` attribute for it; a file's
is an asyncio.Lock, and the file's record stays in place while it is held. Whatever was found before waiting may be gone
after: plans, ``unlock`` and ``close`` look again and raise BAD_STATEID or EXPIRED.

Delegations: ``engine.delegations.offer`` and ``settle`` give one, ``clear`` asks whether an operation may go on; after
anything that may recall (``clear``, ``reserve``, ``handle_timer``) the layer above sends what ``take_recalls`` tells.

Bounds and periods are in :class:`Limits`. What is to be said to clients is asked for after ``handle_timer``:
``sessions.budget.take_recalls()`` for CB_RECALL_SLOT.

Imports nothing but the protocol's numbers. RFC 8881 chapters 2, 8, 9 and 18; RFC 7530 chapters 9 and 16.
"""

from nfsd.state.engine import StateEngine
from nfsd.state.errors import ClientInUse, LockDenied, Nfs4Error
from nfsd.state.limits import Limits
from nfsd.state.recovery import ClientRecord, Recovered, StoreWrite
from nfsd.state.sessions import NEW, REPLAY, UNCACHED

__all__ = [
    "NEW",
    "REPLAY",
    "UNCACHED",
    "ClientInUse",
    "ClientRecord",
    "Limits",
    "LockDenied",
    "Nfs4Error",
    "Recovered",
    "StateEngine",
    "StoreWrite",
]
