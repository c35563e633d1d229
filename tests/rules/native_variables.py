"""Finds the variables of native modules: all that functions of C have in common behind everybody's back.

Owns the reading, with Cython's own parser. Names in capitals are constants, and not among them.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from Cython.Compiler.Nodes import CFuncDeclaratorNode
from Cython.Compiler.Visitor import TreeVisitor

from tests.rules.native_imports import module_of, parsed


class _Variables(TreeVisitor):
    """Collects what a module declares outside of functions, classes, structures and blocks of C headers."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def visit_Node(self, node: Any) -> None:
        self.visitchildren(node)

    def _pass_over(self, node: Any) -> None:
        pass

    visit_CDefExternNode = visit_CClassDefNode = visit_FuncDefNode = visit_CStructOrUnionDefNode = _pass_over

    def visit_CVarDefNode(self, node: Any) -> None:
        for declarator in node.declarators:
            outer, inner = None, declarator
            while not hasattr(inner, "name"):
                outer, inner = inner, inner.base
            if not isinstance(outer, CFuncDeclaratorNode):  # one further out is what a pointer points to
                self.found.append(str(inner.name))


def variables_of(path: Path, module: str = "m") -> list[str]:
    """The variables that one .pyx or .pxd declares, without constants."""
    if not path.stat().st_size:
        return []
    visitor = _Variables()
    visitor.visit(parsed(path, module))
    return [name for name in visitor.found if name != name.upper()]


def native_variables(root: Path, packages: Iterable[str]) -> set[str]:
    """Those of whole packages below ``root``, as ``module.variable``."""
    return {
        f"{module_of(path, root)}.{name}"
        for package in packages
        for path in sorted((root / package).rglob("*"))
        if path.suffix in (".pyx", ".pxd")
        for name in variables_of(path, module_of(path, root))
    }
