"""The command ``rdma-nfsd``. Owns what becomes of an interrupted one; imports everything else only when it runs, so
that whoever interrupts it early gets no traceback either."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

INTERRUPTED: Final = 130
"""The exit status after SIGINT, as a shell has it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns the exit status."""
    try:
        from nfsd.command_line import run

        return run(sys.argv[1:] if arguments is None else list(arguments))
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
