"""Finds imports that import-linter does not see, because it reads Python files, and half of the hot code is Cython.

Owns the reading: :func:`imports_of` parses a .pyx or .pxd with Cython's own parser (so that no import hides in an odd
spelling, a function or an ``extern`` block), :func:`native_imports` gives the edges of whole packages. A .pxd is part
of the module of its name. Imports of native modules by Python files are among the edges: import-linter loses them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from Cython.Compiler import Errors, Parsing
from Cython.Compiler.Main import Context
from Cython.Compiler.Options import CompilationOptions, default_options
from Cython.Compiler.Scanning import FileSourceDescriptor, PyrexScanner
from Cython.Compiler.Symtab import ModuleScope
from Cython.Compiler.Visitor import TreeVisitor

NATIVE = (".pyx", ".pxd", ".pxi")


class Import(NamedTuple):
    """One import: ``names`` of ``module`` (None: the module itself), ``level`` packages up (0: from the root)."""

    module: str
    names: tuple[str, ...] | None
    level: int
    line: int
    c_header: bool = False
    """It is no module but a C header."""


class Edge(NamedTuple):
    """That ``importer`` imports ``imported``; both are dotted names of modules."""

    importer: str
    imported: str
    path: Path
    line: int


class _Imports(TreeVisitor):
    """Collects the imports of a parsed file."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Import] = []

    def visit_Node(self, node: Any) -> None:
        self.visitchildren(node)

    def visit_CImportStatNode(self, node: Any) -> None:
        self.found.append(Import(str(node.module_name), None, 0, node.pos[1]))

    def visit_FromCImportStatNode(self, node: Any) -> None:
        names = tuple(str(name) for _, name, *_ in node.imported_names)
        self.found.append(Import(str(node.module_name), names, node.relative_level or 0, node.pos[1]))

    def visit_FromImportStatNode(self, node: Any) -> None:
        module = node.module
        names = tuple(str(name) for name, _ in node.items)
        self.found.append(Import(str(module.module_name.value), names, max(module.level or 0, 0), node.pos[1]))

    def visit_ImportNode(self, node: Any) -> None:
        self.found.append(Import(str(node.module_name.value), None, max(node.level or 0, 0), node.pos[1]))

    def visit_CDefExternNode(self, node: Any) -> None:
        self.found.append(Import(str(node.include_file or "*"), None, 0, node.pos[1], c_header=True))
        self.visitchildren(node)


def parsed(path: Path, module: str) -> Any:
    """The tree of one .pyx or .pxd. Raises Cython's CompileError where it is no Cython."""
    context = Context.from_options(CompilationOptions(default_options, language_level=3))
    Errors.init_thread()
    with path.open(encoding="utf-8") as file:
        scanner = PyrexScanner(
            file,
            FileSourceDescriptor(str(path)),
            source_encoding="utf-8",
            scope=ModuleScope(module, None, context),
            context=context,
        )
        return Parsing.p_module(scanner, path.suffix == ".pxd", module)


def imports_of(path: Path, module: str) -> list[Import]:
    """The imports of one .pyx or .pxd. Raises as :func:`parsed`."""
    if not path.stat().st_size:
        return []
    visitor = _Imports()
    visitor.visit(parsed(path, module))
    return visitor.found


def _imports_of_python(path: Path) -> Iterator[Import]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"), str(path))):
        if isinstance(node, ast.ImportFrom):
            yield Import(node.module or "", tuple(alias.name for alias in node.names), node.level, node.lineno)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, None, 0, node.lineno)


def module_of(path: Path, root: Path) -> str:
    """The dotted name of the module that a file is, or is part of."""
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _absolute(found: Import, module: str, is_package: bool) -> str:
    if not found.level:
        return found.module
    package = module.split(".") if is_package else module.split(".")[:-1]
    base = package[: len(package) - found.level + 1]
    return ".".join([*base, *([found.module] if found.module else [])])


def _targets(found: Import, module: str, is_package: bool, known: set[str], roots: set[str]) -> Iterator[str]:
    """Modules that an import leads to; of what is not ours, the top-level package, as import-linter has it."""
    name = _absolute(found, module, is_package)
    if name.split(".")[0] not in roots:
        yield name.split(".")[0]
        return
    for part in found.names or ("",):
        inner = f"{name}.{part}"
        yield inner if part and inner in known else name


def native_imports(root: Path, packages: Iterable[str]) -> tuple[set[str], list[Edge]]:
    """The native modules of the packages below ``root``, and every import by them or of them."""
    roots = set(packages)
    files = [path for package in sorted(roots) for path in sorted((root / package).rglob("*"))]
    native_files = [path for path in files if path.suffix in NATIVE]
    python_files = [path for path in files if path.suffix == ".py"]
    python = {module_of(path, root) for path in python_files}
    native = {module_of(path, root) for path in native_files} - python
    edges = []
    for path in [*native_files, *python_files]:
        module, is_package = module_of(path, root), path.stem == "__init__"
        found = imports_of(path, module) if path.suffix in NATIVE else _imports_of_python(path)
        for one in found:
            if one.c_header:
                continue
            edges += [
                Edge(module, target, path, one.line)
                for target in _targets(one, module, is_package, python | native, roots)
                if target != module and (path.suffix in NATIVE or target in native)
            ]
    return native, edges
