"""Formats that are generated for native code from the declarations agree with the reference codec."""

import importlib
import os
import shutil
import subprocess
import sys
from enum import IntEnum
from typing import Annotated

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nfsd import wire
from rpcrdma.xdr import Payload, array, codec, fixed, opaque, schema, struct, uint32
from rpcrdma.xdr.errors import XdrError
from rpcrdma.xdr.generate import (
    Unsupported,
    ends_in_bulk,
    fixed_size,
    largest_size,
    numbers,
    text,
    with_parts,
    write,
)
from tests.support import formats
from tests.unit.xdr_values import values_of

NODES = {}
for file, (module, types, _) in wire.FORMATS.items():
    declared = importlib.import_module(module)
    NODES[file] = [schema.node_of(getattr(declared, each)) for each in types]
ALL = [(file, node) for file, nodes in NODES.items() for node in with_parts(nodes)]
IDS = [node.name for _, node in ALL]


@pytest.fixture(scope="session")
def tried(tmp_path_factory):
    return formats.build(
        tmp_path_factory.mktemp("formats"), {file: list(with_parts(nodes)) for file, nodes in NODES.items()}
    )


def encoded(node, value):
    encoder = codec.Encoder()
    encoder.encode(node, value)
    return encoder.getvalue()


def decoded(node, octets):
    """Value and octets taken, or None."""
    decoder = codec.Decoder(octets)
    try:
        value = decoder.decode(node)
    except XdrError:
        return None
    return value, decoder.position


def without_payloads(value):
    """The value with data in place of payloads, which an encoder leaves out."""
    for name in getattr(value, "__dataclass_fields__", ()):
        part = getattr(value, name)
        setattr(value, name, bytes(part.view) if isinstance(part, Payload) else without_payloads(part))
    return value


def data_octets(node, value):
    """Octets of the DDP-eligible item at the end, with its padding: these are not loaded."""
    if value is None:
        return 0
    if node.kind == schema.BULK:
        return (len(value) + 3) & ~3
    if node.kind in (schema.STRUCT, schema.UNION):
        return sum(data_octets(part, getattr(value, name)) for name, part in node.fields)
    return 0


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("file", "node"), ALL, ids=IDS)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_values_come_and_go_as_the_reference_has_them(tried, file, node, data):
    value = without_payloads(data.draw(values_of(node)))
    octets = encoded(node, value)
    more = data.draw(st.binary(max_size=8))
    taken, stored, fields = getattr(tried[file], f"try_{node.name}")(octets + more)
    head = len(octets) - data_octets(node, value)
    assert taken == head
    assert stored == octets[:head]
    assert fields == formats.plain(node, value)
    size = fixed_size(node)
    assert head == size if size is not None else head <= largest_size(node)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("file", "node"), ALL, ids=IDS)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_what_is_none_is_refused_by_both(tried, file, node, data):
    octets = bytearray(encoded(node, without_payloads(data.draw(values_of(node)))))
    for _ in range(data.draw(st.integers(0, 3))):
        octets[data.draw(st.integers(0, len(octets) - 1))] = data.draw(st.sampled_from([0, 1, 2, 3, 0x7F, 0x80, 0xFF]))
    octets = bytes(octets[: data.draw(st.sampled_from([len(octets), data.draw(st.integers(0, len(octets)))]))])
    native, reference = getattr(tried[file], f"try_{node.name}")(octets), decoded(node, octets)
    if reference is None:
        # What follows the count of a DDP-eligible item may stand elsewhere.
        assert native is None or ends_in_bulk(node)
        return
    value, position = reference
    taken, stored, fields = native
    assert taken == position - data_octets(node, value)
    assert fields == formats.plain(node, value)
    # Padding is stored as zeros, whatever it was.
    assert stored == encoded(node, value)[:taken]


def test_sizes_that_native_code_was_written_with():
    sizes = {node.name: fixed_size(node) for _, node in ALL}
    assert (sizes["fattr3"], sizes["wcc_attr"], sizes["stateid4"]) == (84, 24, 16)
    assert (sizes["SEQUENCE4args"], sizes["SEQUENCE4resok"], sizes["change_info4"]) == (32, 36, 20)
    assert largest_size(schema.node_of(importlib.import_module("nfsd.protocol.nfs3").wcc_data)) == 116


def test_numbers_are_the_declarations():
    nfs4 = importlib.import_module("nfsd.protocol.nfs4")
    found = numbers(nfs4)
    assert (found["OP_READ"], found["NFS4ERR_DELAY"], found["FATTR4_MODE"]) == (25, 10008, 33)
    for name, value in found.items():
        member = getattr(nfs4, name, value)
        assert not isinstance(member, int) or member == value


def test_one_name_has_one_number():
    class One(IntEnum):
        SAME = 1

    class Other(IntEnum):
        SAME = 2

    module = type(formats)("declarations")
    module.One, module.Other = One, Other
    with pytest.raises(ValueError, match="SAME is 1 and 2"):
        numbers(module)


def test_what_cannot_be_generated_is_refused():
    @struct
    class Part:
        word: uint32

    @struct
    class Row:
        parts: Annotated[list[Part], array(3)]

    module = type(formats)("declarations")
    module.Row = Row
    with pytest.raises(Unsupported):
        text(module, ["Row"], "Rows.")


def test_files_are_written_when_they_change(tmp_path, monkeypatch):
    package = type(formats)("package")
    package.__path__, package.FORMATS = [str(tmp_path)], {"nfs3": wire.FORMATS["nfs3"]}
    (file,) = write(package)
    assert file == tmp_path / "nfs3.pxd"
    assert file.read_text() == (tmp_path.__class__(wire.__path__[0]) / "nfs3.pxd").read_text(), "build the extensions"
    before = file.stat().st_mtime_ns
    write(package)
    assert file.stat().st_mtime_ns == before
    file.write_text("else")
    write(package)
    assert file.read_text() != "else"


def test_nothing_compiled_is_needed(tmp_path):
    """An empty tree builds: all that the generator has is Python files, and xdrlib3."""
    for package in ("nfsd", "rpcrdma"):
        for source in (formats.ROOT / package).rglob("*.py"):
            target = tmp_path / source.relative_to(formats.ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
    environment = {**os.environ, "RPCRDMA_XDR": "reference", "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-m", "rpcrdma.xdr.generate", "nfsd.wire", "rpcrdma.wire"]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True)
    assert (tmp_path / "rpcrdma/wire/rpc.pxd").exists()
    for name in wire.FORMATS:
        file = f"nfsd/wire/{name}.pxd"
        assert (tmp_path / file).read_text() == (formats.ROOT / file).read_text(), "build the extensions"


@struct
class Verifier:
    octets: Annotated[bytes, fixed(5)]
    name: Annotated[bytes, opaque(3)]


def test_padding_counts():
    assert (fixed_size(schema.node_of(Verifier)), largest_size(schema.node_of(Verifier))) == (None, 16)
