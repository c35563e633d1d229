"""What peers learn of the memory that a device lets them access; and whom its slow commands hold up.

Run in a guest: tests/vm/test_verbs_messages.py.
"""

from __future__ import annotations

import asyncio
import ctypes
import threading
from typing import Any

import pytest

from tests.peer import NULL, Peer, Rig, accept_status, header, rpc_call, run
from tests.peer.providers import provider  # noqa: F401 (over the device)
from tests.peer.rig import DEVICE_ADDRESS

pytestmark = pytest.mark.skipif(not DEVICE_ADDRESS, reason="needs an RDMA device")


@pytest.mark.parametrize("access", [{"remote_read": True}, {"remote_write": True}], ids=["read", "write"])
def test_addresses_given_out_are_not_the_process_s(access: dict[str, bool]) -> None:
    async def test(rig: Rig, peer: Peer) -> None:
        memory = bytearray(8192)
        real = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        given = [peer.endpoint.register(memoryview(memory), **access) for _ in range(8)]
        (device,) = rig.provider.devices.values()  # type: ignore[attr-defined]
        addresses = {address for _, address in given}
        if device.iwarp and device.software:
            assert addresses == {real}, "siw knows no others"
        else:
            assert len(addresses) == 8
            assert real not in addresses
            assert {address % 4096 for address in addresses} == {real % 4096}
        for handle, _ in given:
            peer.endpoint.invalidate(handle)

    run(test)


async def answered(peer: Peer, first: int) -> None:
    """Some calls, one after the other."""
    for xid in range(first, first + 20):
        assert accept_status((await peer.call(header(xid) + rpc_call(xid, procedure=NULL))).payload) == 0


def test_slow_commands_hold_up_no_other_connection() -> None:
    async def test(rig: Rig, peer: Peer) -> None:
        control: Any = rig.provider._control  # type: ignore[attr-defined]
        gate = threading.Event()
        control.submit(None, gate.wait, 60)
        connecting = asyncio.ensure_future(rig.peer())
        await answered(peer, 1)
        assert not connecting.done()
        gate.set()
        other = await connecting
        await answered(other, 1)
        # Nor do those of an end.
        gate.clear()
        control.submit(None, gate.wait, 60)
        other.endpoint.close(abort=True)
        await answered(peer, 100)
        assert other.reason is None
        assert len(rig.server.connections) == 2
        gate.set()
        await other.over()
        await rig.until(lambda: len(rig.server.connections) == 1)
        await answered(peer, 200)

    run(test)


@pytest.mark.parametrize("abort", [False, True])
def test_a_connection_may_be_closed_while_it_is_being_accepted(abort: bool) -> None:
    async def test(rig: Rig, peer: Peer) -> None:
        control: Any = rig.provider._control  # type: ignore[attr-defined]
        listener: Any = rig.listener
        on_request, gate = listener._on_request, threading.Event()
        connection = rig.connection

        def accept(request: object) -> None:
            control.submit(None, gate.wait, 60)
            on_request(request)

        listener._on_request = accept
        connecting = asyncio.ensure_future(rig.peer())
        await rig.until(lambda: len(rig.server.connections) == 2)
        (made,) = [each for each in rig.server.connections if each is not connection]
        if abort:
            made.abort()
        else:
            made.close()
        await answered(peer, 1)
        assert not connecting.done()
        assert not made.closed
        gate.set()
        with pytest.raises(ConnectionRefusedError):
            await connecting
        await rig.until(lambda: rig.server.connections == {connection})
        listener._on_request = on_request
        await answered(await rig.peer(), 1)
        await answered(peer, 100)

    run(test)
