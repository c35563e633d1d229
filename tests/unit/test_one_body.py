"""Each procedure of NFSv3 and each operation of NFSv4 has one body: a native function, or a handler in Python."""

from __future__ import annotations

import re
from pathlib import Path

import nfsd.v4.ops
from nfsd.exports import Export, ExportTable
from nfsd.protocol.nfs3 import PROCEDURES
from nfsd.v3.procedures import Nfs3Procedures
from nfsd.v3.program import nfs3_procedures
from nfsd.v4.operations import NATIVE, TABLE
from nfsd.vfs.service import FileService
from rpcrdma.rpc.offers import offers

IN_PYTHON = {"NULL", "READDIR", "READDIRPLUS", "FSSTAT", "FSINFO", "PATHCONF"}
"""Those with a handler; the others are native."""


def test_each_procedure_has_one_body(tmp_path: Path) -> None:
    service = FileService(ExportTable((Export(1, str(tmp_path), "/x"),)), str(tmp_path))
    native = Nfs3Procedures(service)
    procedures = nfs3_procedures(service, service.exports)
    assert procedures.keys() == PROCEDURES.keys()
    for number, row in procedures.items():
        assert offers(native, number) == (row.handler is None), row.name
    assert {row.name for row in procedures.values() if row.handler is not None} == IN_PYTHON


def test_each_native_operation_has_one_body() -> None:
    """SEQUENCE's is the state engine's, which both ways call."""
    source = (Path(nfsd.v4.__file__).parent / "procedures.pyx").read_text()
    dispatched = re.search(r"cdef int operation\(.*?(?:\n\n|\Z)", source, re.DOTALL)
    assert dispatched is not None
    native = set(re.findall(r"number == OP_([A-Z_]+)\b", dispatched.group()))
    assert native == {TABLE[number].name for number in NATIVE}
    assert {row.name for row in TABLE.values() if row.handler is None} == native
