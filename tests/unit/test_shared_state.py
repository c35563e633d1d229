"""What native calls share has an owner that could be locked: modules have no state of their own but what is here.

docs/architecture.md ("What calls share") says who the owners are.
"""

from pathlib import Path

import pytest

from tests.rules.native_variables import native_variables, variables_of

ROOT = Path(__file__).parents[2]

FACTS = {
    *(f"nfsd.vfs.attributes.{name}" for name in ("_attributes", "_kinds", "_new", "_time", "_types")),
    *(f"nfsd.vfs.nodes.{name}" for name in ("_idle_sweeps", "_swept_at_once")),
    *(f"nfsd.v4.opens.{name}" for name in ("Asked", "Named", "Where", "opened_later", "opening_delegated")),
    *(f"rpcrdma.digest.{name}" for name in ("drawn", "secret")),
    *(f"rpcrdma.rpc.replay.{name}" for name in ("cut_cost", "entry_cost", "host_cost")),
    *(f"rpcrdma.verbs.softiwarp.crc.{name}" for name in ("crc32_iscsi", "library")),
    "nfsd.v3.names.statuses",
    "nfsd.vfs.attribute_changes.sets_modes",
    "nfsd.v4.listing.statuses",
    "nfsd.v4.native_compound._room_for_result",
    "nfsd.vfs.dirents.how",
    "rpcrdma.engine.native.nobodys_endpoint",
    "rpcrdma.tls.records.most_empty",
    "rpcrdma.verbs.native.answered",
}
"""Made when the module is imported, and never changed."""
LIBRARIES = {
    *(f"rpcrdma.gss.library.{name}" for name in ("gss", "loaded")),
    *(f"rpcrdma.tls.library.{name}" for name in ("crypto", "loaded")),
}
"""Found once, when somebody needs them."""
OF_A_THREAD = {
    *(f"rpcrdma.pipes.{name}" for name in ("idle", "most_pipes", "pipes")),
    *(f"rpcrdma.turns.{name}" for name in ("ignored", "latest", "other_at", "others")),
    *(f"rpcrdma.verbs.softiwarp.intake.{name}" for name in ("gaps", "gathered", "staging")),
    "rpcrdma.gss.contexts.spares",
    "rpcrdma.pace.pretended",
}
"""A loop's own: whose turn it is, spare pipes and contexts, scratch memory, a test's clock. A second one has others."""
GUESSES = {"nfsd.vfs.resident._read"}
"""What has been read lately. A wrong one costs a look, and no answer depends on it."""
OF_THE_COMPILER = {f"rpcrdma.xdr._op.{name}" for name in ("alias_ops", "ops")}
"""Compiled formats, by their declarations: each is made once, whoever asks first."""


def test_native_modules_have_no_state_but_what_is_listed_here():
    listed = FACTS | LIBRARIES | OF_A_THREAD | GUESSES | OF_THE_COMPILER
    assert native_variables(ROOT, ("nfsd", "rpcrdma")) == listed


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("cdef int count = 0\n", ["count"]),
        ("cdef dict known = {}, others\n", ["known", "others"]),
        ("cdef uint8_t *at\ncdef char room[4]\n", ["at", "room"]),
        ("cdef object REG = 1\ncdef int[3] SIZES\n", []),
        ("cdef int f(int a):\n    cdef int b = a\n    return b\n", []),
        ("cdef class C:\n    cdef int field\n", []),
        ("cdef struct s:\n    int member\n", []),
        ('cdef extern from "x.h":\n    int errno\n', []),
        ("cdef int (*pointer)(int)\ncdef int *g(int a)\n", ["pointer"]),
    ],
)  # fmt: skip
def test_variables_are_found(text, found, tmp_path):
    path = tmp_path / "m.pyx"
    path.write_text(text)
    assert variables_of(path) == found
