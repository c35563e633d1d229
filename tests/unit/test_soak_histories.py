"""The check of histories by which the soak finds a server out (tests/soak/histories.py)."""

from __future__ import annotations

import random

import pytest

from tests.soak.histories import UNKNOWN, Lock, Name, Operation, Register, explained
from tests.soak.record import Record

R, N, L = Register(), Name(), Lock()


def write(value, begun, ended=UNKNOWN, client="a"):
    return Operation(client, "write", value, begun, ended)


def read(result, begun, ended, client="b"):
    return Operation(client, "read", None, begun, ended, result)


def cut(begun, ended):
    return Operation("", "cut", None, begun, ended)


def on(kind, begun, ended, result, client="a"):
    return Operation(client, kind, None, begun, ended, result)


def perhaps(kind, begun, ended):
    return Operation("p", kind, None, begun, ended, perhaps=True)


HISTORIES = {
    "read behind write": (R, [write(1, 0, 1), read(1, 2, 3)], True),
    "the old value behind a write": (R, [write(1, 0, 1), read(None, 2, 3)], False),
    "either value beside a write": (R, [write(1, 0, 9), read(None, 1, 2), read(1, 3, 4)], True),
    "the new value and then the old": (R, [write(1, 0, 9), read(1, 1, 2), read(None, 3, 4)], False),
    "readers who see two writes in two orders": (
        R,
        [write(1, 0, 9), write(2, 0, 9), read(1, 1, 2), read(2, 3, 4, "c"), read(1, 5, 6)],
        False,
    ),
    "a lost answer, much later": (R, [write(1, 0), write(2, 1, 2, "c"), read(2, 3, 4), read(1, 5, 6)], True),
    "a lost answer, twice": (
        R,
        [write(1, 0), write(2, 3, 4, "c"), read(1, 1, 2), read(2, 5, 6), read(1, 7, 8)],
        False,
    ),
    "what nobody wrote": (R, [write(1, 0, 1), read(7, 2, 3)], False),
    "a cut forgets what had no answer": (R, [write(1, 0), read(1, 1, 2), cut(3, 4), read(None, 5, 6)], True),
    "without a cut nothing is forgotten": (R, [write(1, 0), read(1, 1, 2), read(None, 5, 6)], False),
    "a cut forgets what was acknowledged": (R, [write(1, 0, 1), cut(3, 4), read(None, 5, 6)], False),
    "a cut brings back what was replaced": (
        R,
        [write(1, 0, 1), write(2, 2, 3), cut(4, 5), read(1, 6, 7)],
        False,
    ),
    "a name is made once": (N, [on("create", 0, 5, True), on("create", 0, 5, False, "b")], True),
    "a name is made twice": (N, [on("create", 0, 5, True), on("create", 0, 5, True, "b")], False),
    "a name that is gone": (N, [on("create", 0, 1, True), on("look", 2, 3, False)], False),
    "a name removed without an answer": (
        N,
        [
            on("create", 0, 1, True),
            on("remove", 2, UNKNOWN, None, "b"),
            on("look", 3, 4, True),
            on("look", 5, 6, False),
        ],
        True,
    ),
    "a created name does not outlive a cut": (N, [on("create", 0, 1, True), cut(2, 3), on("look", 4, 5, False)], False),
    "perhaps made before it was made": (
        N,
        [
            on("create", 0, 9, True),
            perhaps("create", 0, 9),
            on("remove", 1, 2, True, "b"),
            on("remove", 3, 4, True, "b"),
        ],
        True,
    ),
    "perhaps made, but not later": (
        N,
        [on("create", 0, 1, True), perhaps("create", 0, 1), on("remove", 2, 3, True, "b"), on("look", 4, 5, True)],
        False,
    ),
    "perhaps never": (N, [perhaps("create", 0, 1), on("look", 2, 3, False)], True),
    "a lock after the other": (
        L,
        [
            on("acquire", 0, 1, True),
            on("acquire", 1, 2, False, "b"),
            on("release", 3, 4, None),
            on("acquire", 5, 6, True, "b"),
        ],
        True,
    ),
    "a lock given twice": (L, [on("acquire", 0, 1, True), on("acquire", 2, 3, True, "b")], False),
    "a lock refused without a holder": (L, [on("acquire", 0, 1, False)], False),
    "a lock that may have been given": (
        L,
        [
            on("acquire", 0, UNKNOWN, None),
            on("acquire", 2, 3, False, "b"),
            on("release", 4, 5, None),
            on("acquire", 6, 7, True, "b"),
        ],
        True,
    ),
    "a lock given beside one that may have been": (
        L,
        [on("acquire", 0, UNKNOWN, None), on("acquire", 2, 3, True, "b"), on("acquire", 4, 5, True, "c")],
        False,
    ),
}


@pytest.mark.parametrize("name", HISTORIES)
def test_a_history_is_explained_or_not(name):
    model, history, holds = HISTORIES[name]
    assert explained(history, model) is holds
    assert explained(history[::-1], model) is holds


def _made(chance, wrong):
    """The history of a register that is one, with clients beside each other; or with one read that is wrong."""
    value, history, now = None, [], 0.0
    for number in range(60):
        now += chance.random()
        early, late = now - chance.random() * 3, now + chance.random() * 3
        if chance.random() < 0.5:
            value = number
            history.append(write(number, early, late if chance.random() < 0.8 else UNKNOWN, f"c{number}"))
        else:
            history.append(read(value, early, late, f"c{number}"))
    if wrong:
        chance.choice([one for one in history if one.kind == "read"]).result = -1
    return history


@pytest.mark.parametrize("seed", range(20))
def test_a_register_that_is_one_is_explained_and_one_that_lies_is_not(seed):
    assert explained(_made(random.Random(seed), False), R)
    assert not explained(_made(random.Random(seed), True), R)


def test_what_happens_to_a_key_whose_history_was_checked_is_not_recorded():
    record = Record()
    record.check(2)
    with record.operation("a", "read", ("data", 1, 0)) as made:
        made.result = 7
    record.check(3)
    assert not record.findings
    assert not record.checked
