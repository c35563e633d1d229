"""Declarations compiled to nodes: ``@struct`` and ``@union`` on typed Python classes.

Owns :class:`Node`, the one description of a type that both codecs walk; imports the marks and the errors only.

A declaration is compiled when its class statement runs, and may only name types that are already declared: so no type
contains itself, and the depth to which a codec recurses is fixed by the declarations, never by the peer (linked lists
are chains, walked in a loop). A variable size without a bound does not compile: every size from the wire is checked
against a bound of ours before anything is allocated.

    @struct                                 # struct { T f; ... }
    class READ4resok:
        eof: bool
        data: Annotated[Payload, opaque(LIMIT), DDP]

    @union(void=DEFAULT)                    # union switch (nfsstat4 status) { case NFS4_OK: ...; default: void; }
    class READ4res:
        status: nfsstat4
        resok4: Annotated[READ4resok | None, case(nfsstat4.NFS4_OK)] = None

A union whose cases are ``TRUE: T`` and ``FALSE: void`` is the same on the wire as ``*T`` (RFC 4506 section 4.19) and
is declared ``T | None``.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import IntEnum
from inspect import get_annotations
from typing import (
    Annotated,
    Any,
    Final,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    overload,
)

from rpcrdma.xdr.errors import SchemaError
from rpcrdma.xdr.markers import DEFAULT, Array, Case, Chain, Ddp, Default, Opaque, OpenEnum, Scalar

T = TypeVar("T")

VOID: Final = 0
UINT32: Final = 1
INT32: Final = 2
UINT64: Final = 3
INT64: Final = 4
BOOL: Final = 5
ENUM: Final = 6
OPAQUE: Final = 7
FIXED: Final = 8
BULK: Final = 9
ARRAY: Final = 10
FIXED_ARRAY: Final = 11
CHAIN: Final = 12
OPTIONAL: Final = 13
STRUCT: Final = 14
UNION: Final = 15

KIND_NAMES: Final = (
    "void", "uint32", "int32", "uint64", "int64", "bool", "enum", "opaque", "fixed", "bulk",
    "array", "fixed_array", "chain", "optional", "struct", "union",
)  # fmt: skip

_SCALARS: Final = {(32, False): UINT32, (32, True): INT32, (64, False): UINT64, (64, True): INT64}


class Node:
    """One compiled type.

    ``kind`` is one of the constants above, ``min_size`` the fewest octets a value takes. The rest by kind:

    - ENUM: ``members`` maps values to members of ``cls``; ``strict`` refuses other values.
    - OPAQUE, FIXED, BULK: ``size``; BULK is a DDP-eligible OPAQUE.
    - ARRAY, FIXED_ARRAY, CHAIN: ``size`` and ``element``. OPTIONAL: ``element``.
    - STRUCT: ``cls`` and ``fields`` (name, node).
    - UNION: ``cls``, ``fields`` with the discriminant first, then the arms; ``arms`` maps a discriminant to its
      arm's index in ``fields``, 0 for void; ``default`` is that index for other discriminants, None if there is none.
    """

    __slots__ = (
        "arms",
        "cls",
        "default",
        "element",
        "fields",
        "kind",
        "members",
        "min_size",
        "name",
        "native",
        "size",
        "strict",
    )

    def __init__(self, kind: int, name: str, min_size: int) -> None:
        self.kind = kind
        self.name = name
        self.min_size = min_size
        self.size = 0
        self.strict = True
        self.element: Node | None = None
        self.members: dict[int, IntEnum] = {}
        self.cls: type[Any] | None = None
        self.fields: tuple[tuple[str, Node], ...] = ()
        self.arms: dict[int, int] = {}
        self.default: int | None = None
        self.native: Any = None
        """What the native codec made of this node."""

    def __repr__(self) -> str:
        return f"<Node {KIND_NAMES[self.kind]} {self.name}>"


_VOID_NODE: Final = Node(VOID, "void", 0)
_nodes: dict[Any, Node] = {None: _VOID_NODE, bool: Node(BOOL, "bool", 4)}


def node_of(kind: Any) -> Node:
    """The node of a declared class, an alias, an IntEnum, ``bool`` or None (void). Raises SchemaError."""
    node = _nodes.get(kind)
    if node is None:
        node = _nodes[kind] = kind if isinstance(kind, Node) else _compile(kind)
    return node


def _compile(kind: Any) -> Node:
    if isinstance(kind, type) and issubclass(kind, IntEnum):
        return _enum(kind, strict=True)
    origin = get_origin(kind)
    if origin is Annotated:
        base, *marks = get_args(kind)
        return _annotated(kind, base, marks)
    if origin is Union or origin is types.UnionType:
        rest = [part for part in get_args(kind) if part is not type(None)]
        if len(rest) == 1 and len(get_args(kind)) == 2:
            return _container(OPTIONAL, node_of(rest[0]), 0, 4)
    raise SchemaError(f"{kind!r} is not an XDR type: declare it, or mark it with Annotated")


def _enum(cls: type[IntEnum], *, strict: bool) -> Node:
    node = Node(ENUM, cls.__name__, 4)
    node.cls = cls
    node.strict = strict
    node.members = {int(member): member for member in cls}
    if not all(-(1 << 31) <= value < 1 << 31 for value in node.members):
        raise SchemaError(f"{cls.__name__}: an enumeration is a signed 32-bit integer (RFC 4506 section 4.3)")
    return node


def _container(kind: int, element: Node, size: int, min_size: int) -> Node:
    if element.min_size == 0:
        # A count of such elements could not be checked against the octets that remain.
        raise SchemaError(f"{element.name}: elements need at least one octet each")
    node = Node(kind, f"{KIND_NAMES[kind]} of {element.name}", min_size)
    node.element = element
    node.size = size
    return node


def _annotated(kind: Any, base: Any, marks: list[Any]) -> Node:
    shapes = [mark for mark in marks if not isinstance(mark, (Ddp, Case, Default))]
    bulk = any(isinstance(mark, Ddp) for mark in marks)
    if len(shapes) != 1:
        raise SchemaError(f"{kind!r}: exactly one of a scalar, opaque, fixed, array, chain or open_enum mark is needed")
    shape = shapes[0]
    if bulk and not (isinstance(shape, Opaque) and not shape.fixed):
        raise SchemaError(f"{kind!r}: only variable-length opaque data is declared DDP-eligible here")
    if isinstance(shape, Scalar):
        number = _SCALARS[shape.bits, shape.signed]
        return Node(number, KIND_NAMES[number], shape.bits // 8)
    if isinstance(shape, OpenEnum):
        return _enum(shape.enum, strict=False)
    if not isinstance(shape, (Opaque, Array, Chain)):
        raise SchemaError(f"{kind!r}: unknown mark {shape!r}")
    if shape.size is None:
        raise SchemaError(f"{kind!r}: give a limit of our own where the RFC gives none")
    if not 0 <= shape.size <= 0xFFFFFFFF:
        raise SchemaError(f"{kind!r}: a size is an unsigned 32-bit integer")
    if isinstance(shape, Opaque):
        number = FIXED if shape.fixed else BULK if bulk else OPAQUE
        node = Node(number, f"{KIND_NAMES[number]}({shape.size})", (shape.size + 3) & ~3 if shape.fixed else 4)
        node.size = shape.size
        return node
    element_types = get_args(base)
    if get_origin(base) is not list or len(element_types) != 1:
        raise SchemaError(f"{kind!r}: arrays and chains are list[T]")
    element = node_of(element_types[0])
    if isinstance(shape, Chain):
        return _container(CHAIN, element, shape.size, 4)
    if shape.fixed:
        return _container(FIXED_ARRAY, element, shape.size, shape.size * element.min_size)
    return _container(ARRAY, element, shape.size, 4)


def _hints(cls: type[Any]) -> dict[str, Any]:
    """The types of a class's fields: as :func:`typing.get_type_hints`, which compiles each by itself, has them."""
    written = get_annotations(cls)
    if not written:
        raise SchemaError(f"{cls.__name__} declares nothing")
    names = [name for name, hint in written.items() if isinstance(hint, str)]
    source = f"[{', '.join(written[name] for name in names)}]"
    try:
        read = eval(source, vars(sys.modules[cls.__module__]))
    except NameError as error:
        raise SchemaError(f"{cls.__name__}: {error}; types are declared before their use") from None
    return {**written, **dict(zip(names, read, strict=True))}


