"""The contracts of import-linter, over native code as well: their types in ``pyproject.toml`` are these.

Owns :class:`Layers` and :class:`Forbidden`. They add what :mod:`tests.rules.native_imports` finds to the graph of
Python imports, and then are what they derive from: one list of contracts, one checker, one command (``lint-imports``).
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path

from grimp import ImportGraph
from importlinter import ContractCheck
from importlinter.contracts.forbidden import ForbiddenContract
from importlinter.contracts.layers import LayersContract

from tests.rules.native_imports import Edge, native_imports


@cache
def _edges(root: Path, packages: tuple[str, ...]) -> tuple[set[str], list[Edge]]:
    return native_imports(root, packages)


def _place_of(package: str) -> Path:
    """The directory that a package stands in."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ValueError(f"no package {package}")
    return Path(spec.submodule_search_locations[0]).parent


def add_native(graph: ImportGraph, packages: tuple[str, ...]) -> None:
    """Add the native modules of the packages, and all that they import or that imports them."""
    places = {_place_of(package) for package in packages}
    if len(places) != 1:
        raise ValueError(f"{packages} do not stand beside each other")
    modules, edges = _edges(places.pop(), packages)
    ours = set(packages)
    for module in sorted(modules - graph.modules):
        graph.add_module(module)
    for edge in edges:
        if edge.imported.split(".")[0] not in ours and edge.imported not in graph.modules:
            graph.add_module(edge.imported, is_squashed=True)
        graph.add_import(
            importer=edge.importer,
            imported=edge.imported,
            line_number=edge.line,
            line_contents=edge.path.read_text("utf-8").splitlines()[edge.line - 1].strip(),
        )


class Layers(LayersContract):
    """``type = "layers"``."""

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        add_native(graph, tuple(self.session_options["root_packages"]))
        return super().check(graph, verbose)


class Forbidden(ForbiddenContract):
    """``type = "forbidden"``."""

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        add_native(graph, tuple(self.session_options["root_packages"]))
        return super().check(graph, verbose)
