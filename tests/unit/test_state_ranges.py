"""Interval maps of byte-range locks against a model that knows every octet."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from nfsd.state.ranges import END, FileLocks

SIZE = 16
"""The model's file: octets 0..15, and everything from 15 to the end of the file is one octet more."""


class Owner:
    def __init__(self, name):
        self.name = name

    def __repr__(self):
        return self.name


spans = st.tuples(st.integers(0, SIZE - 1), st.integers(1, SIZE)).map(lambda t: (t[0], min(t[0] + t[1], SIZE)))


def real(span):
    """The model's last octet stands for the rest of the file."""
    start, end = span
    return start, END if end == SIZE else end


class LocksAgainstOctets(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.owners = [Owner(name) for name in "abc"]
        self.locks = FileLocks()
        self.model = {owner: [None] * SIZE for owner in self.owners}
        self.counts = dict.fromkeys(self.owners, 0)

    def model_conflict(self, owner, span, exclusive):
        return any(
            self.model[other][octet] is not None and (exclusive or self.model[other][octet])
            for other in self.owners
            if other is not owner
            for octet in range(*span)
        )

    @rule(index=st.integers(0, 2), span=spans, exclusive=st.booleans())
    def lock(self, index, span, exclusive):
        owner = self.owners[index]
        found = self.locks.conflict(owner, *real(span), exclusive)
        assert (found is not None) == self.model_conflict(owner, span, exclusive)
        held = [{self.model[o][octet] for o in self.owners} - {None} for octet in range(*span)]
        assert self.locks.covered(*real(span), exclusive) == all(kinds == {exclusive} for kinds in held)
        if found is not None:
            holder, start, end, kind = found
            first = next(o for o in range(*span) if self.model[holder][o] is not None and start <= o < end)
            assert self.model[holder][first] is kind
            return
        ranges = self.locks.owners.get(owner)
        foretold = ranges.growth(*real(span), exclusive) if ranges is not None else 1
        grown = self.locks.grant(owner, *real(span), exclusive)
        assert grown == foretold
        self.counts[owner] += grown
        for octet in range(*span):
            self.model[owner][octet] = exclusive

    @rule(index=st.integers(0, 2), span=spans)
    def unlock(self, index, span):
        owner = self.owners[index]
        ranges = self.locks.owners.get(owner)
        splits = ranges is not None and ranges.splits(*real(span))
        grown, free = self.locks.revoke(owner, *real(span))
        assert (grown > 0) == splits
        self.counts[owner] += grown
        told = {octet for start, end in free for octet in range(start, min(end, SIZE))}
        expected = {
            octet
            for octet in range(*span)
            if self.model[owner][octet] is not None
            and all(self.model[o][octet] is None for o in self.owners if o is not owner)
        }
        assert told >= expected
        for octet in range(*span):
            self.model[owner][octet] = None
        assert not any(self.model[o][octet] is not None for o in self.owners for octet in told)

    @precondition(lambda self: self.locks.owners)
    @rule(span=spans)
    def gaps(self, span):
        told = {octet for start, end in self.locks.gaps(*real(span)) for octet in range(start, min(end, SIZE))}
        assert told == {o for o in range(*span) if all(self.model[owner][o] is None for owner in self.owners)}

    @invariant()
    def unions_are_the_models(self):
        shared, exclusive = [0] * SIZE, [None] * SIZE
        for spans, octets in ((self.locks.shared, shared), (self.locks.exclusive, exclusive)):
            for start, end, value in spans:
                assert end == END or end < SIZE
                assert value
                octets[start : min(end, SIZE)] = [value] * (min(end, SIZE) - start)
        for octet in range(SIZE):
            kinds = {owner: self.model[owner][octet] for owner in self.owners if self.model[owner][octet] is not None}
            assert shared[octet] == sum(not kind for kind in kinds.values())
            assert exclusive[octet] == next((owner for owner, kind in kinds.items() if kind), None)

    @rule(index=st.integers(0, 3), span=spans, exclusive=st.booleans())
    def who_is_in_the_way(self, index, span, exclusive):
        owner = self.owners[index] if index < 3 else None
        others = [other for other in self.owners if other is not owner]
        told = set(self.locks.holders(owner, *real(span), exclusive, limit=100))
        assert told == {
            other
            for other in others
            for octet in range(*span)
            if self.model[other][octet] is not None and (exclusive or self.model[other][octet])
        }

    @invariant()
    def owners_ranges_are_merged_runs(self):
        for owner in self.owners:
            runs = []
            for octet, kind in enumerate(self.model[owner]):
                if kind is None:
                    continue
                if runs and runs[-1][1] == octet and runs[-1][2] is kind:
                    runs[-1][1] = octet + 1
                else:
                    runs.append([octet, octet + 1, kind])
            expected = [(*real((start, end)), kind) for start, end, kind in runs]
            assert list(self.locks.owners.get(owner, ())) == expected
            assert self.counts[owner] == len(expected)


LocksAgainstOctets.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestLocksAgainstOctets = LocksAgainstOctets.TestCase


def test_many_ranges_stay_quick_to_change():
    """A change looks at the ranges it touches only: counted in the pieces visited, not in seconds."""
    locks, owner = FileLocks(), Owner("a")
    for index in range(20000):
        locks.grant(owner, index * 10, index * 10 + 5, True)
    assert len(locks.owners[owner]) == 20000
    grown, free = locks.revoke(owner, 100003, 100012)
    assert grown == 0
    assert free == [(100003, 100005), (100010, 100012)]


def test_an_owner_among_many_is_told_from_the_others():
    """With more pieces of its own than there are owners, too."""
    locks = FileLocks()
    owners = [Owner(str(number)) for number in range(50)]
    for number, owner in enumerate(owners):
        locks.grant(owner, number * 10, number * 10 + 1, False)
    own = owners[0]
    for index in range(200):
        locks.grant(own, 1000 + 2 * index, 1001 + 2 * index, False)
    assert locks.conflict(own, 1000, 2000, True) is None
    assert locks.conflict(own, 490, 2000, True) == (owners[49], 490, 491, False)
    locks.grant(owners[7], 1398, 1399, False)  # shares the last
    assert locks.conflict(own, 1000, 2000, True) == (owners[7], 1398, 1399, False)
    assert locks.conflict(own, 1000, 1398, True) is None
    assert locks.conflict(None, 1396, 1397, True) == (own, 1396, 1397, False)
    assert locks.conflict(None, 1396, 1397, False) is None


def test_many_owners_share_without_knowing_of_each_other():
    """Whoever comes looks at pieces, not at owners; nested ranges would otherwise take the square of their number."""
    locks = FileLocks()
    owners = [Owner(str(number)) for number in range(3000)]
    for number, owner in enumerate(owners):
        assert locks.conflict(owner, number, END, False) is None
        assert locks.grant(owner, number, END, False) == 1
    assert len(locks.shared) == 3000
    assert locks.shared.at(2998) == (2998, 2999, 2999)
    for number, owner in enumerate(owners[:-1]):
        assert locks.revoke(owner, 0, END) == (-1, [(number, number + 1)])
    assert locks.revoke(owners[-1], 0, END) == (-1, [(2999, END)])
    assert len(locks.shared) == 0
