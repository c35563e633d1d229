"""The change attribute grows with every change, over evictions and restarts, whatever the grain of ctime."""

import asyncio
import itertools
import os

from hypothesis import given, settings
from hypothesis import strategies as st

from nfsd.vfs.change import SETTLE_NS, ChangeRecord
from nfsd.vfs.nodes import NodeTable
from nfsd.vfs.types import SetAttributes
from tests.support.native_files import FILE_SYNC, UNSTABLE, NativeFiles
from tests.unit.vfs_support import ROOT, run, write_file

TICK = 4_000_000


@given(
    st.lists(
        st.one_of(
            st.just("change"),
            st.just("look"),
            st.just("local change"),
            st.just("lose"),
            st.integers(min_value=1, max_value=3 * SETTLE_NS),
        ),
        max_size=60,
    ),
    st.sampled_from([1_000_000, TICK, 10_000_000]),
)
@settings(max_examples=300, deadline=None)
def test_grows_on_tick_grained_file_systems(events, tick):
    now = 1_700_000_000_000_000_000
    record = ChangeRecord()
    ctime = now // tick * tick
    content, own = 0, 0
    reported = []
    for event in events:
        if event == "change":
            now += 2000  # no change takes less
            ctime = now // tick * tick
            content, own = content + 1, own + 1
            reported.append((content, record.observe(ctime, now, fine=False, changed=True)))
        elif event == "local change":
            # Seen as long as it falls into another tick than the last look.
            now = (now // tick + 1) * tick
            ctime = now
            content += 1
        elif event == "lose":
            if record.settled(now):
                record = ChangeRecord()
        elif event == "look":
            reported.append((content, record.observe(ctime, now, fine=False, changed=False)))
        else:
            now += event
    for (one, first), (other, second) in itertools.pairwise(reported):
        assert second >= first
        if other != one:
            assert second > first


def test_a_clock_stepped_back_does_not_take_the_attribute_with_it():
    record = ChangeRecord()
    first = record.observe(2_000_000_000, 2_000_000_000, fine=True, changed=True)
    assert record.observe(1_000_000_000, 1_000_000_000, fine=True, changed=True) > first


def test_times_before_the_epoch_stay_in_64_bits():
    assert 0 <= ChangeRecord().observe(-5, 0, fine=True, changed=False) < 1 << 64


def test_an_unsettled_record_is_not_forgotten(monkeypatch):
    table = NodeTable(10, 2)
    now = 10**18
    monkeypatch.setattr("time.time_ns", lambda: now)
    table.inode(b"a").change.observe(now - TICK, now, fine=False, changed=True)
    table.inode(b"b")
    table.inode(b"c")
    assert table.known_inode(b"a") is not None
    now += 2 * SETTLE_NS
    table.inode(b"d")
    table.inode(b"e")
    assert table.known_inode(b"a") is None


def test_every_write_counts_also_within_one_tick(tmp_path):
    place = tmp_path / "export"
    place.mkdir()

    async def scenario(service, root):
        for fine in (True, False):
            root.mount.fine = fine
            node = await write_file(service, root, b"f%d" % fine)
            files = NativeFiles(service)
            seen = [(await service.attributes(node)).change]
            for number in range(200):
                await files.write(ROOT, node, 0, b"%d" % number, UNSTABLE)
                seen.append((await service.attributes(node)).change)
            change = await service.set_attributes(ROOT, node, SetAttributes(mode=0o600))
            seen.append(change.after.change)
            assert sorted(set(seen)) == seen
            for number in range(50):
                before = (await service.attributes(root)).change
                _, _, change, _ = await service.create(ROOT, root, b"%d-%d" % (fine, number), SetAttributes())
                assert change.before.change == before < change.after.change
        return [seen[-1], node.handle]

    async def later(service, root):
        node = await service.resolve(handle)
        assert (await service.attributes(node)).change >= last
        root.mount.fine = False
        service.nodes.inode(node.key).change.__init__()
        assert (await service.attributes(node)).change >= last

    last, handle = run(place, tmp_path, scenario, asynchronous=True)
    run(place, tmp_path, later)


def test_a_rename_that_does_nothing_changes_no_directory(tmp_path):
    """To itself, or onto a further name of the same file (RFC 8881 section 18.26.3); of a directory to itself."""
    place = tmp_path / "export"
    place.mkdir()

    async def scenario(service, root):
        for fine in (True, False):
            root.mount.fine = fine
            one, _, _ = await service.mkdir(ROOT, root, b"one-%d" % fine, SetAttributes(mode=0o755))
            two, _, _ = await service.mkdir(ROOT, root, b"two-%d" % fine, SetAttributes(mode=0o755))
            node = await write_file(service, one, b"f")
            await service.link(ROOT, node, one, b"near")
            await service.link(ROOT, node, two, b"far")
            await service.mkdir(ROOT, one, b"d", SetAttributes(mode=0o755))
            for name, target, new in ((b"f", one, b"f"), (b"f", one, b"near"), (b"f", two, b"far"), (b"d", one, b"d")):
                for change in await service.rename(ROOT, one, name, target, new):
                    assert change.before.change == change.after.change, (fine, name, new)
            assert sorted(os.listdir(place / f"one-{fine:d}")) == ["d", "f", "near"]
            # One that does something, onto a file of one name: both directories change, also within a tick.
            await write_file(service, two, b"other")
            for change in await service.rename(ROOT, one, b"near", two, b"other"):
                assert change.before.change < change.after.change

    run(place, tmp_path, scenario, asynchronous=True)


def test_changes_around_concurrent_operations_do_not_overlap(tmp_path):
    place = tmp_path / "export"
    place.mkdir()

    async def scenario(service, root):
        node = await write_file(service, root, b"f")
        files = NativeFiles(service)

        async def write(number):
            written = await files.write(ROOT, node, number * 4, b"data", FILE_SYNC)
            assert written.count == 4
            return written.file_wcc

        async def make(number):
            return (await service.create(ROOT, root, b"n%d" % number, SetAttributes()))[2]

        written = await asyncio.gather(*(write(number) for number in range(32)))
        written.sort(
            key=lambda change: [(when.seconds, when.nseconds) for when in (change.before.ctime, change.after.ctime)]
        )
        for one, other in itertools.pairwise(written):
            assert one.after.ctime == other.before.ctime
        changes = await asyncio.gather(*(make(number) for number in range(32)))
        changes.sort(key=lambda change: change.before.change)
        for one, other in itertools.pairwise(changes):
            assert one.after.change == other.before.change
        assert os.stat(place / "f").st_size == 128

    run(place, tmp_path, scenario)
