"""The command ``rdma-nfsd``. Owns what becomes of one that is interrupted, or whose output nobody reads any more.

It imports everything else only when it runs, so that whoever interrupts it early gets no traceback either."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from nfsd.exit_status import INTERRUPTED, OUTPUT_GONE


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns the exit status."""
    try:
        try:
            from nfsd.command_line import run

            return run(sys.argv[1:] if arguments is None else list(arguments))
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Who reads has seen enough, as head(1) has. What is still to be written would fail once more as Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OUTPUT_GONE


if __name__ == "__main__":
    sys.exit(main())
