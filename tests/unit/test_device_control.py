"""The threads that make the control calls of the RDMA libraries: a slow call holds up nobody."""

from __future__ import annotations

import asyncio
import ctypes
import threading
from collections.abc import Callable

import pytest

from rpcrdma.verbs.device.control import Control

PR_GET_KEEPCAPS, PR_SET_KEEPCAPS = 7, 8
"""Of prctl(2): a flag of a thread's credentials that every user may change."""


def run(test: Callable[[Control], object]) -> None:
    async def main() -> None:
        control = Control(asyncio.get_running_loop())
        try:
            await test(control)  # type: ignore[misc]
        finally:
            control.close()

    asyncio.run(main())


def submitted(control: Control, function: Callable[..., object], *arguments: object) -> asyncio.Future[object]:
    outcome: asyncio.Future[object] = asyncio.get_running_loop().create_future()

    def done(result: object, error: BaseException | None) -> None:
        if error is None:
            outcome.set_result(result)
        else:
            outcome.set_exception(error)

    control.submit(done, function, *arguments)
    return outcome


def test_the_loop_goes_on_and_gets_memory_while_a_submitted_call_takes_its_time() -> None:
    async def test(control: Control) -> None:
        gate = threading.Event()
        slow = submitted(control, gate.wait, 60)
        behind = submitted(control, len, "next")
        for _ in range(100):
            await asyncio.sleep(0)
            assert control.call(max, 1, 2) == 2, "what the loop waits for does not stand behind it"
        assert not slow.done()
        assert not behind.done()
        gate.set()
        assert await slow is True
        assert await behind == 4

    run(test)


def test_outcomes_come_in_the_order_of_asking_and_errors_to_who_asked() -> None:
    async def test(control: Control) -> None:
        order: list[int] = []
        outcomes = [submitted(control, order.append, number) for number in range(50)]
        failed = submitted(control, int, "x")
        await asyncio.gather(*outcomes)
        assert order == list(range(50))
        with pytest.raises(ValueError, match="invalid literal"):
            await failed
        with pytest.raises(ValueError, match="invalid literal"):
            control.call(int, "x")
        control.submit(None, order.append, 50)
        assert control.call_last(list, order) == list(range(51)), "after all that was submitted"

    run(test)


def test_an_error_that_nobody_waits_for_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def test(control: Control) -> None:
        control.submit(None, int, "x")
        control.call_last(int)
        await asyncio.sleep(0)
        assert "invalid literal" in caplog.text
        # What is done with an outcome may fail as well: the thread and the loop go on.
        control.submit(lambda result, error: 1 / 0, int)
        control.call_last(int)
        await asyncio.sleep(0)
        assert "division by zero" in caplog.text
        assert await submitted(control, int, "7") == 7

    run(test)


def test_a_call_from_within_a_call_is_made_there() -> None:
    async def test(control: Control) -> None:
        assert control.call(lambda: control.call(threading.get_ident)) == control.call(threading.get_ident)
        own = await submitted(control, lambda: (threading.get_ident(), control.call(threading.get_ident)))
        assert isinstance(own, tuple)
        assert own[0] == own[1] != threading.get_ident()

    run(test)


def test_closing_waits_for_what_was_asked_and_outlives_the_loop() -> None:
    seen: list[int] = []

    async def main() -> Control:
        control = Control(asyncio.get_running_loop())
        control.submit(None, seen.append, 1)
        return control

    control = asyncio.run(main())
    control.submit(None, seen.append, 2)
    control.close()
    assert seen == [1, 2]


def test_all_of_a_process_have_the_same_credentials() -> None:
    """librdmacm opens a device once in a process: who comes later must have the credentials of who came first."""
    prctl = ctypes.CDLL(None).prctl
    flags: list[int] = []

    async def test(control: Control) -> None:
        flags.append(control.call(prctl, PR_GET_KEEPCAPS))
        flags.append(control.call_last(prctl, PR_GET_KEEPCAPS))

    run(test)
    own = prctl(PR_GET_KEEPCAPS)
    assert prctl(PR_SET_KEEPCAPS, 1 - own) == 0
    try:
        run(test)
    finally:
        prctl(PR_SET_KEEPCAPS, own)
    assert flags == [flags[0]] * 4
