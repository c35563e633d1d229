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
    def union_is_the_models(self):
        seen = [(False, frozenset())] * SIZE
        previous = None
        for start, end, exclusive, owners in self.locks.pieces():
            assert owners
            assert start < end
            assert previous is None or start >= previous[0]
            assert previous is None or not (start == previous[0] and (exclusive, owners) == previous[1]), "unmerged"
            assert end == END or end < SIZE
            previous = (end, (exclusive, owners))
            for octet in range(start, min(end, SIZE)):
                seen[octet] = (exclusive, owners)
        for octet in range(SIZE):
            owners = frozenset(o for o in self.owners if self.model[o][octet] is not None)
            exclusive = any(self.model[o][octet] for o in owners)
            assert seen[octet] == (exclusive, owners)

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
