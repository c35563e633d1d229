"""Descriptors that a worker closes."""

import asyncio
import errno
import os

from nfsd.vfs.closing import Closing
from nfsd.vfs.executor import Executor


def closing(scenario):
    async def main():
        failed = []
        loop = asyncio.get_running_loop()
        executor = Executor(loop, 2)
        under_test = Closing(lambda lane, error: failed.append((lane, error)))
        under_test.start(loop, executor)
        try:
            await scenario(under_test, executor, failed)
        finally:
            under_test.stop()
            executor.close()

    asyncio.run(main())


def is_open(descriptor):
    return os.path.exists(f"/proc/self/fd/{descriptor}")


def some(count):
    return [os.open("/", os.O_PATH) for _ in range(count)]


def test_those_of_one_turn_go_to_a_worker_together():
    async def scenario(under_test, executor, failed):
        descriptors, freed = some(20), []
        for number, descriptor in enumerate(descriptors):
            under_test.later(
                descriptor, number % 2, None if number == 3 else lambda number=number: freed.append(number)
            )
        waited_for = under_test.under_way_in(0) + under_test.under_way_in(1)
        assert len(waited_for) == 2
        await asyncio.gather(*waited_for)
        assert not any(is_open(descriptor) for descriptor in descriptors)
        assert sorted(freed) == [number for number in range(20) if number != 3]
        assert executor.statistics()["completed"] == 2
        assert under_test.under_way_in(0) == under_test.under_way_in(1) == failed == []
        # What is handed in later goes by itself.
        (last,) = some(1)
        under_test.later(last)
        await asyncio.gather(*under_test.under_way_in(0))
        assert not is_open(last)

    closing(scenario)


def test_one_worker_closes_a_few():
    async def scenario(under_test, executor, failed):
        descriptors = some(40)
        for descriptor in descriptors:
            under_test.later(descriptor, 7)
        waited_for = under_test.under_way_in(7)
        assert len(waited_for) == 3
        await asyncio.gather(*waited_for)
        assert not any(is_open(descriptor) for descriptor in descriptors)

    closing(scenario)


def test_failures_are_told_by_lane():
    async def scenario(under_test, executor, failed):
        freed = []
        under_test.later(1 << 20, 5, lambda: freed.append(5))
        await asyncio.gather(*under_test.under_way_in(5))
        assert (failed, freed) == ([(5, errno.EBADF)], [5])

    closing(scenario)


def test_where_there_are_no_workers_it_is_closed_at_once():
    async def scenario(under_test, executor, failed):
        one, two, three = some(3)
        under_test.later(one)
        under_test.stop()
        under_test.later(two)
        assert not is_open(two)
        executor.close()
        under_test.later(three)
        assert not is_open(one)
        assert not is_open(three)

    closing(scenario)


def test_what_is_closed_after_the_executor_does_not_stay_open():
    async def scenario(under_test, executor, failed):
        executor.close()
        (descriptor,) = some(1)
        under_test.later(descriptor)
        assert not is_open(descriptor)

    closing(scenario)
