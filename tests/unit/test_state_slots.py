"""Slots and SEQUENCE: every state with every input, and histories against a model (RFC 8881 section 2.10.6)."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from nfsd.protocol import nfs4 as p
from nfsd.state import NEW, REPLAY, UNCACHED, Limits, Nfs4Error
from nfsd.state.records import Slot

from .state_support import World, failing

BUSY, MISORDERED, FALSE_RETRY = 3, 4, 5


def fresh():
    return Slot()


def executing():
    slot = Slot()
    assert slot.begin(1, True, 7) == NEW
    return slot


def kept():
    slot = executing()
    slot.finish(b"reply")
    return slot


def not_kept():
    slot = executing()
    slot.finish(None)
    return slot


@pytest.mark.parametrize(
    ("state", "seqid", "fingerprint", "verdict"),
    [
        (fresh, 0, 0, MISORDERED),
        (fresh, 1, 7, NEW),
        (fresh, 2, 7, MISORDERED),
        (fresh, 0xFFFFFFFF, 7, MISORDERED),
        (executing, 0, 7, MISORDERED),
        (executing, 1, 7, BUSY),
        (executing, 1, 8, BUSY),
        (executing, 2, 7, MISORDERED),
        (executing, 3, 7, MISORDERED),
        (kept, 0, 7, MISORDERED),
        (kept, 1, 7, REPLAY),
        (kept, 1, 8, FALSE_RETRY),
        (kept, 2, 8, NEW),
        (kept, 3, 7, MISORDERED),
        (not_kept, 0, 7, MISORDERED),
        (not_kept, 1, 7, UNCACHED),
        (not_kept, 1, 8, FALSE_RETRY),
        (not_kept, 2, 7, NEW),
        (not_kept, 3, 7, MISORDERED),
    ],
)
def test_verdict_of_every_state_on_every_input(state, seqid, fingerprint, verdict):
    slot = state()
    before = (slot.seqid, slot.in_use, slot.reply, slot.fingerprint)
    assert slot.begin(seqid, False, fingerprint) == verdict
    if verdict == NEW:
        assert (slot.seqid, slot.in_use, slot.reply) == (seqid, True, None)
    else:
        assert (slot.seqid, slot.in_use, slot.reply, slot.fingerprint) == before


def test_sequence_wraps_to_zero():
    slot = Slot(0xFFFFFFFE)
    for seqid in (0xFFFFFFFF, 0, 1):
        assert slot.begin(seqid, True, 0) == NEW
        assert slot.begin(seqid, True, 0) == BUSY
        slot.finish(b"kept")
        assert slot.begin(seqid, True, 0) == REPLAY
        assert slot.begin((seqid - 1) & 0xFFFFFFFF, True, 0) == MISORDERED


class SlotHistories(RuleBasedStateMachine):
    """A client that sends, loses, repeats and misnumbers requests on two slots."""

    def __init__(self):
        super().__init__()
        self.world = World()
        self.client = self.world.client41(slots=2)
        self.last = [0, 0]
        self.slots = [None, None]
        """The slot of a request still executing."""
        self.replies = ["never", "never"]

    @rule(
        slotid=st.integers(0, 1),
        delta=st.integers(-2, 3),
        print_=st.integers(0, 1),
        cachethis=st.booleans(),
    )
    def request(self, slotid, delta, print_, cachethis):
        seqid = (self.last[slotid] + delta) & 0xFFFFFFFF
        try:
            _, slot, verdict = self.world.engine.sessions.sequence(
                self.client.connection, self.client.sessionid, seqid, slotid, 1, cachethis, print_
            )
        except Nfs4Error as error:
            outcome = error.status
        else:
            outcome = verdict
        if delta == 1 and self.slots[slotid] is None:
            assert outcome == NEW
            self.last[slotid] = seqid
            self.slots[slotid] = slot
            self.replies[slotid] = ("busy", print_)
        elif delta == 0 and self.slots[slotid] is not None:
            assert outcome == p.NFS4ERR_DELAY
        elif delta == 0 and self.replies[slotid] != "never":
            reply, fingerprint = self.replies[slotid]
            if print_ != fingerprint:
                assert outcome == p.NFS4ERR_SEQ_FALSE_RETRY
            elif reply is None:
                assert outcome == UNCACHED
            else:
                assert outcome == REPLAY
                assert slot.reply == reply
        else:
            assert outcome == p.NFS4ERR_SEQ_MISORDERED

    @rule(slotid=st.integers(0, 1), reply=st.none() | st.binary(max_size=4))
    def finish(self, slotid, reply):
        slot = self.slots[slotid]
        if slot is not None:
            slot.finish(reply)
            self.slots[slotid] = None
            self.replies[slotid] = (reply, self.replies[slotid][1])


SlotHistories.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestSlotHistories = SlotHistories.TestCase


def test_bounds_of_the_slot_table():
    world = World()
    client = world.client41(slots=4)
    with failing(p.NFS4ERR_BADSLOT):
        world.engine.sessions.sequence(client.connection, client.sessionid, 1, 4, 0, False)
    with failing(p.NFS4ERR_BAD_HIGH_SLOT):
        world.engine.sessions.sequence(client.connection, client.sessionid, 1, 0, 4, False)
    with failing(p.NFS4ERR_BADSESSION):
        world.engine.sessions.sequence(client.connection, bytes(16), 1, 0, 0, False)
    session, _, _ = world.engine.sessions.sequence(client.connection, client.sessionid, 1, 2, 2, False)
    assert (session.highest_slotid, session.target_highest_slotid) == (3, 3)


def test_a_refused_sequence_neither_renews_nor_binds():
    world = World()
    client = world.client41()
    other = object()
    world.clock.now += 10
    lease_end = client.record.lease_end
    with failing(p.NFS4ERR_SEQ_MISORDERED):
        world.engine.sessions.sequence(other, client.sessionid, 5, 0, 0, False)
    assert client.record.lease_end == lease_end
    session = client.record.sessions[client.sessionid]
    assert other not in session.connections


def test_retry_is_answered_over_another_connection():
    world = World()
    client = world.client41()
    _, slot, _ = world.engine.sessions.sequence(client.connection, client.sessionid, 1, 0, 0, True, 9)
    slot.finish(b"first")
    world.engine.connection_closed(client.connection)
    _, slot, verdict = world.engine.sessions.sequence(object(), client.sessionid, 1, 0, 0, True, 9)
    assert (verdict, slot.reply) == (REPLAY, b"first")


def test_connections_of_a_session_are_bounded():
    world = World(Limits(connections=2))
    client = world.client41()
    kept = object()
    world.engine.sessions.sequence(kept, client.sessionid, 1, 0, 0, False)
    with failing(p.NFS4ERR_CONN_NOT_BOUND_TO_SESSION):
        world.engine.sessions.sequence(object(), client.sessionid, 1, 1, 1, False)
    world.engine.connection_closed(kept)
    world.engine.sessions.sequence(object(), client.sessionid, 1, 1, 1, False)


def test_request_beyond_the_channel_leaves_the_slot_alone():
    """An error of SEQUENCE must not change the slot (RFC 8881 section 2.10.6.1.2)."""
    world = World()
    client = world.client41()
    session = client.record.sessions[client.sessionid]
    for bound, status in (
        ({"operations": session.fore.maxoperations}, p.NFS4ERR_TOO_MANY_OPS),
        ({"request_octets": session.fore.maxrequestsize}, p.NFS4ERR_REQ_TOO_BIG),
    ):
        over = {key: value + 1 for key, value in bound.items()}
        with failing(status):
            world.engine.sessions.sequence(client.connection, client.sessionid, 1, 0, 0, False, **over)
        assert not session.slots[0].in_use
    world.engine.sessions.sequence(
        client.connection,
        client.sessionid,
        1,
        0,
        0,
        False,
        operations=session.fore.maxoperations,
        request_octets=session.fore.maxrequestsize,
    )
