"""Random histories of delegations against a model: given, refused, recalled, returned, reclaimed and revoked."""

import os
import random

import pytest

from nfsd.protocol import nfs4 as p
from nfsd.state import Limits, Nfs4Error
from nfsd.state.errors import DelegationConflict
from nfsd.state.records import Delegation
from tests.unit.state_support import BOTH, READ, WRITE, Client40, Client41, World


class Histories:
    """Clients that open, are given delegations, return them or do not, go away and come back; a server that crashes.
    Against a model that keeps plain sets: who has what open, who has a file locked (all of it), who has which
    delegation, what is being recalled."""

    NAMES = (b"a", b"b", b"c")
    FILES = (b"f", b"g")
    LIMITS = Limits(lease=30, grace=30, recall=20, delegation_pause=15, delegations=5, client_delegations=3)

    def __init__(self, chance):
        self.chance = chance
        self.world = World(self.LIMITS)
        self.clients = {}
        self.incarnation = 0
        self.owners = 0
        self.opens = {}
        """(name, file): the open state."""
        self.locks = {}
        """(name, file): the lock state."""
        self.held = {}
        """(name, file): the delegation."""
        self.deadline = {}
        """(name, file): when a recalled delegation is revoked."""
        self.paused = {}
        self.gone = []
        self.granted = 0
        self.revoked = 0
        for name in self.NAMES:
            self.client(name)

    # -- helpers
    @property
    def table(self):
        return self.world.engine.delegations

    def client(self, name):
        """The client, back under its name if it has expired: then it has lost everything."""
        known = self.clients.get(name)
        if known is None or known.record.expired or known.record.engine is not self.world.engine:
            self.forget(name)
            self.incarnation += 1
            verifier = self.incarnation.to_bytes(8, "big")
            if name == b"c":
                known = Client40(self.world, name, verifier)
            else:
                known = Client41(self.world, name, verifier, ready=not self.world.engine.grace.active)
                if not known.record.reclaim_complete and not known.record.may_reclaim:
                    self.world.engine.clients.reclaim_complete(known.record, one_fs=False)
            self.clients[name] = known
            self.world.store()
            self.table.on_gone = self.gone.append
        return known

    def new_owner(self):
        """A lock owner that has no order to keep in 4.0."""
        self.owners += 1
        return b"l%d" % self.owners

    def forget(self, name):
        for table in (self.opens, self.locks, self.held, self.deadline):
            for key in [key for key in table if key[0] == name]:
                del table[key]

    def losers(self):
        """Clients that have expired lose what they have, in the model too."""
        for name, client in self.clients.items():
            if client.record.expired:
                self.forget(name)

    def others(self, name, key, table):
        return [one for one in table if one[1] == key and one[0] != name]

    def courtesy(self, name):
        return self.clients[name].record.courtesy

    def conflicting(self, name, key, write):
        return [one for one in self.others(name, key, self.held) if write or self.held[one].write]

    # -- what clients do
    def renew(self, name):
        client = self.client(name)
        client.renew()

    def open(self, name, key, access, deny):
        client = self.client(name)
        client.renew()
        write = bool(access & WRITE or deny & READ)
        mine = self.opens.get((name, key))
        if mine is not None and (access & mine.deny or deny & mine.access):
            return  # its own opens would refuse it
        blockers = [self.opens[one] for one in self.others(name, key, self.opens)]
        denied = [one for one in blockers if access & one.deny or deny & one.access]
        staying = [one for one in denied if not one.client.courtesy]
        recalled = self.conflicting(name, key, write)
        try:
            state = client.open(key, access=access, deny=deny)
        except DelegationConflict:
            # Who was only kept out of courtesy has lost its share, and its delegation.
            assert not staying
            waiting = [one for one in recalled if not self.clients[one[0]].record.expired]
            assert waiting, "refused without a reason"
            self.recall(waiting)
        except Nfs4Error as error:
            if error.status == p.NFS4ERR_GRACE:
                assert self.world.engine.grace.active or not client.record.reclaim_complete
            else:
                assert error.status == p.NFS4ERR_SHARE_DENIED  # noqa: PT017
                assert staying
        else:
            assert not staying
            self.losers()
            assert not self.conflicting(name, key, write)
            self.opens[name, key] = state
        self.losers()

    def recall(self, which):
        now = self.world.clock.now
        new = [one for one in which if one not in self.deadline]
        for one in new:
            self.deadline[one] = now + self.LIMITS.recall
        for one in which:
            self.paused[one[1]] = now + self.LIMITS.delegation_pause
        told = self.table.take_recalls()
        assert {(one.client.owner, one.file.key) for one in told} == set(new)

    def offer(self, name, key, write):
        client = self.client(name)
        client.renew()
        engine = self.world.engine
        made = self.table.offer(client.record, key, write=write)
        others = [self.opens[one] for one in self.others(name, key, self.opens)]
        refused = (
            engine.grace.active
            or (name, key) in self.held
            or self.paused.get(key, 0) > self.world.clock.now
            or bool([one for one in self.others(name, key, self.held) if write or self.held[one].write])
            or any(write or one.access & WRITE or one.deny & READ for one in others)
            or len(self.held) >= self.LIMITS.delegations
            or len([one for one in self.held if one[0] == name]) >= self.LIMITS.client_delegations
        )
        assert isinstance(made, Delegation) is not refused
        if not refused:
            assert self.table.settle(made)
            self.held[name, key] = made
            self.granted += 1
            engine.record_client(client.record)

    def change(self, name, key, write):
        """Some other operation, of a client or (None) of nobody known."""
        if name is not None:
            self.client(name).renew()
        waiting = self.conflicting(name, key, write)
        done = self.table.clear(key, self.clients[name].record if name is not None else None, write=write)
        self.losers()
        waiting = [one for one in waiting if one in self.held]
        assert done is not bool(waiting)
        self.recall(waiting)

    def lock(self, name, key):
        """The whole file, exclusively: no delegation is asked for that, the open was."""
        state = self.opens.get((name, key))
        if state is None or not state.access & WRITE or (name, key) in self.locks:
            return
        client = self.client(name)
        client.renew()
        staying = [one for one in self.others(name, key, self.locks) if not self.courtesy(one[0])]
        try:
            self.locks[name, key] = client.lock(state, 0, 100, owner=self.new_owner())
        except Nfs4Error as error:
            assert error.status == (p.NFS4ERR_GRACE if self.world.engine.grace.active else p.NFS4ERR_DENIED)  # noqa: PT017
            assert staying or self.world.engine.grace.active
        else:
            assert not staying
        assert self.table.take_recalls() == []
        self.losers()

    def close(self, name, key):
        state = self.opens.pop((name, key), None)
        self.locks.pop((name, key), None)
        if state is not None:
            self.client(name).renew()
            self.world.engine.opens.close(state)

    def give_back(self, name, key):
        made = self.held.pop((name, key), None)
        if made is not None:
            client = self.client(name)
            client.renew()
            self.deadline.pop((name, key), None)
            found = self.table.find(made.stateid, client.record if client.record.minor else None, key)
            assert found is made
            self.table.give_back(found)

    def acknowledge(self, name):
        """FREE_STATEID of what was revoked."""
        client = self.client(name)
        client.renew()
        for entry in list(client.record.states.values()):
            if entry.status:
                assert entry.status == p.NFS4ERR_DELEG_REVOKED
                self.world.engine.stateids.free(entry.stateid, client.record)

    def time_passes(self, seconds):
        end = self.world.clock.now + seconds
        self.world.pass_time(seconds)
        self.losers()
        for one in [one for one, deadline in self.deadline.items() if deadline <= end]:
            del self.deadline[one]
            del self.held[one]
            self.revoked += 1
        self.world.store()

    def restart(self):
        """The server crashes; everybody comes back, and claims what it had."""
        had, opened, locked = dict(self.held), dict(self.opens), set(self.locks)
        lost = {name for name, client in self.clients.items() if client.record.revoked}
        known = {(name, self.clients[name].record.owner) for name in self.NAMES}
        self.world.restart()
        self.gone.clear()
        self.table.on_gone = self.gone.append
        self.opens.clear()
        self.locks.clear()
        self.held.clear()
        self.deadline.clear()
        self.paused.clear()
        order = list(self.NAMES)
        self.chance.shuffle(order)
        for name in order:
            client = self.client(name)
            if not client.record.may_reclaim:
                continue
            assert name not in lost, "a claim in spite of an unacknowledged revocation"
            for (owner, key), state in opened.items():
                if owner == name:
                    again = client.open(key, access=state.access, deny=state.deny, reclaim=True)
                    self.opens[name, key] = again
                    if (name, key) in locked:
                        self.locks[name, key] = client.lock(again, 0, 100, owner=self.new_owner(), reclaim=True)
            for (owner, key), before in had.items():
                if owner == name:
                    made = self.table.offer(client.record, key, write=before.write, reclaim=True)
                    # What was compatible before is so now.
                    assert isinstance(made, Delegation)
                    assert self.table.settle(made)
                    self.held[name, key] = made
        for name in order:
            client = self.clients[name]
            if client.record.minor and not client.record.reclaim_complete:
                self.world.engine.clients.reclaim_complete(client.record, one_fs=False)
        assert known
        self.world.store()

    # -- what must hold at any time
    def check(self):
        table, engine = self.table, self.world.engine
        assert table.count == len(self.held)
        for name, client in self.clients.items():
            assert client.record.delegations == len([one for one in self.held if one[0] == name])
        for (name, key), made in self.held.items():
            assert table.holds(made)
            assert made.status == 0
            assert (made.recall_by is not None) is ((name, key) in self.deadline)
            assert engine.stateids.locate(made.other, made.client if made.client.minor else None) is made
            for other in self.others(name, key, self.held):
                assert not made.write
                assert not self.held[other].write
            for other in self.others(name, key, self.opens):
                assert not made.write, "another has it open"
                assert not self.opens[other].access & WRITE
        for key in self.FILES:
            file = engine.opens.file(key)
            owners = set(file.locks.owners) if file is not None and file.locks is not None else set()
            assert {owner.client.owner for owner in owners} == {one[0] for one in self.locks if one[1] == key}
        assert table.next_deadline() == min(self.deadline.values(), default=None)

    def step(self):
        chance = self.chance
        name, key, write = chance.choice(self.NAMES), chance.choice(self.FILES), chance.random() < 0.5
        actions = (
            (8, lambda: self.open(name, key, chance.choice((READ, READ, WRITE, BOTH)), chance.choice((0, 0, 0, 1, 2)))),
            (8, lambda: self.offer(name, key, write)),
            (5, lambda: self.change(chance.choice((name, name, None)), key, write)),
            (4, lambda: self.lock(name, key)),
            (6, lambda: self.close(name, key)),
            (6, lambda: self.give_back(name, key)),
            (4, lambda: self.renew(name)),
            (2, lambda: self.acknowledge(name)),
            (5, lambda: self.time_passes(chance.choice((1, 7, 16, 25, 40)))),
            (1, self.restart),
        )
        (action,) = chance.choices([one for _, one in actions], [weight for weight, _ in actions])
        action()
        self.check()


HISTORIES = int(os.environ.get("RDMA_NFSD_HISTORIES", "200"))
STEPS = 100


@pytest.mark.parametrize("block", range(4))
def test_random_histories_of_delegations(block):
    """200 histories of 100 steps each; RDMA_NFSD_HISTORIES sets another number (docs/testing.md)."""
    granted = revoked = 0
    for seed in range(block * HISTORIES // 4, (block + 1) * HISTORIES // 4):
        history = Histories(random.Random(seed))
        for number in range(STEPS):
            try:
                history.step()
            except BaseException as error:
                error.add_note(f"history {seed}, step {number}")
                raise
        granted += history.granted
        revoked += history.revoked
    assert granted > 2 * HISTORIES // 4
    assert revoked > HISTORIES // 40
