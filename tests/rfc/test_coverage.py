"""Every demand of the specifications has a test or an explanation, and the document says which."""

from __future__ import annotations

import ast
from pathlib import Path

from nfsd.conformance.demands import ITEMS
from tests.rfc.document import Outcome, render, rows

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "rfc-coverage.md"


def marked() -> dict[str, set[str]]:
    """Test functions by the items they cover, as their source says."""
    found: dict[str, set[str]] = {}
    for path in sorted(path for place in ("unit", "rfc") for path in (ROOT / "tests" / place).glob("test_*.py")):
        for node in ast.parse(path.read_text()).body:
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            for mark in node.decorator_list:
                if isinstance(mark, ast.Call) and isinstance(mark.func, ast.Name) and mark.func.id == "covers":
                    for argument in mark.args:
                        name = ast.literal_eval(argument)
                        found.setdefault(name, set()).add(f"{path.parent.name}/{path.name}::{node.name}")
    return found


def test_tests_cover_items_that_there_are():
    assert set(marked()) <= set(ITEMS)


def test_every_item_has_a_test_or_an_explanation_and_not_both():
    tests = marked()
    assert [name for name, item in ITEMS.items() if bool(item.explanation) == (name in tests)] == []


def test_the_document_has_every_item_with_its_tests_and_all_have_passed():
    found = rows(DOCUMENT.read_text())
    tests = marked()
    assert len(found) == len(ITEMS)
    for name, item in ITEMS.items():
        shown, result = found[item.document, item.text]
        assert (name, shown) == (name, tests.get(name, set()))
        assert result == ("explained" if item.explanation else "passed"), name


def test_a_failure_is_written_down():
    name = next(iter(name for name, item in ITEMS.items() if not item.explanation))
    text = render({name: {"tests/unit/test_x.py::test_y": Outcome(3, 1), "tests/unit/test_x.py::test_z": Outcome(1)}})
    item = ITEMS[name]
    assert rows(text)[item.document, item.text] == ({"unit/test_x.py::test_y", "unit/test_x.py::test_z"}, "failed")
    assert sum(result == "open" for _, result in rows(text).values()) > 100
