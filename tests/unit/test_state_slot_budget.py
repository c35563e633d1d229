"""Sessions that get more slots and give slots back (RFC 8881 sections 2.10.6.1 and 20.8)."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from nfsd.protocol import nfs4 as p
from nfsd.state import NEW, Limits

from .state_support import World, failing


def session_of(client):
    return client.record.sessions[client.sessionid]


class Slots:
    """A client's use of its slots: sequence ids, one request at a time."""

    def __init__(self, world, client):
        self.world, self.client = world, client
        self.seqids = {}

    def use(self, slotid, highest=None, *, seqid=None):
        """A whole request; (sr_highest_slotid, sr_target_highest_slotid) of its reply."""
        seqid = self.seqids.get(slotid, 0) + 1 if seqid is None else seqid
        session, slot, verdict = self.world.engine.sessions.sequence(
            self.client.connection, self.client.sessionid, seqid, slotid, max(slotid, highest or 0), False
        )
        assert verdict == NEW
        self.seqids[slotid] = seqid
        slot.finish(None)
        return session.highest_slotid, session.target_highest_slotid


def test_who_uses_the_last_slot_gets_more_up_to_the_limits():
    world = World(Limits(slots=12))
    client = world.client41(slots=8)
    slots = Slots(world, client)
    assert slots.use(6) == (7, 7)
    assert slots.use(7) == (9, 9)
    assert slots.use(9) == (11, 11)
    assert slots.use(11) == (11, 11)
    with failing(p.NFS4ERR_BADSLOT):
        slots.use(12)
    assert slots.use(10) == (11, 11)


def test_nothing_beyond_what_was_granted_for_who_does_not_tell_what_it_uses():
    world = World()
    single = world.client41(b"one slot", slots=1)
    slots = Slots(world, single)
    for _ in range(5):
        assert slots.use(0) == (0, 0)
    # One that takes its slots in turn, and always names the last of them.
    turns = world.client41(b"takes turns", slots=8)
    slots = Slots(world, turns)
    for _ in range(3):
        for slotid in range(8):
            assert slots.use(slotid, 7) == (7, 7)


def test_growth_stays_within_the_clients_and_everybodys_memory():
    for limits in (Limits(client_cached_octets=9 * 4096), Limits(all_cached_octets=9 * 4096)):
        world = World(limits)
        client = world.client41(slots=8)
        slots = Slots(world, client)
        slots.use(0)
        assert slots.use(7) == (8, 8)
        assert slots.use(8) == (8, 8)
        assert client.record.cached_octets == world.engine.sessions.budget.promised == 9 * 4096
        world.engine.expire_client(client.record)
        assert world.engine.sessions.budget.promised == 0


def test_slots_are_taken_back_once_the_client_has_shown_that_it_knows():
    world = World()
    client = world.client41(slots=8)
    slots, session = Slots(world, client), session_of(client)
    for slotid in range(7):
        slots.use(slotid)
    budget = world.engine.sessions.budget
    budget.shrink(session, 3)
    assert slots.use(6) == (7, 2), "sent before the client could know"
    assert slots.use(0, 5) == (7, 2), "still using higher ones"
    assert slots.use(1, 1) == (7, 2), "the first reply on this slot with the new target"
    assert slots.use(1, 6) == (7, 2), "the client knows, but says it has requests outstanding there"
    assert slots.use(1, 1) == (2, 2)
    with failing(p.NFS4ERR_BADSLOT):
        slots.use(3)
    with failing(p.NFS4ERR_BAD_HIGH_SLOT):
        slots.use(0, 8)
    assert slots.use(0, 7) == (2, 2), "sent before, and overtaken"
    assert client.record.cached_octets == 3 * 4096


def test_a_slot_that_is_executing_is_not_taken_back():
    world = World()
    client = world.client41(slots=8)
    slots, session = Slots(world, client), session_of(client)
    _, running, _ = world.engine.sessions.sequence(client.connection, client.sessionid, 1, 5, 5, False)
    world.engine.sessions.budget.shrink(session, 2)
    slots.use(0)
    assert slots.use(0, 1) == (5, 1)
    running.finish(None)
    assert slots.use(0, 1) == (1, 1)


