"""Values of declared types, for hypothesis: of every kind, at their bounds, and wrong ones."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from hypothesis import strategies as st

from nfsd.protocol import mount3, nfs3, nfs4
from rpcrdma.rpc import messages
from rpcrdma.xdr import Node, Payload, node_of, schema
from tests.unit import xdr_samples

MODULES: tuple[ModuleType, ...] = (messages, nfs3, mount3, nfs4, xdr_samples)

DECLARED: list[type] = sorted(
    {
        value
        for module in MODULES
        for value in vars(module).values()
        if isinstance(value, type) and hasattr(value, "__xdr__")
    },
    key=lambda cls: (cls.__module__, cls.__name__),
)
"""Every structure and union of the project."""

RANGES = {
    schema.UINT32: (0, 2**32 - 1),
    schema.INT32: (-(2**31), 2**31 - 1),
    schema.UINT64: (0, 2**64 - 1),
    schema.INT64: (-(2**63), 2**63 - 1),
}


def values_of(node: Node, wrong: bool = False) -> st.SearchStrategy[Any]:
    """Values of ``node``; with ``wrong`` some of them break the declaration somewhere."""
    fine = _values_of(node, wrong)
    if not wrong:
        return fine
    return st.one_of(
        fine,
        fine,
        fine,
        st.sampled_from(
            [None, -1, 1 << 32, 1 << 64, -(1 << 63) - 1, True, "text", b"", b"12345", [], [None], object()]
        ),
    )


def _values_of(node: Node, wrong: bool) -> st.SearchStrategy[Any]:
    kind = node.kind
    if kind in RANGES:
        low, high = RANGES[kind]
        return st.one_of(st.integers(low, high), st.sampled_from([low, high]))
    if kind == schema.BOOL:
        return st.booleans()
    if kind == schema.ENUM:
        members = st.sampled_from(sorted(node.members.values()))
        return members if node.strict else st.one_of(members, st.integers(-1, 2**32 - 1))
    if kind == schema.VOID:
        return st.none()
    if kind == schema.FIXED:
        return st.binary(min_size=node.size, max_size=node.size)
    if kind in (schema.OPAQUE, schema.BULK):
        octets = st.binary(max_size=min(node.size + wrong, 9))
        if kind == schema.BULK:
            return st.one_of(octets, octets.map(memoryview), octets.map(lambda data: Payload(memoryview(data))))
        return octets
    if kind == schema.OPTIONAL:
        assert node.element
        return st.one_of(st.none(), values_of(node.element, wrong))
    if kind in (schema.ARRAY, schema.FIXED_ARRAY, schema.CHAIN):
        assert node.element
        low = node.size if kind == schema.FIXED_ARRAY else 0
        return st.lists(values_of(node.element, wrong), min_size=low, max_size=max(low, min(node.size + wrong, 3)))
    assert node.cls is not None
    if kind == schema.STRUCT:
        return st.builds(node.cls, *[values_of(part, wrong) for _, part in node.fields])
    return st.one_of(*_arms(node, wrong))


def _arms(node: Node, wrong: bool) -> list[st.SearchStrategy[Any]]:
    assert node.cls is not None
    cls, discriminant = node.cls, node.fields[0][1]
    found = []
    for value, index in node.arms.items():
        selected = discriminant.members.get(value, bool(value) if discriminant.kind == schema.BOOL else value)
        arm = {node.fields[index][0]: values_of(node.fields[index][1], wrong)} if index else {}
        found.append(st.builds(cls, st.just(selected), **arm))
    if node.default is not None:
        others = _values_of(discriminant, wrong).filter(lambda value: int(value) not in node.arms)
        if discriminant.kind == schema.ENUM:
            others = st.one_of(others, st.integers(20000, 2**32 - 1))
        arm = {node.fields[node.default][0]: values_of(node.fields[node.default][1], wrong)} if node.default else {}
        found.append(st.builds(cls, others, **arm))
    return found


def typed_values(wrong: bool = False) -> st.SearchStrategy[tuple[type, Any]]:
    """A declared type with a value of it."""
    return st.sampled_from(DECLARED).flatmap(lambda cls: st.tuples(st.just(cls), values_of(node_of(cls), wrong)))


def samples_of(node: Node) -> list[Any]:
    """A few values of ``node`` that together use every arm, both ends of integers, empty and full containers."""
    kind = node.kind
    if kind in RANGES:
        return [1, *RANGES[kind]]
    if kind == schema.BOOL:
        return [True, False]
    if kind == schema.ENUM:
        return [*node.members.values()][:3] + ([] if node.strict else [0x7FFF0000])
    if kind == schema.FIXED:
        return [bytes(range(1, node.size + 1))]
    if kind == schema.OPAQUE:
        return [b"abcde"[: node.size], b"", b"wxyz"[: node.size]]
    if kind == schema.BULK:
        return [Payload(memoryview(b"abcde")), b"inline", Payload(memoryview(b"abcd")), Payload(memoryview(b""))]
    if kind == schema.OPTIONAL:
        assert node.element
        return [*samples_of(node.element), None]
    if kind in (schema.ARRAY, schema.FIXED_ARRAY, schema.CHAIN):
        assert node.element
        parts = samples_of(node.element)
        if kind == schema.FIXED_ARRAY:
            return [(parts * node.size)[: node.size]]
        return [parts[:2][: node.size], [], (parts * 4)[: min(node.size, 4)]]
    assert node.cls is not None
    if kind == schema.STRUCT:
        columns = [samples_of(part) for _, part in node.fields]
        rows = max(len(column) for column in columns)
        return [node.cls(*[column[row % len(column)] for column in columns]) for row in range(rows)]
    return [
        value
        for index, selected in _selectors(node)
        for value in (
            [node.cls(selected, **{node.fields[index][0]: sample}) for sample in samples_of(node.fields[index][1])]
            if index
            else [node.cls(selected)]
        )
    ]


def _selectors(node: Node) -> list[tuple[int, Any]]:
    """One discriminant for each arm of a union."""
    discriminant = node.fields[0][1]
    chosen: dict[int, Any] = {}
    for value, index in node.arms.items():
        member = discriminant.members.get(value, bool(value) if discriminant.kind == schema.BOOL else value)
        chosen.setdefault(index, member)
    if node.default is not None:
        chosen.setdefault(node.default, 0x7FFF0000)
    return list(chosen.items())
