"""Whose memory a listing's entries are in."""

import subprocess
import sys

import pytest

_IN_A_CYCLE = """
import gc
import mmap
from nfsd.v3.listing import Listing3
from nfsd.v4.listing import Listing4
from nfsd.vfs.listing import Entries

class Holder:
    pass

def leave(listing, memory):
    listing.move(memory)
    holder = Holder()
    holder.itself, holder.listing = holder, listing

gc.disable()
memory = mmap.mmap(-1, 1 << 17)
leave({listing}, memoryview(memory))
assert gc.collect() > 0
memory[:] = bytes(1 << 17)
print("alive")
"""


@pytest.mark.parametrize(
    "listing", ["Listing3(1 << 16, plus=True)", "Listing4(2, 1 << 16, 0, 90)", "Entries(10, plus=False)"]
)
def test_garbage_collection_leaves_memory_of_others_alone(listing: str) -> None:
    """A traceback may hold a frame that holds the listing: then the collector clears it before it is deallocated."""
    ended = subprocess.run(
        [sys.executable, "-c", _IN_A_CYCLE.replace("{listing}", listing)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, "alive\n"), ended.stderr
