"""The driver of call coroutines: eager first step, waiting, failing, cancelling."""

import asyncio
import gc
import types
import weakref
from typing import Any

import pytest

from rpcrdma.rpc.eager import start


class Outcome:
    def __init__(self) -> None:
        self.calls: list[tuple[Any, BaseException | None]] = []

    def __call__(self, result: Any, exception: BaseException | None) -> None:
        self.calls.append((result, exception))


def test_a_coroutine_that_never_waits_is_over_before_start_returns() -> None:
    async def handler() -> int:
        return 7

    outcome = Outcome()
    assert start(handler(), outcome) is None  # and no event loop is running
    assert outcome.calls == [(7, None)]


def test_an_exception_before_the_first_wait_is_reported_at_once() -> None:
    error = ValueError("x")

    async def handler() -> None:
        raise error

    outcome = Outcome()
    assert start(handler(), outcome) is None
    assert outcome.calls == [(None, error)]


def test_waiting_for_a_future_resumes_with_its_result() -> None:
    async def main() -> None:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        async def handler() -> int:
            return await future + await future

        outcome = Outcome()
        assert start(handler(), outcome) is not None
        assert outcome.calls == []
        future.set_result(4)
        await asyncio.sleep(0)
        assert outcome.calls == [(8, None)]

    asyncio.run(main())


def test_a_failed_future_raises_inside_the_coroutine() -> None:
    async def main() -> None:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        async def handler() -> str:
            try:
                await future
            except OSError as exception:
                return str(exception)
            return "nothing"

        outcome = Outcome()
        start(handler(), outcome)
        future.set_exception(OSError("disk"))
        await asyncio.sleep(0)
        assert outcome.calls == [("disk", None)]

    asyncio.run(main())


def test_locks_events_gather_tasks_and_sleep_work() -> None:
    async def main() -> None:
        lock, event = asyncio.Lock(), asyncio.Event()
        order: list[str] = []

        async def handler(name: str) -> list[str]:
            async with lock:
                order.append(name)
                await asyncio.sleep(0)
                await event.wait()
            await asyncio.sleep(0.001)
            both = await asyncio.gather(asyncio.sleep(0, "a"), asyncio.ensure_future(asyncio.sleep(0, "b")))
            return [name, *both]

        first, second = (asyncio.get_running_loop().create_future() for _ in range(2))
        start(handler("one"), lambda *outcome: first.set_result(outcome))
        start(handler("two"), lambda *outcome: second.set_result(outcome))
        assert order == ["one"]
        event.set()
        assert await first == (["one", "a", "b"], None)
        assert await second == (["two", "a", "b"], None)
        assert not lock.locked()

    asyncio.run(main())


def test_cancelling_leaves_the_awaited_future_alone_and_runs_cleanup() -> None:
    async def main() -> None:
        shared: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        cleaned = []

        async def handler() -> None:
            try:
                await shared
            finally:
                cleaned.append(True)

        outcome = Outcome()
        run = start(handler(), outcome)
        assert run is not None
        run.cancel()
        assert cleaned == [True]
        assert isinstance(outcome.calls[0][1], asyncio.CancelledError)
        assert not shared.cancelled()
        shared.set_result(None)
        run.cancel()
        await asyncio.sleep(0)
        assert len(outcome.calls) == 1

    asyncio.run(main())


def test_nothing_of_a_cancelled_call_is_left_to_the_garbage_collector() -> None:
    class Buffer:
        pass

    async def main() -> None:
        async def handler(buffer: Buffer) -> None:
            await asyncio.get_running_loop().create_future()

        buffer = Buffer()
        gone = weakref.ref(buffer)
        run = start(handler(buffer), lambda result, exception: None)
        del buffer
        assert run is not None
        run.cancel()
        del run
        assert gone() is None

    gc.disable()
    try:
        asyncio.run(main())
    finally:
        gc.enable()


@pytest.mark.parametrize("seconds", [0, 60])
def test_cancelling_a_sleeper(seconds: float) -> None:
    async def main() -> None:
        outcome = Outcome()
        run = start(asyncio.sleep(seconds), outcome)
        assert run is not None
        run.cancel()
        await asyncio.sleep(0)
        assert [type(exception) for _, exception in outcome.calls] == [asyncio.CancelledError]

    asyncio.run(main())


def test_a_coroutine_may_catch_the_cancellation_and_wait_again() -> None:
    async def main() -> None:
        async def handler() -> str:
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                await asyncio.sleep(0)
            return "tidy"

        outcome = Outcome()
        run = start(handler(), outcome)
        assert run is not None
        run.cancel()
        assert outcome.calls == []
        await asyncio.sleep(0)
        assert outcome.calls == [("tidy", None)]

    asyncio.run(main())


def test_yielding_something_else_is_an_error_of_that_coroutine_only() -> None:
    @types.coroutine
    def nonsense() -> Any:
        yield 42

    async def handler() -> None:
        await nonsense()

    async def main() -> None:
        outcome = Outcome()
        start(handler(), outcome)
        await asyncio.sleep(0)
        assert isinstance(outcome.calls[0][1], RuntimeError)

    asyncio.run(main())


@pytest.mark.parametrize("waits", [False, True])
def test_a_failure_that_is_kept_keeps_nobody_who_was_told_of_it(waits):
    """Its traceback leads to the frame that called: what belongs to the call stayed until the collector came by."""
    kept = []

    class Told:
        def __call__(self, result, failure):
            kept.append(failure)

    async def failing():
        if waits:
            await asyncio.sleep(0)
        raise ValueError

    async def main():
        told = Told()
        alive = weakref.ref(told)
        start(failing(), told)
        del told
        for _ in range(3):
            await asyncio.sleep(0)
        return alive() is None

    gc.disable()
    try:
        assert asyncio.run(main())
    finally:
        gc.enable()
    assert isinstance(kept[0], ValueError)
