"""The Send queue's accounting of the device provider: slots, RDMA Reads, pieces, and who waits for what."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcrdma.verbs.device.queue import Job, SendQueue


def test_jobs_are_posted_whole_and_slots_come_back_with_their_completion() -> None:
    queue = SendQueue(4, 2)
    for token, count in (("a", 3), ("b", 2)):
        queue.put(Job(token, count))
    assert queue.post() == [("a", 0, 3)]
    assert queue.free == 1
    assert queue.done() == ["a"]
    assert queue.post() == [("b", 0, 2)]
    assert queue.done() == ["b"]
    assert queue.free == 4
    assert queue.idle


def test_a_job_larger_than_the_queue_pair_goes_in_pieces_and_is_reported_once() -> None:
    queue = SendQueue(4, 2)
    queue.put(Job("large", 10))
    queue.put(Job("behind", 1))
    posted = []
    reported = []
    while not queue.idle:
        posted += queue.post()
        assert queue.free >= 0
        reported += queue.done()
    assert [(first, count) for token, first, count in posted if token == "large"] == [(0, 4), (4, 4), (8, 2)]
    assert reported == ["large", "behind"]


def test_no_more_reads_than_the_peer_allows_and_they_hold_up_no_send() -> None:
    queue = SendQueue(16, 2)
    for token in ("r1", "r2", "r3"):
        queue.put(Job(token, 1, True))
    queue.put(Job("send", 1))
    assert sorted(piece[0] for piece in queue.post()) == ["r1", "r2", "send"]
    assert queue.free_reads == 0
    queue.put(Job("later", 1))
    assert queue.post() == [("later", 0, 1)]
    assert set(queue.done(2)) == {"send", "r1"}
    assert queue.post() == [("r3", 0, 1)]


def test_more_reads_than_there_may_ever_be_go_in_pieces() -> None:
    queue = SendQueue(64, 4)
    queue.put(Job("many", 10, True))
    queue.put(Job("next", 1, True))
    order = []
    while not queue.idle:
        order += queue.post()
        assert queue.free_reads >= 0
        queue.done()
    assert [piece for piece in order if piece[0] == "many"] == [("many", 0, 4), ("many", 4, 4), ("many", 8, 2)]
    assert order[-1] == ("next", 0, 1)


def test_whoever_is_short_of_slots_is_waited_for() -> None:
    queue = SendQueue(4, 4)
    queue.put(Job("first", 1))
    assert queue.post() == [("first", 0, 1)]
    queue.put(Job("reads", 4, True))
    for number in range(3):
        queue.put(Job(f"small {number}", 1))
    # It is the Reads' turn, and there are three slots: nobody may overtake them for ever.
    assert queue.post() == []
    assert queue.done() == ["first"]
    assert queue.post() == [("reads", 0, 4)]


def test_a_completion_says_nothing_of_what_was_posted_before() -> None:
    """siw completes a Send behind a Read while the Read waits for its data: the Read is not over then."""
    queue = SendQueue(8, 4)
    queue.put(Job("read", 1, reads=True))
    queue.put(Job("send", 2))
    posted = [token for token, _, _ in queue.post()]
    read, send = posted.index("read"), posted.index("send")
    early = queue.done_at(send)
    assert "read" not in early
    assert early + queue.done_at(read) == posted
    assert (queue.free, queue.free_reads, queue.idle) == (8, 4, True)


def test_an_error_ends_all_that_came_before() -> None:
    queue = SendQueue(8, 4)
    for token in ("one", "two", "three"):
        queue.put(Job(token, 1))
    queue.post()
    assert queue.done_at(1, flushed=True) == ["one", "two"]
    assert queue.done_at(0) == [], "it is over already"
    assert queue.done_at(2) == ["three"]


def test_reads_without_the_peers_leave_are_refused() -> None:
    with pytest.raises(ValueError, match="no RDMA Reads"):
        SendQueue(4, 0).put(Job("r", 1, True))
    with pytest.raises(ValueError, match="without work"):
        Job("nothing", 0)


def test_what_the_device_refuses_is_told_once_and_gives_its_slots_back() -> None:
    queue = SendQueue(4, 2)
    for token in ("a", "b", "c"):
        queue.put(Job(token, 1))
    assert [piece[0] for piece in queue.post()] == ["a", "b", "c"]
    assert queue.refuse(1) == ["b", "c"]
    assert queue.free == 3
    queue.put(Job("large", 9))
    assert queue.post() == [("large", 0, 3)]
    assert queue.done() == ["a"]
    assert queue.post() == [("large", 3, 1)]
    assert queue.refuse(queue.posted - 1) == ["large"]
    # Its first piece is still the device's, and is not told a second time.
    assert queue.done() == []
    assert queue.abandon() == []
    assert queue.idle


def test_at_the_end_a_job_posted_in_part_is_told_once() -> None:
    queue = SendQueue(2, 1)
    queue.put(Job("large", 5))
    queue.put(Job("waiting", 1))
    queue.put(Job("read", 1, True))
    queue.post()
    assert queue.done(8) == []
    assert queue.abandon() == ["large", "waiting", "read"]


@given(
    st.integers(1, 9),
    st.integers(1, 5),
    st.lists(st.tuples(st.integers(1, 20), st.booleans()), max_size=20),
    st.randoms(use_true_random=False),
)
def test_every_job_is_reported_once_in_the_order_of_its_kind(depth, reads, jobs, random) -> None:  # type: ignore[no-untyped-def]
    queue = SendQueue(depth, reads)
    waiting = [Job(number, count, is_read) for number, (count, is_read) in enumerate(jobs)]
    posted: list[tuple[int, int, int]] = []
    reported: list[int] = []
    while waiting or not queue.idle:
        if waiting and random.random() < 0.5:
            queue.put(waiting.pop(0))
        posted += queue.post()
        assert 0 <= queue.free <= queue.depth
        assert 0 <= queue.free_reads <= queue.max_reads
        if random.random() < 0.7:
            reported += queue.done()
    for is_read in (False, True):
        expected = [number for number, job in enumerate(jobs) if job[1] is is_read]
        assert [token for token in reported if jobs[token][1] is is_read] == expected
    for number, (count, _) in enumerate(jobs):
        pieces = [(first, length) for token, first, length in posted if token == number]
        assert [first for first, _ in pieces] == [sum(length for _, length in pieces[:i]) for i in range(len(pieces))]
        assert sum(length for _, length in pieces) == count
