"""No file has over 500 lines and no function over 70, except those listed here. The lists may only become shorter."""

from pathlib import Path

import pytest

from tests.rules.sizes import MOST_IN_FILE, MOST_IN_FUNCTION, functions, sources

ROOT = Path(__file__).parents[2]

FILES = {
    "rpcrdma/verbs/softiwarp/endpoint.pyx": 532,
    "tests/unit/test_admin.py": 560,
    "tests/unit/test_backward_long.py": 508,
    "tests/unit/test_rdma_server.py": 515,
    "tests/unit/test_responder_calls.py": 535,
    "tests/unit/test_state_locks.py": 539,
    "tests/unit/test_state_recovery.py": 547,
    "tests/unit/test_state_waiters.py": 540,
    "tests/unit/test_v42_copy.py": 507,
    "tests/unit/test_v42_offload.py": 548,
    "tests/unit/test_v4_delegations.py": 530,
    "tests/unit/test_vfs_files.py": 519,
}
FUNCTIONS = {
    "nfsd/state/sessions.py: create_session": 73,
    "tests/fuzz/seeds.py: iwarp": 85,
    "tests/fuzz/transport.py: check_responder": 75,
}


def test_files_are_short():
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in sources(ROOT)}
    assert {name: n for name, n in lengths.items() if n > FILES.get(name, MOST_IN_FILE)} == {}
    assert [name for name in FILES if lengths.get(name, 0) <= MOST_IN_FILE] == [], "these are exceptions no more"


def test_functions_are_short():
    lengths = {}
    for path in sources(ROOT):
        for function, length in functions(path.read_text()):
            name = f"{path.relative_to(ROOT)}: {function}"
            lengths[name] = max(length, lengths.get(name, 0))
    assert {name: n for name, n in lengths.items() if n > FUNCTIONS.get(name, MOST_IN_FUNCTION)} == {}
    assert [name for name in FUNCTIONS if lengths.get(name, 0) <= MOST_IN_FUNCTION] == [], (
        "these are exceptions no more"
    )


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("def f(a):\n    return a\n\n\nX = 1\n", [("f", 2)]),
        ("class C:\n    async def g(\n        self,\n    ):\n        # it\n\n        pass\n\n    X = 1\n", [("g", 6)]),
        ("cdef inline const uint8_t *load(int a) noexcept nogil:\n    return NULL\ncdef int x = f(3)\n", [("load", 2)]),
        ("cdef class D(E):\n    cdef bint h(\n        self, int a\n    ) except -1:\n        return 1\n", [("h", 4)]),
        ("def outer():\n    def inner():\n        pass\n    return inner\n", [("outer", 4), ("inner", 2)]),
    ],
)  # fmt: skip
def test_functions_are_found(text, found):
    assert list(functions(text)) == found
