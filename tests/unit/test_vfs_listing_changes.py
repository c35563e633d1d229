"""Listings with handles of a directory that changes meanwhile: names that were read before are read again."""

import ctypes
import os
import time

import pytest

from nfsd.vfs import listings
from nfsd.vfs.change import SETTLE_NS
from nfsd.vfs.listing import Entries
from tests.unit.test_vfs_directories import listing
from tests.unit.vfs_support import ROOT, directory_on, run

RENAME_EXCHANGE = 2
_libc = ctypes.CDLL(None, use_errno=True)
COUNT = 330
"""More than one turn lists, and no more than are read at once."""


@pytest.fixture(params=["disk", "memory"])
def place(request, tmp_path):
    with directory_on(request.param, tmp_path) as path:
        yield path


@pytest.fixture
def names(place):
    """Files whose directory was changed so long ago that its next ctime is another one."""
    made = [b"%04d" % number for number in range(COUNT)]
    for name in made:
        with open(os.path.join(os.fsencode(place), name), "wb") as file:
            file.write(name)
    while time.time_ns() - os.stat(place).st_ctime_ns <= 2 * SETTLE_NS:
        time.sleep(0.01)
    return made


class Interrupted(Entries):
    """Between the first turn and the second, somebody changes the directory."""

    turns = 0
    meanwhile = None

    def turn(self, credential, budget):
        self.turns += 1
        if self.turns == 2:
            Interrupted.meanwhile({entry.name for entry in self.entries})
        return super().turn(credential, budget)


@pytest.fixture
def whole(place, names, tmp_path, monkeypatch):
    """What is listed while this happens: by name, what there is of each entry."""

    def found(meanwhile):
        async def scenario(service, root):
            Interrupted.meanwhile = staticmethod(meanwhile)
            monkeypatch.setattr(listings, "Entries", Interrupted)
            entries = await listing(service, root, COUNT + 10, plus=True)
            assert len({entry.name for entry in entries}) == len(entries)
            return {entry.name: entry for entry in entries}

        return run(place, tmp_path, scenario)

    return found


def test_a_name_that_was_read_and_has_gone_is_not_listed(place, names, whole):
    removed = set()

    def remove(listed):
        removed.update(sorted(set(names) - listed)[::2])
        for name in removed:
            os.unlink(os.path.join(os.fsencode(place), name))

    entries = whole(remove)
    assert removed
    assert set(entries) - {b".", b".."} == set(names) - removed
    assert all(entry.handle and entry.attributes for entry in entries.values())


def test_names_that_lead_elsewhere_show_where_they_lead_now(place, names, whole):
    def exchange(listed):
        one, other, *_ = (os.path.join(os.fsencode(place), name) for name in sorted(set(names) - listed))
        assert _libc.renameat2(-100, one, -100, other, RENAME_EXCHANGE) == 0

    entries = whole(exchange)
    assert len(entries) >= COUNT  # in memory the two have places at the beginning now, which has been listed already
    for name in set(names) & set(entries):
        status = os.stat(os.path.join(os.fsencode(place), name))
        assert entries[name].attributes.fileid == status.st_ino


def test_handles_are_those_of_the_files(place, names, tmp_path):
    async def scenario(service, root):
        for entry in await listing(service, root, COUNT + 10, plus=True):
            if entry.name not in (b".", b".."):
                node, attributes = await service.lookup(ROOT, root, entry.name)
                assert (entry.handle, entry.attributes) == (node.handle, attributes)

    run(place, tmp_path, scenario)