def test_a_slot_that_comes_back_goes_on_or_begins_anew():
    for again in (1, 3):
        world = World()
        client = world.client41(slots=4)
        slots, session = Slots(world, client), session_of(client)
        slots.use(2)
        slots.use(2)
        world.engine.sessions.budget.shrink(session, 2)
        slots.use(0)
        slots.use(0)
        assert len(session.slots) == 2
        slots.use(1)
        assert len(session.slots) == 3
        with failing(p.NFS4ERR_SEQ_MISORDERED):
            slots.use(2, seqid=2)
        slots.use(2, seqid=again)
        with failing(p.NFS4ERR_SEQ_MISORDERED):
            slots.use(2, seqid=1 if again == 3 else 4)
        slots.use(2, seqid=again + 1)


def test_a_newcomer_gets_what_is_left_and_the_large_are_asked_to_give():
    world = World(Limits(all_cached_octets=20 * 4096))
    large, small = world.client41(b"large", slots=16), world.client41(b"small", slots=2)
    newcomer = world.client41(b"new", slots=8)
    assert newcomer.result.fore.maxrequests == 2
    assert session_of(large).target_highest_slotid == 7
    assert session_of(small).target_highest_slotid == 1
    assert world.engine.sessions.budget.take_recalls() == [session_of(large)]
    assert world.engine.sessions.budget.take_recalls() == []
    slots = Slots(world, large)
    slots.use(0)
    slots.use(0)
    assert len(session_of(large).slots) == 8
    demanding = Slots(world, newcomer)
    demanding.use(0)
    for _ in range(10):
        demanding.use(len(session_of(newcomer).slots) - 1)
    assert len(session_of(newcomer).slots) == 10


def test_sessions_get_one_slot_even_without_any_memory():
    world = World(Limits(all_cached_octets=4096))
    for name in (b"a", b"b", b"c"):
        assert world.client41(name).result.fore.maxrequests == 1


class SlotTraffic(RuleBasedStateMachine):
    """A client that obeys the newest reply it has seen, and a server that changes its mind: no request of the client's
    is ever refused, and the accounts are right."""

    def __init__(self):
        super().__init__()
        self.world = World(Limits(slots=16, client_cached_octets=12 * 4096))
        self.client = self.world.client41(slots=4)
        self.session = session_of(self.client)
        self.seqids = {}
        self.running = {}
        """Slots in use: (serial number of the reply, the server's slot, sr_highest_slotid, sr_target_highest_slotid)"""
        self.serial = self.newest = 0
        self.target = 3

    @rule(data=st.data())
    def request(self, data):
        free = [slotid for slotid in range(self.target + 1) if slotid not in self.running]
        if not free:
            return
        slotid = data.draw(st.sampled_from(free))
        seqid = self.seqids.get(slotid, 0) + 1
        _, slot, verdict = self.world.engine.sessions.sequence(
            self.client.connection, self.client.sessionid, seqid, slotid, max([slotid, *self.running]), False
        )
        assert verdict == NEW
        self.seqids[slotid] = seqid
        self.serial += 1
        told = self.session.highest_slotid, self.session.target_highest_slotid
        self.running[slotid] = (self.serial, slot, *told)

    @rule(data=st.data())
    def reply(self, data):
        if not self.running:
            return
        slotid = data.draw(st.sampled_from(sorted(self.running)))
        serial, slot, highest, target = self.running.pop(slotid)
        slot.finish(None)
        if serial > self.newest:
            self.newest, self.target = serial, target
            # Linux forgets the sequence ids of slots above the enforced maximum, and begins anew at 1.
            for gone in [one for one in self.seqids if one > highest]:
                del self.seqids[gone]

    @rule(slots=st.integers(1, 8))
    def shrink(self, slots):
        self.world.engine.sessions.budget.shrink(self.session, slots)

    @invariant()
    def accounts_are_right(self):
        assert self.client.record.cached_octets == len(self.session.slots) * 4096
        assert self.world.engine.sessions.budget.promised == len(self.session.slots) * 4096
        assert self.session.target_highest_slotid <= self.session.highest_slotid == len(self.session.slots) - 1
        assert len(self.session.slots) <= 12


SlotTraffic.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestSlotTraffic = SlotTraffic.TestCase
