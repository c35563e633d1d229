"""``python -m tests.containers``: write the transcripts of docs/containers.md again."""

import sys
import tempfile
from pathlib import Path

from tests.containers import PAGE, default_engine, missing, page_blocks, play
from tests.transcripts import replace

if why := missing():
    sys.exit(why)
engine = default_engine()
engine.build()
played = []
for block in page_blocks():
    with tempfile.TemporaryDirectory(prefix="rdma-nfsd-") as base:
        played.append((block, play(block, engine, Path(base))))
print(f"{PAGE}: {'written anew' if replace(PAGE, played) else 'as it was'}")
