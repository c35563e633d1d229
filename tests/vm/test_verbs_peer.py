"""An independent requester on pyverbs (tests/vm/inside/verbs_peer.py) against every RDMA listener of one server.

What the kernel's client does not show is seen here from outside: the private data as it arrives, which key a Send
invalidated, that an invalidated key is dead, Reply chunks, an error for a reply without room.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.vm.build import REPO
from tests.vm.guest import Guest
from tests.vm.guest_server import SOFTIWARP_PORT, GuestServer, load_devices
from tests.vm.mounts import complaints
from tests.vm.network import Namespace
from tests.vm.server import MOUNTD_PORT, RDMA_PORT

pytestmark = pytest.mark.timeout(1200)

TARGETS = {"rxe": ("rxe", RDMA_PORT), "siw": ("siw", RDMA_PORT), "softiwarp": ("siw", SOFTIWARP_PORT)}
"""What serves on the listener; the peer's device for it, and the port."""

ACCEPTED = "f6ab0e1801010303"
"""RFC 8797: magic, version 1, R, 4096 octets each way."""
RDMA_MSG, RDMA_NOMSG, RDMA_ERROR, ERR_CHUNK = 0, 1, 4, 2
FILE_SYNC = 2


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[GuestServer, Guest]]:
    with (
        Namespace() as network,
        GuestServer(network) as server,
        Guest("peer", network, memory=1024, cpus=1, interfaces=2) as peer,
    ):
        load_devices(peer)
        yield server, peer
        server.assert_running()
        assert complaints(server.guest) == []


@pytest.fixture(scope="module", params=TARGETS)
def seen(request: pytest.FixtureRequest, pair: tuple[GuestServer, Guest]) -> dict[str, Any]:
    """What the peer's steps saw; it ends with an error where a step could not be done."""
    server, peer = pair
    kind, port = TARGETS[request.param]
    script = (
        f"cd {REPO} && /usr/bin/python3 -m tests.vm.inside.verbs_peer {server.door(kind).address} {port} {MOUNTD_PORT}"
    )
    done = peer.run(script, timeout=300, label=f"verbs_peer.py over {kind} to {request.param}")
    found: dict[str, Any] = json.loads(done.output.strip().splitlines()[-1])
    assert found["private_data"]["device"] == f"{kind}0"
    return found


def tells(seen: dict[str, Any]) -> bool:
    """Does the peer's device say which key a Send invalidated? rxe does; libsiw has no room for it."""
    return str(seen["private_data"]["device"]).startswith("rxe")


def test_private_data_and_an_inline_call(seen: dict[str, Any]) -> None:
    step = seen["private_data"]
    assert step["accepted"][:16] == ACCEPTED
    assert set(step["accepted"][16:]) <= {"0"}, "padding of the transport is zero"
    assert step["null"] == [RDMA_MSG, 0, None]
    assert step["credits"] == 16, "what a connection begins with"


def test_credits_double_up_to_the_listener_s(seen: dict[str, Any]) -> None:
    assert seen["growing_credits"] == {"granted": [16, 32, 64, 128]}


def test_write_by_read_chunk_and_read_by_write_chunk(seen: dict[str, Any]) -> None:
    step = seen["write_and_read"]
    assert step["written"] == [300_001, FILE_SYNC]
    assert step["read"] == [300_001, 1, 300_001]
    assert step["inline_rest"] == 0, "the data and its padding are in the chunk (RFC 8166 section 3.4.5)"
    assert step["lengths"] == [131_072, 300_001 - 131_072]
    assert step["handles_kept"]
    assert step["data_right"]
    assert step["gap_untouched"]
    if tells(seen):
        assert step["write_invalidated"]
        assert step["read_invalidated"]


def test_an_invalidated_key_is_dead(seen: dict[str, Any]) -> None:
    step = seen["invalidated_key_is_dead"]
    assert step["first_moved_data"]
    assert step["lost"], "the server's Write through the dead key must fail and end the connection"
    assert not step["second_moved_data"]
    if tells(seen):
        assert step["first_invalidated"]


def test_a_peer_without_r_keeps_its_keys(seen: dict[str, Any]) -> None:
    """RFC 8797 section 4.1: without R, or without RFC 8797's private data, no Send may invalidate."""
    for who in ("without_r", "alien"):
        step = seen["no_remote_invalidation"][who]
        assert step["reads"] == [[None, True], [None, True]], who


def test_two_keys_in_one_call(seen: dict[str, Any]) -> None:
    """Of a Read chunk's and an unused Reply chunk's keys one is invalidated; the Reply chunk comes back empty."""
    step = seen["two_keys"]
    assert step["kind"] == RDMA_MSG
    assert step["reply_chunk"] in (None, [0])
    assert step["invalidated"] in ("source", "reply chunk") if tells(seen) else step["invalidated"] == "nothing"


def test_a_long_reply_goes_into_the_reply_chunk(seen: dict[str, Any]) -> None:
    step = seen["reply_chunk"]
    assert (step["kind"], step["inline_rest"]) == (RDMA_NOMSG, 0)
    assert step["count"] == 65536
    assert step["length_fits"]
    assert step["data_right"]
    if tells(seen):
        assert step["invalidated"]


def test_a_long_reply_without_room_is_err_chunk_and_no_more(seen: dict[str, Any]) -> None:
    assert seen["without_reply_chunk"] == {"kind": RDMA_ERROR, "error": ERR_CHUNK, "then": RDMA_MSG}


def test_connections_one_after_the_other(seen: dict[str, Any]) -> None:
    assert seen["many_connections"] == {"connections": 10}
