"""What tests.vm.recalls says of delegations, on calls of which one knows what became of each."""

from __future__ import annotations

import io
from collections.abc import Iterator
from types import SimpleNamespace as Made
from typing import Any

import pytest

from nfsd.protocol import nfs4 as p
from tests.vm.nfs4_calls import Exchange
from tests.vm.recall_story import Story
from tests.vm.recalls import EXPLAINED, WHENS, answers, given_back, odd, report

HOLDER, OTHER = "10.0.0.2", "10.0.0.3"
FILE = b"a file"
STATE = p.stateid4(1, b"delegation 1")
MS = 1_000_000


def claim(name: bytes = b"", kind: p.open_claim_type4 = p.open_claim_type4.CLAIM_FH) -> Made:
    return Made(claim=Made(claim=kind, file=name, delegate_cur_info=None))


class Wire:
    """Calls and answers by the time at which they pass, in milliseconds."""

    def __init__(self) -> None:
        self.passing: list[tuple[int, bool, Exchange]] = []

    def sent(self, client: str, called: int, replied: int, *operations: tuple[str, Any], **how: Any) -> Exchange:
        results = how.pop("results", [(name, Made(status=0, resok4=None)) for name, _ in operations])
        made = Exchange(client, how.pop("callback", False), called * MS, list(operations), results=results, **how)
        self.passing.append((called, False, made))
        if replied:
            self.passing.append((replied, True, made))
        return made

    def granted(self, at: int) -> None:
        held = Made(read=None, write=Made(stateid=STATE))
        results = [("PUTFH", Made(status=0)), ("OPEN", Made(status=0, resok4=Made(delegation=held)))]
        self.sent(HOLDER, at - 1, at, ("PUTFH", Made(object=FILE)), ("OPEN", claim()), results=results)

    def recalled(self, at: int, replied: int, status: int = p.NFS4_OK) -> None:
        arguments = Made(stateid=STATE, fh=FILE)
        self.sent(HOLDER, at, replied, ("CB_RECALL", arguments), callback=True, status=status)

    def returned(self, at: int, replied: int) -> None:
        self.sent(HOLDER, at, replied, ("PUTFH", Made(object=FILE)), ("DELEGRETURN", Made(deleg_stateid=STATE)))

    def opened_by_the_other(self, at: int, replied: int, status: int = p.NFS4_OK) -> None:
        self.sent(OTHER, at, replied, ("PUTFH", Made(object=FILE)), ("OPEN", claim()), status=status)

    def written(self, at: int, replied: int) -> None:
        self.sent(HOLDER, at, replied, ("PUTFH", Made(object=FILE)), ("WRITE", None))

    def story(self) -> Story:
        def passing() -> Iterator[tuple[bool, Exchange]]:
            for at, answered, exchange in sorted(self.passing, key=lambda one: one[0]):
                exchange.replied = at * MS if answered else 0
                yield answered, exchange

        return Story.of(passing())


def when(wire: Wire) -> str:
    (delegation,) = (story := wire.story()).delegations.values()
    return given_back(story, delegation, delegation.recalls[0])


def test_an_open_that_waits_for_a_delegation_is_taken_apart() -> None:
    wire = Wire()
    wire.granted(10)
    wire.opened_by_the_other(1000, 1060)
    wire.recalled(1002, 1005)
    wire.written(1010, 1030)
    wire.returned(1040, 1042)
    (wait,) = wire.story().waits()
    assert (wait.operation, wait.write, wait.flushed, wait.delayed) == ("OPEN", True, True, 0)
    assert (wait.whole, wait.to_recall, wait.round_trip, wait.to_return) == (60, 2, 3, 38)
    assert (wait.flushing, wait.returning, wait.waking) == (20, 2, 18)


def test_an_open_that_is_told_to_come_again_counts_to_its_last_answer() -> None:
    wire = Wire()
    wire.granted(10)
    wire.opened_by_the_other(1000, 1010, p.NFS4ERR_DELAY)
    wire.recalled(1002, 1005)
    wire.returned(1040, 1042)
    wire.opened_by_the_other(1100, 1101)
    (wait,) = wire.story().waits()
    assert (wait.delayed, wait.whole, wait.flushed) == (1, 101, False)


@pytest.mark.parametrize(
    ("returned", "recalled", "status", "expected"),
    [
        ((990, 999), (1000, 1010), p.NFS4ERR_BAD_STATEID, "answered before CB_RECALL was sent"),
        ((990, 1005), (1000, 1010), p.NFS4ERR_BAD_STATEID, "on its way then"),
        ((1005, 1006), (1000, 1010), p.NFS4_OK, "before the answer"),
        ((1100, 1101), (1000, 1010), p.NFS4_OK, "up to 250 ms behind it"),
        ((1300, 1301), (1000, 1010), p.NFS4_OK, "later"),
        (None, (1000, 1010), p.NFS4_OK, "never"),
        ((1300, 1301), (20, 25), p.NFS4ERR_BADHANDLE, "not OK: just granted"),
    ],
)
def test_when_a_delegation_came_back(
    returned: tuple[int, int] | None, recalled: tuple[int, int], status: int, expected: str
) -> None:
    wire = Wire()
    wire.granted(10)
    wire.recalled(*recalled, status)
    if returned is not None:
        wire.returned(*returned)
    assert when(wire) == expected
    assert expected in WHENS


def test_what_the_holder_still_had_to_send_explains_a_late_return() -> None:
    wire = Wire()
    wire.granted(10)
    wire.recalled(1000, 1010)
    wire.written(1100, 1200)
    wire.returned(1300, 1301)
    assert when(wire) == "later, behind what it stood for"


@pytest.mark.parametrize("status", [p.NFS4ERR_BADHANDLE, p.NFS4ERR_BAD_STATEID])
def test_only_a_recall_that_met_no_return_is_odd(status: int) -> None:
    explained, unexplained = Wire(), Wire()
    for wire in (explained, unexplained):
        wire.granted(10)
        wire.recalled(1000, 1010, status)
    explained.returned(990, 1005)
    assert when(explained) in EXPLAINED
    assert not list(odd(explained.story()))
    (line,) = odd(unexplained.story())
    assert p.nfsstat4(status).name in line
    assert "never" in line
    assert "1 recalls are not explained" in report(unexplained.story())


def test_a_recall_sent_behind_the_return_is_odd_even_if_it_is_answered_ok() -> None:
    wire = Wire()
    wire.granted(10)
    wire.returned(900, 901)
    wire.recalled(1000, 1010)
    assert len(list(odd(wire.story()))) == 1


def test_answers_are_counted_by_status_and_by_return() -> None:
    wire = Wire()
    wire.granted(10)
    wire.recalled(1000, 1010, p.NFS4ERR_DELAY)
    wire.recalled(1020, 1030)
    wire.returned(1100, 1101)
    rows = [line.strip("| ").split(" | ") for line in answers(wire.story()).splitlines()[2:]]
    behind = 2 + WHENS.index("up to 250 ms behind it")
    assert [(row[0], row[1], row[behind]) for row in rows] == [("DELAY", "1", "1"), ("NFS4_OK", "1", "1")]


def test_an_empty_capture_is_a_story_without_calls() -> None:
    story = Story.read(io.BytesIO(b""), "10.0.0.1")
    assert not story.delegations
    assert report(story).startswith("0 calls; 0 delegations")
