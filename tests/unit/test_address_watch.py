"""The watch for addresses that come while the server runs, on what the kernel says of them."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from rpcrdma.verbs.device import addresses
from rpcrdma.verbs.device.addresses import AddressWatch

RTM_NEWADDR, RTM_DELADDR = 20, 21


class Netlink(socket.socket):
    """Stands for a netlink socket; what is written to the other end is what the kernel says."""

    groups = 0

    def bind(self, address: tuple[int, int]) -> None:  # type: ignore[override]
        """Note which groups are joined."""
        Netlink.groups = address[1]


def instead_of_netlink(monkeypatch: pytest.MonkeyPatch, make: Callable[[], Netlink]) -> None:
    """The module's sockets are made by ``make``; the event loop's are not."""
    names = {name: getattr(socket, name) for name in ("AF_NETLINK", "SOCK_RAW", "SOCK_NONBLOCK", "NETLINK_ROUTE")}
    monkeypatch.setattr(addresses, "socket", SimpleNamespace(socket=lambda *_: make(), **names))


def says(*kinds: int) -> bytes:
    """A datagram with a message of each kind; the first has a body that needs padding."""
    return b"".join(struct.pack("=IHHII", 16 + 5, kind, 0, 0, 0) + bytes(8) for kind in kinds)


def test_the_kernel_is_heard_of_new_addresses_only(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, kernels = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    instead_of_netlink(monkeypatch, lambda: Netlink(fileno=ours.detach()))
    monkeypatch.setattr(addresses, "SETTLES", 0.0)

    async def run() -> None:
        told: asyncio.Queue[None] = asyncio.Queue()
        watch = AddressWatch(asyncio.get_running_loop(), lambda: told.put_nowait(None))
        assert Netlink.groups == 0x110, "addresses of both families"
        watched = watch._socket
        assert watched is not None
        watched.setblocking(False)
        kernels.send(says(RTM_DELADDR))
        kernels.send(b"\0" * 40)
        kernels.send(says(RTM_DELADDR, RTM_NEWADDR))
        await asyncio.wait_for(told.get(), 10)
        kernels.send(says(RTM_NEWADDR))
        await asyncio.wait_for(told.get(), 10)
        assert told.empty(), "what was no new address was told"
        watch.close()
        watch.close()

    asyncio.run(run())
    kernels.close()


def test_without_netlink_nothing_is_told_and_nothing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing(Netlink):
        def bind(self, address: tuple[int, int]) -> None:
            raise PermissionError(1, "no netlink here")

    instead_of_netlink(monkeypatch, lambda: Refusing(socket.AF_UNIX, socket.SOCK_DGRAM))

    async def run() -> None:
        AddressWatch(asyncio.get_running_loop(), lambda: None).close()

    asyncio.run(run())
