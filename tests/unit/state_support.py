"""A state engine with a virtual clock and counted randomness, and clients that talk to it."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from nfsd.protocol.nfs4 import nfsstat4
from nfsd.state import ClientRecord, Limits, Nfs4Error, Recovered, StateEngine
from nfsd.state.types import Callback40, CallbackCredential, ChannelAttributes

READ, WRITE, BOTH = 1, 2, 3
FORE = ChannelAttributes(0, 1 << 20, 1 << 20, 4096, 16, 8)
BACK = ChannelAttributes(0, 4096, 4096, 0, 2, 4)
CALLBACK = Callback40(0x40000000, "tcp", "10.0.0.1.8.1", 1)


class Clock:
    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class World:
    """An engine, its clock, and what it told the outside. ``stored`` is what stable storage would hold."""

    def __init__(self, limits: Limits | None = None, recovered: Recovered | None = None) -> None:
        self.clock = Clock()
        self.limits = limits or Limits()
        self.released: list[object] = []
        self.stored: dict[tuple[int, bytes, str], ClientRecord] = {}
        self._counter = 0
        self.boot(recovered or Recovered(1))

    @property
    def records(self) -> dict[tuple[int, bytes], ClientRecord]:
        """What stable storage would hold, by minor version and name."""
        return {(r.minor, r.owner): r for r in self.stored.values()}

    def boot(self, recovered: Recovered) -> None:
        self.stored = {(r.minor, r.owner, r.principal): r for r in recovered.records}
        self.engine = StateEngine(
            self.limits, self.clock, recovered, random=self._random, on_release=self.released.append
        )

    def restart(self) -> None:
        """A crash: all that survives is what stable storage had."""
        self.store()
        self.boot(Recovered(self.engine.epoch + 1, tuple(self.stored.values())))

    def _random(self, size: int) -> bytes:
        self._counter += 1
        return Random(self._counter).randbytes(size)

    def store(self) -> None:
        """Carry the engine's writes to ``records``."""
        writes = self.engine.take_writes()
        for write in writes:
            if write.action == "record":
                record = ClientRecord(write.minor, write.owner, write.principal, write.epoch)
                self.stored[write.minor, write.owner, write.principal] = record
            elif write.action == "remove":
                self.stored.pop((write.minor, write.owner, write.principal), None)
            else:
                self.stored = {key: r for key, r in self.stored.items() if r.epoch >= write.epoch}
        self.engine.writes_done(len(writes))

    def pass_time(self, seconds: float) -> None:
        """Let time go by, with the timer served whenever it asks."""
        end = self.clock.now + seconds
        while (timer := self.engine.get_timer()) is not None and timer <= end:
            self.clock.now = max(self.clock.now, timer)
            self.engine.handle_timer(self.clock.now)
        self.clock.now = end

    def client41(self, name: bytes = b"a", verifier: bytes = b"v" * 8, **kwargs: object) -> Client41:
        return Client41(self, name, verifier, **kwargs)  # type: ignore[arg-type]

    def client40(self, name: bytes = b"a", verifier: bytes = b"v" * 8, **kwargs: object) -> Client40:
        return Client40(self, name, verifier, **kwargs)  # type: ignore[arg-type]


class _Client:
    world: World

    @property
    def engine(self) -> StateEngine:
        return self.world.engine


class Client41(_Client):
    """A v4.1 client with one session, ready for new locks unless ``ready`` is false."""

    def __init__(self, world, name, verifier=b"v" * 8, *, principal="1:0", ready=True, slots=8):
        self.world = world
        self.name = name
        self.connection = object()
        exchanged = self.engine.clients.exchange_id(owner=name, verifier=verifier, flags=0, principal=principal)
        self.clientid = exchanged.clientid
        self.result = self.engine.sessions.create_session(
            clientid=self.clientid,
            sequenceid=exchanged.sequenceid,
            flags=2,
            fore=replace(FORE, maxrequests=slots),
            back=BACK,
            cb_program=0x40000000,
            cb_credentials=(CallbackCredential(0),),
            principal=principal,
            connection=self.connection,
        )
        self.sessionid = self.result.sessionid
        self.record = self.engine.clients.lookup(self.clientid)
        self.seqid = 0
        if ready:
            self.engine.clients.reclaim_complete(self.record, one_fs=False)

    def renew(self):
        """A lone SEQUENCE."""
        self.seqid += 1
        _, slot, _ = self.engine.sessions.sequence(self.connection, self.sessionid, self.seqid, 0, 0, False)
        slot.finish(b"")

    def open(self, key=b"f", access=BOTH, deny=0, *, owner=b"o", reclaim=False):
        found = self.engine.opens.owner(self.record, owner)
        return self.engine.opens.reserve(found, key, access, deny, reclaim=reclaim).commit()

    def lock(self, state, offset, length, *, exclusive=True, owner=b"l", reclaim=False, wait=False):
        """Lock under an open; returns the lock state."""
        lock_owner = self.record.lock_owners.get(owner)
        locked = state.lock_states.get(lock_owner)
        if locked is None:
            plan = self.engine.locks.lock_new(state, owner, exclusive, offset, length, reclaim=reclaim, wait=wait)
        else:
            plan = self.engine.locks.lock(locked, exclusive, offset, length, reclaim=reclaim, wait=wait)
        plan.commit()
        return state.lock_states[self.record.lock_owners[owner]]


class Client40(Client41):
    """A v4.0 client, confirmed, with one confirmed open owner per name."""

    def __init__(self, world, name, verifier=b"v" * 8, *, principal="1:0"):
        self.world = world
        self.name = name
        self.clientid, confirm = self.engine.clients.setclientid(
            owner=name, verifier=verifier, principal=principal, callback=CALLBACK
        )
        self.record = self.engine.clients.setclientid_confirm(
            clientid=self.clientid, confirm=confirm, principal=principal
        )
        self.seqids: dict[bytes, int] = {}

    def renew(self):
        self.engine.clients.renew(self.clientid)

    def open(self, key=b"f", access=BOTH, deny=0, *, owner=b"o", reclaim=False):
        seqid = self.seqids.get(owner, 0) + 1
        found, replay = self.engine.opens.begin40(self.record, owner, seqid)
        assert replay is None
        try:
            state = self.engine.opens.reserve(found, key, access, deny, reclaim=reclaim).commit()
        except Nfs4Error as error:
            found.finish(error.status, b"")
            if found.seqid == seqid:
                self.seqids[owner] = seqid
            raise
        found.finish(0, b"open", b"handle")
        self.seqids[owner] = seqid
        if not found.confirmed:
            self.seqids[owner] += 1
            assert self.engine.opens.begin_seqid(state.stateid.other, self.seqids[owner]) == (found, None)
            self.engine.opens.confirm(state)
            found.finish(0, b"confirm")
        return state


class failing:
    """``with failing(codes.NFS4ERR_…):`` the block must raise exactly this status."""

    def __init__(self, status):
        self.status = nfsstat4(status)

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        if error is None:
            pytest.fail(f"{self.status.name} expected, nothing raised")
        if not isinstance(error, Nfs4Error):
            return False
        assert nfsstat4(error.status) is self.status, str(error)
        self.error = error
        return True
