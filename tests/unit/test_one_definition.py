"""Native code defines words of XDR, system calls, and a protocol's numbers once."""

import importlib
import re
from pathlib import Path

import pytest

from rpcrdma.xdr.generate import numbers

ROOT = Path(__file__).parents[2]
NATIVE = [
    path
    for package in ("nfsd", "rpcrdma", "bench")
    for path in sorted((ROOT / package).rglob("*"))
    if path.suffix in (".pyx", ".pxd") and not path.read_text().startswith("# Generated ")
]


@pytest.mark.parametrize("function", ["load32", "load64", "store32", "store64", "padded", "store_opaque"])
def test_words_of_xdr_have_one_definition(function):
    # In Cython, or in C that a declaration file brings along.
    defined = re.compile(rf"^(?:cdef|    static inline) [^=\n]*\b{function}\(", re.MULTILINE)
    found = [path for path in NATIVE if defined.search(path.read_text())]
    assert [str(path.relative_to(ROOT)) for path in found] == ["rpcrdma/octets.pxd"]


PREFIXES = (
    "", "NFSPROC3_", "NFS3_", "NFS4_", "NFS3ERR_", "NFS4ERR_", "ACCESS3_", "ACCESS4_", "OP_", "FATTR4_", "OPEN4_",
    "OPEN4_SHARE_", "OPEN4_SHARE_ACCESS_", "OPEN_", "WND4_", "FH4_",
)  # fmt: skip
SUFFIXES = ("", "4", "_SIZE", "_LIMIT")
DECLARED = [numbers(importlib.import_module(f"nfsd.protocol.{name}")) for name in ("nfs3", "nfs4")]


def repeated(text):
    """Constants of C that stand for a declared number: the same value, under its name or a piece of it."""
    for name, value in re.findall(r"^    (\w+) = (0x[0-9A-Fa-f]+|\d+)\b(?! *[-<|&*+/])", text, re.MULTILINE):
        candidates = [prefix + name + suffix for prefix in PREFIXES for suffix in SUFFIXES]
        if any(found.get(each) == int(value, 0) for found in DECLARED for each in candidates):
            yield name


def test_no_number_of_a_protocol_is_written_by_hand():
    found = {str(path.relative_to(ROOT)): list(repeated(path.read_text())) for path in NATIVE if "nfsd" in path.parts}
    assert {path: names for path, names in found.items() if names} == {}


def test_numbers_written_by_hand_are_found():
    text = "cdef enum:\n    READ = 6\n    OP_WRITE = 38\n    MODE = 33\n    ACCESS_ALL = 0x3F\n    SEEK = 0x40\n"
    assert list(repeated(text)) == ["READ", "OP_WRITE", "MODE"]


def test_system_calls_have_one_declaration():
    of_libc = re.compile(r'extern from "<?(?:unistd|sys/syscall)\.h>?"')
    found = [path for path in NATIVE if "vfs" in path.parts and of_libc.search(path.read_text())]
    assert [path.name for path in found] == ["kernel.pxd"]