def _finish(cls: type[T], node: Node) -> type[T]:
    if hasattr(cls, "__post_init__"):
        raise SchemaError(f"{cls.__name__}: decoding calls no constructor, so __post_init__ would not run")
    # Comparing and showing values go by the declaration. Compiled for each of some hundred classes, they would be a
    # tenth of what it takes a server to start; a docstring made of the signature, another twentieth.
    cls.__doc__ = cls.__doc__ or f"{KIND_NAMES[node.kind]} {cls.__name__}"
    made = dataclass(slots=True, repr=False, eq=False)(cls)
    if tuple(field.name for field in fields(made)) != tuple(name for name, _ in node.fields):  # type: ignore[arg-type]
        raise SchemaError(f"{cls.__name__}: declarations are not inherited")
    node.cls = made
    made.__xdr__ = node  # type: ignore[attr-defined]
    made.__eq__, made.__repr__, made.__hash__ = _equal, _shown, None  # type: ignore[assignment]
    _nodes[made] = node
    return made


def _equal(one: Any, other: Any) -> Any:
    """Whether two values of declared types are of the same one and alike."""
    if other.__class__ is not one.__class__:
        return NotImplemented
    return all(getattr(one, name) == getattr(other, name) for name, _ in one.__xdr__.fields)


def _shown(value: Any) -> str:
    """As a dataclass shows itself."""
    shown = (f"{name}={getattr(value, name)!r}" for name, _ in value.__xdr__.fields)
    return f"{value.__class__.__qualname__}({', '.join(shown)})"


