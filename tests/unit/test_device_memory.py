"""What peers learn of the memory that a device lets them access. Run in a guest: tests/vm/test_verbs_messages.py."""

from __future__ import annotations

import ctypes

import pytest

from tests.peer import Peer, Rig, run
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
