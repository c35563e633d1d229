"""Lines that a peer can provoke: so many of one cause, then their number, in bounded memory."""

import logging

import pytest

from rpcrdma.log_limits import LogLimit


class Lines(logging.Handler):
    def __init__(self):
        super().__init__()
        self.all = []

    def emit(self, record):
        self.all.append(record.getMessage())


@pytest.fixture
def limited():
    """(logger, limit, what gets through, a clock that can be set)"""
    now = [0.0]
    limit = LogLimit(lines=3, seconds=60.0, causes=4, clock=lambda: now[0])
    logger = logging.getLogger("tests.log_limits")
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    lines = Lines()
    logger.addFilter(limit)
    logger.addHandler(lines)
    yield logger, limit, lines.all, now
    logger.removeFilter(limit)
    logger.removeHandler(lines)


def test_a_cause_is_logged_some_times_and_then_counted(limited):
    logger, limit, lines, now = limited
    for number in range(4815):
        logger.warning("%s: too slow", f"peer {number}")
    assert lines == ["peer 0: too slow", "peer 1: too slow", "peer 2: too slow"]
    now[0] = 59.0
    limit.flush()
    assert len(lines) == 3
    now[0] = 60.0
    limit.flush()
    assert lines[3:] == ["... and 4,812 more in the last 60 s like: peer 2: too slow"]
    limit.flush()
    logger.warning("%s: too slow", "peer 9")
    assert lines[4:] == ["peer 9: too slow"]


def test_the_number_comes_before_the_next_line_of_any_cause(limited):
    logger, _, lines, now = limited
    for _ in range(5):
        logger.warning("one cause")
    now[0] = 100.0
    logger.warning("another")
    assert lines[3:] == ["... and 2 more in the last 60 s like: one cause", "another"]


def test_nothing_is_said_of_nothing_left_out(limited):
    logger, limit, lines, now = limited
    logger.warning("once")
    now[0] = 1000.0
    limit.flush()
    assert lines == ["once"]
    assert len(limit) == 0


def test_causes_do_not_hide_each_other(limited):
    logger, _, lines, _ = limited
    for number in range(100):
        logger.warning("the flood %d", number)
    logger.warning("something else")
    assert lines[-1] == "something else"


def test_exceptions_are_told_apart_by_type_and_place(limited):
    logger, _, lines, _ = limited

    def here():
        raise ValueError("here")

    def there():
        raise ValueError("there")

    for place in (here, there):
        for _ in range(10):
            try:
                place()
            except ValueError:
                logger.exception("failed")
    assert lines == ["failed"] * 6


def test_the_number_of_causes_is_bounded_and_the_rest_share_one(limited):
    logger, limit, lines, _ = limited
    for number in range(10_000):
        logger.warning(f"cause {number}")  # each a cause of its own
    assert len(limit) <= 5
    assert len(lines) == 4 + 3


def test_what_was_asked_for_is_not_counted(limited):
    logger, _, lines, _ = limited
    for _ in range(100):
        logger.debug("a trace")
    assert len(lines) == 100


def test_long_lines_are_not_kept_whole(limited):
    logger, limit, lines, now = limited
    for _ in range(10):
        logger.warning("%s", "x" * 100_000)
    now[0] = 61.0
    limit.flush()
    assert len(lines[-1]) < 500
