"""The declarations are the RFCs': names, order, bounds, values and discriminants against the table of facts.

``facts.json`` is derived from the RFCs' XDR by ``derive.py``. A later minor version's source lists everything that an
earlier one has, so the declarations are compared with the latest, and the earlier sources with what they may differ in.
"""

from __future__ import annotations

import json
import re
from enum import IntEnum
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from nfsd.protocol import mount3, nfs3, nfs4, nfs4_ops
from rpcrdma.rpc import messages
from rpcrdma.xdr import Node, node_of, schema
from tests.rfc.plugin import covers

TABLE: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "facts.json").read_text())

MODULES: dict[str, tuple[ModuleType, ...]] = {
    "rpc": (messages,),
    "nfs3": (nfs3, mount3),
    "nfs40": (nfs4, messages),
    "nfs41": (nfs4, messages),
    "nfs42": (nfs4, messages),
    "xattr": (nfs4, messages),
}

REPLACED_BY_TABLES = {
    "nfs_argop4", "nfs_resop4", "COMPOUND4args", "COMPOUND4res",
    "nfs_cb_argop4", "nfs_cb_resop4", "CB_COMPOUND4args", "CB_COMPOUND4res",
}  # fmt: skip
"""Compounds are decoded operation by operation (nfs4_ops)."""

NOT_DECLARED = {
    "nfs3": {"uint32", "uint64", "int32", "int64"},
    # RPCSEC_GSSv3 privileges of inter-server copy (RFC 7862 section 4.10.1); a type that nothing uses (RFC 7531).
    "nfs42": {"secret4", "copy_from_auth_priv", "copy_to_auth_priv", "copy_confirm_auth_priv"},
    "nfs40": {"nfs_lockid4"},
}

MISPRINTS = {"MNT_OK": "MNT3_OK"}
"""RFC 1813 appendix I calls the status MNT3_OK, and MNT_OK once."""

SAME_OCTETS = {("nfs40", "clientaddr4"), ("nfs40", "open_owner4"), ("nfs40", "lock_owner4")}
"""Structures of RFC 7531 that RFC 5662 gives another name, or other names for the fields."""

GROWN = {"nfsstat4", "nfs_opnum4", "open_delegation_type4"}
"""Enumerations to which RFC 8276 and RFC 9754 add."""

ADDED_ARMS = {
    "open_delegation4": {
        nfs4.open_delegation_type4.OPEN_DELEGATE_READ_ATTRS_DELEG,
        nfs4.open_delegation_type4.OPEN_DELEGATE_WRITE_ATTRS_DELEG,
    }
}
"""What RFC 9754 adds to unions."""

SCALARS = {"uint32": schema.UINT32, "int32": schema.INT32, "uint64": schema.UINT64, "int64": schema.INT64}

ELIGIBLE = {
    ("WRITE3args", "data"), ("symlinkdata3", "symlink_data"), ("READ3resok", "data"), ("READLINK3resok", "data"),
    ("WRITE4args", "data"), ("createtype4", "linkdata"), ("READ4resok", "data"), ("READLINK4resok", "link"),
}  # fmt: skip
"""RFC 8267 sections 3 and 4: everything that may travel by direct data placement."""


def find(source: str, name: str) -> Any:
    for module in MODULES[source]:
        if hasattr(module, name):
            return getattr(module, name)
    raise AssertionError(f"{name} is not declared")


