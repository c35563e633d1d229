"""Who takes part in TLS handshakes when many want to."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from rpcrdma.crowd import PATIENCE, Crowd

MOST, OF_HOST = 128, 16


@dataclass(eq=False)
class One:
    """A handshake."""

    host: str
    since: float = 0.0


def fill(crowd: Crowd, hosts: list[str], each: int = 1) -> list[One]:
    """So many handshakes of each host."""
    found = [One(host) for host in hosts for _ in range(each)]
    for one in found:
        assert crowd.enter(one, 0.0) is None
    return found


def test_hosts_that_fill_it_keep_no_other_out() -> None:
    crowd = Crowd(MOST, OF_HOST)
    crowding = fill(crowd, [f"192.0.2.{number}" for number in range(8)], OF_HOST)
    assert len(crowd) == MOST
    assert crowd.enter(One("198.51.100.1"), 0.0) in crowding
    assert len(crowd) == MOST


def test_hosts_of_the_same_network_as_those_that_fill_it_are_let_in() -> None:
    crowd = Crowd(MOST, OF_HOST)
    crowding = fill(crowd, [f"192.0.2.{number}" for number in range(8)], OF_HOST)
    assert crowd.enter(One("192.0.2.200"), 0.0) in crowding


def test_the_oldest_of_the_network_with_most_gives_way() -> None:
    crowd = Crowd(MOST, OF_HOST)
    few = fill(crowd, [f"203.0.{number}.1" for number in range(8)])
    many = fill(crowd, [f"192.0.2.{number}" for number in range(MOST - 8)])
    displaced = [crowd.enter(One(f"198.51.100.{number}"), 0.0) for number in range(8)]
    assert not set(few) & set(displaced)
    assert set(displaced) <= set(many)


def test_among_equals_one_gives_way_that_had_time() -> None:
    crowd = Crowd(MOST, OF_HOST)
    crowding = fill(crowd, [f"10.{number}.0.1" for number in range(MOST)])
    with pytest.raises(ConnectionError, match="too many handshakes"):
        crowd.enter(One("192.0.2.1"), PATIENCE / 2)
    assert crowd.enter(One("192.0.2.1", PATIENCE), PATIENCE) is crowding[0]


def test_of_one_host_one_gives_way_that_had_time() -> None:
    crowd = Crowd(MOST, OF_HOST)
    own = fill(crowd, ["192.0.2.1"], OF_HOST)
    with pytest.raises(ConnectionError, match="too many handshakes"):
        crowd.enter(One("192.0.2.1"), PATIENCE / 2)
    assert crowd.enter(One("192.0.2.1", PATIENCE), PATIENCE) is own[0]
    assert len(crowd) == OF_HOST


def test_what_is_over_leaves_nothing() -> None:
    crowd = Crowd(MOST, OF_HOST)
    for one in fill(crowd, [f"2001:db8:{number}::/64" for number in range(9)], 3):
        crowd.leave(one)
        crowd.leave(one)
    assert len(crowd) == 0
    assert not crowd._hosts
