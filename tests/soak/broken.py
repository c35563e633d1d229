"""Servers with a seeded fault, which the soak has to find out:

python -m tests.soak.broken MISTAKE serve --config FILE
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from nfsd import cli
from nfsd.state import locks

NO_SYNC = """
#include <dlfcn.h>
#include <sys/syscall.h>
int fsync(int fd) { (void)fd; return 0; }
int fdatasync(int fd) { (void)fd; return 0; }
int syncfs(int fd) { (void)fd; return 0; }
long syscall(long number, long a, long b, long c, long d, long e, long f)
{
    if (number == SYS_fsync || number == SYS_fdatasync || number == SYS_syncfs)
        return 0;
    return ((long (*)(long, ...))dlsym(RTLD_NEXT, "syscall"))(number, a, b, c, d, e, f);
}
"""


def without_sync(directory: Path) -> dict[str, str]:
    """The environment of a server that acknowledges what is not on its disk."""
    source, library = directory / "nosync.c", directory / "nosync.so"
    source.write_text(f"#define _GNU_SOURCE\n{NO_SYNC}")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
    return {"LD_PRELOAD": str(library)}


def _locks() -> None:
    """A lock is given though another owner has it."""
    locks.LockTable._refuse_conflict = lambda *_, **__: None  # type: ignore[method-assign]


MISTAKES = {"locks": _locks}


if __name__ == "__main__":
    MISTAKES[sys.argv.pop(1)]()
    sys.exit(cli.main())