class Comparison:
    def __init__(self, source: str) -> None:
        self.source = source
        self.facts = dict(TABLE[source])
        if source == "xattr":
            self.facts = TABLE["nfs42"] | {
                name: fact for name, fact in self.facts.items() if not fact["kind"].startswith("additional")
            }

    def value(self, case: str, discriminant: str) -> int:
        case = MISPRINTS.get(case, case)
        members = self.facts.get(discriminant, {}).get("members", {})
        return int(members[case] if case in members else self.facts[case]["value"])

    def is_chain(self, name: str) -> bool:
        """Whether the last field of ``name`` points to the next ``name``."""
        fact = self.facts.get(name, {})
        if fact.get("kind") != "struct":
            return False
        last = fact["fields"][-1][1]
        return f"{name}*" in (last, self.facts.get(last, {}).get("type"))

    def optional_arm(self, fact: dict[str, Any]) -> str | None:
        """The type of a union of TRUE and nothing (the same octets as a pointer, RFC 4506 section 4.19)."""
        if fact["kind"] == "union" and fact["switch"][1] == "bool":
            arms = {arm[0][0] if arm[0] else "default": arm for arm in fact["arms"]}
            if len(arms) == 2 and "TRUE" in arms and next(arms[key] for key in arms if key != "TRUE")[2] == "void":
                return str(arms["TRUE"][2])
        return None

    def same(self, node: Node, kind: str) -> None:
        """Assert that ``node`` is the type that the text ``kind`` stands for."""
        match = re.fullmatch(r"(\w+)(?:([<\[])(\d*)[>\]]|(\*))?", kind)
        assert match, kind
        base, bracket, size, star = match.groups()
        if star and self.is_chain(base):
            assert node.kind == schema.CHAIN, (kind, node)
            assert node.element
            self.same(node.element, base)
        elif star:
            assert node.kind == schema.OPTIONAL, (kind, node)
            assert node.element
            self.same(node.element, base)
        elif bracket:
            fixed = bracket == "["
            if base == "opaque":
                assert node.kind in ((schema.FIXED,) if fixed else (schema.OPAQUE, schema.BULK)), (kind, node)
            else:
                assert node.kind == (schema.FIXED_ARRAY if fixed else schema.ARRAY), (kind, node)
                assert node.element
                self.same(node.element, base)
            assert not size or node.size == int(size), (kind, node.size)
        elif base == "bool":
            assert node.kind == schema.BOOL, (kind, node)
        elif base in SCALARS:
            assert node.kind == SCALARS[base], (kind, node)
        elif base not in self.facts:
            assert node.name == base, (kind, node)  # RFC 5531's, declared in rpcrdma.rpc.messages
        else:
            self.same_name(node, base)

    def same_name(self, node: Node, name: str) -> None:
        fact = self.facts[name]
        optional = self.optional_arm(fact)
        if fact["kind"] == "typedef":
            self.same(node, fact["type"])
        elif optional and node.kind == schema.OPTIONAL:
            assert node.element
            self.same(node.element, optional)
        elif fact["kind"] == "enum":
            assert (node.kind, node.name) == (schema.ENUM, name)
        elif (self.source, name) not in SAME_OCTETS:
            assert (node.kind, node.name) == (schema.STRUCT if fact["kind"] == "struct" else schema.UNION, name)

    def struct(self, name: str, fact: dict[str, Any]) -> None:
        node = node_of(find(self.source, name))
        wanted = fact["fields"][:-1] if self.is_chain(name) else fact["fields"]
        if (self.source, name) not in SAME_OCTETS:
            assert [field.rstrip("_") for field, _ in node.fields] == [field for field, _ in wanted]
        for (_, part), (_, kind) in zip(node.fields, wanted, strict=True):
            self.same(part, kind)

    def union(self, name: str, fact: dict[str, Any]) -> None:
        node = node_of(find(self.source, name))
        optional = self.optional_arm(fact)
        if optional and node.kind == schema.OPTIONAL:
            self.same_name(node, name)
            return
        discriminant = fact["switch"][1]
        assert node.fields[0][0] == fact["switch"][0]
        self.same(node.fields[0][1], discriminant)
        arms: dict[int | None, tuple[str | None, str]] = {}
        for cases, field, kind in fact["arms"]:
            for case in cases if cases is not None else [None]:
                arms[None if case is None else self.value(case, discriminant)] = (field, kind)
        default = arms.pop(None, None)
        assert (node.default is not None) == (default is not None)
        for value, (field, kind) in arms.items():
            self.arm(node, node.arms.get(value, node.default), field, kind)
        if default:
            self.arm(node, node.default, *default)
        void = default is not None and default[1] == "void"
        extra = set(node.arms) - set(arms) - ADDED_ARMS.get(name, set())
        # Earlier minor versions have fewer arms; the declaration has those of all of them.
        assert not extra or (self.source == "nfs40" and not void), extra

    def arm(self, node: Node, index: int | None, field: str | None, kind: str) -> None:
        assert index is not None, field
        if kind == "void":
            assert index == 0
        else:
            name, part = node.fields[index]
            assert name == field
            self.same(part, kind)


CASES = [
    pytest.param(source, name, id=f"{source}-{name}")
    for source, facts in TABLE.items()
    for name, fact in facts.items()
    if name not in REPLACED_BY_TABLES | NOT_DECLARED.get(source, set()) | {"TRUE", "FALSE", "AUTH_NONE", "AUTH_SYS"}
    and name != "RPCSEC_GSS"
]


@pytest.mark.parametrize(("source", "name"), CASES)
def test_declaration_is_the_rfcs(source: str, name: str) -> None:
    comparison = Comparison(source)
    fact = TABLE[source][name]
    if fact["kind"] == "const":
        assert find(source, name) == fact["value"]
    elif fact["kind"] in ("enum", "additional members"):
        enum = find(source, name)
        assert issubclass(enum, IntEnum)
        declared = {member.name: member.value for member in enum}
        assert fact["members"].items() <= declared.items()
        if source in ("nfs3", "nfs42") and name not in GROWN:
            assert list(declared) == list(fact["members"])
    elif fact["kind"] == "typedef":
        comparison.same(node_of(find(source, name)), fact["type"])
    elif fact["kind"] == "struct":
        comparison.struct(name, fact)
    else:
        comparison.union(name, fact)


