"""The sorted map of ranges, against a dictionary of octets and against a list of ranges."""

import bisect
import itertools
import random
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nfsd.spans import SpanMap

END = 1 << 64
VALUES = [None, False, True]
"""None takes out."""


def check_order(spans):
    found = list(spans)
    assert found == sorted(found)
    assert all(a[1] < b[0] or (a[1] == b[0] and a[2] != b[2]) for a, b in itertools.pairwise(found)), "not merged"
    assert len(spans) == len(found)
    if found:
        assert spans.hull() == (found[0][0], found[-1][1])


@given(
    st.lists(st.tuples(st.sampled_from(VALUES), st.integers(0, 30), st.integers(1, 10)), max_size=20),
    st.sampled_from([0, 1000, END - 40]),
)
@settings(max_examples=200, deadline=None)
def test_ranges_are_sets_of_octets(steps, base):
    spans, octets = SpanMap(), {}
    for value, offset, length in steps:
        start = base + offset
        end = min(start + length, END)
        before = {octet: octets[octet] for octet in range(start, end) if octet in octets}
        touched = [span for span in spans if span[0] < end and span[1] > start]
        assert list(spans.between(start, end)) == touched
        assert list(spans.between(start, end, mine=True)) == [span for span in touched if span[2] is not True]
        if value is None:
            removed = spans.cut(start, end)
            assert removed == sorted(removed)
            assert {octet: kind for low, high, kind in removed for octet in range(low, high)} == before
            assert spans.cut(start, end) == []
        else:
            spans.put(start, end, value)
        for octet in range(start, end):
            octets.pop(octet, None)
            if value is not None:
                octets[octet] = value
        assert {octet: kind for low, high, kind in spans for octet in range(low, high)} == octets
        for octet in (start, end - 1):
            found = spans.at(octet)
            assert (found is not None) == (octet in octets)
            assert found is None or (found[0] <= octet < found[1] and found[2] == octets[octet])
        check_order(spans)


@pytest.mark.parametrize("seed", range(4))
def test_thousands_of_ranges_come_and_go(seed):
    """Enough for blocks to be split and joined, at their ends and within; cuts of a few and of many ranges at once."""
    rng = random.Random(seed)
    spans, model = SpanMap(), []  # of (start, end, value), with gaps between them
    most = 1 << 40
    for growing in (True, False, True, False):
        for _ in range(3000):
            start = rng.randrange(most) * 4
            if growing or rng.random() < 0.2:
                value, end = rng.choice("xyz"), start + 2
                at = bisect.bisect(model, (start,))
                if at < len(model) and model[at][0] == start:
                    continue
                model.insert(at, (start, end, value))
                spans.put(start, end, value)
                assert spans.at(start + 1) == (start, end, value)
                continue
            end = start + rng.choice([most // 1000, most // 50]) * 4
            first, last = bisect.bisect(model, (start,)), bisect.bisect(model, (end,))
            assert spans.cut(start, end) == model[first:last]
            del model[first:last]
            assert len(spans) == len(model)
        assert list(spans) == model
        check_order(spans)


@pytest.mark.parametrize("order", ["ascending", "descending", "random"])
def test_whatever_the_order_in_which_ranges_come(order):
    starts = list(range(0, 20000, 2))
    if order == "descending":
        starts.reverse()
    elif order == "random":
        random.Random(1).shuffle(starts)
    spans = SpanMap()
    for start in starts:
        spans.put(start, start + 1, start % 4 == 0)
    assert list(spans) == [(start, start + 1, start % 4 == 0) for start in range(0, 20000, 2)]
    # Filling the gaps leaves one range.
    for start in starts:
        spans.put(start, start + 2, True)
    assert list(spans) == [(0, 20000, True)]


def test_values_are_held_as_long_as_their_ranges():
    value, other = object(), object()
    counts = sys.getrefcount(value), sys.getrefcount(other)
    spans = SpanMap()
    for start in range(0, 4000, 4):
        spans.put(start, start + 3, value)
        spans.put(start + 1, start + 2, other)  # in the middle: two pieces are left
    assert sys.getrefcount(value) == counts[0] + 2000
    assert sys.getrefcount(other) == counts[1] + 1000
    spans.cut(1000, 3000)
    assert sys.getrefcount(value) == counts[0] + 1000
    spans.put(0, 5000, other)
    assert (sys.getrefcount(value), sys.getrefcount(other)) == (counts[0], counts[1] + 1)
    spans.put(10, 20, value)
    spans.clear()
    assert list(spans) == []
    spans.put(10, 20, value)
    del spans
    assert (sys.getrefcount(value), sys.getrefcount(other)) == counts


def test_the_map_may_change_while_it_is_looked_through():
    spans = SpanMap()
    for start in range(0, 4000, 2):
        spans.put(start, start + 1, True)
    seen = []
    for start, end, _ in spans:
        seen.append(start)
        spans.cut(0, end)
        spans.cut(start + 2, start + 3)  # the next one
    assert seen == list(range(0, 4000, 4))
    assert len(spans) == 0


def test_nothing_and_what_is_no_range():
    spans = SpanMap()
    assert (len(spans), list(spans), spans.at(0), spans.cut(0, END), list(spans.between(5, 5))) == (0, [], None, [], [])
    with pytest.raises(ValueError, match="nothing"):
        spans.hull()
    for start, end in [(5, 5), (6, 5), (0, 0)]:
        assert spans.cut(start, end) == []
        with pytest.raises(ValueError, match="empty"):
            spans.put(start, end, True)
    for start, end in [(-1, 5), (0, END + 1)]:
        with pytest.raises(OverflowError):
            spans.put(start, end, True)
    with pytest.raises(TypeError):
        spans.put(0, 1, None)
    spans.put(0, END, True)
    assert list(spans) == [(0, END, True)]
    assert spans.cut(END - 1, END) == [(END - 1, END, True)]
    assert spans.hull() == (0, END - 1)