@dataclass_transform()
def struct(cls: type[T]) -> type[T]:
    """Declare an XDR structure (RFC 4506 section 4.14): the class gets slots, a constructor, equality and a repr."""
    declared = tuple((name, node_of(kind)) for name, kind in _hints(cls).items())
    node = Node(STRUCT, cls.__name__, sum(part.min_size for _, part in declared))
    node.fields = declared
    return _finish(cls, node)


@overload
def union(cls: type[T]) -> type[T]: ...
@overload
def union(*, void: tuple[int, ...] | Default) -> Callable[[type[T]], type[T]]: ...
@dataclass_transform()
def union(
    cls: type[T] | None = None, *, void: tuple[int, ...] | Default = ()
) -> type[T] | Callable[[type[T]], type[T]]:
    """Declare an XDR discriminated union (RFC 4506 section 4.15).

    The first field is the discriminant; every further one is an arm, ``Annotated[T | None, case(...)] = None`` or with
    ``DEFAULT`` instead of the case, and is None while not selected. ``void`` names the cases without data, or is
    ``DEFAULT``. A discriminant without an arm is an error if there is no default; with one it is kept, as an integer.
    """

    def declare(cls: type[T]) -> type[T]:
        return _finish(cls, _union_node(cls, void))

    return declare if cls is None else declare(cls)


def _union_node(cls: type[Any], void: tuple[int, ...] | Default) -> Node:
    (name, kind), *rest = _hints(cls).items()
    discriminant = node_of(kind)
    if discriminant.kind not in (UINT32, INT32, BOOL, ENUM):
        raise SchemaError(f"{cls.__name__}: the discriminant is an integer, a bool or an enumeration")
    node = Node(UNION, cls.__name__, 0)
    declared = [(name, discriminant)]
    selectors: list[tuple[tuple[int, ...] | Default, int]] = [(void, 0)]
    for index, (arm, kind_or_none) in enumerate(rest, start=1):
        base, *marks = get_args(kind_or_none) if get_origin(kind_or_none) is Annotated else (kind_or_none,)
        selector = [mark for mark in marks if isinstance(mark, (Case, Default))]
        others = [mark for mark in marks if not isinstance(mark, (Case, Default))]
        optional = [part for part in get_args(base) if part is not type(None)]
        if len(selector) != 1 or others or len(optional) != 1 or getattr(cls, arm, arm) is not None:
            raise SchemaError(f"{cls.__name__}.{arm}: an arm is Annotated[T | None, case(...)] = None")
        declared.append((arm, node_of(optional[0])))
        selectors.append((selector[0].values if isinstance(selector[0], Case) else DEFAULT, index))
    for chosen, index in selectors:
        if isinstance(chosen, Default):
            if node.default is not None:
                raise SchemaError(f"{cls.__name__}: two default arms")
            node.default = index
            continue
        for value in chosen:
            if int(value) in node.arms:
                raise SchemaError(f"{cls.__name__}: two arms for {value!r}")
            node.arms[int(value)] = index
    if discriminant.kind == ENUM:
        unknown = [value for value in node.arms if value not in discriminant.members]
        if unknown:
            raise SchemaError(f"{cls.__name__}: {unknown} are no values of {discriminant.name}")
        assert isinstance(discriminant.cls, type)
        if node.default is not None:
            declared[0] = (name, _enum(discriminant.cls, strict=False))
    node.fields = tuple(declared)
    sizes = [
        declared[index][1].min_size if index else 0
        for index in (*node.arms.values(), node.default)
        if index is not None
    ]
    if not sizes:
        raise SchemaError(f"{cls.__name__}: no arm at all")
    node.min_size = 4 + min(sizes)
    return node