def test_the_table_is_not_empty() -> None:
    assert {source: len(facts) for source, facts in TABLE.items()} == {
        "rpc": 11, "nfs3": 165, "nfs40": 365, "nfs41": 654, "nfs42": 721, "xattr": 26,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "results", "numbers", "operations"),
    [
        ("nfs_argop4", "nfs_resop4", "nfs_opnum4", nfs4_ops.OPERATIONS),
        ("nfs_cb_argop4", "nfs_cb_resop4", "nfs_cb_opnum4", nfs4_ops.CALLBACK_OPERATIONS),
    ],
)
def test_operations_have_the_rfcs_types(
    arguments: str, results: str, numbers: str, operations: dict[int, nfs4_ops.Operation]
) -> None:
    members = dict(TABLE["nfs42"][numbers]["members"])
    arms = {name: list(TABLE["nfs42"][name]["arms"]) for name in (arguments, results)}
    if numbers == "nfs_opnum4":
        members |= TABLE["xattr"][numbers]["members"]
        for name in arms:
            arms[name] += TABLE["xattr"][name]["arms"]
    assert set(operations) == set(members.values())
    comparison = Comparison("xattr")
    for name, index in ((arguments, 1), (results, 2)):
        for (case,), _, kind in arms[name]:
            declared = operations[members[case]][index]
            assert operations[members[case]].name == case.removeprefix("OP_")
            if kind == "void":
                assert declared is None
            else:
                comparison.same_name(node_of(declared), kind)


def test_minor_versions_of_operations_follow_the_sources() -> None:
    for argop, operations in (
        ("nfs_argop4", nfs4_ops.OPERATIONS),
        ("nfs_cb_argop4", nfs4_ops.CALLBACK_OPERATIONS),
    ):
        known = {
            minor: {arm[0][0].removeprefix("OP_") for arm in TABLE[source][argop]["arms"]}
            for minor, source in enumerate(("nfs40", "nfs41", "nfs42"))
        }
        for operation in operations.values():
            if operation.name.endswith("XATTR") or operation.name == "LISTXATTRS":
                assert operation.minors == {2}  # RFC 8276 section 8.1
            elif operation.name in (
                "OPEN_CONFIRM", "RENEW", "SETCLIENTID", "SETCLIENTID_CONFIRM", "RELEASE_LOCKOWNER",
            ):  # fmt: skip
                assert operation.minors == {0}  # RFC 8881 section 17, table of operations
            else:
                assert operation.minors == {minor for minor, names in known.items() if operation.name in names}


def test_procedures_are_numbered_in_order() -> None:
    assert sorted(nfs3.PROCEDURES) == list(range(22))
    for procedure in list(nfs3.PROCEDURES.values())[1:]:
        assert procedure.results.__name__ == f"{procedure.name}3res"
        assert procedure.arguments.__name__ in (f"{procedure.name}3args", f"{procedure.name}args")


def test_every_attribute_has_a_type() -> None:
    facts = TABLE["nfs42"] | TABLE["xattr"]
    numbers = {fact["value"]: name for name, fact in facts.items() if name.startswith("FATTR4_")}
    comparison = Comparison("xattr")
    later = {
        nfs4.FATTR4_MODE_UMASK,
        nfs4.FATTR4_TIME_DELEG_ACCESS,
        nfs4.FATTR4_TIME_DELEG_MODIFY,
        nfs4.FATTR4_OPEN_ARGUMENTS,
    }
    assert set(nfs4.ATTRIBUTE_TYPES) == set(numbers) | later
    for number, name in numbers.items():
        comparison.same(node_of(nfs4.ATTRIBUTE_TYPES[number]), f"fattr4_{name.removeprefix('FATTR4_').lower()}")


@covers("RFC 8166 3.4.2 only-eligible", "RFC 8267 3 nfs3-eligible", "RFC 8267 4 nfs4-eligible")
def test_exactly_what_rfc_8267_lists_is_eligible_for_direct_data_placement() -> None:
    declared = {value for module in (nfs3, mount3, nfs4) for value in vars(module).values() if isinstance(value, type)}
    marked = {
        (cls.__name__, field)
        for cls in declared
        if hasattr(cls, "__xdr__")
        for field, part in node_of(cls).fields
        if part.kind == schema.BULK
    }
    assert marked == ELIGIBLE
