"""What native code shares is defined once: words of XDR, system calls, and numbers that a protocol declares."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NATIVE = [
    path
    for package in ("nfsd", "rpcrdma", "bench")
    for path in sorted((ROOT / package).rglob("*"))
    if path.suffix in (".pyx", ".pxd") and not re.fullmatch(r"nfs\d\.pxd", path.name)
]


@pytest.mark.parametrize("function", ["load32", "load64", "store32", "store64", "padded", "store_opaque"])
def test_words_of_xdr_have_one_definition(function):
    found = [path for path in NATIVE if re.search(rf"^cdef [^=\n]*\b{function}\(", path.read_text(), re.MULTILINE)]
    assert [str(path.relative_to(ROOT)) for path in found] == ["rpcrdma/octets.pxd"]
