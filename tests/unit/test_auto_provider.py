"""``provider: auto`` and ``verbs``: what is taken, what is said, and what happens when a device comes later."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable
from typing import Any

import pytest

from nfsd import listeners as module
from nfsd.config import Limits, Listen
from nfsd.listeners import Listeners
from rpcrdma.memory import Pool
from rpcrdma.rpc.dispatch import Dispatcher
from rpcrdma.verbs.interface import ListenAddress


class FakeListener:
    def __init__(self, address: ListenAddress, listening: bool) -> None:
        self.address, self.listening, self.closed = address, listening, False

    def close(self) -> None:
        self.closed = True


class FakeDevices:
    """The host's devices and the provider over them."""

    name = "verbs"

    def __init__(self) -> None:
        self.names: list[str] = []
        self.addresses = {"::", "0.0.0.0", "192.0.2.1"}
        self.missing = ""
        self.listeners: list[FakeListener] = []

    def why_not(self) -> str:
        return self.missing

    def device_names(self) -> list[str]:
        return self.names

    def make_provider(self, pool: Pool, options: object) -> FakeDevices:
        if self.missing:
            raise OSError(f"RDMA devices cannot be used: {self.missing}")
        return self

    async def listen(self, address: ListenAddress, on_request: Callable[[Any], None]) -> FakeListener:
        listener = FakeListener(address, bool(self.names) and address.host in self.addresses)
        self.listeners.append(listener)
        return listener

    @staticmethod
    def is_listening(listener: FakeListener) -> bool:
        return listener.listening

    async def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> FakeDevices:
    fake = FakeDevices()
    monkeypatch.setattr(module, "device", fake)
    monkeypatch.setattr(module, "LOOK_FOR_DEVICES", 0.001)
    return fake


def started(devices: FakeDevices, *entries: Listen, later: Callable[[Listeners], Any] | None = None) -> Listeners:
    """Start the entries, let ``later`` wait for something, and close."""

    async def main() -> Listeners:
        made = Listeners(Pool(64 << 20), Limits(memory=64 << 20, connection_memory=16 << 20))
        await made.start(entries, Dispatcher([]))
        if later is not None:
            await later(made)
        await made.close()
        return made

    return asyncio.run(main())


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 (a timer of the listeners' changes it)
            await asyncio.sleep(0.001)


def auto(host: str = "0.0.0.0") -> Listen:
    return Listen(url=f"rdma://{host}:0")


def test_auto_takes_devices_where_there_are_any(devices: FakeDevices, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    devices.names = ["rxe0", "mlx5_0"]
    assert [one.provider for one in started(devices, auto()).started] == ["verbs"]
    assert "provider auto: RDMA devices (rxe0, mlx5_0)" in caplog.text


def test_auto_takes_the_embedded_provider_where_there_are_none(
    devices: FakeDevices, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert [one.provider for one in started(devices, auto()).started] == ["softiwarp"]
    assert "embedded software iWARP (this host has no RDMA device)" in caplog.text


def test_auto_takes_the_embedded_provider_where_no_device_has_the_address(
    devices: FakeDevices, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    devices.names = ["rxe0"]
    devices.addresses = {"192.0.2.9"}
    made = started(devices, auto("0.0.0.0"), auto("127.0.0.1"))
    assert [one.provider for one in made.started] == ["softiwarp", "softiwarp"]
    assert [listener.closed for listener in devices.listeners] == [True]
    assert "no RDMA device has this address" in caplog.text
    assert "no RDMA device has a loopback address" in caplog.text


def test_auto_works_without_the_libraries(devices: FakeDevices, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    devices.missing = "libibverbs.so.1: cannot open shared object file"
    devices.names = ["rxe0"]
    assert [one.provider for one in started(devices, auto()).started] == ["softiwarp"]
    assert "embedded software iWARP (libibverbs.so.1" in caplog.text


def test_a_device_that_comes_later_serves_the_address_too(
    devices: FakeDevices, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def later(made: Listeners) -> None:
        devices.names = ["rxe0"]
        await until(lambda: len(made.started) == 2)
        await until(lambda: made._looking is not None and made._looking.done())
        soft, hard = made.started
        assert (soft.provider, hard.provider) == ("softiwarp", "verbs")
        assert soft.address == hard.address
        # The embedded provider still takes connections: nobody needed its port.
        _, writer = await asyncio.open_connection("127.0.0.1", soft.address.port)
        writer.close()
        # One address, two sets of counters.
        assert set(made.rdma_counters()) == {f"{soft.address} (softiwarp)", f"{soft.address} (verbs)"}

    started(devices, auto(), later=later)
    assert "now on RDMA devices too (rxe0)" in caplog.text


def test_the_embedded_provider_gives_way_where_an_iwarp_device_needs_its_port(
    devices: FakeDevices, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)

    async def later(made: Listeners) -> None:
        async def in_use(address: ListenAddress) -> None:
            raise OSError(errno.EADDRINUSE, "Address already in use")

        (soft,) = made.started
        assert soft.rdma is not None
        monkeypatch.setattr(soft.rdma, "listen", in_use)
        devices.names = ["siw0"]
        await until(lambda: made._looking is not None and made._looking.done())
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", soft.address.port)
        assert [one.provider for one in made.started] == ["softiwarp", "verbs"]

    started(devices, auto(), later=later)
    assert "software iWARP takes no new connections here" in caplog.text


def test_verbs_without_the_libraries_says_what_is_missing(
    devices: FakeDevices, caplog: pytest.LogCaptureFixture
) -> None:
    devices.missing = "librdmacm.so.1: cannot open shared object file; install the libraries"
    made = started(devices, Listen(url="rdma://0.0.0.0:0", provider="verbs"))
    assert made.started == []
    assert "librdmacm.so.1" in made.failures[0]
    assert "install" in made.failures[0]
