"""Decoders and Python's garbage collector."""

import subprocess
import sys


def test_a_decoder_that_becomes_garbage_with_its_memory_does_no_harm() -> None:
    """The collector clears what it sees in any order, and a memoryview that is cleared while it is exported crashes the
    interpreter when it goes: so this runs in a process of its own."""
    program = """
import gc
from rpcrdma.xdr import Decoder
for number in range(200):
    data = memoryview(bytearray(100))[:50]
    pair = [data, Decoder(data)]
    cycle = pair if number % 2 else pair[::-1]
    cycle.append(cycle)
    del data, pair, cycle
    gc.collect()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
