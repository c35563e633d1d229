"""Material for the guest tests, made from a seed: a tree of files as a tar archive, and a small C project.

Nothing is downloaded, and what the guest must find is known here without asking the guest.
"""

from __future__ import annotations

import hashlib
import io
import random
import tarfile
from pathlib import Path

_SPECIAL_NAMES = (
    b"name with spaces",
    b"-leading-dash",
    b"back\\slash",
    b"new\nline",
    b"not-utf8-\xff\xfe\x80",
    "grüße-Ελλάδα-日本".encode(),
    b"x" * 255,
    b"#hash*star?",
    b".hidden",
)


def _size(rng: random.Random) -> int:
    """Mostly small, some empty, a few beyond one 64 KiB transfer, lengths of every alignment."""
    kind = rng.random()
    if kind < 0.05:
        return 0
    if kind < 0.9:
        return rng.randrange(1, 6000)
    if kind < 0.99:
        return rng.randrange(6000, 70000)
    return rng.randrange(70000, 600000)


def make_tree(path: Path, files: int = 2000, seed: int = 1) -> dict[str, int]:
    """Write a tar archive of a tree of ``files`` regular files under ``tree/``; return the counts of what is in it."""
    rng = random.Random(seed)
    counts = {"files": 0, "directories": 0, "symlinks": 0, "hardlinks": 0}

    def entry(name: str, kind: bytes, mode: int) -> tarfile.TarInfo:
        info = tarfile.TarInfo(name)
        info.type = kind
        info.mode = mode
        info.mtime = 1_600_000_000 + rng.randrange(100_000_000)
        return info

    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT, encoding="utf-8", errors="surrogateescape") as archive:
        directories = ["tree"]
        archive.addfile(entry("tree", tarfile.DIRTYPE, 0o755))
        while len(directories) < max(10, files // 25):
            parent = rng.choice(directories)
            if parent.count("/") < 7:
                directories.append(f"{parent}/d{len(directories)}")
                archive.addfile(entry(directories[-1], tarfile.DIRTYPE, rng.choice((0o755, 0o700, 0o775))))
        counts["directories"] = len(directories)
        regular = []
        special = [name.decode("utf-8", "surrogateescape") for name in _SPECIAL_NAMES]
        while counts["files"] < files:
            name = special.pop() if special else f"f{counts['files']}"
            info = entry(f"{rng.choice(directories)}/{name}", tarfile.REGTYPE, rng.choice((0o644, 0o600, 0o755, 0o444)))
            data = rng.randbytes(_size(rng))
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
            regular.append(info.name)
            counts["files"] += 1
        for number in range(files // 40):
            link = entry(f"{rng.choice(directories)}/s{number}", tarfile.SYMTYPE, 0o777)
            link.linkname = rng.choice(("../missing", "f1", "/etc/hostname", "a" * 1000))
            archive.addfile(link)
            counts["symlinks"] += 1
            hard = entry(f"{rng.choice(directories)}/h{number}", tarfile.LNKTYPE, 0o644)
            hard.linkname = rng.choice(regular)
            archive.addfile(hard)
            counts["hardlinks"] += 1
    return counts


def make_c_project(path: Path, modules: int = 12) -> str:
    """Write a tar.gz of a C project under ``project/``; return what its program prints when built right."""
    sources = {
        "Makefile": "CFLAGS = -O1 -Wall -Werror -I.\n"
        f"OBJS = {' '.join(f'm{i}.o' for i in range(modules))}\n"
        "prog: main.o libm.a\n\t$(CC) -o $@ main.o libm.a\n"
        "libm.a: $(OBJS)\n\t$(AR) rcs $@ $(OBJS)\n"
        "$(OBJS) main.o: all.h\n"
        "clean:\n\trm -f *.o *.a prog\n",
        "all.h": "#include <stdint.h>\n" + "".join(f"uint32_t step{i}(uint32_t);\n" for i in range(modules)),
        "main.c": '#include <stdio.h>\n#include "all.h"\nint main(void)\n{\n\tuint32_t x = 1;\n'
        + "".join(f"\tx = step{i}(x);\n" for i in range(modules))
        + '\tprintf("%u\\n", x);\n\treturn 0;\n}\n',
    }
    value = 1
    for i in range(modules):
        factor = int.from_bytes(hashlib.sha256(b"%d" % i).digest()[:4], "big") | 1
        sources[f"m{i}.c"] = f'#include "all.h"\nuint32_t step{i}(uint32_t x)\n{{\n\treturn x * {factor}u + {i}u;\n}}\n'
        value = (value * factor + i) & 0xFFFFFFFF
    with tarfile.open(path, "w:gz") as archive:
        for name, text in sources.items():
            info = tarfile.TarInfo(f"project/{name}")
            info.size = len(text)
            info.mtime = 1_600_000_000
            archive.addfile(info, io.BytesIO(text.encode()))
    return str(value)
