"""The generated formats made callable from Python: an extension that loads octets, shows what it found, and stores it.

Owns its text, which follows from the same declarations, and its building. It takes a C compiler, as the server does.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rpcrdma.xdr import schema
from rpcrdma.xdr.schema import Node

ROOT = Path(__file__).parents[2]

_SETUP = """\
from Cython.Build import cythonize
from setuptools import Extension, setup

names = {names!r}
setup(
    name="formats",
    ext_modules=cythonize(
        [Extension(name, [name + ".pyx"], extra_compile_args=["-O1", "-fsanitize=undefined", "-fno-sanitize-recover"],
                   extra_link_args=["-fsanitize=undefined"]) for name in names],
        include_path=[{root!r}], language_level=3, quiet=True,
    ),
    script_args=["-q", "build_ext", "--inplace"],
)
"""

_FUNCTION = """
cdef object show_{name}({name}_t *value):
    return {show}


def try_{name}(bytes octets):
    cdef {name}_t value
    cdef const uint8_t *at = <const uint8_t *><char *>octets
    cdef const uint8_t *behind = load_{name}(at, at + len(octets), &value)
    cdef bytearray out
    cdef uint8_t *sink
    cdef uint8_t *stop
    if behind == NULL:
        return None
    out = bytearray(b"\\xaa") * (len(octets) + 64)
    sink = <uint8_t *><char *>out
    stop = store_{name}(sink, &value)
    return behind - at, bytes(out[: stop - sink]), show_{name}(&value)
"""


def _show(value: str, node: Node) -> str:
    """An expression for a loaded value, as :func:`plain` makes it of a decoded one."""
    match node.kind:
        case schema.OPAQUE:
            return f"<bytes>{value}.octets[:{value}.length]"
        case schema.BULK:
            return value
        case schema.FIXED:
            return f"<bytes>{value}[:{node.size}]"
        case schema.ARRAY:
            assert node.element is not None
            size = node.element.min_size
            part = f"<bytes>{value}.octets[{size} * i : {size} * i + {size}]"
            return f"[int.from_bytes({part}, 'big') for i in range({value}.count)]"
        case schema.STRUCT | schema.UNION:
            return f"show_{node.name}(&{value})"
        case schema.BOOL:
            return f"bool({value})"
        case _:
            return value


def _field(name: str, node: Node) -> str:
    value = f"value.{name}"
    if node.kind == schema.OPTIONAL:
        assert node.element is not None
        return f"{_show(value, node.element)} if {value}_given else None"
    return "None" if node.kind == schema.VOID else _show(value, node)


def _showing(node: Node) -> str:
    if node.kind == schema.STRUCT:
        return "{" + ", ".join(f"{name!r}: {_field(name, part)}" for name, part in node.fields) + "}"
    (name, _), *arms = node.fields
    shown = [f"{name!r}: value.{name}"]
    for index, (arm, part) in enumerate(arms, 1):
        chosen = [number for number, which in node.arms.items() if which == index]
        condition = f"value.{name} in {tuple(chosen)}" if node.default != index else "True"
        shown.append(f"{arm!r}: ({_field(arm, part)}) if {condition} else None")
    return "{" + ", ".join(shown) + "}"


def plain(node: Node, value: Any) -> Any:
    """A decoded value in dictionaries and numbers."""
    if value is None:
        return None
    match node.kind:
        case schema.STRUCT | schema.UNION:
            return {name: plain(part, getattr(value, name)) for name, part in node.fields}
        case schema.OPTIONAL:
            assert node.element is not None
            return plain(node.element, value)
        case schema.BULK:
            return len(value)
        case schema.OPAQUE | schema.FIXED:
            return bytes(value)
        case schema.ARRAY:
            return list(value)
        case schema.ENUM:
            return int(value) & 0xFFFFFFFF  # other numbers of an open enumeration are without a sign in C
        case _:
            return value if isinstance(value, bool) else int(value)


def build(directory: Path, formats: dict[str, Sequence[Node]]) -> dict[str, Any]:
    """For each generated file the module with ``try_T(octets)`` for its types: None where ``load_T`` refuses, else the
    octets taken, what ``store_T`` makes of the value, and the value's fields."""
    for name, nodes in formats.items():
        lines = [f"from nfsd.wire.{name} cimport *", "from libc.stdint cimport uint8_t"]
        lines += [_FUNCTION.format(name=node.name, show=_showing(node)) for node in nodes]
        (directory / f"try_{name}.pyx").write_text("\n".join(lines))
    names = [f"try_{name}" for name in formats]
    (directory / "setup.py").write_text(_SETUP.format(names=names, root=str(ROOT)))
    subprocess.run([sys.executable, "setup.py"], cwd=directory, check=True, env=None)
    found = {}
    for name in formats:
        (file,) = directory.glob(f"try_{name}.*.so")
        spec = importlib.util.spec_from_file_location(f"try_{name}", file)
        assert spec is not None
        assert spec.loader is not None
        found[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(found[name])
    return found
