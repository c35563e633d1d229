"""The server's listeners on devices: both families, bounds, a device that comes later, and what siw overlooks.

The clients are in the server's own guest, on its own devices.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterator

import pytest

from tests.vm.build import HERE, REPO
from tests.vm.guest_server import DEVICES, GuestServer, load_devices
from tests.vm.mounts import complaints
from tests.vm.network import Namespace
from tests.vm.server import RDMA_PORT

pytestmark = pytest.mark.timeout(900)

ARENA = 4 << 20
"""Octets that are registered at a time."""
MEMORY = 24 << 20
CONNECTIONS = 8
"""As many as ``churn`` opens at a time."""
LARGE_PORT = 20051
"""Where each connection begins with Receives of 4 MiB, which is more than ``MEMORY`` for all ``CONNECTIONS``."""
LARGEST_RECEIVE = 256 << 10


@pytest.fixture(scope="module")
def server() -> Iterator[GuestServer]:
    """Both devices, everything bounded tightly; more listeners on a single IPv6 address each."""
    with Namespace() as network:
        made = GuestServer(network)
        listen = made.default_listen()
        for kind in DEVICES:
            url = f"rdma://{made.door(kind, 6).address}:{LARGE_PORT}"
            listen.append({"url": url, "provider": "verbs", "receive_size": LARGEST_RECEIVE})
        limits = {"connections": CONNECTIONS, "memory": MEMORY, "host_memory": MEMORY, "connection_memory": 8 << 20}
        made.configure(listen, {"limits": limits})
        with made:
            yield made
            made.assert_running()
            made.stop()
            assert complaints(made.guest) == []


def inside(script: str, *words: object) -> str:
    """The command that runs a script of tests/vm/inside."""
    argv = shlex.join(map(str, (sys.executable, HERE / "inside" / script, *words)))
    return f"PYTHONPATH={shlex.quote(str(REPO))} {argv}"


def requester(server: GuestServer, kind: str, what: str, count: int, family: int = 4, port: int = RDMA_PORT) -> str:
    """The command that has a requester connect ``count`` times over a kind of device."""
    return inside("verbs_client.py", what, server.door(kind, family).address.strip("[]"), port, count)


@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize("kind", DEVICES)
def test_both_families(server: GuestServer, kind: str, family: int) -> None:
    output = server.guest.run(requester(server, kind, "churn", 4, family), timeout=120).output
    assert '{"connections": 4}' in output


def test_a_listener_on_one_ipv6_address(server: GuestServer) -> None:
    """And on no other: not on the same device's IPv4 address."""
    assert f"rdma://{server.door('rxe', 6).address}:{LARGE_PORT} (verbs)" in server.ready_line
    six = server.guest.run(requester(server, "rxe", "churn", 2, 6, LARGE_PORT), timeout=120).output
    assert '{"connections": 2}' in six
    done = server.guest.run(requester(server, "rxe", "churn", 1, 4, LARGE_PORT), timeout=120, check=False)
    assert done.rc == 1, done.output
    assert "ConnectionRefusedError" in done.output


def test_a_first_message_that_siw_overlooks_is_answered(server: GuestServer) -> None:
    words = (server.door("siw").address, RDMA_PORT, server.pid)
    done = server.guest.run(inside("early_message.py", *words), timeout=90, label="early_message.py")
    seen = json.loads(done.output.strip().splitlines()[-1])
    assert seen == {"operations": [1, 3], "xid": 0x0EA71E57}, "a Read of nothing, and then the reply"
    assert "overlooked" in server.log_tail()


@pytest.mark.parametrize("kind", DEVICES)
def test_an_address_that_comes_later(server: GuestServer, kind: str) -> None:
    address = server.door(kind).address.rpartition(".")[0] + ".77"
    before = server.log_tail(1000).count("listening anew")
    server.guest.run(f"ip addr add {address}/24 dev {server.netdev(kind)}")
    server.guest.run(
        f"for i in $(seq 30); do [ $(grep -c 'listening anew' /srv/nfsd/log) -gt {before} ] && exit; sleep 1; done\n"
        "exit 1",
        timeout=60,
        label="the server sees it",
    )
    command = inside("verbs_client.py", "churn", address, RDMA_PORT, 2)
    assert '{"connections": 2}' in server.guest.run(command, timeout=120).output
    server.guest.run(f"ip addr del {address}/24 dev {server.netdev(kind)}")


@pytest.mark.parametrize("kind", DEVICES)
def test_connections_are_bounded(server: GuestServer, kind: str) -> None:
    guest = server.guest
    hold = requester(server, kind, "hold", CONNECTIONS)
    guest.run("rm -f /run/told && mkfifo /run/told")
    held = guest.start(f"exec 3<>/run/told; {hold} <&3", timeout=120, label="hold")
    held.wait_for("holding", 60)
    # One of the same host's gives way to it, and no more than one.
    one_more = guest.run(requester(server, kind, "churn", 1), timeout=60, label="one too many").output
    assert '{"connections": 1}' in one_more
    guest.run("echo enough >/run/told")
    assert len(json.loads(held.wait().output.strip().splitlines()[-1])["lost"]) == 1
    assert "evicted_room 1" in server.log_tail()
    assert '{"connections": 2}' in guest.run(requester(server, kind, "churn", 2), timeout=120).output


@pytest.mark.parametrize("kind", DEVICES)
def test_registered_memory_is_bounded(server: GuestServer, kind: str) -> None:
    """Connections whose Receives it has no room for are refused; what there is stays registered, and no more."""
    hold = requester(server, kind, "hold", CONNECTIONS, 6, LARGE_PORT)
    refused = server.guest.run(f"{hold} </dev/null", timeout=120, check=False, label="hold, with large Receives")
    assert refused.rc == 1
    assert "ConnectionRefusedError" in refused.output
    assert "no memory for Receives" in server.log_tail()
    resources = server.guest.run(f"rdma resource show | grep {DEVICES[kind]}").output
    registered = re.search(r"\bmr (\d+)", resources)
    assert registered
    # Arenas may be half empty: twice as much may be registered as may be leased.
    assert MEMORY // ARENA - 2 <= int(registered[1]) <= 2 * MEMORY // ARENA
    assert '{"connections": 2}' in server.guest.run(requester(server, kind, "churn", 2), timeout=120).output


def test_auto_takes_devices_that_come_later(server: GuestServer) -> None:
    guest = server.guest
    server.stop()
    guest.run(" && ".join(f"rdma link delete {device}" for device in DEVICES.values()))
    server.configure([{"url": f"rdma://*:{RDMA_PORT}", "provider": "auto"}], {})
    server.start()
    assert "(softiwarp)" in server.ready_line
    load_devices(guest)
    guest.run(
        "for i in $(seq 60); do grep -q 'now on RDMA devices too' /srv/nfsd/log && exit; sleep 1; done; exit 1",
        timeout=90,
        label="the server takes the devices",
    )
    for kind in DEVICES:
        assert '{"connections": 2}' in guest.run(requester(server, kind, "churn", 2), timeout=120).output
